;; Nested loops left and continued by br_table to several levels. Holds: a counter in memory only. run(n) = n.
(module
  (memory (export "memory") 1)
  (func (export "run") (param $max i32) (result i32)
    block $out
      loop $outer
        loop $inner
          (i32.store (i32.const 0) (i32.add (i32.load (i32.const 0)) (i32.const 1)))
          (br_if $out (i32.ge_u (i32.load (i32.const 0)) (local.get $max)))
          (br_table $outer $inner $outer (i32.and (i32.load (i32.const 0)) (i32.const 3)))
        end
      end
    end
    (i32.load (i32.const 0))))
