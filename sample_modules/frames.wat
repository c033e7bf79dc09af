;; Recursion with as little as a frame can hold. Holds: one i32 on the operand stack a level. run(n) = n.
(module
  (func $f (param i32) (result i32)
    (if (i32.eqz (local.get 0)) (then (return (i32.const 0))))
    (i32.add (i32.const 1) (call $f (i32.sub (local.get 0) (i32.const 1)))))
  (func (export "run") (param i32) (result i32) (call $f (local.get 0))))
