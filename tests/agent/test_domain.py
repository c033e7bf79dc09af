"""The agent without HTTP: whatever happens to a job, its output is that of an undisturbed run, each byte once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from wasmckpt import runtimes
from wasmckpt.agent.service import Agent
from wasmckpt.api import JobSpec, State
from wasmckpt.errors import (
    CheckpointError,
    Conflict,
    InvalidModule,
    JobEnded,
    NotFound,
    NotSupported,
    RetryLater,
    RuntimeMissing,
    StorageError,
    TooManyRequests,
    UsageError,
)

from ..cli.programs import COUNT, FOREVER, TRAPS, count_result, exits, wat
from .conftest import Agents, ended, new_job, output, reaches, upload
from .guests import GROWS, LONG, LONG_OUTPUT, SLEEPS, TALK, TALK_OUTPUT

RUN = State.RUNNING


def test_a_program_and_its_end(agents: Agents) -> None:
    agent = agents()
    calls = new_job(agent, wat(COUNT), invoke="run", arguments=["1000"])
    assert ended(agent, calls).results == [str(count_result(1000))]
    assert ended(agent, new_job(agent, wat(exits(7)))).exit_code == 7
    trapped = ended(agent, new_job(agent, wat(TRAPS)))
    assert (trapped.state, trapped.exit_code) == (State.FAILED, 134)
    assert trapped.problem is not None
    assert trapped.problem.type.endswith(":GuestTrap")
    assert trapped.restarts == 0, "a trap is the program's own end"


def test_what_is_refused_at_once(agents: Agents, tmp_path: Path) -> None:
    agent = agents(most_jobs=1)
    new = upload(agent, TALK)
    with pytest.raises(NotFound, match="no such module"):
        agent.create(_spec(module="0" * 64))
    with pytest.raises(UsageError, match="unknown runtime"):
        agent.create(_spec(module=new, runtime="nothing"))
    with pytest.raises(UsageError, match="exports no function"):
        agent.create(_spec(module=new, invoke="absent"))
    assert agent.records.ids() == set(), "nothing is left of what was refused"
    agent.create(_spec(module=new, name="a", start=False))
    with pytest.raises(Conflict, match="that name"):
        agent.create(_spec(module=new, name="a"))
    with pytest.raises(TooManyRequests):
        agent.create(_spec(module=new))


def _spec(**given: object) -> JobSpec:
    return JobSpec.model_validate(given)


@pytest.mark.parametrize(("module", "error"), [
    (b"", InvalidModule), (b"\0asm\1\0\0\0x", InvalidModule), (TALK[:-1], InvalidModule),
    (wat('(module (memory i64 1))'), NotSupported),
])
def test_modules_that_are_none(agents: Agents, module: bytes, error: type[CheckpointError]) -> None:
    """Refused with the validator's own words; nothing is left. The twin that is one is kept, once."""
    agent = agents()
    with pytest.raises(error):
        upload(agent, module)
    assert not list((agent.config.state / "modules").iterdir())
    assert not list((agent.config.state / "incoming").iterdir())
    assert upload(agent, TALK) == upload(agent, TALK)
    assert len(list((agent.config.state / "modules").iterdir())) == 1


def test_modules_in_use_stay(agents: Agents) -> None:
    agent = agents()
    job = new_job(agent, TALK, start=False)
    module = agent.records.get(job).module
    with pytest.raises(Conflict):
        agent.modules.delete(module)
    agent.jobs.delete(job)
    agent.modules.delete(module)
    with pytest.raises(NotFound):
        agent.modules.get(module)
    assert not list((agent.config.state / "modules").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("journal", [False, True])
def test_hibernated_woken_moved_and_stopped(agents: Agents, journal: bool) -> None:
    """Frozen and woken, frozen by a graceful stop of the agent, and gone on with by the next one."""
    agent = agents()
    job = new_job(agent, LONG, checkpoint={"journal": journal})
    reaches(agent, job, RUN)
    frozen = agent.jobs.freeze(job, "hibernate")
    assert frozen.state is State.HIBERNATED
    assert agent.jobs.pid(frozen.id) is None
    assert agent.jobs.freeze(job, "hibernate") == frozen, "nothing happens to one that is"
    agent.jobs.wake(job)
    reaches(agent, job, RUN)
    assert agent.jobs.wake(job).state is RUN
    agent = agents()
    assert ended(agent, job).exit_code == 0
    assert output(agent, job) == LONG_OUTPUT
    assert not list((agent.config.state / "store").glob("last-*"))


@pytest.mark.slow
@pytest.mark.parametrize("journal", [False, True])
def test_a_worker_that_is_killed(agents: Agents, journal: bool) -> None:
    """It goes on from the newest image; what came after that is written again, into a log that was cut back."""
    agent = agents()
    job = new_job(agent, LONG, checkpoint={"every_seconds": 0.2, "journal": journal}, restart={"backoff_seconds": 0})
    for _ in range(3):
        record = reaches(agent, job, RUN, State.EXITED)
        with contextlib.suppress(JobEnded, Conflict):  # it may have ended before the third time
            agent.take(job)
        time.sleep(0.2)
        pid = agent.jobs.pid(record.id)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while agent.records.get(job).runs == record.runs and agent.records.get(job).state is RUN:
            time.sleep(0.01)
    found = ended(agent, job)
    assert (found.state, found.exit_code, found.restarts) == (State.EXITED, 0, 0)
    assert found.runs > 1
    assert output(agent, job) == LONG_OUTPUT


@pytest.mark.slow
def test_it_gives_up(agents: Agents) -> None:
    """After so many crashes in a row, with pauses that grow; at once if it is not to be restarted."""
    agent = agents()
    once = new_job(agent, wat(FOREVER), restart={"policy": "never"})
    often = new_job(agent, wat(FOREVER), restart={"most": 2, "backoff_seconds": 0.1})
    for job, runs in ((once, 1), (often, 3)):
        for _ in range(runs):
            record = reaches(agent, job, RUN)
            pid = agent.jobs.pid(record.id)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            while agent.records.get(job).revision == record.revision:
                time.sleep(0.01)
        found = ended(agent, job)
        assert (found.state, found.runs) == (State.FAILED, runs)
        assert found.problem is not None
        assert found.problem.type.endswith(":WorkerDied")


@pytest.mark.slow
def test_back_to_an_image_on_another_runtime(agents: Agents) -> None:
    """Also of a job that has ended; numbers that there are not, and runtimes, are refused before anything is lost."""
    agent = agents()
    job = new_job(agent, LONG, checkpoint={"keep": 2})
    reaches(agent, job, RUN)
    first = agent.take(job)
    ended(agent, job)
    with pytest.raises(NotFound):
        agent.jobs.restore(job, 77, None)
    with pytest.raises((UsageError, RuntimeMissing)):
        agent.jobs.restore(job, None, "absent")
    assert agent.records.get(job).state is State.EXITED
    target = "wasmer" if "wasmer" in runtimes.available() else "wasmtime"
    agent.jobs.restore(job, first.number, target)
    assert reaches(agent, job, RUN, State.EXITED).runtime == target
    assert ended(agent, job).exit_code == 0
    assert output(agent, job) == LONG_OUTPUT


@pytest.mark.slow
def test_an_image_from_elsewhere(agents: Agents, tmp_path: Path) -> None:
    """It goes on in a job that never ran here: the log begins where the image was taken. Foreign images are refused."""
    agent = agents()
    job = new_job(agent, LONG)
    reaches(agent, job, RUN)
    while not output(agent, job):
        time.sleep(0.01)
    number = agent.take(job).number
    _, descriptor = agent.export(job, number, carry_module=True)
    image = tmp_path / "image"
    with open(descriptor, "rb") as file:
        image.write_bytes(file.read())
    other = new_job(agent, LONG, start=False)
    agent.add_image(other, image)
    agent.jobs.restore(other, None, None)
    ended(agent, other)
    begins = agent.records.get(other).stdout_from
    assert 0 < begins < len(LONG_OUTPUT)
    assert agent.log(other, "stdout", 0, 1 << 20).data == LONG_OUTPUT[begins:]
    foreign = new_job(agent, wat(FOREVER), start=False)
    for data in (image.read_bytes(), image.read_bytes()[:-3], b"", b"\0asm"):
        image.write_bytes(data)
        with pytest.raises(CheckpointError) as refused:
            agent.add_image(foreign, image)
        assert type(refused.value).__name__ == "ImageError"
    assert agent.checkpoints(foreign) == []


@pytest.mark.slow
def test_limits(agents: Agents) -> None:
    """Memory: the program is told. Processor time: it has failed, and is not tried again. Both have twins."""
    agent = agents()
    for pages, result in (("16", "1"), ("8000", "-1")):
        job = new_job(agent, GROWS, invoke="grow", arguments=[pages], limits={"memory_bytes": 192 << 20})
        assert ended(agent, job).results == [result]
    job = new_job(agent, wat(FOREVER), limits={"cpu_seconds": 1})
    found = ended(agent, job)
    assert found.problem is not None
    assert found.problem.fields["signal"] == "SIGXCPU"
    assert (found.state, found.runs) == (State.FAILED, 1)
    running = reaches(agent, new_job(agent, wat(FOREVER)), RUN)
    worker = Path("/proc", str(agent.jobs.pid(running.id)))
    assert "NoNewPrivs:\t1" in (worker / "status").read_text()
    limits = (worker / "limits").read_text()
    assert f"Max data size             {1 << 30}" in limits
    assert "Max core file size        0" in limits


@pytest.mark.slow
def test_others_wait_for_room(agents: Agents) -> None:
    agent = agents(most_live=1)
    first, second = new_job(agent, wat(FOREVER)), new_job(agent, TALK)
    reaches(agent, first, RUN)
    assert agent.records.get(second).state is State.PENDING
    agent.jobs.freeze(first, "hibernate")
    assert ended(agent, second).exit_code == 0
    assert output(agent, second) == TALK_OUTPUT


@pytest.mark.slow
def test_put_away_when_it_waits(agents: Agents) -> None:
    """By itself, and it wakes by itself."""
    agent = agents()
    sleeper = new_job(agent, SLEEPS, hibernate={"after_idle_seconds": 0.05, "wake_after_seconds": 0.3})
    slept = reaches(agent, sleeper, State.HIBERNATED)
    assert slept.why == "idle"
    assert slept.wake_at is not None
    while agent.records.get(sleeper).runs < 2:
        time.sleep(0.01)
    busy = new_job(agent, wat(FOREVER), hibernate={"after_idle_seconds": 0.05})
    reaches(agent, busy, RUN)
    time.sleep(0.3)
    assert agent.records.get(busy).state is RUN


@pytest.mark.slow
def test_a_map_of_its_memory(agents: Agents) -> None:
    """One page of sixteen is not as the module made it; there is no map of what there is no image of."""
    agent = agents()
    job = new_job(agent, LONG)
    reaches(agent, job, RUN)
    with pytest.raises(NotFound):
        agent.memory_map(job, None)
    number = agent.take(job).number
    (found,) = agent.memory_map(job, number)
    assert (found.index, found.size, found.cell, found.cleared) == (0, 65536, 4096, 0)
    assert len(found.cells) == 16
    assert found.changed == 4096 * found.cells.count("#") > 0
    assert set(found.cells) == {".", "#"}


@pytest.mark.slow
def test_drained(agents: Agents) -> None:
    """Frozen, nothing new is taken, and all goes on afterwards."""
    agent = agents()
    job = new_job(agent, LONG)
    reaches(agent, job, RUN)
    frozen, failed = agent.jobs.drain()
    assert (frozen, failed) == ([job], {})
    assert agent.ready() == ["the node is being drained"]
    with pytest.raises(RetryLater):
        new_job(agent, LONG)
    assert agent.records.get(job).state is State.HIBERNATED
    assert agent.jobs.undrain() == 1
    ended(agent, job)
    assert output(agent, job) == LONG_OUTPUT


@pytest.mark.slow
def test_nothing_is_left_of_what_is_deleted(agents: Agents) -> None:
    agent = agents()
    job = new_job(agent, LONG, checkpoint={"journal": True})
    record = reaches(agent, job, RUN)
    agent.take(job)
    with pytest.raises(Conflict, match="has not ended"):
        agent.jobs.delete(job)
    agent.jobs.delete(job, force=True)
    with pytest.raises(NotFound):
        agent.records.get(job)
    agent.tidy()
    assert agent.store.entries() == []
    assert not list((agent.config.state / "store" / "images").iterdir())
    assert not list((agent.config.state / "logs").iterdir())
    assert not agent.store.journal(record.id).exists()
    assert not agent.events.after(0, record.id)


@pytest.mark.slow
def test_a_long_log_loses_its_beginning(agents: Agents) -> None:
    """Offsets stay; the room is given back."""
    from ..cli.programs import talk, talk_output

    agent = agents()
    job = new_job(agent, wat(talk(60_000, 1)), limits={"log_bytes": 1 << 16})
    record = ended(agent, job)
    whole, size = talk_output(60_000, 1), agent.jobs.around.logs(record.id).size("stdout")
    assert size == len(whole)
    logs = agent.jobs.around.logs(record.id)
    begins = logs.shorten("stdout", 0, 1 << 16)
    if begins == 0:
        pytest.skip("this file system has no holes")
    piece = logs.read("stdout", begins, 0, 1 << 20)
    assert piece.data == whole[begins:]
    assert len(piece.data) <= 1 << 16
    assert os.stat(agent.config.state / "logs" / record.id / "stdout").st_blocks * 512 <= (1 << 16) + 8192


@pytest.mark.slow
def test_an_end_that_could_not_be_written_down(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full: as soon as it is not, the job goes on; nobody waits for ever."""
    agent = agents()
    record = reaches(agent, new_job(agent, wat(FOREVER)), RUN)
    pid = agent.jobs.pid(record.id)
    assert pid is not None

    def full(*args: object, **kwargs: object) -> None:
        raise StorageError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(agent.records, "move", full)
        os.kill(pid, signal.SIGKILL)
        while agent.jobs.has(record.id) or not agent.jobs.counts["internal errors"]:
            time.sleep(0.01)
    assert agent.records.get(record.id).state is RUN
    agent.tidy()
    while agent.records.get(record.id).runs == 1:
        time.sleep(0.01)
    assert reaches(agent, record.name, RUN).runs == 2


def test_two_agents_need_two_folders(agents: Agents, tmp_path: Path) -> None:
    from wasmckpt.agent.config import AgentConfig

    agents()
    with pytest.raises(Conflict, match="another agent"):
        Agent(AgentConfig(state=tmp_path / "state"))
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state" / "agent.sqlite").stat().st_mode & 0o777 == 0o600
