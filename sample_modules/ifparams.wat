;; An if with parameters and no else, in a function with two results. Holds: i32 and i64 on the operand stack.
;; run(0) = 120, run(1) = 126.
(module
  (func $two (result i32 i64) i32.const 3  i64.const 40)
  (func (export "run") (param $c i32) (result i64) (local i64)
    call $two
    local.get $c
    if (param i32 i64) (result i32 i64)
      i64.const 2  i64.add
    end
    local.set 1
    i64.extend_i32_s
    local.get 1
    i64.mul) )
