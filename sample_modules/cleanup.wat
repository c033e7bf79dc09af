;; Frames that clean up when an exception passes, as a compiler's destructors do. Holds: an exception as a value (exnref)
;; and a counter of what is still open, while each frame closes what it opened. run(6) = 6 * 1000 + 0, run(0) = -1.
(module
  (tag $e (param i32))
  (global $open (mut i32) (i32.const 0))
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func $close (call $spin (i32.const 50)) (global.set $open (i32.sub (global.get $open) (i32.const 1))))
  (func $frame (param $n i32) (param $code i32)
    (local $thrown exnref)
    (global.set $open (i32.add (global.get $open) (i32.const 1)))
    block $out (result exnref)
      try_table (catch_all_ref $out)
        (if (local.get $n) (then (call $frame (i32.sub (local.get $n) (i32.const 1)) (local.get $code)))
          (else (if (local.get $code) (then (throw $e (local.get $code))))))
      end
      (call $close)
      return
    end
    local.set $thrown
    (call $close)                                           ;; <- checkpoint here: the exception waits
    (throw_ref (local.get $thrown)))
  (func (export "run") (param $code i32) (result i32)
    block $h (result i32)
      try_table (catch $e $h)
        (call $frame (i32.const 20) (local.get $code))
      end
      (return (i32.const -1))
    end
    (i32.mul (i32.const 1000))
    (i32.add (global.get $open))))
