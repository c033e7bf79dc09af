;; A call inside an exception handler. Holds: an active handler. run(4) = 8, run(6) = 1006.
(module
  (tag $e (param i32))
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func $work (param $x i32) (result i32)
    (call $spin (i32.const 100))                            ;; <- checkpoint inside the try
    (if (i32.gt_s (local.get $x) (i32.const 5)) (then (throw $e (local.get $x))))
    (i32.mul (local.get $x) (i32.const 2)))
  (func (export "run") (param $x i32) (result i32)
    block $any
      block $h (result i32)
        try_table (catch $e $h) (catch_all $any)
          (return (call $work (local.get $x)))
        end
        unreachable
      end
      (return (i32.add (i32.const 1000)))
    end
    i32.const -1))
