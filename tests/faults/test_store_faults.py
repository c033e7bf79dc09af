"""A store whose writer is killed, or whose disk fails, at every step of everything that writes: afterwards each
checkpoint that was there, or was told to be there, comes out whole, no other one shows, and the store is of use."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wasmckpt.errors import CheckpointError, StorageError
from wasmckpt.formats import load_header
from wasmckpt.store import Entry, Retention, Series, Store
from wasmckpt.store.folder import POINTS as PUT

from ..support.tiers import by_tier
from ..unit.store.images import MODULE, Program, memory_of

TOP = Path(__file__).resolve().parents[2]
POINTS = sorted({*PUT, *re.findall(r'point\("(store\.[a-z]+)"\)', (TOP / "wasmckpt/store/store.py").read_text())})
ACTS = ("add", "compact", "prune", "import", "adopt")
BEFORE = 6
"""Checkpoints in the store; so many that compaction makes one pack of theirs."""
OTHERS = {what: [name for name in PUT if "modules" in name] for what in ACTS}
"""Points that an operation does not pass: the module is there already."""
OTHERS["import"] += [name for name in PUT if "packs" in name]  # and so are the pages
OTHERS["adopt"] += [name for name in POINTS if "packs" in name or name == "store.apart"]  # its images are complete

WRITER = """
import sys
from tests.faults.test_store_faults import act
act(sys.argv[1], sys.argv[2])
"""


def act(what: str, folder: str) -> None:
    """One operation on a store that holds checkpoints of "j1"; prints when it is done."""
    store = Store(folder)
    if what == "add":
        program, series = Program(), Series(store, "j1", MODULE)
        program.take(series)
        print("told", flush=True)
        program.take(series)
    elif what == "compact":
        store.compact("j1")
    elif what == "prune":
        store.compact("j1")
        store.prune("j1", Retention(last=1))
        store.gc()
    elif what == "import":
        store.import_image("j2", Path(folder).parent / "one.wckpt")
    elif what == "adopt":
        path = Path(folder).parent / "one.wckpt"
        image = load_header(path).image
        store.adopt([Entry("j2", 3, 1.0, hashlib.sha256(path.read_bytes()).digest(), path.stat().st_size, 0, None,
                           image.module.sha256, len(image.frames), image.producer.runtime)], [path], MODULE)
    print("told", flush=True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store", create=True)
    program, series = Program(7), Series(made, "j1", MODULE)
    for _ in range(BEFORE):
        program.take(series)
    made.export("j1", tmp_path / "one.wckpt", carry_module=True)
    return made


def _run(what: str, store: Store, fault: str = "", kill_after: float | None = None) -> tuple[int, int]:
    """Exit status, and how often something was told to be done."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, what, str(store.path)], cwd=TOP, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, "WASMCKPT_FAULT": fault},
    )
    try:
        out, _ = process.communicate(timeout=kill_after or 60)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
    return process.returncode, out.count(b"told")


def _check(store: Store, held: dict[int, bytes], what: str, told: int) -> None:
    """All that was there is there, or was let go as asked; nothing half done shows; and it can be gone on with."""
    again = Store(store.path)
    assert again.verify() == []
    found = {entry.number: memory_of(again, "j1", entry.number) for entry in again.entries("j1")}
    if what == "prune" and BEFORE in found and len(found) == 1:
        held = {BEFORE: held[BEFORE]}
    assert {number: found.get(number) for number in held} == held
    extra = len(found) - len(held)
    if what == "add":
        assert told <= extra <= told + 1  # it failed between the commit and the telling
    else:
        assert extra == 0
    others = again.entries("j2")
    assert len(others) >= (told if what in ("import", "adopt") else 0)
    assert all(memory_of(again, "j2", entry.number) == held[BEFORE] for entry in others)
    again.gc()
    assert again.verify() == []
    images = {path.name for path in (again.path / "images").iterdir()}
    assert {f"{entry.sha256.hex()}.wckpt" for entry in again.entries()} <= images
    assert list((again.path / "incoming").iterdir()) == []
    assert again.gc().files == 0
    program = Program(99)
    assert memory_of(again, "j3", program.take(Series(again, "j3"))[0]) == program.memory


def _held(store: Store) -> dict[int, bytes]:
    return {entry.number: memory_of(store, "j1", entry.number) for entry in store.entries("j1")}


def test_the_points_are_those_of_the_code() -> None:
    assert len(POINTS) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("what", ACTS)
def test_a_kill_at_every_point(store: Store, what: str, point: str) -> None:
    held = _held(store)
    status, told = _run(what, store, f"{point}:kill")
    assert status in (0, -signal.SIGKILL)
    _check(store, held, what, told)


@pytest.mark.slow
def test_a_kill_at_any_moment(store: Store) -> None:
    """Points are where we think that it matters; the clock knows better."""
    for turn in range(by_tier(check=1, test=12, soak=200)):
        held = _held(store)
        _, told = _run("add", store, kill_after=0.25 + 0.02 * (turn % 20))
        _check(store, held, "add", told)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["ENOSPC", "EIO"])
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("what", ACTS)
def test_a_disk_that_fails_at_every_point(
    store: Store, what: str, point: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told, and nothing is lost; what has been committed is there all the same."""
    held = _held(store)
    monkeypatch.setenv("WASMCKPT_FAULT", f"{point}:{error}")
    failed = False
    try:
        act(what, str(store.path))
    except StorageError:
        failed = True
    monkeypatch.delenv("WASMCKPT_FAULT")
    assert failed or point in OTHERS.get(what, ()) or point in ("store.sweeping", "store.swept", "store.unlinked")
    _check(store, held, what, 0 if failed else {"add": 2}.get(what, 1))


def _limited(store: Store, size: int) -> int:
    """Add with files limited to ``size`` bytes: the write that crosses the limit is a short one, the next one fails."""
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run([sys.executable, "-c", WRITER, "add", str(store.path)], cwd=TOP, capture_output=True,
                          preexec_fn=limit, check=False, timeout=60)
    if done.returncode:
        assert b"StorageError" in done.stderr
    return done.stdout.count(b"told")


@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, 4096, 12_000, 20_480, 60_000, 131_000])
def test_writes_that_come_up_short(store: Store, size: int) -> None:
    held = _held(store)
    _check(store, held, "add", _limited(store, size))


@pytest.mark.slow
def test_many_writers_and_killers(store: Store) -> None:
    """Processes that add and tidy up at once, some of which are killed."""
    held = _held(store)
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, what, str(store.path)], cwd=TOP, stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, env={**os.environ, "WASMCKPT_FAULT": fault})
        for what, fault in [("add", ""), ("add", "store.packsrenamed:kill"), ("import", ""), ("compact", ""),
                            ("import", "store.imagessynced:kill"), ("add", ""), ("compact", "store.indexing:kill")]
    ]
    for _ in range(20):
        store.gc()
    for process in running:
        _, errors = process.communicate(timeout=60)
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
    again = Store(store.path)
    assert again.verify() == []
    assert {number: memory_of(again, "j1", number) for number in held} == held
    assert len(again.entries("j1")) >= BEFORE + 4
    assert len(again.entries("j2")) == 1


def test_a_store_that_was_half_made(tmp_path: Path) -> None:
    """Whoever makes it again finds nothing in the way."""
    code = "import sys; from wasmckpt.store import Store; Store(sys.argv[1], create=True)"
    folder = tmp_path / "store"
    killed = subprocess.run([sys.executable, "-c", code, str(folder)], check=False, cwd=TOP,
                            env={**os.environ, "WASMCKPT_FAULT": "store.creating:kill"})
    assert killed.returncode == -signal.SIGKILL
    assert (folder / "index.sqlite").exists()
    with pytest.raises(StorageError):
        Store(folder)
    made = Store(folder, create=True)
    assert made.entries() == Store(folder, create=True).entries() == []


def test_another_error_leaves_the_store_alone_too(store: Store) -> None:
    held = _held(store)

    def write(path: Path) -> bytes:
        path.write_bytes(b"half an image")
        raise CheckpointError("for the test")

    with pytest.raises(CheckpointError, match="for the test"):
        store.add("j1", write)
    _check(store, held, "add", 0)
