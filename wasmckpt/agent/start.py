"""Starts a job's worker: from the beginning of the program, or from an image in the store.

What a program wrote after an image it writes again when it goes on from that, unless it has a journal. So its logs are
cut back to where they were at the image first: in the end they hold each byte once.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ..api import JobSpec
from ..errors import HostStateError, ImageError, UsageError
from ..faults import point
from ..formats import load_header
from ..host import JournalOptions, WasiConfig
from ..lazydata import dataclass, field, replace
from ..snapshot.confine import ResourceLimits
from ..snapshot.job import Job, check
from ..snapshot.moving import Arrival
from ..snapshot.sandbox import Sandbox
from ..store import Series, Store
from ..wasm.numbers import entry_of
from .config import AgentConfig
from .logs import STREAMS, Logs, Stream
from .modules import Modules
from .records import Record
from .roots import Roots
from .runner import Runner

__all__ = ["Started", "Surroundings", "begin", "expect", "produced_by", "sandbox_of"]

_STREAMS_AT: Final = {"stdout": "stdout_from", "stderr": "stderr_from"}


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a job needs of its agent."""

    config: AgentConfig
    modules: Modules
    store: Store
    roots: Roots
    folder: Path
    sandbox: Sandbox | None = None
    prepared: set[tuple[str, str, bool]] = field(default_factory=set)
    """Modules that were compiled for a runtime since the agent started, or found compiled."""

    def logs(self, job: str) -> Logs:
        """Of a job, by its id."""
        return Logs(self.folder / job)

    def wasi(self, spec: JobSpec, folders: Sequence[int], streams: Sequence[int]) -> WasiConfig:
        """What a job's program gets; descriptors of its folders, in their order, and of its three streams."""
        return WasiConfig(
            args=spec.args, env=spec.env, random_seed=spec.random_seed,
            preopens=[(f"/proc/{os.getpid()}/fd/{fd}", p.guest) for fd, p in zip(folders, spec.preopens, strict=True)],
            read_only=[preopen.guest for preopen in spec.preopens if preopen.read_only],
            stdin=streams[0], stdout=streams[1], stderr=streams[2],
        )

    def limits(self, spec: JobSpec) -> ResourceLimits:
        """Of a job's worker."""
        config, wanted = self.config, spec.limits
        return ResourceLimits(wanted.memory_bytes or config.default_memory, wanted.cpu_seconds,
                              wanted.open_files or config.default_open_files, config.nice)


@dataclass(frozen=True, slots=True)
class Started:
    """A job that runs.

    Attributes:
        text: how it came to that. data: the same for programs. columns: what has changed in its row.
    """

    runner: Runner
    text: str
    data: Mapping[str, Any]
    columns: Mapping[str, Any]


def begin(record: Record, around: Surroundings, end_at: float | None = None) -> Started:
    """Start it; ``end_at``: as of `Job.start`. An image that is damaged is passed over for the one before it; but not
    if it has a journal, which follows the newest.

    Raises:
        As `Job.start` and `Job.restore`, and as `Roots.open`. ImageError: no image is any good.
    """
    spec, store = record.spec, around.store
    module = around.modules.read(record.module)
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as afterwards:
        folders: list[int] = []
        for preopen in spec.preopens:
            folders.append(around.roots.open(preopen.host))
            on_failure.callback(os.close, folders[-1])
        logs = around.logs(record.id)
        streams = []
        for descriptor in (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), *map(logs.open, STREAMS)):
            streams.append(descriptor)
            afterwards.callback(os.close, descriptor)
        config = around.wasi(spec, folders, streams)
        series = Series(store, record.id, module)
        limits = around.limits(spec)
        _prepare(record, module, around, limits)
        numbers = _sources(record, store)
        journal = _journal(record, store, numbers)
        columns: dict[str, int] = {}
        data: dict[str, Any] = {"runtime": record.runtime, "from": numbers[0] if numbers else None}
        if not numbers:
            for stream in STREAMS:
                logs.cut(stream, 0)
                columns[_STREAMS_AT[stream]] = 0
            point("agent.logs-cut")
            job = Job.start(
                module, record.runtime, config=config, invoke=spec.invoke, stack_bytes=spec.limits.stack_bytes,
                arguments=() if spec.invoke is None else entry_of(module, spec.invoke, spec.arguments),
                journal=journal, first_image=None if journal is None else lambda job: series.take(job.checkpoint),
                canonical_nans=spec.canonical_nans, limits=limits, sandbox=around.sandbox, end_at=end_at,
            )
            text = f"running on {record.runtime}, from the beginning"
        else:
            goes_on = journal is not None and os.path.exists(journal.path)

            def restore(number: int) -> Job:
                with store.reading(record.id, number) as (image, _):
                    if not goes_on:
                        columns.update(_cut(logs, image))
                        point("agent.logs-cut")
                    return Job.restore(
                        image, record.runtime, module=module, config=config, stack_bytes=spec.limits.stack_bytes,
                        accept_changed=spec.checkpoint.accept_changed_files, journal=journal, checked=True,
                        limits=limits, sandbox=around.sandbox, end_at=end_at,
                    )

            number, job, damaged = _first_good(numbers[:1] if goes_on else numbers, restore)
            text = f"running on {record.runtime}, from image {number}"
            if damaged:
                data |= {"from": number, "damaged": list(damaged)}
                text += "".join(f"; image {bad} is damaged: {why}" for bad, why in damaged.items())
            if job.replay is not None and goes_on:
                text += f" and the journal: {job.replay.calls} calls answered"
                data["replayed"] = job.replay.calls
        on_failure.pop_all()
        return Started(Runner(record, job, series, folders, around.config.freeze_time), text, data, columns)


def expect(job: str, spec: JobSpec, runtime: str, module: bytes, around: Surroundings) -> tuple[Arrival, list[int]]:
    """A worker for a job that is on its way here, by its id; gives also descriptors of its folders, the caller's to
    close. Raises as `Arrival.begin` and `Roots.open`."""
    folders: list[int] = []
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as afterwards:
        for preopen in spec.preopens:
            folders.append(around.roots.open(preopen.host))
            on_failure.callback(os.close, folders[-1])
        streams = []
        for descriptor in (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), *map(around.logs(job).open, STREAMS)):
            streams.append(descriptor)
            afterwards.callback(os.close, descriptor)
        arrival = Arrival.begin(
            module, runtime, config=around.wasi(spec, folders, streams), stack_bytes=spec.limits.stack_bytes,
            accept_changed=spec.checkpoint.accept_changed_files, limits=around.limits(spec), sandbox=around.sandbox,
        )
        on_failure.pop_all()
    return arrival, folders


def sandbox_of(config: AgentConfig) -> Sandbox | None:
    """The one of all workers. Raises `UsageError`: there is no such user, or this one cannot have one."""
    if config.sandbox == "off":
        if config.worker_user is not None:
            raise UsageError("another user for programs is a part of the sandbox, which is off", setting="worker_user")
        return None
    required = config.sandbox == "required"
    if config.worker_user is None:
        return Sandbox(required=required)
    try:
        user = pwd.getpwnam(config.worker_user)
    except KeyError:
        raise UsageError("there is no such user", setting="worker_user", user=config.worker_user) from None
    if os.geteuid() != 0 and user.pw_uid != os.geteuid():
        raise UsageError("only root can give programs to another user", setting="worker_user",
                         user=config.worker_user)
    return Sandbox(user.pw_uid, user.pw_gid, required=required)


def _prepare(record: Record, module: bytes, around: Surroundings, limits: ResourceLimits) -> None:
    """Have the module compiled by a worker that runs nothing, since one in a sandbox keeps nothing for others. Raises
    as `Job.start`."""
    key = record.module, record.runtime, record.spec.canonical_nans
    if around.sandbox is None or key in around.prepared:
        return
    check(module, record.runtime, stack_bytes=record.spec.limits.stack_bytes, canonical_nans=key[2],
          limits=replace(limits, cpu_seconds=None), sandbox=replace(around.sandbox, user=None, group=None,
                                                                    writes_cache=True))
    around.prepared.add(key)


def _sources(record: Record, store: Store) -> list[int]:
    """Numbers of the images that it may go on from, the best one first; none: from its beginning."""
    if record.source == "beginning":
        return []
    if record.source != "newest":
        return [store.entry(record.id, int(record.source)).number]
    return [entry.number for entry in reversed(store.entries(record.id))]


def _first_good(numbers: Sequence[int], restore: Callable[[int], Job]) -> tuple[int, Job, dict[int, ImageError]]:
    """A job from the first of these images that is not damaged; its number, and those that are, and why. Raises
    `ImageError`: all are."""
    damaged: dict[int, ImageError] = {}
    for number in numbers:
        try:
            return number, restore(number), damaged
        except ImageError as problem:
            damaged[number] = problem
    newest = damaged[numbers[0]]
    if len(numbers) > 1:
        newest.what = f"none of its {len(numbers)} images is any good; the newest: {newest.what}"
    newest.hint = "start it from its beginning, or restore it from another image by its number"
    raise newest


def _journal(record: Record, store: Store, numbers: Sequence[int]) -> JournalOptions | None:
    """The one that it keeps; one of another life is taken away."""
    if not record.journal:
        return None
    path = store.journal(record.id, create=True).absolute()
    if not numbers or record.source != "newest":
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    return JournalOptions(str(path), None, record.spec.checkpoint.journal_sync)


def _cut(logs: Logs, image: Path) -> dict[str, int]:
    """Make the logs end where they ended when an image was taken."""
    found: dict[str, int] = {}
    for stream, produced in produced_by(load_header(image).image.host).items():
        if logs.cut(stream, produced):
            found[_STREAMS_AT[stream]] = produced  # what came before it is on another machine, or was deleted
    return found


def produced_by(host: Mapping[str, Any]) -> dict[Stream, int]:
    """How much a program had written to each stream when an image with that state was taken. Raises
    `HostStateError`: the image does not say that."""
    found: dict[Stream, int] = {}
    for descriptor in _descriptors(host):
        for stream in STREAMS:
            if descriptor.get("kind") == stream:
                produced = descriptor.get("produced")
                if not isinstance(produced, int) or not 0 <= produced < 1 << 62:
                    raise HostStateError("the image does not say how much the program has written", stream=stream)
                found[stream] = produced
    return found


def _descriptors(host: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = host.get("descriptors", [])
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, (list, tuple)) else []
