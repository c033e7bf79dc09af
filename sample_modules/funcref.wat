;; A function reference in a local across a call. Holds: a funcref. run(1) = 18, run(0) = 81.
(module
  (type $u (func (param i32) (result i32)))
  (elem declare func $dbl $sqr)
  (func $dbl (type $u) (i32.mul (local.get 0) (i32.const 2)))
  (func $sqr (type $u) (i32.mul (local.get 0) (local.get 0)))
  (table $scratch 1 funcref)
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func (export "run") (param $w i32) (result i32)
    (local $f funcref)
    (local.set $f (select (result funcref) (ref.func $dbl) (ref.func $sqr) (local.get $w)))
    (call $spin (i32.const 100))                  ;; <- a funcref is live in a local
    (table.set $scratch (i32.const 0) (local.get $f))
    (call_indirect $scratch (type $u) (i32.const 9) (i32.const 0))))
