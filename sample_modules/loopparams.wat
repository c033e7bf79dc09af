;; A loop with parameters and an unconditional branch to it. Holds: values carried by the branch. run(10) = 1024.
(module
  (func (export "run") (param $n i32) (result i32) (local $p i32)
    block $done (result i32)
      i32.const 1
      local.get $n
      loop $l (param i32 i32)
        local.set $n
        local.set $p
        local.get $p
        local.get $n
        i32.eqz
        br_if $done
        i32.const 2
        i32.mul
        local.get $n
        i32.const 1
        i32.sub
        br $l
      end
      unreachable
    end))
