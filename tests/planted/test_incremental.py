"""Bugs planted into the order in which changed pages are looked at are seen: images miss what was written meanwhile."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

import pytest

from wasmckpt import runtimes
from wasmckpt.dirty import Runs, probe
from wasmckpt.formats import ParentRef
from wasmckpt.snapshot import fork
from wasmckpt.snapshot.fork import ForkSnapshotter

from ..support.tiers import by_tier
from ..unit.snapshot import test_incremental as chains

BURSTS = f"""
;; run(n, every, pause): fills 256 KiB somewhere in 8 MiB, n times, with a pause of so many turns between two. A fill is
;; one instruction: a copy that is made in the middle of it writes the rest.
(module (memory (export "memory") 128)
  (func (export "run") (param $n i32) (param $every i32) (param $pause i32) (result i64)
    (local $i i32) (local $j i32) (local $a i64)
    (local.set $a (i64.const 88172645463325252))
    loop $l
      {chains.WAIT}
      (memory.fill (i32.and (i32.wrap_i64 (i64.shr_u (local.get $a) (i64.const 24))) (i32.const 0x7bfff8))
                   (i32.wrap_i64 (local.get $a)) (i32.const 0x40000))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    local.get $a))
"""
MOST = 400
"""Images until a bug must have been seen; without one, so many are looked at."""


@pytest.fixture(autouse=True)
def _by_uffd(monkeypatch: pytest.MonkeyPatch) -> None:
    if not probe("uffd").works:
        pytest.skip("uffd does not work here")
    monkeypatch.setenv("WASMCKPT_DIRTY", "uffd")


def seen(monkeypatch: pytest.MonkeyPatch, text: str, pause: int, most: int) -> Generator[int, None, None]:
    """Numbers of the images that are not what memory held at their moment."""
    series = chains.Series(runtimes.load("wasmtime"), 1 << 30, text=text, pause=pause)
    parent: ParentRef | None = None
    try:
        with chains.whole_images(monkeypatch) as moments:
            for number in range(most):
                time.sleep(0.003)
                parent = series.keep(series.take("fork", parent))
                if number % 5 == 4:
                    if chains.differs(series, parent, moments[-1]):
                        yield number
                    parent = None  # chains stay short
                del moments[:-1]
    finally:
        series.end()


GUESTS = [(chains.SCATTERED, 30_000), (BURSTS, 100_000)]


@pytest.mark.parametrize(("text", "pause"), GUESTS, ids=["scattered", "bursts"])
def test_without_a_bug_nothing_is_seen(monkeypatch: pytest.MonkeyPatch, text: str, pause: int) -> None:
    """The twin of all that follow."""
    assert list(seen(monkeypatch, text, pause, by_tier(check=5, test=25, soak=100))) == []


def test_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written between the look and the fork belongs to the image."""
    monkeypatch.setattr(ForkSnapshotter, "_look", lambda self, changes, made, seen: changes.begin())
    with closing(seen(monkeypatch, *GUESTS[0], MOST)) as numbers:
        assert next(numbers, None) is not None


@pytest.mark.slow
def test_the_copy_s_own_pages_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the copy wrote until it stood still belongs to the image."""
    def nothing(pid: int, memories: list[tuple[int, int]]) -> list[Runs]:
        return [() for _ in memories]

    monkeypatch.setattr(fork, "own_pages", nothing)
    with closing(seen(monkeypatch, *GUESTS[1], MOST)) as numbers:
        assert next(numbers, None) is not None
