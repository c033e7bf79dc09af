;; Two functions that call each other by tail calls. Holds: one frame, however deep. run(10) = 969.
(module
  (func $even (param $n i32) (param $acc i64) (result i64)
    (if (i32.eqz (local.get $n)) (then (return (local.get $acc))))
    (return_call $odd (i32.sub (local.get $n) (i32.const 1)) (i64.add (local.get $acc) (i64.const 2))))
  (func $odd (param $n i32) (param $acc i64) (result i64)
    (if (i32.eqz (local.get $n)) (then (return (i64.const -1))))
    (return_call $even (i32.sub (local.get $n) (i32.const 1)) (i64.mul (local.get $acc) (i64.const 3))))
  (func (export "run") (param i32) (result i64) (call $even (local.get 0) (i64.const 1))))
