;; Dead code with a polymorphic operand stack between code that runs. Holds: nothing in the dead parts. run() = 855.
(module
  (func $dead (param $x i32) (result i32)
    block (result i32)
      local.get $x
      br 0
      select                       ;; operands come from the polymorphic stack
      if (result f64) f64.const 1 else f64.const 2 end
      drop
      i32.const 5
      loop (param i32) (result i32) br 1 end
    end)
  (func $dead2 (param $x i32) (result i32)
    (if (local.get $x) (then (return (i32.const 4))) (else unreachable))
    (i32.add (unreachable) (drop (i64.const 1))))
  (func $never (param $x i32) (result i64)
    local.get $x
    if
      (return (i64.const 77))
    end
    loop (result i64) br 0 end)
  (func $brif (param $x i32) (result i32)
    block (result i32)
      unreachable
      br_if 0
      i32.eqz
    end)
  (func (export "run") (result i32) (local $i i32) (local $s i32)
    loop $l
      (local.set $s (i32.add (local.get $s) (call $dead (local.get $i))))
      (local.set $s (i32.add (local.get $s) (call $dead2 (i32.const 1))))
      (local.set $s (i32.add (local.get $s) (i32.wrap_i64 (call $never (i32.const 1)))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10)))
    end
    local.get $s))
