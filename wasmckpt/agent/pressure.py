"""Jobs leave a machine that is no good place for them any more (`wasmckpt.supervise.pressure`).

For a low battery or too much heat all of them: a drain, which ends by itself when that is over. For load or too little
memory one after the other, while they run, to the agents of the settings' ``peers`` in their order: the one first that
takes the most of what is short. A job that keeps a journal, or that no peer takes, stays.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING, Final

import psutil

from ..api import Migrate
from ..errors import CheckpointError, Conflict, NotFound, NotSupported
from ..supervise.pressure import ALL_LEAVE, Facts, Kind, Limits, Pressure
from .node import battery, temperatures
from .runner import Runner

if TYPE_CHECKING:
    from .service import Agent

__all__ = ["PressureWatch", "facts"]

_EVERY: Final = 5.0
_LONGEST_MOVE: Final = 600.0
_SAMPLE: Final = 0.5
"""Seconds over which it is seen which program computes the most."""
_MOVING: Final = ("moving", "calling-off")


def facts() -> Facts:
    """Of this machine."""
    power, memory = battery(), psutil.virtual_memory()
    return Facts(
        None if power is None or power.plugged_in else power.percent,
        max((one.celsius for one in temperatures()), default=None),
        os.getloadavg()[0] / (os.cpu_count() or 1), memory.available / memory.total * 100,
    )


class PressureWatch:
    """Of one agent: a thread of its own, if the settings have limits at all."""

    def __init__(self, agent: Agent) -> None:
        leave = agent.config.leave
        self._agent, self._pause = agent, leave.pause
        self._pressure = Pressure(Limits(leave.battery_percent, leave.temperature, leave.load, leave.memory_percent,
                                         leave.lasting))
        self._every = min(_EVERY, max(leave.lasting / 3, 0.05))
        self._known: frozenset[Kind] = frozenset()
        self._drained = False
        self._next_one = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pressure", daemon=True)
        limits = (leave.battery_percent, leave.temperature, leave.load, leave.memory_percent)
        self._wanted = any(limit is not None for limit in limits)

    def start(self) -> None:
        """From now on."""
        if self._wanted:
            self._thread.start()

    def close(self) -> None:
        """Nothing more is begun. Idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(60.0)

    def _run(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._turn()
            except CheckpointError as problem:
                self._say(f"no job can leave: {problem}")
            except Exception as problem:  # a bug, of which the jobs shall not suffer
                self._agent.jobs.internal_error(problem)

    def _turn(self) -> None:
        found = self._pressure.look(time.monotonic(), facts())
        if found != self._known:
            names = sorted(found)
            self._say(f"no good place for programs: {', '.join(names)}" if names else "a good place again", names)
            self._known = found
        jobs = self._agent.jobs
        if found & ALL_LEAVE:
            if not self._drained and not jobs.draining:
                self._drained = True
                self._all_leave()
        elif self._drained:
            self._drained = False
            jobs.undrain()
        elif found and time.monotonic() >= self._next_one:
            self._one_leaves(Kind.MEMORY if Kind.MEMORY in found else Kind.LOAD)
            self._next_one = time.monotonic() + self._pause

    def _all_leave(self) -> None:
        try:
            self._agent.drain()
        except CheckpointError as problem:  # there is no way to the other agent: they are frozen here at least
            self._say(f"no job can leave: {problem}")
            self._agent.jobs.drain()

    def _one_leaves(self, kind: Kind) -> None:
        for runner in self._greediest(kind):
            for url in self._agent.config.peers:
                if self._moved(runner.id, url):
                    return
        self._say("no job can leave to any of the peers" if self._agent.config.peers else "no peers are known")

    def _greediest(self, kind: Kind) -> list[Runner]:
        """Jobs that run, those first that take the most of it."""
        processes: list[tuple[Runner, psutil.Process]] = []
        for runner in self._agent.jobs.runners():
            with contextlib.suppress(psutil.Error, CheckpointError):
                processes.append((runner, psutil.Process(runner.job.pid)))
        before = [_taken(process, kind) for _, process in processes]
        if kind is Kind.LOAD and processes:
            self._over.wait(_SAMPLE)
        now = [_taken(process, kind) for _, process in processes]
        share = {runner.id: now[n] - (before[n] if kind is Kind.LOAD else 0.0)
                 for n, (runner, _) in enumerate(processes)}
        return sorted((runner for runner, _ in processes), key=lambda runner: -share[runner.id])

    def _moved(self, job: str, url: str) -> bool:
        agent = self._agent
        try:
            runtime = agent.records.get(job).runtime
            move = agent.departures.begin(job, Migrate(to=url, runtime=runtime, token=None))
        except (NotFound, Conflict, NotSupported):
            return False
        except CheckpointError as problem:
            self._say(f"{url} takes no job: {problem}")
            return False
        end = time.monotonic() + _LONGEST_MOVE
        while agent.moves.get(job, move.id).state in _MOVING and time.monotonic() < end and not self._over.wait(0.05):
            pass
        return agent.moves.get(job, move.id).state in ("telling", "moved")

    def _say(self, text: str, reasons: list[Kind] | None = None) -> None:
        with contextlib.suppress(CheckpointError):
            self._agent.events.say(None, "pressure", text, {} if reasons is None else {"reasons": list(reasons)})


def _taken(process: psutil.Process, kind: Kind) -> float:
    """Bytes, or seconds of processor time."""
    try:
        if kind is Kind.MEMORY:
            return float(process.memory_info().rss)
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.Error:
        return 0.0
