;; A start function, a data segment that it changes, a counter of starts. Holds: effects that must not happen twice.
;; run() = 1115, env.log gets 1, 2.
(module
  (import "env" "log" (func $log (param i32)))
  (memory (export "memory") 1)
  (data (i32.const 0) "\05\00\00\00")
  (global $boot (mut i32) (i32.const 0))
  (func $init
    (global.set $boot (i32.add (global.get $boot) (i32.const 1)))
    (i32.store (i32.const 0) (i32.mul (i32.load (i32.const 0)) (i32.const 3)))
    (call $log (i32.const 1)))
  (start $init)
  (func (export "run") (result i32) (local $i i32)
    loop $l
      (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 100)))
    end
    (call $log (i32.const 2))
    (i32.add (i32.load (i32.const 0)) (i32.mul (global.get $boot) (i32.const 1000)))))
