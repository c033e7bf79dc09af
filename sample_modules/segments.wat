;; Passive data, copied in piece by piece and then dropped; overlapping copies; fills. Holds: a segment that is still there,
;; one that is gone. run(4) = a hash of the memory; again() must trap, since nothing is left of the segment.
(module
  (memory (export "memory") 1)
  (data $text "the quick brown fox jumps over the lazy dog. ")
  (data $never "not used")
  (data (i32.const 512) "in place from the start")
  (func $hash (param $from i32) (param $length i32) (result i32)
    (local $h i32)
    (local.set $h (i32.const 0x811c9dc5))
    (loop $l
      (local.set $h (i32.mul (i32.xor (local.get $h) (i32.load8_u (local.get $from))) (i32.const 0x01000193)))
      (local.set $from (i32.add (local.get $from) (i32.const 1)))
      (br_if $l (local.tee $length (i32.sub (local.get $length) (i32.const 1)))))
    (local.get $h))
  (func $spread (param $n i32)
    (local $i i32)
    (loop $l
      ;; a moving part of the segment, then the beginning copied over itself, one byte further
      (memory.init $text (i32.add (i32.const 1024) (i32.mul (local.get $i) (i32.const 9)))
                         (i32.and (local.get $i) (i32.const 31)) (i32.const 9))
      (memory.copy (i32.const 1025) (i32.const 1024) (i32.const 64))
      (memory.fill (i32.sub (i32.const 900) (local.get $i)) (local.get $i) (i32.const 3))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))))
  (func (export "run") (param $n i32) (result i32)
    (call $spread (local.get $n))
    (data.drop $text)
    (data.drop $never)
    (call $hash (i32.const 0) (i32.const 2048))
    (memory.init $text (i32.const 0) (i32.const 0) (i32.const 0))  ;; nothing of nothing is allowed
    (i32.add (call $hash (i32.const 512) (i32.const 32))))
  (func (export "again") (param $n i32) (result i32)
    (call $spread (local.get $n))
    (data.drop $text)
    (drop (call $hash (i32.const 1024) (i32.const 8)))
    (memory.init $text (i32.const 0) (i32.const 0) (i32.const 1))
    (i32.const 0)))
