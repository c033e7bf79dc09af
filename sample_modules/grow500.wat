;; Memory that becomes 501 times as large between two host calls: its base may move. Holds: marks in the first and in
;; an added page. run() = 501005.
(module
  (import "env" "hook" (func $hook))
  (memory (export "memory") 1 600)
  (func (export "run") (result i32)
    (i32.store (i32.const 0) (i32.const 1))
    (call $hook)                                   ;; driver caches whatever it likes here
    (drop (memory.grow (i32.const 500)))
    (i32.store (i32.const 0) (i32.const 2))
    (i32.store (i32.const 32000000) (i32.const 3))
    (call $hook)                                   ;; <- dump here
    (i32.add (i32.add (i32.load (i32.const 0)) (i32.load (i32.const 32000000))) (i32.mul (memory.size) (i32.const 1000)))))
