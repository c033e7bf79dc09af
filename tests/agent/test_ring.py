"""Programs that move all the time, around a ring of five machines with another kind of runtime each, on a wire of
1 Gbit/s that takes 5 ms: in the end each has said everything once, and the agents are no larger than they were."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Final

import psutil
import pytest

from wasmckpt import runtimes
from wasmckpt.api import JobSpec, Migrate, State
from wasmckpt.client import AgentClient
from wasmckpt.errors import CheckpointError
from wasmckpt.store import Store

from ..migrate.programs import writes, writes_output
from ..support.pairs import SEED
from ..support.tiers import TIER, by_tier
from .machines import Machine, Machines, machines

pytestmark = pytest.mark.slow
RING: Final = [name for name in runtimes.available() if not runtimes.load(name).capabilities.compiles_slowly]
ROUNDS: Final = by_tier(check=200, test=750, soak=50_000)
"""Of 20 ms at least: in soak, with what moves cost, more than half an hour."""
JOBS: Final = by_tier(check=1, test=1, soak=3)
PATIENCE: Final = 120.0


class Rider(threading.Thread):
    """A job, and whoever moves it on to the next machine until it ends."""

    def __init__(self, ring: list[Machine], n: int) -> None:
        super().__init__(name=f"rider {n}")
        self._ring, self.at, self.moves, self.kept = ring, n, 0, 0
        self.rounds = ROUNDS + n
        self._draw = random.Random(SEED + n)
        self.stopped: list[float] = []
        self.wrong: BaseException | None = None
        with ring[n].client() as client:
            self.job = client.create(JobSpec(
                module=client.upload(writes(self.rounds)).sha256, name=f"rider-{n}", runtime=RING[n],
                checkpoint={"every_seconds": 1.0})).id

    def run(self) -> None:
        clients = [machine.client() for machine in self._ring]
        try:
            while self._moved_on(clients):
                time.sleep(self._draw.random() * 0.2)
        except BaseException as wrong:
            self.wrong = wrong
        finally:
            for client in clients:
                client.close()

    def _moved_on(self, clients: list[AgentClient]) -> bool:
        here, to = clients[self.at], (self.at + 1) % len(self._ring)
        state = here.job(self.job).state
        if state is State.EXITED:
            return False
        assert state in (State.PENDING, State.STARTING, State.RUNNING), state
        if state is not State.RUNNING:
            return True
        try:
            move = here.migrate(self.job, Migrate(
                to=self._ring[to].url, runtime=RING[to], downtime=1.0, most_downtime=60.0))
        except CheckpointError:
            assert here.job(self.job).state is State.EXITED
            return False
        end = time.monotonic() + PATIENCE
        while (found := here.migration(self.job, move.id)).state not in ("moved", "kept"):
            assert time.monotonic() < end, found
            time.sleep(0.02)
        if found.state == "moved":
            self.at, self.moves = to, self.moves + 1
        else:
            self.kept += 1
            assert here.job(self.job).state in (State.RUNNING, State.EXITED), found.problem
        return True


def sizes(ring: list[Machine]) -> list[tuple[int, int]]:
    """Of each agent's process: bytes of memory, descriptors."""
    found = []
    for machine in ring:
        assert machine.process is not None
        agent = psutil.Process(machine.process.pid)
        found.append((agent.memory_info().rss, agent.num_fds()))
    return found


def test_around_five_kinds_of_runtime(tmp_path: Path) -> None:
    with machines(tmp_path, len(RING), rate=125e6, delay=0.0025) as all_:
        riders = [Rider(all_.all, n) for n in range(JOBS)]
        for rider in riders:
            rider.start()
        early: list[tuple[int, int]] = []
        while any(rider.is_alive() for rider in riders):
            time.sleep(0.2)
            if not early and min(rider.moves for rider in riders) >= 2 * len(RING):
                early = sizes(all_.all)  # each has done all there is to do twice
        for rider in riders:
            rider.join()
            if rider.wrong is not None:
                raise rider.wrong
            assert rider.moves >= by_tier(check=1, test=1, soak=100)
            assert rider.kept <= rider.moves // 10 + 1
            with all_.all[rider.at].client() as client:
                info = client.job(rider.job)
                assert (info.state, info.exit_code) == (State.EXITED, 0), info.problem
                log = b""
                while piece := client.log(rider.job, offset=len(log))[1]:
                    log += piece
                assert log == writes_output(rider.rounds)
        if TIER == "soak":
            for (memory, files), (memory_now, files_now) in zip(early, sizes(all_.all), strict=True):
                assert memory_now < 1.5 * memory + (32 << 20)
                assert files_now <= files + 16
        _nothing_left(all_, riders)


def _nothing_left(all_: Machines, riders: list[Rider]) -> None:
    for machine in all_.all:
        with machine.client() as client:
            for rider in riders:
                try:
                    assert client.job(rider.job).state is (
                        State.EXITED if machine.n == rider.at else State.MOVED)
                    client.delete(rider.job)
                except CheckpointError:
                    assert machine.n != rider.at  # it has not come so far
        store = Store(machine.state / "store")
        assert store.verify() == []
        assert store.entries() == []
        assert not list((machine.state / "incoming").iterdir())
