"""Machines that cannot reach each other: at no moment do two of them run a job, and in the end it has said everything
once."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wasmckpt.api import JobSpec, State
from wasmckpt.errors import CheckpointError

from ..migrate.programs import writes, writes_output
from .machines import Machine, Machines, machines
from .test_neighbours import wait

pytestmark = pytest.mark.slow
LEASE = 3.0


def new(at: Machine, others: list[Machine], rounds: int) -> str:
    """A job whose newest image the others have; its id."""
    with at.client() as client:
        job = client.create(JobSpec(
            module=client.upload(writes(rounds)).sha256, neighbours=[other.url for other in others],
            checkpoint={"every_seconds": 0.5})).id
        wait(lambda: all((one.number or 0) > 0 for one in client.neighbours(job)), "images kept")
    return job


@contextmanager
def never_two(all_: Machines, job: str) -> Iterator[list[int]]:
    """Looks all the time at which machines it runs; gives those at which it has run, in order."""
    seen: list[int] = []
    wrong: list[list[int]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            now = [machine.n for machine in all_.all if machine.runs(job)]
            if len(now) > 1:
                wrong.append(now)
            elif now and now != seen[-1:]:
                seen.extend(now)
            time.sleep(0.01)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
    assert wrong == []


def ended(all_: Machines, job: str, output: bytes) -> int:
    """Wait until it has, with that output; gives where."""

    def where() -> list[int]:
        found = []
        for machine in all_.all:
            try:
                with machine.client() as client:
                    info = client.job(job)
                    assert info.state is not State.FAILED, info.problem
                    if info.state is State.EXITED:
                        assert client.output(job) == output
                        found.append(machine.n)
            except CheckpointError:
                pass
        return found

    wait(lambda: bool(where()), "its end")
    (there,) = where()
    return there


def test_the_owner_is_cut_off(tmp_path: Path) -> None:
    """Its program has ended before another one goes on with it; when the cable is in again it lets go."""
    with machines(tmp_path, 3, lease=LEASE) as all_:
        job = new(all_.all[0], all_.all[1:], 700)
        with never_two(all_, job) as seen:
            all_.pull(0)
            wait(lambda: any(machine.runs(job) for machine in all_.all[1:]), "a take-over")
            all_.pull(0, out=False)
            with all_.all[0].client() as client:
                wait(lambda: _is(client.job(job).state, State.MOVED), "its letting go")
            assert ended(all_, job, writes_output(700)) in (1, 2)
        assert seen[0] == 0
        assert len(seen) == 2


def _is(state: State, wanted: State) -> bool:
    return state is wanted


def test_one_that_is_cut_off_changes_nothing(tmp_path: Path) -> None:
    """A neighbour that does not hear the owner gets no votes from the one that does."""
    with machines(tmp_path, 3, lease=LEASE) as all_:
        job = new(all_.all[0], all_.all[1:], 600)
        with never_two(all_, job) as seen:
            all_.cut(0, 1)
            time.sleep(3 * LEASE)
            all_.cut(0, 1, out=False)
            assert ended(all_, job, writes_output(600)) == 0
        assert seen == [0]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_cut(tmp_path: Path, seed: int) -> None:
    """Cables are pulled and cut, agents killed and stopped, at random."""
    draw = random.Random(seed)
    with machines(tmp_path, 3, lease=LEASE) as all_:
        job = new(all_.all[0], all_.all[1:], 800)
        with never_two(all_, job):
            for _ in range(4):
                n, pause = draw.randrange(3), draw.random() * 2.5 * LEASE
                kind = draw.choice(["pull", "cut", "kill", "hang"])
                if kind == "pull":
                    all_.pull(n)
                    time.sleep(pause)
                    all_.pull(n, out=False)
                elif kind == "cut":
                    all_.cut(n, (n + 1) % 3)
                    time.sleep(pause)
                    all_.cut(n, (n + 1) % 3, out=False)
                elif kind == "hang":
                    all_.all[n].signal(signal.SIGSTOP)
                    time.sleep(pause)
                    all_.all[n].signal(signal.SIGCONT)
                else:
                    all_.all[n].kill()
                    time.sleep(pause)
                    all_.all[n].start()
                time.sleep(draw.random() * LEASE)
            ended(all_, job, writes_output(800))
