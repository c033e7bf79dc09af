;; RUN:
;; Operands of four kinds wait under a call: a constant, an unchanged local, a changed local, a computed value.
(module
  (import "env" "hook" (func $hook (param i32) (result i32)))
  (func $f (param $x i32) (result i32)
    (if (local.get $x) (then (return (call $f (i32.sub (local.get $x) (i32.const 1))))))
    (call $hook (i32.mul (local.get $x) (i32.const 3))))
  (func (export "run") (param $a i32) (param $b i32) (result i32)
    (i32.const 7) (local.get $a) (local.get $b) (i32.add (local.get $a) (local.get $b))
    (local.set $b (i32.const 5))
    (call $f (i32.const 2))
    (i32.add) (i32.add) (i32.add) (i32.add)))
