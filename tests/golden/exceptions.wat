;; RUN: poll=atomic-memory
;; Exceptions: a clause for one tag, one for all tags, one that takes the exception itself.
(module
  (tag $e (param i32))
  (func $spin (param i32) loop $l (br_if $l (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))) end)
  (func $work (param i32) (call $spin (local.get 0)) (throw $e (local.get 0)))
  (func (export "caught") (param i32) (result i32)
    (block $l (result i32) (try_table (catch $e $l) (call $work (local.get 0))) (i32.const 0)))
  (func (export "cleaned") (param i32) (local $x exnref)
    (block $all (result exnref) (try_table (catch_all_ref $all) (call $work (local.get 0))) return)
    (local.set $x)
    (call $spin (i32.const 3))
    (throw_ref (local.get $x))))
