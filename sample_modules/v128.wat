;; A vector in a local and one on the operand stack. Holds: two v128 values. run() = -8608480507601581942.
(module
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func (export "run") (result i64)
    (local $v v128)
    (local.set $v (v128.const i64x2 0x1122334455667788 0x99aabbccddeeff00))
    (v128.const i32x4 1 2 3 4)
    (call $spin (i32.const 100))
    (local.set $v (i64x2.add (local.get $v)))
    (i64.xor (i64x2.extract_lane 0 (local.get $v)) (i64x2.extract_lane 1 (local.get $v)))))
