;; Exports the names by which some runtimes cut memory short. Holds: bytes all over one page. run() = 59.
(module
  (memory (export "memory") 1 1)
  (global (export "__data_end") i32 (i32.const 1024))
  (global (export "__heap_base") i32 (i32.const 1040))
  (func (export "run") (result i32) (local $i i32) (local $a i32)
    (local.set $a (i32.const 65535))
    loop $l
      (i32.store8 (local.get $a) (local.get $i))
      (local.set $a (i32.sub (local.get $a) (i32.const 1000)))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 60)))
    end
    (i32.add (i32.mul (i32.load8_u (i32.const 65535)) (i32.const 100)) (i32.load8_u (i32.const 6535)))))
