;; RUN:
;; The outer loop needs no poll: each of its turns passes the inner loop's. The last loop ends by itself.
(module (func (export "run") (param $n i32) (local $i i32)
  (loop $o
    (local.set $i (local.get $n))
    (loop $l (br_if $l (local.tee $i (i32.sub (local.get $i) (i32.const 1)))))
    (br_if $o (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
  (local.set $i (i32.const 0))
  (loop $c (br_if $c (i32.ne (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 8))))))
