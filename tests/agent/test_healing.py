"""Crashes at one place lead to another kind of runtime, damaged images to the one before; output stays that of an
undisturbed run."""

from __future__ import annotations

import os
import signal
import time

import pytest

from wasmckpt import runtimes
from wasmckpt.agent.records import Record
from wasmckpt.agent.service import Agent
from wasmckpt.api import State
from wasmckpt.errors import UsageError
from wasmckpt.formats.chain import file_name

from ..cli.programs import FOREVER, wat
from ..support.tiers import missing
from .conftest import Agents, ended, new_job, output, reaches
from .guests import LONG, LONG_OUTPUT

RUN = State.RUNNING
OTHER = "wasm3"
VECTORS = wat("""(module (memory (export "memory") 1)
  (func (export "_start") (local $v v128)
    (loop $next
      (local.set $v (i32x4.add (local.get $v) (v128.const i32x4 1 2 3 4)))
      (v128.store (i32.const 16) (local.get $v))
      (br $next))))""")
"""Runs until it is stopped, where there are vectors."""


def _need(*names: str) -> None:
    for name in names:
        if name not in runtimes.available():
            missing(name, f"{name} is not installed")


def _crash(agent: Agent, job: str, how: signal.Signals = signal.SIGABRT) -> Record:
    """Have a job's worker die, and wait until that is known; gives the job before."""
    record = reaches(agent, job, RUN)
    pid = agent.jobs.pid(record.id)
    assert pid is not None
    os.kill(pid, how)
    while (now := agent.records.get(job)).state is RUN and now.runs == record.runs:
        time.sleep(0.01)
    return record


@pytest.mark.slow
def test_another_runtime_goes_on(agents: Agents) -> None:
    """And new jobs of that module begin there, until that is forgotten."""
    _need(OTHER)
    agent = agents()
    job = new_job(agent, LONG, restart={"backoff_seconds": 0, "runtimes": [OTHER]})
    reaches(agent, job, RUN)
    number = agent.take(job).number
    assert [_crash(agent, job).runtime for _ in range(3)] == ["wasmtime", "wasmtime", OTHER]
    now = reaches(agent, job, RUN)
    assert (now.runtime, now.restarts) == (OTHER, 1)
    assert [(crash.runtime, crash.how, crash.image) for crash in now.crashes] == [
        ("wasmtime", "SIGABRT", number), ("wasmtime", "SIGABRT", number), (OTHER, "SIGABRT", number)]
    agent.jobs.restore(job, None, "wasmtime")  # it takes longer there
    assert ended(agent, job).exit_code == 0
    assert output(agent, job) == LONG_OUTPUT
    assert agent.modules.get(now.module).avoided == ["wasmtime"]

    def begins_on(**restart: object) -> str:
        new = new_job(agent, LONG, restart=restart)
        runtime = reaches(agent, new, RUN).runtime
        agent.jobs.stop(new)
        return runtime

    assert begins_on(runtimes=[OTHER]) == OTHER
    assert begins_on() not in ("wasmtime", "wasmer")
    assert begins_on(runtimes=[]) == "wasmtime"
    agent.jobs.healing.forget(now.module)
    assert begins_on() == "wasmtime"


@pytest.mark.slow
def test_what_others_do_to_it_is_not_the_runtime(agents: Agents) -> None:
    agent = agents()
    job = new_job(agent, wat(FOREVER), restart={"backoff_seconds": 0, "most": 4})
    assert {_crash(agent, job, signal.SIGKILL).runtime for _ in range(4)} == {"wasmtime"}
    assert reaches(agent, job, RUN).runtime == "wasmtime"
    assert agent.modules.get(agent.records.get(job).module).avoided == []


@pytest.mark.slow
def test_given_up_with_a_report(agents: Agents) -> None:
    """No runtime gets past it: it has failed, and says where it stands. One that cannot run it is passed over."""
    _need("wasm3", "wamr")
    agent = agents()
    job = new_job(agent, VECTORS, restart={"backoff_seconds": 0, "runtimes": ["wasm3", "wamr"]})
    reaches(agent, job, RUN)
    while (taken := agent.take(job)).frames != 1:
        time.sleep(0.01)
    assert [_crash(agent, job).runtime for _ in range(4)] == ["wasmtime", "wasmtime", "wamr", "wamr"]
    found = ended(agent, job)
    assert [(crash.runtime, crash.how) for crash in found.crashes] == [
        *2 * [("wasmtime", "SIGABRT")], ("wasm3", "unable"), *2 * [("wamr", "SIGABRT")]]
    assert found.state is State.FAILED
    assert found.problem is not None
    assert found.problem.type.endswith(":WorkerDied")
    assert "no runtime gets past that place" in found.problem.detail
    assert found.problem.fields["image"] == taken.number
    frames = found.problem.fields["frames"]
    assert isinstance(frames, list)
    assert len(frames) == 1
    assert str(frames[0]).startswith("f0+0x")
    assert sorted(agent.modules.get(found.module).avoided) == ["wamr", "wasmtime"]


def test_runtimes_that_there_are_not(agents: Agents) -> None:
    with pytest.raises(UsageError, match="unknown runtime"):
        new_job(agents(), LONG, restart={"runtimes": ["nothing"]})


@pytest.mark.slow
def test_damaged_images(agents: Agents) -> None:
    """The newest: the one before it is gone on from, and that is said. All: it has failed, and begins anew only if
    somebody says so."""
    agent = agents()
    job = new_job(agent, LONG, restart={"backoff_seconds": 0})
    record = reaches(agent, job, RUN)
    first, second = agent.take(job), agent.take(job)
    _damage(agent, second.sha256)
    _crash(agent, job, signal.SIGKILL)
    reaches(agent, job, RUN)
    told = [event.text for event in agent.events.after(0, record.id) if "damaged" in event.data]
    assert len(told) == 1
    assert f"from image {first.number}; image {second.number} is damaged: " in told[0]
    third = agent.take(job)
    assert third.number > second.number
    for one in (first, third):
        _damage(agent, one.sha256)
    _crash(agent, job, signal.SIGKILL)
    found = ended(agent, job)
    assert found.problem is not None
    assert found.problem.type.endswith(":ImageError")
    assert "none of its 3 images is any good" in found.problem.detail
    agent.jobs.begin_again(job)
    assert ended(agent, job).exit_code == 0
    assert output(agent, job) == LONG_OUTPUT


@pytest.mark.slow
def test_a_journal_follows_one_image_only(agents: Agents) -> None:
    """What it holds is what the program did after the newest; with the one before that would be done again."""
    agent = agents()
    job = new_job(agent, LONG, checkpoint={"journal": True}, restart={"backoff_seconds": 0})
    reaches(agent, job, RUN)
    _damage(agent, agent.take(job).sha256)
    _crash(agent, job, signal.SIGKILL)
    found = ended(agent, job)
    assert found.problem is not None
    assert found.problem.type.endswith(":ImageError")
    assert "by its number" in found.problem.hint


def _damage(agent: Agent, sha256: str) -> None:
    path = agent.store.path / "images" / file_name(bytes.fromhex(sha256))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
