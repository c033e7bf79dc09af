"""Programs move while they run, over a stream between two sides in one process: the output is that of a program that
never moved, each byte once; whatever goes wrong, the program goes on at the source as if nothing had been."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from wasmckpt.errors import (
    CheckpointError,
    Conflict,
    HostStateError,
    JobEnded,
    NotSupported,
    RetryLater,
    RuntimeMissing,
)
from wasmckpt.host import WasiConfig
from wasmckpt.migrate import Options, Progress, Wire
from wasmckpt.migrate.handover import Role, Standing
from wasmckpt.snapshot.job import Job

from ..support.pairs import ring, runtimes_for
from ..support.tiers import by_tier
from .ends import Here, Input, There, move
from .programs import writes, writes_output
from .relays import cut_after, slowly

pytestmark = pytest.mark.slow
ROUNDS = 120
EASY = Options(downtime=1.0, most_downtime=60.0)
"""For machines of any speed."""


@contextmanager
def started(here: Here, module: bytes, runtime: str = "wasmtime") -> Iterator[Job]:
    out = os.open(here.folder / "stdout", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        job = Job.start(module, runtime, config=WasiConfig(stdin=here.stdin.read, stdout=out))
    finally:
        os.close(out)
    with job:
        yield job


def says(folder: Path, number: int) -> None:
    """Wait until it has said so many lines."""
    end = time.monotonic() + 100
    while (folder / "stdout").read_bytes().count(b"\n") < number:
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.fixture
def stdin() -> Iterator[Input]:
    with closing(Input()) as given:
        yield given


@pytest.fixture
def here(tmp_path: Path, stdin: Input) -> Here:
    (tmp_path / "a").mkdir()
    return Here(tmp_path / "a", stdin)


@pytest.fixture
def there(tmp_path: Path, stdin: Input) -> There:
    (tmp_path / "b").mkdir()
    return There(tmp_path / "b", stdin)


def stays(job: Job, here: Here, there: There, module: bytes) -> None:
    """It goes on where it is, to its end; the other side has nothing."""
    assert here.standing().role is Role.OWNER
    assert there.job is None
    assert there.standing().role is not Role.OWNER
    here.stdin.end()
    assert job.wait(120).exit_code == 0
    assert (here.folder / "stdout").read_bytes() == writes_output(ROUNDS)


@pytest.mark.parametrize(("source", "target"), ring(runtimes_for()))
def test_a_program_moves(here: Here, there: There, source: str, target: str) -> None:
    module = writes(ROUNDS, waits=True)
    told: list[Progress] = []
    with started(here, module, source) as job:
        says(here.folder, 3)
        moved, runs = move(job, here, there, module=module, runtime=target, options=EASY, told=told.append)
        assert runs
        assert moved.settled
        token = moved.attempts  # each stop that was for nothing takes one
        assert (here.standing(), there.standing()) == (Standing(Role.GONE, token), Standing(Role.OWNER, token))
        assert job.wait(0).how == "stopped"
    assert there.job is not None
    here.stdin.end()
    with there.job as gone_on:
        assert gone_on.wait(120).exit_code == 0
    assert (there.folder / "stdout").read_bytes() == writes_output(ROUNDS)
    assert told[0].step == "connected"
    assert told[-1].step == "moved"
    assert [one.round for one in told if one.step == "round"] == list(range(1, moved.rounds + 1))


def test_what_was_prepared_is_enough(here: Here, there: There) -> None:
    """A target that dies after COMMIT goes on from the image that it wrote down, and ends with the same output."""
    module = writes(ROUNDS, waits=True)
    with started(here, module) as job:
        says(here.folder, 3)
        move(job, here, there, module=module, runtime="wasmtime", options=EASY)
    said = len((there.folder / "stdout").read_bytes().splitlines())
    assert there.job is not None
    there.job.kill()
    image = there.image()
    produced = next(one["produced"] for one in image.host["descriptors"] if one["kind"] == "stdout")  # type: ignore[attr-defined]
    os.truncate(there.folder / "stdout", produced)
    assert said >= 3
    out = os.open(there.folder / "stdout", os.O_WRONLY | os.O_APPEND)
    from wasmckpt.formats import encode

    here.stdin.end()
    config = WasiConfig(stdin=here.stdin.read, stdout=out)
    with Job.restore(encode(image), "wasm3", module=module, config=config) as again:
        os.close(out)
        assert again.wait(120).exit_code == 0
    assert (there.folder / "stdout").read_bytes() == writes_output(ROUNDS)


def test_there_and_back_again(here: Here, there: There) -> None:
    """What is there already is not sent again; the token rises."""
    module = writes(3 * ROUNDS, pages=2048, some=1, waits=True)  # 360 pages change in all its life
    with started(here, module) as job:
        says(here.folder, 3)
        first, _ = move(job, here, there, module=module, runtime="wasmtime", options=EASY)
    assert there.job is not None
    kept = there.image()
    back = There(here.folder, here.stdin, module=module, standing=here.standing(), base=kept)
    owner = Here(there.folder, here.stdin, there.standing())
    with there.job:
        second, runs = move(there.job, owner, back, module=module, runtime="wasm3", options=EASY)
    assert runs
    assert back.standing().role is Role.OWNER
    assert back.standing().token >= 2
    assert first.literal >= 1900
    assert second.literal < first.literal / 2
    assert back.job is not None
    here.stdin.end()
    with back.job:
        assert back.job.wait(120).exit_code == 0
    assert (here.folder / "stdout").read_bytes() == writes_output(3 * ROUNDS, 2048, 1)


def test_it_is_called_off(here: Here, there: There) -> None:
    module, off = writes(ROUNDS, waits=True), threading.Event()
    with started(here, module) as job:
        says(here.folder, 3)
        with pytest.raises(Conflict, match="called off"):
            move(job, here, there, module=module, runtime="wasmtime", cancelled=off, told=lambda _: off.set())
        assert here.standing() == Standing(Role.OWNER, 1)
        stays(job, here, there, module)


@pytest.mark.parametrize("way", ["fork", "in-place"])
def test_it_is_called_off_while_it_stands_still(
    here: Here, there: There, way: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all its frames, or frozen in place."""
    monkeypatch.setenv("WASMCKPT_SNAPSHOT", way)
    module, off = writes(ROUNDS, waits=True), threading.Event()
    with started(here, module) as job:
        says(here.folder, 3)
        with pytest.raises(Conflict, match="called off"):
            move(job, here, there, module=module, runtime="wasmtime", options=EASY, cancelled=off,
                 told=lambda one: off.set() if one.step == "stopping" else None)
        stays(job, here, there, module)


@pytest.mark.parametrize("error", [
    RuntimeMissing("it is not installed there"), NotSupported("no such feature", need="simd"),
    RetryLater("no memory"), HostStateError("a file is missing", path="x"),
])
def test_the_target_refuses(here: Here, there: There, error: CheckpointError) -> None:
    module = writes(ROUNDS, waits=True)
    there.refuses = error
    with started(here, module) as job:
        says(here.folder, 3)
        with pytest.raises(type(error)) as raised:
            move(job, here, there, module=module, runtime="wasmtime")
        assert raised.value.what == error.what
        assert raised.value.fields == error.fields
        stays(job, here, there, module)


def test_the_runtime_cannot_hold_it(here: Here, there: There) -> None:
    """Found out before the stop."""
    simd = '(func (export "simd") (drop (v128.const i32x4 0 0 0 0)))'
    module, steps = writes(100 * ROUNDS, more=simd), list[str]()
    with started(here, module) as job:
        says(here.folder, 3)
        with pytest.raises(NotSupported):
            move(job, here, there, module=module, runtime="wasm3", told=lambda one: steps.append(one.step))
        assert "stopping" not in steps
        assert there.job is None
        assert not job.ended


def test_there_is_no_memory(here: Here, there: There) -> None:
    module = writes(ROUNDS, waits=True)
    there.most = 1 << 16
    with started(here, module) as job:
        says(here.folder, 3)
        with pytest.raises(NotSupported, match="too large"):
            move(job, here, there, module=module, runtime="wasmtime")
        stays(job, here, there, module)


def test_the_program_ends_meanwhile(here: Here, there: There) -> None:
    module = writes(20)
    with started(here, module) as job:
        says(here.folder, 1)
        with pytest.raises(JobEnded):
            move(job, here, there, module=module, runtime="wasmtime", told=lambda _: job.wait(120))
        assert there.job is None
        assert job.wait(0).exit_code == 0


def test_a_program_that_writes_faster_than_the_wire(here: Here, there: There) -> None:
    module = writes(100_000, pages=2000, some=2000, pause=1)
    options = Options(downtime=0.03, most_downtime=0.04, most_rounds=12)
    with started(here, module) as job:
        says(here.folder, 3)
        with pytest.raises(RetryLater, match=r"writes .* MB a second, and the wire takes"):
            move(job, here, there, module=module, runtime="wasmtime", options=options, between=slowly(3e5))
        assert here.standing().role is Role.OWNER
        assert there.job is None
        says(here.folder, (here.folder / "stdout").read_bytes().count(b"\n") + 3)


@pytest.mark.parametrize("after", by_tier(
    check=[500], test=[500, 10_000, 20_000], soak=[10, 500, 5_000, *range(10_000, 22_000, 250)]))
def test_the_wire_is_cut(here: Here, there: There, after: int) -> None:
    """After so many bytes: the program is at one side then, and says everything once."""
    module = writes(ROUNDS, waits=True)
    with started(here, module) as job:
        says(here.folder, 3)
        try:
            move(job, here, there, module=module, runtime="wasmtime", options=EASY, between=cut_after(after))
        except CheckpointError:
            pass
        if here.standing().role is Role.OWNER:
            stays(job, here, there, module)
            return
    if there.job is None:  # it is prepared, and waits to hear what was decided
        assert there.standing().role is Role.PREPARED
        return
    here.stdin.end()
    with there.job:
        assert there.job.wait(120).exit_code == 0
    assert (there.folder / "stdout").read_bytes() == writes_output(ROUNDS)


def test_another_version(here: Here, there: There) -> None:
    left, right = socket.socketpair()
    from wasmckpt.migrate import receive

    with Wire(left) as wire, Wire(right) as other:
        wire.send("hello", protocol=99, module=bytes(32), size=1, runtime="wasmtime", token=1, about={}, streams={})
        with pytest.raises(NotSupported, match="another version"):
            receive(other, there)
        with pytest.raises(NotSupported, match="another version"):
            wire.receive("welcome")


def test_a_silent_peer(here: Here) -> None:
    """Every wait has a limit."""
    module = writes(ROUNDS, waits=True)
    left, right = socket.socketpair()
    from wasmckpt.migrate import send

    with started(here, module) as job, right, Wire(left, silence=0.5) as wire:
        says(here.folder, 1)
        import wasmckpt.migrate.source as tried

        before, tried._HELLO = tried._HELLO, 0.5  # type: ignore[misc]
        try:
            with pytest.raises(RetryLater, match="says nothing any more"):
                send(job, wire, here, module=module, runtime="wasmtime", about={})
        finally:
            tried._HELLO = before  # type: ignore[misc]
        assert here.standing() == Standing(Role.OWNER, 1, settled=False)
        assert not job.ended
