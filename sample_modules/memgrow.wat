;; memory.grow up to the limit and beyond. Holds: the results of successful and failed grows in a local, a page added at
;; run time. run() = 122111.
(module
  (memory (export "memory") 1 3)
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func (export "run") (result i32) (local $r i32)
    (local.set $r (memory.grow (i32.const 1)))                                  ;; 1
    (call $spin (i32.const 100))                                                ;; <- checkpoint
    (local.set $r (i32.add (i32.mul (local.get $r) (i32.const 10)) (memory.size)))           ;; 12
    (local.set $r (i32.add (i32.mul (local.get $r) (i32.const 10)) (memory.grow (i32.const 1)))) ;; 122
    (local.set $r (i32.add (i32.mul (local.get $r) (i32.const 10)) (i32.eq (memory.grow (i32.const 1)) (i32.const -1)))) ;; 1221
    (local.set $r (i32.add (i32.mul (local.get $r) (i32.const 10)) (i32.eq (memory.grow (i32.const 65536)) (i32.const -1)))) ;; 12211
    (i32.store (i32.const 196604) (i32.const 1))
    (i32.add (i32.mul (local.get $r) (i32.const 10)) (i32.load (i32.const 196604)))))
