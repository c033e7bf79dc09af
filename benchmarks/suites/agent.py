"""An agent with many programs: how long it takes to list its jobs, and a hibernated one to go on.

*List*: a page of 100 of so many jobs, over HTTP on the loopback interface, from request to answer. *Resume*: from
`wake` to the state running, of a small program that was hibernated (a new worker process each time: none stands by
yet), in the domain, without HTTP. Wall time; median, and the largest of 20."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn

from wasmckpt.agent.app import app_of, guarded
from wasmckpt.agent.config import AgentConfig
from wasmckpt.agent.service import Agent
from wasmckpt.api import JobSpec, State
from wasmckpt.client import AgentClient, Where

from ..guests import wat
from ..report import Goal, Report, Table
from ..settings import Settings

FOREVER = """(module (memory (export "memory") 1)
  (func (export "_start") (local $i i32)
    (loop $next
      (i32.store (i32.const 8) (local.tee $i (i32.add (local.get $i) (i32.const 1)))) (br $next))))"""


def run(settings: Settings, report: Report) -> None:
    """One row for each question."""
    table = Table("", [("", ""), ("jobs", "d"), ("median, ms", ".1f"), ("largest, ms", ".1f")])
    rounds = settings.few(20)
    with (
        report.kept("agent"), tempfile.TemporaryDirectory() as scratch,
        Agent(AgentConfig(state=Path(scratch), requests_per_second=1e6, burst=1_000_000)) as agent,
    ):
        with agent.modules.upload() as upload:
            upload.write(wat(FOREVER))
            module = agent.modules.add(upload)[0].sha256
        for name in settings.names:
            times = _resumes(agent, module, name, rounds)
            _row(settings, table, f"resume from hibernation, {name}", 1, times)
            report.goals.append(Goal(f"resume from hibernation, {name}", statistics.median(times) * 1e3, 60, "ms"))
        many = 50 if settings.quick else 5000
        for number in range(many):
            agent.create(JobSpec(module=module, start=False, labels={"n": str(number % 10)}))
        times = _lists(agent, Path(scratch), rounds)
        _row(settings, table, "list of 100", many, times)
        report.goals.append(Goal(f"list of 100 of {many} jobs", statistics.median(times) * 1e3, 50, "ms"))
    report.tables.append(table)


def _row(settings: Settings, table: Table, what: str, jobs: int, times: list[float]) -> None:
    table.rows.append([what, jobs, statistics.median(times) * 1e3, max(times) * 1e3])
    settings.progress(table.rows[-1])


def _resumes(agent: Agent, module: str, runtime: str, rounds: int) -> list[float]:
    job = agent.create(JobSpec(module=module, runtime=runtime)).id
    times = []
    _until(lambda: agent.records.get(job).state is State.RUNNING)
    for _ in range(rounds):
        agent.jobs.freeze(job, "hibernate")
        began = time.perf_counter()
        agent.jobs.wake(job)
        _until(lambda: agent.records.get(job).state is State.RUNNING)
        times.append(time.perf_counter() - began)
    agent.jobs.delete(job, force=True)
    return times


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
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
