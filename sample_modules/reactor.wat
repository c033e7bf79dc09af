;; A module that is called again and again. Holds between calls: a global and a word of memory, no frame.
;; step(5) = 105, then step(7) = 112.
(module
  (memory (export "memory") 1)
  (global $n (mut i32) (i32.const 0))
  (func (export "_initialize") (global.set $n (i32.const 100)))
  (func (export "step") (param i32) (result i32)
    (global.set $n (i32.add (global.get $n) (local.get 0)))
    (i32.store (i32.const 8) (global.get $n))
    (global.get $n)))
