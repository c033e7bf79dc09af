;; RUN:
;; After both calls the same local is live, so both leave by one exit, which the site's number comes to in a local. After
;; the third call another one is: it has an exit of its own.
(module
  (func $spin (param $n i32) (loop $l (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))
  (func (export "run") (param $a i32) (param $b i64) (result i64)
    (call $spin (i32.const 3))
    (call $spin (i32.const 4))
    (call $spin (local.get $a))
    (local.get $b)))
