"""Guests that write, on every runtime, under every backend that works here: their own log is part of what is told."""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections.abc import Iterator

import pytest
import wasmtime

from wasmckpt import runtimes
from wasmckpt.dirty import BACKENDS, Tracker, probe
from wasmckpt.runtimes import Instance

from ...support.tiers import by_tier, missing
from .area import pages_of

GUEST = """
;; step(seed, n): n writes of a random byte at random places above the first 64 KiB, whose last page gets a log of the
;; pages; gives the next seed. grow(pages). forever(): writes until the word at 0 is set; gives the number of writes.
(module (memory (export "memory") 4)
  (func (export "step") (param $a i64) (param $n i32) (result i64) (local $at i32) (local $i i32)
    loop $l
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 13))))
      (local.set $a (i64.xor (local.get $a) (i64.shr_u (local.get $a) (i64.const 7))))
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 17))))
      (local.set $at (i32.rem_u (i32.wrap_i64 (local.get $a)) (i32.shl (memory.size) (i32.const 16))))
      (if (i32.gt_u (local.get $at) (i32.const 0xffff))
        (then (i32.store8 (local.get $at) (i32.wrap_i64 (i64.shr_u (local.get $a) (i64.const 40))))
              (i32.store16 (i32.add (i32.const 0xf000) (i32.shl (local.get $i) (i32.const 1)))
                           (i32.shr_u (local.get $at) (i32.const 12)))
              (local.set $i (i32.add (local.get $i) (i32.const 1)))))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))
    end
    (i32.store16 (i32.add (i32.const 0xf000) (i32.shl (local.get $i) (i32.const 1))) (i32.const 0xffff))
    local.get $a)
  (func (export "grow") (param i32) (result i32) (memory.grow (local.get 0)))
  (func (export "forever") (result i64) (local $a i64) (local $n i64) (local.set $a (i64.const 88172645463325252))
    loop $l
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 13))))
      (local.set $a (i64.xor (local.get $a) (i64.shr_u (local.get $a) (i64.const 7))))
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 17))))
      (i64.store (i32.or (i32.const 0x10000) (i32.and (i32.wrap_i64 (local.get $a)) (i32.const 0x1fff8)))
                 (local.get $a))
      (local.set $n (i64.add (local.get $n) (i64.const 1)))
      (br_if $l (i32.eqz (i32.load (i32.const 0))))
    end
    local.get $n))
"""
_WASM = bytes(wasmtime.wat2wasm(GUEST))


@pytest.fixture(params=runtimes.names())
def instance(request: pytest.FixtureRequest) -> Iterator[Instance]:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, f"{name} is not installed")
    engine = runtimes.load(name)
    compiled = engine.compile(_WASM)
    with engine.instantiate(compiled, {}) as made:
        yield made


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> type[Tracker]:
    name: str = request.param
    verdict = probe(name)
    if not verdict.works:
        pytest.skip(f"{name}: {verdict.why}")
    return BACKENDS[name]


def test_no_write_of_a_guest_is_missed(instance: Instance, backend: type[Tracker]) -> None:
    """The guest's log, and a shadow made of nothing but the pages that were told; it grows meanwhile."""
    draw = random.Random(backend.name)
    memory = instance.memory("memory")
    shadow = bytearray()
    seed = 88172645463325252
    told_at_all = 0
    with backend([memory.extent]) as tracker:
        tracker.collect()
        shadow[:] = memory.read(0, memory.size)
        for turn in range(rounds := by_tier(check=40, test=200, soak=1500)):
            if turn % 9 == 4 and memory.size < 64 << 16:
                assert instance.call("grow", [draw.randrange(1, 6)])[0] != 0xFFFFFFFF
                shadow += bytes(memory.size - len(shadow))
            (seed,) = instance.call("step", [seed, draw.randrange(1, 60)])
            log = memory.read(0xF000, 130)
            written = set()
            for i in range(0, 130, 2):
                page = int.from_bytes(log[i:i + 2], "little")
                if page == 0xFFFF:
                    break
                written.add(page)
            (runs,) = tracker.collect()
            told = pages_of(runs)
            told_at_all += len(told)
            if backend.name != "compare":  # which does not see a byte that is written again
                assert told >= written | {15}
            for page in told:
                shadow[page * 4096:(page + 1) * 4096] = memory.read(page * 4096, 4096)
            assert shadow == memory.read(0, memory.size)
    assert told_at_all < rounds * memory.size // 4096 * 0.9, "it tells everything each time"


def test_a_guest_that_runs_on_while_it_is_looked_at(instance: Instance, backend: type[Tracker]) -> None:
    """Copies are made beside the running guest; after the last look, with the guest stopped, the shadow is equal."""
    if backend.needs_stop:
        pytest.skip(f"{backend.name} needs a guest that stands still")
    memory = instance.memory("memory")
    with backend([memory.extent]) as tracker:
        tracker.collect()
        shadow = bytearray(memory.read(0, memory.size))
        turns: list[int] = []
        thread = threading.Thread(target=lambda: turns.extend(instance.call("forever")))
        thread.start()

        def look() -> bool:
            """Whether the guest has written anything since the last one."""
            pages = pages_of(tracker.collect()[0])
            for page in pages:
                shadow[page * 4096:(page + 1) * 4096] = memory.read(page * 4096, 4096)
            return bool(pages)

        begun = time.monotonic()
        looks = found = 0
        while time.monotonic() < begun + by_tier(check=0.2, test=1.0, soak=10.0) or min(looks, found) <= 5:
            assert time.monotonic() < begun + 60
            found += look()
            looks += 1
        ctypes.c_uint32.from_address(memory.address).value = 1
        thread.join()
        look()
        assert turns[0] > 1000
        assert shadow == memory.read(0, memory.size)
