"""A great many short programs on two agents, between which they move, while workers and agents are killed, at named
points and at any moment: each program ends with the right output, once."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from typing import Final

import psutil
import pytest

from wasmckpt import runtimes
from wasmckpt.api import ENDED, JobInfo, JobSpec, Migrate, State
from wasmckpt.errors import CheckpointError
from wasmckpt.store import Store

from ..migrate.programs import writes, writes_output
from ..support.pairs import SEED
from ..support.tiers import by_tier
from .conftest import PATIENCE, Serve, Served
from .test_migrations import SOURCE, TARGET, steady
from .test_restart import POINTS

pytestmark = pytest.mark.slow
RUNS: Final = by_tier(check=8, test=16, soak=10_000)
AT_ONCE: Final = by_tier(check=8, test=16, soak=50)
HARM: Final = by_tier(check=2, test=3, soak=5)
"""Kills within one lot of programs."""
SIZES: Final = (50, 100, 150)
"""Rounds of 20 ms."""
ENGINES: Final = [name for name in runtimes.available() if not runtimes.load(name).capabilities.compiles_slowly]
FAULTS: Final = sorted({point.partition(":")[0] for point in (*SOURCE, *TARGET, *POINTS)})


class Lot:
    """Some programs at a time, by name: how many rounds each has."""

    def __init__(self, serve: Serve) -> None:
        self.draw = random.Random(SEED)
        self.agents = [steady(serve), steady(serve)]
        self.programs: dict[str, int] = {}
        self.done: Counter[str] = Counter()

    def _revive(self, served: Served, fault: str = "") -> None:
        assert served.process is not None
        if served.process.poll() is not None:
            self.done["point"] += 1
        served.kill()
        if fault:
            served.start(WASMCKPT_FAULT=fault)
            with contextlib.suppress(AssertionError):  # it was killed before it listened
                served.listens()
        else:
            served.start()

    def create(self, number: int) -> None:
        """The same requests until they are answered: they make one job each."""
        for n in range(number):
            name, rounds = f"p{self.done['program'] + n}", self.draw.choice(SIZES)
            served, runtime = self.draw.choice(self.agents), self.draw.choice(ENGINES)
            end = time.monotonic() + PATIENCE
            while name not in self.programs:
                assert time.monotonic() < end
                try:
                    with served.client() as client:
                        spec = JobSpec(
                            name=name, module=client.upload(writes(rounds, pages=32)).sha256, runtime=runtime,
                            checkpoint={"every_seconds": 0.3},
                            restart={"most": 1000, "backoff_seconds": 0.05, "at_one_place": 0})
                        client.create(spec, key=name)
                    self.programs[name] = rounds
                except CheckpointError:
                    self._revive(served)

    def move(self) -> None:
        """Each program that runs may go to the other agent, on any runtime."""
        time.sleep(0.3)  # some have come so far
        for served, other in (self.agents, self.agents[::-1]):
            with contextlib.suppress(CheckpointError), served.client() as client:
                for job in list(client.all_jobs(states=[State.RUNNING])):
                    if self.draw.random() < 0.5:
                        client.migrate(job.name, Migrate(
                            to=other.url, token=other.token, runtime=self.draw.choice(ENGINES), downtime=1.0,
                            most_downtime=60.0))
                        self.done["move"] += 1

    def harm(self) -> None:
        served, kind = self.draw.choice(self.agents), self.draw.choice(["worker", "agent", "point", "point"])
        assert served.process is not None
        if kind == "worker":
            with contextlib.suppress(psutil.Error, IndexError):
                self.draw.choice(psutil.Process(served.process.pid).children(recursive=True)).kill()
                self.done["worker"] += 1
        elif kind == "agent":
            self.done["agent"] += served.process.poll() is None
            self._revive(served)
        elif served.process.poll() is None:
            served.kill()
            self._revive(served, f"{self.draw.choice(FAULTS)}:kill:{self.draw.randint(1, 10)}")

    def finish(self) -> None:
        """Wait until all have ended, with their output, at one agent each; then they are forgotten."""
        for served in self.agents:
            self._revive(served)
        end = time.monotonic() + PATIENCE
        while True:
            found: dict[str, list[tuple[Served, JobInfo]]] = {}
            for served in self.agents:
                with served.client() as client:
                    for job in client.all_jobs():
                        if job.state is not State.MOVED:
                            found.setdefault(job.name, []).append((served, job))
            if all(len(where) == 1 and where[0][1].state in ENDED for where in found.values()):
                break
            assert time.monotonic() < end, found
            time.sleep(0.1)
        assert found.keys() == self.programs.keys()
        for name, [(served, job)] in found.items():
            assert (job.state, job.exit_code) == (State.EXITED, 0), (name, job.problem)
            with served.client() as client:
                assert client.output(name) == writes_output(self.programs[name], pages=32), name
        self.done["program"] += len(found)
        self.programs.clear()
        for served in self.agents:
            with served.client() as client:
                for job in list(client.all_jobs()):
                    client.delete(job.name)


def test_each_ends_with_the_right_output_once(serve: Serve) -> None:
    lot = Lot(serve)
    while lot.done["program"] < RUNS:
        lot.create(min(AT_ONCE, RUNS - lot.done["program"]))
        for _ in range(HARM):
            lot.move()
            time.sleep(lot.draw.random() * 0.5)
            lot.harm()
        lot.finish()
        print(dict(lot.done), flush=True)
    assert lot.done["program"] == RUNS
    assert lot.done["move"] >= RUNS // 4
    assert lot.done["worker"] + lot.done["agent"] + lot.done["point"] >= by_tier(check=1, test=1, soak=RUNS // 50)
    for served in lot.agents:
        store = Store(served.state / "store")
        assert store.verify() == []
        assert store.entries() == []
        assert not list((served.state / "logs").iterdir())
        assert not list((served.state / "incoming").iterdir())
