"""Snapshots of a program whose tables, globals and locals hold references that change all the time."""

from __future__ import annotations

import random
import time

import pytest

from wasmckpt import runtimes
from wasmckpt.errors import JobEnded
from wasmckpt.snapshot.fork_in_place import Way
from wasmckpt.snapshot.fork_result import Snapshot

from ...support.processes import children
from ...support.tiers import by_tier
from .fork_guests import Life

SHUFFLER = """
;; run(turns): each turn moves one of three functions to a random slot, remembers what was there, calls what it finds
;; elsewhere; grows the table and the array of slots now and then. Result: a hash of all that the calls gave.
(module (type $t (func (param i32) (result i32)))
  (table $t 16 400 funcref) (elem (table $t) (i32.const 0) func $a $b $c $a $b $c $a $b $c $a $b $c $a $b $c $a)
  (elem $again func $c $b $a $c) (global $last (mut funcref) (ref.func $a))
  (func $a (type $t) (i32.add (local.get 0) (i32.const 1)))
  (func $b (type $t) (i32.mul (local.get 0) (i32.const 3)))
  (func $c (type $t) (i32.xor (local.get 0) (i32.const 0x5a5a)))
  (func (export "run") (param $n i32) (param i32) (result i32)
    (local $x i32) (local $h i32) (local $slot i32) (local $was funcref)
    (local.set $x (i32.const 88172645))
    loop $l
      (local.set $x (i32.xor (local.get $x) (i32.shl (local.get $x) (i32.const 13))))
      (local.set $x (i32.xor (local.get $x) (i32.shr_u (local.get $x) (i32.const 17))))
      (local.set $x (i32.xor (local.get $x) (i32.shl (local.get $x) (i32.const 5))))
      (local.set $slot (i32.rem_u (local.get $x) (table.size $t)))
      (local.set $was (table.get $t (local.get $slot)))
      (table.set $t (local.get $slot) (global.get $last))
      (global.set $last (local.get $was))
      (if (i32.eqz (i32.and (local.get $x) (i32.const 0xffff)))
        (then (drop (table.grow $t (local.get $was) (i32.const 1)))
              (table.copy $t $t (i32.const 3) (i32.const 0) (i32.const 9))
              (table.init $t $again (local.get $slot) (i32.const 0)
                (select (i32.const 1) (i32.const 0) (i32.lt_u (local.get $slot) (i32.const 12))))))
      (local.set $h (call_indirect $t (type $t) (local.get $h)
        (i32.rem_u (i32.shr_u (local.get $x) (i32.const 3)) (table.size $t))))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))
    end
    local.get $h))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_images_at_random_moments_end_as_the_source_does(way: Way) -> None:
    """The array that a table is, its length and the numbers in globals and locals are of one moment."""
    engine = runtimes.load("wasmtime")
    turns = by_tier(check=10_000_000, test=10_000_000, soak=20_000_000)
    wanted = by_tier(check=3, test=6, soak=40)
    results = Life(engine, SHUFFLER, (turns, 0)).result()
    draw = random.Random(way)
    taken = shuffled = 0
    while taken < wanted or not shuffled:
        source = Life(engine, SHUFFLER, (turns, 0))
        snapshots: list[Snapshot] = []
        try:
            while len(snapshots) < 6:
                time.sleep(draw.random() * 0.02)
                snapshots.append(source.live.snapshot(60, way))
        except JobEnded:
            pass
        assert source.result() == results
        for snapshot in snapshots:
            shuffled += bool(snapshot.image.tables)  # the first one may be of its beginning
            assert Life(engine, SHUFFLER, image=snapshot.image).result() == results
        taken += len(snapshots)
    assert children() == set()
