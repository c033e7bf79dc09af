;; Vectors everywhere. Holds: v128 values in locals, in a mutable global (the state of four random sequences), as parameters
;; and results, on the operand stack under calls and at a loop's header, and in memory. run(4) = a digest.
(module
  (memory (export "memory") 1)
  (global $dice (mut v128) (v128.const i32x4 0x12345678 0x9abcdef1 0x2468ace1 0x13579bdf))
  (func $roll (result v128)
    (local $x v128)
    (local.set $x (global.get $dice))
    (local.set $x (v128.xor (local.get $x) (i32x4.shl (local.get $x) (i32.const 13))))
    (local.set $x (v128.xor (local.get $x) (i32x4.shr_u (local.get $x) (i32.const 17))))
    (global.set $dice (v128.xor (local.get $x) (i32x4.shl (local.get $x) (i32.const 5))))
    (global.get $dice))
  ;; Four dot products at once, with a running f32x4 sum on the operand stack around the loop.
  (func $dot (param $scale v128) (param $n i32) (result v128)
    (local $sum v128)
    (local.get $scale)
    (loop $l
      (local.set $sum
        (f32x4.add (local.get $sum)
                   (f32x4.mul (f32x4.convert_i32x4_s (i32x4.shr_s (call $roll) (i32.const 24)))
                              (local.get $scale))))
      (v128.store (i32.mul (local.get $n) (i32.const 16)) (local.get $sum))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (f32x4.add (local.get $sum)))
  (func $turn (param $v v128) (param $w v128) (result v128)
    (i8x16.shuffle 3 17 5 19 7 21 9 23 11 25 13 27 15 29 1 31 (local.get $v) (local.get $w)))
  (func (export "run") (param $n i32) (result i64)
    (local $sum v128) (local $i i32)
    (local.set $i (local.get $n))
    (loop $l
      (call $roll)  ;; waits while the two calls below run
      (call $dot (f32x4.splat (f32.convert_i32_u (local.get $i))) (local.get $n))
      (call $turn (v128.load (i32.const 16)))
      (local.set $sum (i16x8.add_sat_s (i64x2.add (local.get $sum))))
      (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
    (i64.add
      (i64.xor (i64x2.extract_lane 0 (local.get $sum)) (i64x2.extract_lane 1 (local.get $sum)))
      (i64.extend_i32_u (i8x16.bitmask (global.get $dice))))))
