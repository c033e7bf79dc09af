"""Images as differences to earlier ones: put together they are what a whole image of the same moment is, whatever finds
out what was written, whichever way the image is taken, and whatever became of the ones before."""

from __future__ import annotations

import ctypes
import io
import mmap
import random
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from wasmckpt import runtimes
from wasmckpt.dirty import BACKENDS, Runs, TrackingLost, probe
from wasmckpt.dirty.uffd import Uffd
from wasmckpt.errors import JobEnded
from wasmckpt.formats import Image, MemoryState, ParentRef, apply, encode, read_chain
from wasmckpt.formats.codec import read_linked
from wasmckpt.host import WasiConfig
from wasmckpt.runtimes import Engine
from wasmckpt.snapshot import fork, fork_memory
from wasmckpt.snapshot.assignment import Assignment
from wasmckpt.snapshot.changes import Changes, Wanted
from wasmckpt.snapshot.pages import diff_memory
from wasmckpt.snapshot.worker import keep_memories_mapped
from wasmckpt.snapshot.worker_guest import End, Guest, Taken
from wasmckpt.wasm.values import I32, Value

from ...support.processes import children
from ...support.tiers import by_tier
from .fork_guests import COMPILERS, assemble

SPARSE = """
;; run(n, every, same): adds to words of a few pages, others after each ``same`` + 1 turns; now and then a page becomes
;; zero or the memory grows. Calls out each ``every`` turns (0: never). What was written is never written over, so that
;; a stale byte stays; the result folds all of memory.
(module (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
  (memory (export "memory") 40 72)
  (data (i32.const 70000) "not zero in a fresh module")
  (func (export "run") (param $n i32) (param $every i32) (param $same i32) (result i64)
    (local $i i32) (local $a i64) (local $base i32) (local $at i32)
    (local.set $a (i64.const 88172645463325252))
    loop $l
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 13))))
      (local.set $a (i64.xor (local.get $a) (i64.shr_u (local.get $a) (i64.const 7))))
      (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 17))))
      (if (i32.eqz (i32.and (local.get $i) (local.get $same)))
        (then
          (local.set $base (i32.and (i32.const -8) (i32.rem_u (i32.wrap_i64 (i64.shr_u (local.get $a) (i64.const 20)))
                                                              (i32.sub (i32.shl (memory.size) (i32.const 16))
                                                                       (i32.const 0x8000)))))
          (if (i64.eqz (i64.and (local.get $a) (i64.const 0x1f)))
            (then (drop (memory.grow (i32.const 1)))))
          (if (i64.eqz (i64.and (local.get $a) (i64.const 0x30)))
            (then (memory.fill (i32.and (local.get $base) (i32.const -4096)) (i32.const 0) (i32.const 8192))))))
      (local.set $at (i32.add (local.get $base)
                              (i32.and (i32.wrap_i64 (i64.shr_u (local.get $a) (i64.const 40))) (i32.const 0x3ff8))))
      (i64.store (local.get $at) (i64.add (i64.rotl (i64.load (local.get $at)) (i64.const 1)) (local.get $a)))
      (if (local.get $every)
        (then (if (i32.eqz (i32.rem_u (local.get $i) (local.get $every))) (then (drop (call $yield))))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (local.set $at (i32.const 0))
    loop $m
      (local.set $a (i64.add (i64.rotl (local.get $a) (i64.const 1)) (i64.load (local.get $at))))
      (br_if $m (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8)))
                          (i32.shl (memory.size) (i32.const 16))))
    end
    local.get $a))
"""
WAIT = """(local.set $j (local.get $pause))
      loop $p
        (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 13))))
        (local.set $a (i64.xor (local.get $a) (i64.shr_u (local.get $a) (i64.const 7))))
        (local.set $a (i64.xor (local.get $a) (i64.shl (local.get $a) (i64.const 17))))
        (br_if $p (local.tee $j (i32.sub (local.get $j) (i32.const 1))))
      end"""
"""``$pause`` turns, each of which draws a number into ``$a``."""
SCATTERED = f"""
;; run(n, every, pause): adds to a word somewhere in 8 MiB, n times, with a pause of so many turns between two: each is
;; likely in a page that nobody has written for long, so that a moment that is not looked at shows. Calls out and
;; result as above.
(module (import "wasi_snapshot_preview1" "sched_yield" (func $yield (result i32)))
  (memory (export "memory") 128)
  (func (export "run") (param $n i32) (param $every i32) (param $pause i32) (result i64)
    (local $i i32) (local $j i32) (local $a i64) (local $at i32)
    (local.set $a (i64.const 88172645463325252))
    loop $l
      {WAIT}
      (local.set $at (i32.and (i32.wrap_i64 (i64.shr_u (local.get $a) (i64.const 24))) (i32.const 0x7ffff8)))
      (i64.store (local.get $at) (i64.add (i64.rotl (i64.load (local.get $at)) (i64.const 1)) (local.get $a)))
      (if (local.get $every)
        (then (if (i32.eqz (i32.rem_u (local.get $i) (local.get $every))) (then (drop (call $yield))))))
      (br_if $l (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $n)))
    end
    (local.set $at (i32.const 0))
    loop $m
      (local.set $a (i64.add (i64.rotl (local.get $a) (i64.const 1)) (i64.load (local.get $at))))
      (br_if $m (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 0x800000)))
    end
    local.get $a))
"""
FAST = (*COMPILERS, "wasmedge-aot")
keep_memories_mapped()  # as workers do
FRESH = {SPARSE: bytes(70000) + b"not zero in a fresh module" + bytes(40 * 65536 - 70026)}
"""Memory of a fresh module; of others it is 8 MiB of zeros."""
PAUSE = {SPARSE: (0x7FFFF, 0x7FFF), SCATTERED: (30_000, 1000)}
"""On fast runtimes and on others: a few milliseconds, or a hundred microseconds."""
TURNS = {SPARSE: (60 << 20, 6 << 20), SCATTERED: (20_000, 20_000)}


ENDLESS = 0xFFFF_FFFF
"""Turns that last longer than any test does, as a rule; there are no more."""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    verdict = probe(name)
    if not verdict.works:
        pytest.skip(f"{name}: {verdict.why}")
    monkeypatch.setenv("WASMCKPT_DIRTY", name)
    return name


class Series:
    """A guest that runs, and the images that were taken of it, by digest."""

    def __init__(self, engine: Engine, turns: int, every: int = 0, image: Image | None = None, text: str = SPARSE,
                 pause: int | None = None, huge_pages: bool = False) -> None:
        pause = PAUSE[text][engine.name not in FAST] if pause is None else pause
        self.fresh = FRESH.get(text) or bytes(128 << 16)
        self.ends: list[End] = []
        self.files: dict[bytes, bytes] = {}
        self.guest = Guest(
            engine, Assignment(assemble(text), WasiConfig(), "run", tuple(
                Value(I32, number) for number in (turns, every, pause)
            ), huge_pages=huge_pages), image, hold=False, on_frozen=lambda: None, on_end=self.ends.append,
            on_call=lambda call: None,
        )
        self.guest.wait_until_ready()

    def take(self, way: str, parent: ParentRef | None = None, *, held: bool = False) -> Taken:
        take = self.guest.hold if held else self.guest.snapshot
        wanted = None if parent is None else Wanted(parent.sha256, parent)
        taken = take(60, way, changes=self.guest.track(), wanted=wanted)
        if held:
            self.guest.keep()
            self.guest.resume()
        return taken

    def keep(self, taken: Taken) -> ParentRef:
        """The image has been written; what its child names."""
        data = encode(taken.image)
        sha256 = read_linked(io.BytesIO(data))[1]
        self.files[sha256] = data
        self.guest.written(sha256, taken.image)
        return ParentRef(sha256, 1 + (taken.image.parent.position if taken.image.parent else 0))

    def whole(self, sha256: bytes) -> Image:
        return read_chain(io.BytesIO(self.files[sha256]), lambda parent: closing(io.BytesIO(self.files[parent])))

    def memory_address(self) -> int:
        """Of its first byte, in this process."""
        assert self.guest._program is not None
        return self.guest._program.instance.memory("memory").address

    def end(self) -> None:
        """Frozen in place: one that is held by fork ends with its process, and here that lives on."""
        self.guest.hold(60, "in-place")
        self.guest.end()
        self.guest.thread.join()

    def result(self) -> tuple[int, ...]:
        self.guest.thread.join()
        (end,) = self.ends
        assert end.outcome is not None, end.error
        return end.outcome.results


@contextmanager
def whole_images(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[MemoryState]]:
    """The memory of each image that is taken, all of it, at the very same moment."""
    found: list[MemoryState] = []
    copy, look = fork_memory.copy_state, Guest._look

    def copy_state(view, copied, *, memories=True, increment=None):  # type: ignore[no-untyped-def]
        every = copy(view, copied)
        base, pages = view.memory_pages(0, every.read)
        found.append(diff_memory(0, pages, base, every.read, {}))
        return copy(view, copied, memories=memories, increment=increment)

    def frozen(self, program, changes, wanted):  # type: ignore[no-untyped-def]
        base, pages = program.view.memory_pages(0)
        memory = program.instance.memory("memory")
        found.append(diff_memory(
            0, pages, base, lambda address, length: memory.read(address - memory.address, length), {}
        ))
        return look(self, program, changes, wanted)

    with monkeypatch.context() as patched:
        patched.setattr(fork, "copy_state", copy_state)
        patched.setattr(Guest, "_look", frozen)
        yield found


def differs(series: Series, link: ParentRef, moment: MemoryState) -> bool:
    """Whether an image, put together, is not what memory held at its moment."""
    whole = series.whole(link.sha256).memories[0]
    return whole.pages != moment.pages or apply(whole, series.fresh) != apply(moment, b"")


def _may_be_whole(series: Series, engine: Engine, backend: str, way: str) -> bool:
    """Frames need room behind a memory that is not the rewriter's own. WAMR copies a memory for that, Wasm3 moves it:
    in a forked copy the first, and frozen in place both, unless it is compared, count as written altogether. So does
    Wasm3's in a forked copy where malloc had a free piece for it, in a process that has lived as long as this one."""
    if engine.name == "wasm3" and way == "fork":
        from wasmckpt.runtimes.wasm3.layout import HEADER_BYTES

        # Behind malloc's two words, which stand at the beginning of a page where that is mapped for it.
        return series.memory_address() % mmap.PAGESIZE != HEADER_BYTES + 2 * ctypes.sizeof(ctypes.c_size_t)
    return engine.name == "wamr" or (way == "in-place" and backend != "compare" and engine.name not in COMPILERS)


@pytest.mark.slow
@pytest.mark.parametrize(("text", "way"), [(SPARSE, "fork"), (SPARSE, "in-place"), (SCATTERED, "fork")],
                         ids=["sparse-fork", "sparse-in-place", "scattered-fork"])
def test_chains_at_random_moments(
    engine: Engine, engines: list[Engine], backend: str, text: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each link equals a whole image of the same moment, and goes on to the same end. Images are lost on the way: some
    never get written, some are written and then the next one rests on the one before."""
    draw = random.Random(f"{engine.name} {backend} {way}")
    turns = TURNS[text][engine.name not in FAST]
    every = draw.choice([0, 0, 1000])
    want = Series(engine, turns, every, text=text).result()
    wanted = by_tier(check=8, test=8, soak=60)
    taken = differences = 0
    whole_is_right = False
    while taken < wanted or (differences < wanted // 8 and not whole_is_right and taken < 20 * wanted):
        series = Series(engine, turns, every, text=text)
        whole_is_right |= _may_be_whole(series, engine, backend, way)
        links: list[tuple[ParentRef, MemoryState]] = []
        with whole_images(monkeypatch) as moments:
            parent: ParentRef | None = None
            try:
                while len(links) < 25:
                    time.sleep(draw.random() * 0.03)
                    image = series.take(way, parent, held=draw.random() < 0.2)
                    fate = draw.random()
                    if fate < 0.15:
                        continue  # it could not be written
                    link = series.keep(image)
                    links.append((link, moments[-1]))
                    differences += image.image.parent is not None
                    if fate < 0.85 or parent is None:
                        parent = link  # else it was written, but did not arrive
            except JobEnded:
                pass
        assert series.result() == want
        for link, moment in links:
            assert not differs(series, link, moment)
        for link, _ in draw.sample(links, min(len(links), by_tier(check=1, test=2, soak=4))):
            other = draw.choice([e for e in engines if e.name in FAST or engine.name not in FAST])
            assert Series(other, turns, every, series.whole(link.sha256), text).result() == want
        taken += len(links)
    assert differences >= wanted // 8 or whole_is_right
    assert children() == set()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_a_difference_holds_little(engine: Engine, backend: str, way: str) -> None:
    """Of 640 pages or more a few were written: few are in the image, and its parent is the one that was asked for."""
    series = Series(engine, ENDLESS, pause=0x7FFF_FFFF)  # in the same few pages, however slow the machine is
    if _may_be_whole(series, engine, backend, way):
        series.end()
        pytest.skip("images are whole: the memory is copied or moved for each")
    first = series.keep(series.take(way))
    second = series.take(way, first)
    while second.image.parent is None:  # its memory moved, or all of it was written, which a slow machine may do
        second = series.take(way, first := series.keep(second))
    assert second.image.parent == first
    assert sum(len(raw) for _, raw in second.image.memories[0].data) < len(FRESH[SPARSE]) // 2
    unknown = ParentRef(bytes(32), 1)
    assert series.take(way, unknown).image.parent is None
    series.end()


def test_what_is_kept_apart() -> None:
    """Unchanged, zero now, newly grown and zero, newly grown with contents."""
    from wasmckpt.snapshot.pages import changed_memory

    memory = bytearray(4 << 16)
    memory[4096 * 3] = memory[4096 * 20] = memory[4096 * 50] = 1
    state = changed_memory(0, 4, 1000, lambda at, n: bytes(memory[at - 1000:at - 1000 + n]),
                           [(3, 2), (8, 1), (31, 2), (48, 16)], 2)
    assert [(first, len(raw)) for first, raw in state.data] == [(3, 4096), (50, 4096)]
    assert state.zero == ((4, 1), (8, 1), (31, 1))
    assert state.pages == 4


def test_a_tracker_that_loses_the_memory_makes_the_next_image_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    if not probe("uffd").works:
        pytest.skip("uffd does not work here")
    monkeypatch.setenv("WASMCKPT_DIRTY", "uffd")
    series = Series(runtimes.load("wasmtime"), ENDLESS)
    first = series.keep(series.take("fork"))
    collect = Uffd.collect

    def lose(self: Uffd) -> list[Runs]:
        raise TrackingLost("for the test")

    monkeypatch.setattr(Uffd, "collect", lose)
    assert series.take("fork", first).image.parent is None
    monkeypatch.setattr(Uffd, "collect", collect)
    again = series.keep(series.take("fork", first))
    assert again.position == 1
    second = series.take("fork", again)
    assert second.image.parent in (None, again)
    series.keep(second)
    series.end()


def test_sets_only_grow_until_a_later_image_is_named() -> None:
    """Bookkeeping alone, with a tracker that says what the test wants."""
    told: list[Runs] = []

    class Told:
        memories = (None,)
        needs_stop = False

        def collect(self) -> list[Runs]:
            return [told.pop()] if told else [()]

    changes = Changes()
    changes._tracker = Told()  # type: ignore[assignment]

    def image(sha256: bytes, *runs: tuple[int, int], wanted: bytes | None = None) -> Runs | None:
        told.append(runs)
        changes.look()
        changes.begin()
        made = changes.increment(None if wanted is None else Wanted(wanted, ParentRef(wanted, 1)), [4])
        if sha256:
            changes.written(sha256, ())
        return None if made is None else made.runs[0]

    assert image(b"a", (0, 1)) is None
    assert image(b"b", (1, 1), wanted=b"a") == ((1, 1),)
    assert image(b"", (2, 1), wanted=b"b") == ((2, 1),)  # could not be written
    assert image(b"c", (5, 1), wanted=b"b") == ((2, 1), (5, 1))
    assert image(b"d", (9, 1), wanted=b"b") == ((2, 1), (5, 1), (9, 1))  # c did not arrive
    assert image(b"e", (11, 1), wanted=b"a") is None  # let go long ago
    assert image(b"f", (0, 99), wanted=b"e") is None  # everything


def test_discarded_pages_that_are_wanted_again_are_in_the_next_image() -> None:
    """What an image left out counts as written since it."""
    changes = Changes()

    class Told:
        memories = (None,)

    changes._tracker = Told()  # type: ignore[assignment]
    changes.begin()
    changes.written(b"a", [(7, 2)])
    changes.begin()
    made = changes.increment(Wanted(b"a", ParentRef(b"a", 1)), [4])
    assert made is not None
    assert made.runs == (((7, 2),),)
