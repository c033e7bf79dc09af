"""Real programs and a store: whatever happens to one checkpoint, the next one holds what it would have held."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from wasmckpt import Job, Series, Store, Value, runtimes
from wasmckpt.errors import JobEnded, StorageError
from wasmckpt.wasm.values import I32

from ..support.tiers import by_tier, missing
from ..unit.snapshot.fork_guests import assemble
from ..unit.snapshot.test_incremental import FAST, SPARSE

SAME = {True: 0x7FFFF, False: 0x7FFF}
TURNS = {True: 300 << 20, False: 24 << 20}


@pytest.fixture(params=runtimes.names())
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name not in runtimes.available():
        missing(name, f"{name} is not installed")
    return name


def _start(runtime: str, same: int | None = None, turns: int | None = None) -> Job:
    fast = runtime in FAST
    return Job.start(assemble(SPARSE), runtime, invoke="run", arguments=tuple(
        Value(I32, number) for number in (turns or TURNS[fast], 0, SAME[fast] if same is None else same)
    ))


@pytest.mark.slow
def test_checkpoints_in_a_store_end_as_the_program_does(runtime: str, tmp_path: Path) -> None:
    """Chains, made whole on the way; the program moves once, so that the next image is whole; each number restores."""
    draw = random.Random(runtime)
    for times in (1, 4):  # on a slow machine it may have ended before three of them
        store = Store(tmp_path / f"store-{times}", create=True)
        series = Series(store, "j", assemble(SPARSE), longest=3)
        with _start(runtime, turns=times * TURNS[runtime in FAST]) as job:
            try:
                for turn in range(40):
                    time.sleep(draw.random() * 0.05)
                    series.take(job.checkpoint)
                    if turn == 4:
                        job.migrate(runtime)
            except JobEnded:
                pass
            want = job.wait().results
        entries = store.entries("j")
        if len(entries) >= 3:
            break
    assert len(entries) >= 3
    assert store.verify() == []
    chosen = {entries[-1].number, *(entry.number for entry in draw.sample(entries, by_tier(check=1, test=2, soak=3)))}
    for number in chosen:
        with store.reading("j", number) as (image, module):
            assert module is not None
            again = Job.restore(image, runtime, module=module.read_bytes())
        with again:
            assert again.wait().results == want


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _fill(path: Path) -> None:
    """Take all the space that is left."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))


@pytest.mark.slow
def test_a_full_disk_costs_one_checkpoint_and_nothing_else(small_disk: Path) -> None:
    """The program goes on, what was there stays, and what the lost image held is in the next one."""
    store = Store(small_disk / "store", create=True)
    series = Series(store, "j", assemble(SPARSE))
    with _start("wasmtime", 0x7FFFFF, 600 << 20) as job:  # 75 places in all its life: never the whole memory
        series.take(job.checkpoint)
        filler = small_disk / "filler"
        for _ in range(3):
            _fill(filler)
            with pytest.raises(StorageError):
                series.take(job.checkpoint)
            assert len(list((store.path / "incoming").iterdir())) == 0
            filler.unlink()
            before = len(store.entries())
            series.take(job.checkpoint)
            assert len(store.entries()) == before + 1
        assert store.entries()[-1].position > 0
        assert store.verify() == []
        want = job.wait().results
    for entry in store.entries():
        with store.reading("j", entry.number) as (image, _):
            again = Job.restore(image, "wasmtime", module=assemble(SPARSE))
        with again:
            assert again.wait().results == want
