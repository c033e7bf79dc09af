;; A table changed at run time: set, grown, a null, one function in two slots. Holds: seven slots. run() = 3132944.
(module
  (type $v (func (result i32)))
  (table $t 5 8 funcref)
  (elem declare func $f1 $f2 $f3 $f4)
  (func $f1 (result i32) i32.const 1)
  (func $f2 (result i32) i32.const 2)
  (func $f3 (result i32) i32.const 3)
  (func $f4 (result i32) i32.const 4)
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func (export "run") (result i32) (local $i i32) (local $r i32)
    (table.set $t (i32.const 0) (ref.func $f3))
    (table.set $t (i32.const 1) (ref.func $f1))
    (table.set $t (i32.const 2) (ref.func $f3))
    (table.set $t (i32.const 3) (ref.func $f2))
    ;; slot 4 stays null
    (drop (table.grow $t (ref.func $f4) (i32.const 2)))      ;; slots 5,6
    (call $spin (i32.const 100))                              ;; <- checkpoint here
    loop $l
      (if (i32.eqz (ref.is_null (table.get $t (local.get $i))))
        (then (local.set $r (i32.add (i32.mul (local.get $r) (i32.const 10))
                                     (call_indirect $t (type $v) (local.get $i)))))
        (else (local.set $r (i32.add (i32.mul (local.get $r) (i32.const 10)) (i32.const 9)))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (table.size $t)))
    end
    local.get $r))
