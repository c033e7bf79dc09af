;; A function index in every place that can hold one: export, start, both kinds of element segment, table.set, call.
;; Holds: an accumulator in a global. run() = 321, env.log gets 46.
(module $shift
  (type $b (func (param i32 i32) (result i32)))
  (import "env" "log" (func $log (param i32)))
  (import "env" "base" (global $base i32))
  (memory (export "memory") 1)
  (global $copy i32 (global.get $base))
  (global $acc (mut i32) (i32.const 0))
  (table 4 funcref)
  (elem (i32.const 1) $add $sub)
  (elem declare func $mul)
  (export "sub2" (func $sub))
  (export "run" (func $run))
  (func $add (type $b) (i32.add (local.get 0) (local.get 1)))
  (func $sub (type $b) (i32.sub (local.get 0) (local.get 1)))
  (func $mul (type $b) (i32.mul (local.get 0) (local.get 1)))
  (func $boot (global.set $acc (global.get $copy)))
  (start $boot)
  (data (global.get $base) "\07")
  (func $run (result i32) (local $i i32)
    (table.set 0 (i32.const 3) (ref.func $mul))
    loop $l
      (global.set $acc (call_indirect (type $b) (global.get $acc) (i32.const 3) (i32.const 1)))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10)))
    end
    (call $log (global.get $acc))
    (call_indirect (type $b) (call_indirect (type $b) (global.get $acc) (i32.load8_u (global.get $copy)) (i32.const 3)) (i32.const 1) (i32.const 2))))
