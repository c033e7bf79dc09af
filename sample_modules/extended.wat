;; Sums and products in constants: of globals, of a data segment's place and of an element segment's. Holds: globals set by
;; them, a function found by them. run(4) = 4 * 26 + 50 + 14.
(module
  (import "env" "base" (global $base i32))
  (global $double i32 (i32.mul (global.get $base) (i32.const 2)))
  (global $sum (mut i64) (i64.add (i64.const 20) (i64.mul (i64.const 5) (i64.sub (i64.const 9) (i64.const 3)))))
  (memory (export "memory") 1)
  (data (offset (i32.add (global.get $base) (i32.const 4))) "\1a")
  (table 32 funcref)
  (elem (offset (i32.sub (global.get $base) (i32.const 10))) func $weigh)
  (func $weigh (param $n i32) (result i64)
    (local $total i64)
    (loop $l
      (local.set $total (i64.add (local.get $total) (i64.load8_u (i32.add (global.get $base) (i32.const 4)))))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (local.get $total))
  (func (export "run") (param $n i32) (result i64)
    (global.set $sum (i64.add (global.get $sum)
      (call_indirect (param i32) (result i64) (local.get $n) (i32.sub (global.get $base) (i32.const 10)))))
    (i64.add (global.get $sum) (i64.extend_i32_u (i32.sub (global.get $double) (i32.const 18))))))
