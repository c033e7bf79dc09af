;; RUN: unroll=1 poll=global
;; The same for an interpreter: the poll reads a global, the exit calls a helper.
(module (func (export "run") (param $n i32) (result i64) (local $s i64) (local $dead f64)
  (loop $l
    (local.set $s (i64.add (local.get $s) (i64.extend_i32_u (local.get $n))))
    (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
  (local.get $s)))
