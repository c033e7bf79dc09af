;; Recursion with i64 and f64 locals live across the call. Holds: one frame a level. run(n): depth n.
(module
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func $f (param $d i32) (param $a i64) (result i64)
    (local $b i64) (local $c f64) (local $e i64)
    (local.set $b (i64.mul (local.get $a) (i64.const 3)))
    (local.set $c (f64.convert_i32_s (local.get $d)))
    (local.set $e (i64.extend_i32_u (local.get $d)))
    (if (i32.eqz (local.get $d)) (then (call $spin (i32.const 50)) (return (local.get $a))))
    (i64.add
      (i64.xor (local.get $b) (local.get $e))
      (i64.add (call $f (i32.sub (local.get $d) (i32.const 1)) (i64.add (local.get $a) (i64.const 1)))
               (i64.trunc_f64_s (local.get $c)))))
  (func (export "run") (param i32) (result i64) (call $f (local.get 0) (i64.const 7))))
