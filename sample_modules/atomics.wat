;; Atomic instructions in one thread: a lock taken and given back, a counter, a list without locks, a narrow exchange.
;; Holds: a lock that is held while a loop runs, a list that is half pushed, what an exchange returned.
;; `run n` pushes n nodes; each round takes the lock, counts under it, waits for nothing, and gives it back. The result
;; folds the list, the counter and the bytes that were exchanged.
(module
  (memory (export "memory") 1)
  (global $next (mut i32) (i32.const 4096))
  ;; 64: the lock. 72: a counter of 64 bits. 80: the list's head. 96: bytes that are exchanged.

  (func $lock (local $tries i32)
    loop $again
      (local.set $tries (i32.add (local.get $tries) (i32.const 1)))
      (br_if $again (i32.atomic.rmw.cmpxchg (i32.const 64) (i32.const 0) (local.get $tries)))
    end)

  (func $unlock
    (i32.atomic.store (i32.const 64) (i32.const 0))
    (drop (memory.atomic.notify (i32.const 64) (i32.const 1))))

  (func $push (param $value i64) (local $node i32) (local $head i32)
    (local.set $node (global.get $next))
    (global.set $next (i32.add (global.get $next) (i32.const 16)))
    (i64.atomic.store offset=8 (local.get $node) (local.get $value))
    loop $again
      (local.set $head (i32.atomic.load (i32.const 80)))
      (i32.atomic.store (local.get $node) (local.get $head))
      (br_if $again (i32.ne (local.get $head)
        (i32.atomic.rmw.cmpxchg (i32.const 80) (local.get $head) (local.get $node))))
    end)

  (func $round (param $n i32) (result i64) (local $i i32) (local $was i64)
    call $lock
    atomic.fence
    loop $count
      (local.set $was (i64.atomic.rmw.add (i32.const 72) (i64.extend_i32_u (local.get $n))))
      (drop (i32.atomic.rmw8.xor_u offset=1 (i32.add (i32.const 95) (i32.and (local.get $i) (i32.const 7)))
        (local.get $n)))
      (local.set $was (i64.add (local.get $was) (i64.atomic.rmw16.sub_u (i32.const 104) (local.get $was))))
      (local.set $was (i64.xor (local.get $was)
        (i64.extend_i32_u (i32.atomic.rmw16.xchg_u offset=4 (i32.const 104) (local.get $n)))))
      (local.set $was (i64.add (local.get $was)
        (i64.atomic.rmw32.or_u (i32.const 112) (i64.shl (local.get $was) (i64.const 3)))))
      (drop (i64.atomic.rmw.and (i32.const 112) (i64.const 0x0fff_ffff_ffff)))
      (drop (i64.atomic.rmw8.cmpxchg_u (i32.const 120) (i64.and (local.get $was) (i64.const 1)) (local.get $was)))
      (br_if $count (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 5)))
    end
    call $unlock
    local.get $was)

  (func (export "run") (param $n i32) (result i64) (local $k i32) (local $sum i64) (local $at i32)
    loop $all
      (call $push (i64.xor (call $round (local.get $k)) (i64.extend_i32_u (local.get $k))))
      (br_if $all (i32.lt_u (local.tee $k (i32.add (local.get $k) (i32.const 1))) (local.get $n)))
    end
    (local.set $at (i32.atomic.load (i32.const 80)))
    loop $fold
      (local.set $sum (i64.add (i64.mul (local.get $sum) (i64.const 31)) (i64.atomic.load offset=8 (local.get $at))))
      (br_if $fold (local.tee $at (i32.atomic.load (local.get $at))))
    end
    (i64.add
      (i64.xor (local.get $sum) (i64.atomic.load (i32.const 96)))
      (i64.xor (i64.atomic.load (i32.const 104)) (i64.atomic.load32_u (i32.const 112))))))
