;; RUN: label_values=True poll=global
;; Loop parameters, a branch with a value and an if with a result, carried in locals.
(module (func (export "run") (param $n i32) (result i32)
  (block $done (result i32)
    (i32.const 1) (local.get $n)
    (loop $l (param i32 i32)
      (local.set $n)
      (br_if $done (i32.eqz (local.get $n)))
      (i32.mul (i32.const 2))
      (i32.sub (local.get $n) (if (result i32) (local.get $n) (then (i32.const 1)) (else (i32.const 0))))
      (br $l))
    (unreachable))))
