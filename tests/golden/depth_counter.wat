;; RUN: depth_counter=True
;; What can recurse counts the stack that is left, and gives it back on each way out: the end, a return, a branch out of
;; the function, a tail call. What cannot recurse stays as it is.
(module
  (func (export "run") (param $n i32) (result i32)
    (if (i32.lt_u (local.get $n) (i32.const 2)) (then (return (local.get $n))))
    (i32.add (call 0 (i32.sub (local.get $n) (i32.const 1))) (call 0 (i32.sub (local.get $n) (i32.const 2)))))
  (func (param $n i64) (result i32 i32)
    (i32.const 1) (i32.const 2) (br_if 0 (i64.eqz (local.get $n)))
    (drop) (drop) (call 1 (i64.sub (local.get $n) (i64.const 1))))
  (func (param $n i32) (result i32)
    (if (local.get $n) (then (return_call 2 (i32.sub (local.get $n) (i32.const 1)))))
    (i32.const 7))
  (func (param $n i32) (result i32)
    (if (local.get $n) (then (return (call 2 (local.get $n)))))
    (i32.const 7)))
