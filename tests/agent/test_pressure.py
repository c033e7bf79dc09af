"""Jobs leave a machine that is no good place for them, one by one or all, and come to their end as if they had not."""

from __future__ import annotations

import time

import psutil
import pytest

from wasmckpt.agent import pressure
from wasmckpt.agent.pressure import facts
from wasmckpt.api import State
from wasmckpt.supervise import Facts

from ..cli.conftest import wait_for
from ..cli.programs import FOREVER, wat
from ..migrate.programs import writes, writes_output
from .conftest import PATIENCE, Agents, Served, new_job, reaches

pytestmark = pytest.mark.slow
FINE = Facts(battery=80.0, temperature=50.0, load=0.5, memory=40.0)
RUN = State.RUNNING


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Facts]:
    """Its facts are the last of these."""
    found = [FINE]
    monkeypatch.setattr(pressure, "facts", lambda: found[-1])
    return found


def test_one_after_the_other(agents: Agents, served: Served, machine: list[Facts]) -> None:
    """The one that takes most of what is short goes; as long as it stays so the next one follows."""
    there = served.client()
    agent = agents(peers={"http://127.0.0.1:1": {}, served.url: {"token": served.token}},
                   leave={"memory_percent": 20.0, "lasting": 0.1, "pause": 0.0})
    small = new_job(agent, writes(1000))
    large = new_job(agent, wat(FOREVER.replace('(memory (export "memory") 1)', '(memory (export "memory") 600)')
                               .replace("(loop $next", "(memory.fill (i32.const 0) (i32.const 7) (i32.const 39000000))"
                                        " (loop $next", 1)))
    for job in (small, large):
        reaches(agent, job, RUN)
    wait_for(lambda: _memory(agent.jobs.pid(agent.records.get(large).id)) > 60 << 20, "the large one's memory")
    machine.append(Facts(None, None, None, 10.0))
    reaches(agent, large, State.MOVED)
    there.wait(large, until=lambda job: job.state is RUN, timeout=PATIENCE)
    reaches(agent, small, State.MOVED)
    machine.append(FINE)
    wait_for(lambda: "a good place again" in [event.text for event in agent.events.after(0, None)], "better times")
    told = [event for event in agent.events.after(0, None) if event.kind == "pressure"]
    assert told[0].text == "no good place for programs: memory"
    assert told[0].data == {"reasons": ["memory"]}
    there.stop(large)
    assert there.wait(small, timeout=PATIENCE).exit_code == 0
    assert there.output(small) == writes_output(1000)


def _memory(pid: int | None) -> int:
    return 0 if pid is None else int(psutil.Process(pid).memory_info().rss)


def test_all_of_them_until_it_is_over(agents: Agents, machine: list[Facts]) -> None:
    """Without an agent to go to they are frozen, and go on when the machine is plugged in."""
    agent = agents(leave={"battery_percent": 15.0, "lasting": 0.1})
    job = new_job(agent, wat(FOREVER))
    reaches(agent, job, RUN)
    time.sleep(0.5)
    assert agent.records.get(job).state is RUN
    machine.append(Facts(9.0, 50.0, 0.5, 40.0))
    reaches(agent, job, State.HIBERNATED)
    assert agent.jobs.draining
    machine.append(Facts(None, 50.0, 0.5, 40.0))
    reaches(agent, job, RUN)
    assert not agent.jobs.draining


def test_no_way(agents: Agents, machine: list[Facts]) -> None:
    """To an agent that is named without a token: they are frozen here all the same, and that is said."""
    agent = agents(drain_to="http://127.0.0.1:1", leave={"temperature": 80.0, "lasting": 0.1})
    job = new_job(agent, wat(FOREVER))
    reaches(agent, job, RUN)
    machine.append(Facts(None, 95.0, None, None))
    reaches(agent, job, State.HIBERNATED)
    assert any(event.kind == "pressure" and "no job can leave" in event.text for event in agent.events.after(0, None))


def test_facts_of_this_machine() -> None:
    found = facts()
    assert found.load is not None
    assert found.load >= 0
    assert found.memory is not None
    assert 0 < found.memory <= 100
