"""The machine: what it has left, and which runtimes there are."""

from __future__ import annotations

import os
import platform
import socket
import threading
import time
from pathlib import Path
from typing import Any, Final

import psutil

from .. import runtimes
from ..api import Battery, NodeInfo, RuntimeInfo, Temperature
from ..runtimes.apart import facts_apart
from ..snapshot.sandbox import walls
from ..snapshot.worker_process import StandBy
from ..version import __version__
from .config import AgentConfig
from .jobs import Jobs

__all__ = ["Node", "battery", "temperatures"]

_PAGE: Final = 1 << 16
_PATIENCE: Final = 10.0


class Node:
    """``id`` of the agent; ``folder`` of its state. Asking for facts of runtimes takes seconds, and is done once, in a
    thread that begins now."""

    def __init__(self, id_: str, folder: Path) -> None:
        self.id, self._folder, self.started = id_, folder, time.time()
        self.stand_by = StandBy()
        self._runtimes: list[RuntimeInfo] = []
        self._asked = threading.Thread(target=self._ask, name="runtimes", daemon=True)
        self._asked.start()
        psutil.cpu_percent()  # from here on

    def _ask(self) -> None:
        self._runtimes = [
            RuntimeInfo(
                name=fact.name, version=fact.version, problem=fact.problem,
                features=sorted(fact.capabilities.features) if fact.capabilities else [],
                max_memory_bytes=fact.capabilities.max_memory_pages * _PAGE if fact.capabilities else None,
            ) for fact in facts_apart(runtimes.names())
        ]

    def runtimes(self) -> list[RuntimeInfo]:
        """What there is an adapter for, and how it is here; none as long as they have not answered."""
        self._asked.join(_PATIENCE)
        return self._runtimes

    def info(self, jobs: Jobs) -> NodeInfo:
        """As it is now."""
        memory, disk = psutil.virtual_memory(), psutil.disk_usage(str(self._folder))
        return NodeInfo(
            id=self.id, name=socket.gethostname(), version=__version__, machine=platform.machine(),
            system=f"{platform.system()} {platform.release()}", cpus=os.cpu_count() or 1,
            cpu_percent=psutil.cpu_percent(), load=list(os.getloadavg()), memory_total=memory.total,
            memory_available=memory.available, disk_total=disk.total, disk_free=disk.free, battery=battery(),
            temperatures=temperatures(), boot=psutil.boot_time(), started=self.started,
            draining=jobs.draining or jobs.closing, jobs=jobs.records.counts(),
            most_live=jobs.around.config.most_live,
            peers=sorted({*jobs.around.config.peers, *filter(None, [jobs.around.config.drain_to])}),
            warm=sorted(self.stand_by.ready()),
            sandbox=_sandbox(jobs.around.config),
            runtimes=self.runtimes(),
        )


def _sandbox(config: AgentConfig) -> dict[str, str]:
    found = dict(walls())
    found["other users"] = "no" if config.worker_user is None else f"yes, {config.worker_user}"
    if config.sandbox == "off":
        found = dict.fromkeys(found, "no, it is off")
    mode = {"off": "no, it is off", "available": "yes, what there is", "required": "yes, all of it"}[config.sandbox]
    return {"sandbox": mode, **found}


def battery() -> Battery | None:
    """The machine's, if it has one."""
    try:
        found: Any = psutil.sensors_battery()
    except (AttributeError, OSError, ValueError, RuntimeError):  # the kernel's files are odd on some machines
        return None
    if found is None:
        return None
    left = found.secsleft
    return Battery(percent=found.percent, plugged_in=found.power_plugged,
                   seconds_left=int(left) if isinstance(left, (int, float)) and left >= 0 else None)


def temperatures() -> list[Temperature]:
    """What its sensors say."""
    try:
        found: dict[str, list[Any]] = psutil.sensors_temperatures()
    except (AttributeError, OSError, ValueError, RuntimeError):
        return []
    return [
        Temperature(sensor=f"{chip} {one.label}".strip(), celsius=one.current, high=one.high, critical=one.critical)
        for chip, sensors in found.items() for one in sensors if one.current is not None
    ]
