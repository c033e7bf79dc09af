;; RUN: unroll=1 canonical_nans=True
;; A NaN is made canonical where its bits may be seen: not where the value goes straight into more arithmetic or a
;; comparison (the product, the first sum), but where it goes into a local, into memory, or waits while a call is made.
(module
  (import "env" "log" (func $log (param i32)))
  (memory 1)
  (func (export "run") (param $x f64) (param $y f64) (result f64) (local $s f64)
    (local.set $s (f64.sqrt (f64.add (f64.mul (local.get $x) (local.get $y)) (local.get $x))))
    (f32.store (i32.const 8) (f32.demote_f64 (f64.sub (local.get $s) (local.get $y))))
    (f64.neg (f64.div (local.get $x) (local.get $y)))
    (call $log (f64.lt (f64.add (local.get $s) (local.get $x)) (local.get $y))))
  (func (export "lanes") (param $x v128) (param $y v128) (result v128)
    (f32x4.min (f32x4.mul (local.get $x) (local.get $y)) (f64x2.mul (local.get $x) (local.get $y)))))
