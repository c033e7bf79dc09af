;; RUN:
;; A cycle through tail calls is bounded by no stack: a poll at the entry.
(module
  (func $even (export "even") (param $n i32) (result i32)
    (if (i32.eqz (local.get $n)) (then (return (i32.const 1))))
    (return_call $odd (i32.sub (local.get $n) (i32.const 1))))
  (func $odd (param $n i32) (result i32)
    (if (i32.eqz (local.get $n)) (then (return (i32.const 0))))
    (return_call $even (i32.sub (local.get $n) (i32.const 1)))))
