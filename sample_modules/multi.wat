;; Operands waiting under a call. Holds: five values of four types below a call, and two nested waiting operands.
;; run gives all five, run1 one number.
(module
  (func $sum (param $n i32) (result i32) (local $s i32)
    loop $l
      (local.set $s (i32.add (local.get $s) (local.get $n)))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))
    end
    local.get $s)
  (func (export "run") (result i32 i64 f32 f64 i32)
    i32.const 11
    i64.const 0x123456789abcdef0
    f32.const 1.5
    f64.const -2.25
    i32.const 100
    call $sum)
  (func (export "run1") (result i32)
    i32.const 1000000
    i32.const 100  call $sum
    i32.const 10   call $sum
    i32.mul
    i32.sub))
