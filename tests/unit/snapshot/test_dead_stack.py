"""Images without dead stack: smaller, in chains and moves too, and programs end as if they had it."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from wasmckpt import Job, Series, Store, Value, runtimes
from wasmckpt.errors import JobEnded, NotSupported
from wasmckpt.formats import Image, decode
from wasmckpt.store import Entry
from wasmckpt.wasm import decode as wasm_decode
from wasmckpt.wasm.shadow_stack import prove
from wasmckpt.wasm.values import I32

from ...support.dead_stack import built
from ...support.pairs import BASE
from ...support.tiers import by_tier, missing

TURNS = {"wasm3": 12_000, "wamr": 8000, "wasmedge": 4000}
FAST = 160_000
ENDLESS = 1 << 31
"""Turns that last longer than any test, on any machine."""


@pytest.fixture(params=[
    name if name in BASE else pytest.param(name, marks=pytest.mark.soak) for name in runtimes.names()
])
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, f"{name} is not installed")
    return name


@pytest.fixture(params=["fork", "in-place"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", name)
    return name


@pytest.fixture(scope="module")
def wasm() -> bytes:
    return built("-Wl,--stack-first")


def _start(wasm: bytes, runtime: str, *, discard: bool = True, turns: int = 0) -> Job:
    return Job.start(wasm, runtime, invoke="waves", arguments=(Value(I32, turns or TURNS.get(runtime, FAST)),),
                     discard_dead_stack=discard)


def _image(job: Job) -> bytes:
    data = job.checkpoint().data
    assert data is not None
    return data


def _pages(image: Image) -> int:
    """How many pages of its memory are in an image."""
    return sum([len(raw) // 4096 for _, raw in image.memories[0].data])


def _check(image: Image, wasm: bytes) -> int:
    """Nothing is there that is dead; how many pages of the stack are."""
    stack = prove(wasm_decode.decode(wasm))
    end = stack.dead_until(image.globals[stack.pointer].bits, {frame.point.func for frame in image.frames}) // 4096
    (memory,) = image.memories
    assert all(first >= end for first, _ in memory.data)
    return sum([len(raw) // 4096 for first, raw in memory.data if first < stack.high // 4096])


@pytest.mark.slow
def test_images_without_dead_stack(wasm: bytes, runtime: str, way: str) -> None:
    with _start(wasm, runtime, discard=False, turns=ENDLESS) as job:
        end = time.monotonic() + 60
        while (whole := _pages(decode(_image(job)))) < 8:  # it has been down: 150 times 272 bytes
            assert time.monotonic() < end
    with _start(wasm, runtime, discard=False) as job:
        want = job.wait().results
    images: list[bytes] = []
    pages = whole
    while pages >= whole:  # it is all the way down in few images; and it may be over before a busy machine takes one
        with _start(wasm, runtime) as job:
            with suppress(JobEnded):
                for _ in range(by_tier(check=2, test=3, soak=10)):
                    time.sleep(0.03)
                    images.append(_image(job))
            assert job.wait().results == want
        pages = min([_check(decode(image), wasm) for image in images], default=whole)
    with Job.restore(images[0], runtime, module=wasm, discard_dead_stack=True) as again:
        assert again.wait().results == want


@pytest.mark.slow
def test_chains_in_which_the_stack_comes_and_goes(wasm: bytes, runtime: str, way: str, tmp_path: Path) -> None:
    store = Store(tmp_path / "store", create=True)
    entries: list[Entry] = []
    while len(entries) < 2:  # it may be over before a busy machine takes the first
        series = Series(store, "j", wasm, longest=4)
        with _start(wasm, runtime) as job:
            with suppress(JobEnded):
                for _ in range(by_tier(check=3, test=7, soak=20)):
                    series.take(job.checkpoint)
            want = job.wait().results
        entries = list(store.entries())
    assert store.verify() == []
    for entry in entries[-by_tier(check=1, test=2, soak=8):]:
        _check(store.load("j", entry.number), wasm)
        with store.reading("j", entry.number) as (image, _):
            again = Job.restore(image, runtime, module=wasm)
        with again:
            assert again.wait().results == want


@pytest.mark.slow
def test_a_move_leaves_it_behind(wasm: bytes) -> None:
    with _start(wasm, "wasmtime", turns=ENDLESS) as job:
        for _ in range(2):
            job.migrate("wasmtime")
            _check(decode(_image(job)), wasm)


def test_what_cannot_be_proved_is_refused_before_it_runs(wasm: bytes) -> None:
    unknown = built()
    with pytest.raises(NotSupported, match="--stack-first"):
        _start(unknown, "wasmtime")
    with _start(unknown, "wasmtime", discard=False, turns=ENDLESS) as job:
        image = _image(job)
        with pytest.raises(NotSupported, match="--stack-first"):
            Job.restore(image, "wasmtime", module=unknown, discard_dead_stack=True)
    with _start(wasm, "wasmtime") as job:
        job.kill()
