"""Snapshots in place: the program itself is frozen and goes on, in the same instance where that has been at the same
place before; what is copied while it stands still is what the image needs, and all else comes after."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest

from wasmckpt import formats, runtimes
from wasmckpt.dirty import probe
from wasmckpt.errors import JobEnded, RetryLater
from wasmckpt.formats import ParentRef
from wasmckpt.instrument.records import Place
from wasmckpt.instrument.resumes import Resumes
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot import worker_guest
from wasmckpt.snapshot.program import Program

from ...support.tiers import by_tier
from .fork_guests import COMPILERS, Life, longer
from .test_incremental import ENDLESS, Series, differs, whole_images

TREE = """
;; run(n, depth): walks a tree of calls n times, each node adds to a word of memory and to a global, turns a loop, and
;; some call out: stacks of all depths, and many places.
(module (import "env" "log" (func $log (param i32))) (memory (export "memory") 4) (global $sum (mut i64) (i64.const 1))
  (func $node (param $depth i32) (param $seed i64) (result i64) (local $at i32) (local $j i32)
    (local.set $seed (i64.add (i64.mul (local.get $seed) (i64.const 6364136223846793005))
                              (i64.const 1442695040888963407)))
    (local.set $at (i32.and (i32.wrap_i64 (i64.shr_u (local.get $seed) (i64.const 40))) (i32.const 0x3fff8)))
    (i64.store (local.get $at) (i64.add (i64.rotl (i64.load (local.get $at)) (i64.const 1)) (local.get $seed)))
    (global.set $sum (i64.add (i64.rotl (global.get $sum) (i64.const 3)) (local.get $seed)))
    (local.set $j (i32.and (i32.wrap_i64 (i64.shr_u (local.get $seed) (i64.const 50))) (i32.const 0x3f)))
    loop $l
      (global.set $sum (i64.xor (global.get $sum) (i64.extend_i32_u (local.get $j))))
      (br_if $l (i32.gt_s (local.tee $j (i32.sub (local.get $j) (i32.const 1))) (i32.const 0)))
    end
    (if (i64.eqz (i64.and (i64.shr_u (local.get $seed) (i64.const 30)) (i64.const 0xffff)))
      (then (call $log (local.get $at))))
    (if (result i64) (i32.eqz (local.get $depth)) (then (local.get $seed)) (else
      (i64.add (call $node (i32.sub (local.get $depth) (i32.const 1)) (local.get $seed))
               (call $node (i32.sub (local.get $depth) (i32.const 1)) (i64.xor (local.get $seed) (i64.const -1)))))))
  (func (export "run") (param $n i32) (param $depth i32) (result i64) (local $a i64) (local $at i32)
    loop $l
      (local.set $a (i64.add (local.get $a) (call $node (local.get $depth) (local.get $a))))
      (br_if $l (local.tee $n (i32.sub (local.get $n) (i32.const 1))))
    end
    loop $m
      (local.set $a (i64.add (i64.rotl (local.get $a) (i64.const 1)) (i64.load (local.get $at))))
      (br_if $m (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 0x40000)))
    end
    (i64.add (local.get $a) (global.get $sum))))
"""
TURNS = {**dict.fromkeys(COMPILERS, 2000), "wasmedge": 20}


def test_stacks_of_all_depths_go_on_in_the_same_instance(
    engine: Engine, engines: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at random moments: the result, all calls and each image are those of an undisturbed life."""
    made: list[Program] = []
    restored = Program.restored.__func__  # type: ignore[attr-defined]

    def count(cls, *args, **kwargs):  # type: ignore[no-untyped-def]
        made.append(restored(cls, *args, **kwargs))
        return made[-1]

    monkeypatch.setattr(Program, "restored", classmethod(count))
    draw = random.Random(engine.name)
    arguments = TURNS.get(engine.name, 150), 9
    undisturbed = Life(engine, TREE, arguments)
    results = undisturbed.result()
    wanted = by_tier(check=8, test=40, soak=200)
    stops = 0
    while stops < wanted:
        source = Life(engine, TREE, arguments)
        images = []
        try:
            while True:
                time.sleep(draw.random() * 0.01)
                images.append((source.live.snapshot(30, "in-place").image, len(source.log)))
                stops += 1
        except JobEnded:
            pass
        assert source.result() == results
        assert source.log == undisturbed.log
        anew = len(made)
        for image, at in draw.sample(images, min(2, len(images))):
            again = Life(draw.choice(engines), TREE, image=formats.decode(formats.encode(image)))
            assert again.result() == results
            assert len(again.log) >= len(undisturbed.log) - at  # it went on before the image was given
            assert again.log == undisturbed.log[len(undisturbed.log) - len(again.log):]
        del made[anew:]
    if source.live.program.out.linker.control:
        assert len(made) < stops or stops < 8, "each stop made another instance"
    else:
        assert len(made) == stops


def test_a_place_that_was_stood_at_costs_no_instance(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Series(engine, ENDLESS)
    program = source.guest._program
    assert program is not None
    if not program.out.linker.control:
        source.end()
        pytest.skip("its frames are spilled into the guest's memory")
    instances = set()
    for _ in range(by_tier(check=12, test=30, soak=100)):
        source.keep(source.take("in-place"))
        instances.add(source.guest._program)
    assert len(instances) < 8  # the loop has three places
    source.end()


@pytest.mark.parametrize("goes_on_here", [True, False])
def test_a_freeze_that_nobody_waited_for_loses_no_writes(goes_on_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not probe("uffd").works:
        pytest.skip("uffd does not work here")
    monkeypatch.setenv("WASMCKPT_DIRTY", "uffd")
    if not goes_on_here:
        monkeypatch.setattr(Program, "go_on_here", lambda self: False)
    series = Series(runtimes.load("wasmtime"), ENDLESS, pause=0x7FFF)
    parent: ParentRef | None = None
    with whole_images(monkeypatch) as moments:
        for _ in range(by_tier(check=5, test=10, soak=40)):
            parent = series.keep(series.take("in-place", parent))
            assert not differs(series, parent, moments[-1])
            time.sleep(0.005)
            program = series.guest._program
            assert program is not None
            went_on = program.went_on_ns
            program.request_freeze()
            deadline = time.monotonic() + 30
            while (now := series.guest._program) is None or now.went_on_ns in (0, went_on):
                assert time.monotonic() < deadline
                time.sleep(0.0005)
            time.sleep(0.005)
    assert parent is not None
    assert parent.position  # differences, not whole images
    series.end()


@pytest.mark.parametrize("problem", [MemoryError(), OSError(12, "no memory")])
def test_where_there_is_no_memory_for_an_image_it_goes_on(
    problem: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise problem

    refused = False
    for turns in longer(24 << 20):
        want = Series(runtimes.load("wasmtime"), turns).result()
        series = Series(runtimes.load("wasmtime"), turns)
        with monkeypatch.context() as patched, suppress(JobEnded):
            patched.setattr(worker_guest, "copy_state", refuse)
            patched.setattr(worker_guest, "room_for", refuse)
            with pytest.raises(RetryLater, match="memory"):
                series.take("in-place")
            refused = True
        assert series.result() == want
        if refused:
            break
    assert refused


def test_what_is_kept_of_earlier_stops() -> None:
    a, b, c = (Place(func, 0, 1, (), ()) for func in range(3))
    resumes = Resumes()
    resumes.add([a, b])
    resumes.add([a, c])
    assert resumes.covers([a, b])
    assert resumes.covers([a, c])
    assert not resumes.covers([b])
    assert not resumes.covers([a, b, c])
    assert not resumes.covers([])
    kept = resumes.newest(2, lambda place: 1, lambda place: True)
    assert list(kept.places) == [a, c]
    assert kept.covers([a, c])
    assert not kept.covers([a, b])
    assert not resumes.newest(2, lambda place: 1, lambda place: False).covers([a, c])
