;; Two memories, the second one grown. Holds: marks at the end of each. run() = 30666.
(module
  (memory $a (export "memory") 1 2)
  (memory $b 2 4)
  (func $spin (param $n i32)
    loop $l
      local.get $n  i32.const 1  i32.sub  local.tee $n
      br_if $l
    end)
  (func (export "run") (result i32)
    (i32.store $a (i32.const 65532) (i32.const 111))
    (i32.store $b (i32.const 131068) (i32.const 222))
    (drop (memory.grow $b (i32.const 1)))
    (i32.store $b (i32.const 196604) (i32.const 333))
    (call $spin (i32.const 100))
    (i32.add (i32.add (i32.load $a (i32.const 65532)) (i32.load $b (i32.const 131068)))
             (i32.add (i32.load $b (i32.const 196604)) (i32.mul (memory.size $b) (i32.const 10000))))))
