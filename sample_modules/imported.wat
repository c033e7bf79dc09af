;; Imported globals, one mutable, one that initialises another. Holds: six globals of four types, changed in a loop.
;; run() is a digest of their bits.
(module
  (import "env" "shared" (global $sh (mut i64)))
  (import "env" "k" (global $k i32))
  (global $a (mut i32) (global.get $k))
  (global $b (mut i64) (i64.const -5))
  (global $c (mut f32) (f32.const 0.5))
  (global $d (mut f64) (f64.const 1e300))
  (func (export "run") (result i64) (local $i i32)
    loop $l
      (global.set $a (i32.add (global.get $a) (i32.const 1)))
      (global.set $b (i64.mul (global.get $b) (i64.const 3)))
      (global.set $c (f32.mul (global.get $c) (f32.const 1.5)))
      (global.set $d (f64.div (global.get $d) (f64.const 7)))
      (global.set $sh (i64.add (global.get $sh) (i64.const 1)))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 20)))
    end
    (i64.xor (i64.xor (global.get $b) (i64.reinterpret_f64 (global.get $d)))
             (i64.xor (i64.extend_i32_u (i32.reinterpret_f32 (global.get $c)))
                      (i64.add (global.get $sh) (i64.shl (i64.extend_i32_u (global.get $a)) (i64.const 32)))))))
