;; Host calls exactly once. Holds: two loop counters around an import. env.log gets 0 to 9.
(module
  (import "env" "log" (func $log (param i32)))
  (func (export "run") (result i32) (local $i i32) (local $j i32)
    loop $l
      (call $log (local.get $i))
      (local.set $j (i32.const 50))
      loop $m (br_if $m (local.tee $j (i32.sub (local.get $j) (i32.const 1)))) end
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 10)))
    end
    local.get $i))
