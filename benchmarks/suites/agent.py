"""An agent with many programs: how long a hibernated one takes to go on, how long a list of jobs, what a job costs.

*Resume*: from `wake` to the state running, of a small program that was hibernated, in the domain, without HTTP; the
worker is forked from a process that stands by, "afresh" is the same without one. *Processor time* of agent and worker
until then: a quiet machine takes about as long. *List*: a page of 100 of so many jobs over HTTP on the loopback
interface, from request to answer, while all the others live. *Live*: programs that wait in a call, but for four that
compute; memory of a worker is its part of what it shares with others and all that is its own (Pss), from the kernel.
The hibernated ones were given one image each; a few of them are woken at the end. Wall time unless it says otherwise.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn

from wasmckpt.agent.app import app_of, guarded
from wasmckpt.agent.config import AgentConfig
from wasmckpt.agent.service import Agent
from wasmckpt.api import JobSpec, State
from wasmckpt.client import AgentClient, Where
from wasmckpt.snapshot.worker_process import StandBy

from ..guests import wat
from ..report import Goal, Report, Table
from ..settings import Settings

FOREVER = """(module (memory (export "memory") 1)
  (func (export "_start") (local $i i32)
    (loop $next
      (i32.store (i32.const 8) (local.tee $i (i32.add (local.get $i) (i32.const 1)))) (br $next))))"""


WAITS = """(module
  (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (func (export "_start")
    (i32.store (i32.const 16) (i32.const 1))               ;; the monotonic clock
    (i64.store (i32.const 24) (i64.const 3600000000000))   ;; an hour
    (loop $next
      (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 100)))
      (br $next))))"""
_BUSY = 4


def run(settings: Settings, report: Report) -> None:
    """One row for each question."""
    table = Table("", [("", ""), ("jobs", "d"), ("median, ms", ".1f"), ("least, ms", ".1f"), ("largest, ms", ".1f"),
                       ("processor, ms", ".1f")])
    memory = Table("memory", [("", ""), ("workers", "d"), ("each, MiB", ".1f"), ("agent, MiB", ".1f"),
                              ("standing by, MiB", ".1f")])
    rounds = settings.few(20)
    with (
        report.kept("agent"), tempfile.TemporaryDirectory() as scratch,
        Agent(AgentConfig(state=Path(scratch), requests_per_second=1e6, burst=1_000_000, most_live=300)) as agent,
    ):
        module, waits = _upload(agent, FOREVER), _upload(agent, WAITS)
        for name in settings.names:
            _row(settings, table, f"resume from hibernation, {name}, afresh", 1,
                 *_resumes(agent, module, name, settings.few(5), warm=False))
            times, spent = _resumes(agent, module, name, rounds, warm=True)
            _row(settings, table, f"resume from hibernation, {name}", 1, times, spent)
            report.goals.append(Goal(f"resume from hibernation, {name}", statistics.median(times) * 1e3, 60, "ms"))
        live, asleep = (6, 20) if settings.quick else (200, 5000)
        _fill(agent, module, waits, settings.names[0], live, asleep)
        counts = agent.records.counts()
        assert (counts["running"], counts["hibernated"]) == (live, asleep), counts
        times = _lists(agent, Path(scratch), rounds)
        _row(settings, table, "list of 100", live + asleep, times)
        report.goals.append(Goal(f"list of 100 of {live + asleep} jobs, {live} of them live",
                                 statistics.median(times) * 1e3, 50, "ms"))
        workers = [runner.job.pid for runner in agent.jobs.runners()]
        memory.rows.append([f"{live} live, {asleep} hibernated, {settings.names[0]}", len(workers),
                            sum(map(_pss, workers)) / len(workers), _pss(os.getpid()),
                            sum(map(_pss, agent.node.stand_by.ready().values()))])
        sleeping = [record.id for record in agent.records.in_states([State.HIBERNATED])][:: max(1, asleep // 20)]
        times = [_wake(agent, job)[0] for job in sleeping]
        _row(settings, table, f"resume from hibernation beside {live} live ones, {settings.names[0]}", live, times)
        for record in agent.records.in_states([State.RUNNING]):
            agent.jobs.stop(record.id)
    report.tables += [table, memory]


def _upload(agent: Agent, text: str) -> str:
    with agent.modules.upload() as upload:
        upload.write(wat(text))
        return agent.modules.add(upload)[0].sha256


def _fill(agent: Agent, module: str, waits: str, runtime: str, live: int, asleep: int) -> None:
    """So many programs that live, and so many that are hibernated, with an image each."""
    first = agent.create(JobSpec(module=waits, runtime=runtime)).id
    _running(agent, first)
    agent.jobs.freeze(first, "hibernate")
    _, descriptor = agent.export(first, None, carry_module=False)
    try:
        for number in range(asleep - 1):
            job = agent.create(JobSpec(module=waits, runtime=runtime, start=False, labels={"n": str(number % 10)})).id
            agent.add_image(job, f"/proc/self/fd/{descriptor}")
            with agent.database.transaction() as db:
                db.execute("UPDATE job SET state = ?, source = 'newest' WHERE id = ?", (State.HIBERNATED, job))
    finally:
        os.close(descriptor)
    made = [agent.create(JobSpec(module=module if n < _BUSY else waits, runtime=runtime)).id for n in range(live)]
    for job in made:
        _running(agent, job)


def _pss(pid: int) -> float:
    """In MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("the kernel does not say")


def _row(
    settings: Settings, table: Table, what: str, jobs: int, times: list[float], spent: list[float] | None = None,
) -> None:
    table.rows.append([what, jobs, *(value * 1e3 for value in (statistics.median(times), min(times), max(times))),
                       None if spent is None else statistics.median(spent) * 1e3])
    settings.progress(table.rows[-1])


def _resumes(agent: Agent, module: str, runtime: str, rounds: int, *, warm: bool) -> tuple[list[float], list[float]]:
    """Seconds until it runs, and of processor time."""
    job = agent.create(JobSpec(module=module, runtime=runtime)).id
    _running(agent, job)
    if warm:
        _until(lambda: runtime in agent.node.stand_by.ready())
    times, spent = [], []
    with contextlib.nullcontext() if warm else _nobody_stands_by(agent):
        for _ in range(rounds):
            agent.jobs.freeze(job, "hibernate")
            took, worked = _wake(agent, job)
            times.append(took)
            spent.append(worked)
    agent.jobs.delete(job, force=True)
    return times, spent


@contextlib.contextmanager
def _nobody_stands_by(agent: Agent) -> Iterator[None]:
    agent.node.stand_by.close()
    try:
        yield
    finally:
        agent.node.stand_by = StandBy()


def _wake(agent: Agent, job: str) -> tuple[float, float]:
    """Seconds until it runs, and processor time of this process and its worker until then."""
    own, began = time.process_time(), time.perf_counter()
    agent.jobs.wake(job)
    _running(agent, job)
    took = time.perf_counter() - began
    runner = agent.jobs.runner(job)
    assert runner is not None
    tasks = Path(f"/proc/{runner.job.pid}/task").glob("*/schedstat")
    return took, time.process_time() - own + sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def _running(agent: Agent, job: str) -> None:
    _until(lambda: agent.records.get(job).state is State.RUNNING)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the agent is stuck")
        time.sleep(0.001)


def _lists(agent: Agent, state: Path, rounds: int) -> list[float]:
    server = uvicorn.Server(uvicorn.Config(guarded(app_of(agent), agent), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    _until(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    times = []
    with AgentClient(Where(f"http://127.0.0.1:{port}", (state / "token").read_text().strip())) as client:
        for _ in range(rounds):
            began = time.perf_counter()
            page = client.jobs(limit=100)
            times.append(time.perf_counter() - began)
            assert page.items
    server.should_exit = True
    thread.join()
    return times
