;; Writes one word into each of n pages, again and again. Holds: page and round in locals. run(pages, rounds) = rounds - 1.
(module
  (memory (export "memory") 160)
  (func (export "run") (param $pages i32) (param $rounds i32) (result i32) (local $r i32) (local $p i32)
    loop $o
      (local.set $p (i32.const 0))
      loop $i
        (i32.store (i32.mul (local.get $p) (i32.const 4096)) (local.get $r))
        (br_if $i (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 1))) (local.get $pages)))
      end
      (br_if $o (i32.lt_u (local.tee $r (i32.add (local.get $r) (i32.const 1))) (local.get $rounds)))
    end
    (i32.load (i32.mul (i32.sub (local.get $pages) (i32.const 1)) (i32.const 4096)))))
