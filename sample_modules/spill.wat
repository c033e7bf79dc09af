;; The guest hashes all of its memory and its size. Holds: an address in the middle of that memory in a local; any trace
;; of a spill area would show. run() = -1618501330.
(module
  (memory (export "memory") 1 3)
  (func (export "run") (result i32) (local $a i32) (local $h i32) (local $end i32)
    (i32.store (i32.const 65532) (i32.const 0x5eed))
    (local.set $end (i32.mul (memory.size) (i32.const 65536)))
    (local.set $h (i32.const 1))
    loop $l
      (local.set $h (i32.add (i32.mul (local.get $h) (i32.const 31)) (i32.load (local.get $a))))
      (br_if $l (i32.lt_u (local.tee $a (i32.add (local.get $a) (i32.const 4))) (local.get $end)))
    end
    (i32.add (local.get $h) (i32.mul (memory.size) (i32.const 1000000)))))
