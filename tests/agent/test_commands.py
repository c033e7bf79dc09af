"""``wasmckpt --agent``: as if programs ran here. Documents for programs are of the form that docs/cli.schema.json
promises."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.api import State
from wasmckpt.cli.remote.table import REMOTE
from wasmckpt.client import AgentClient

from ..cli.conftest import Cli, Spawn, cli, spawn, wait_for  # noqa: F401  # fixtures
from ..cli.programs import COUNT, FOREVER, TRAPS, count_result, exits, wat
from ..cli.test_json import SCHEMA, check
from .conftest import PATIENCE, Served
from .guests import LONG, LONG_OUTPUT, TALK, TALK_OUTPUT

DOCS = (Path(__file__).resolve().parents[2] / "docs" / "agent.md").read_text()


@pytest.fixture
def here(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with programs, and an environment that names the agent."""
    for name, module in {"talk": TALK, "count": wat(COUNT), "exits": wat(exits(7)), "traps": wat(TRAPS),
                         "forever": wat(FOREVER)}.items():
        (tmp_path / f"{name}.wasm").write_bytes(module)
    monkeypatch.setenv("WASMCKPT_AGENT", served.url)
    monkeypatch.setenv("WASMCKPT_AGENT_TOKEN", served.token)
    return tmp_path


def test_schemas_are_those_of_the_interface() -> None:
    """The documents of the interface, word for word; BLESS=1 writes them anew."""
    from .schemas import definitions

    wanted = definitions()
    found = {name: schema for name, schema in SCHEMA["$defs"].items() if name.startswith("agent")}
    assert found == wanted


@pytest.mark.slow
def test_programs_run_there(here: Path, cli: Cli) -> None:  # noqa: F811
    """Output, results, exit codes, traps and refusals are those of a program that runs here."""
    done = cli("run", "talk.wasm")
    assert (done.code, done.out.encode()) == (0, TALK_OUTPUT)
    assert cli("run", "exits.wasm").code == 7
    assert cli("run", "--invoke", "run", "count.wasm", "--", 1000).out.split() == [str(count_result(1000))]
    trapped = cli("run", "traps.wasm")
    assert trapped.code == 134
    assert "wasmckpt: trap: " in trapped.err
    assert cli("run", "--name", "UPPER", "talk.wasm").code == 64
    assert cli("run", "--dir", "/", "talk.wasm").code == 77
    assert cli("run", "absent.wasm").code == 64
    assert cli("inspect", "x").code == 64, "an agent has no such command"


@pytest.mark.slow
def test_a_life(here: Path, cli: Cli) -> None:  # noqa: F811
    """Every command, with and without --json."""
    assert cli("run", "-d", "--name", "j1", "--label", "a=b", "forever.wasm").out == "j1\n"
    wait_for(lambda: json.loads(cli("ps", "--label", "a=b", "--json").out)[0]["state"] == "running", "the job")
    (job,) = check("agent_ps", cli("ps", "--label", "a", "--json").out)
    assert (job["name"], job["state"]) == ("j1", State.RUNNING)
    assert "j1" in cli("ps").out
    assert check("agent_checkpoint", cli("checkpoint", "j1", "--json").out)["number"] == 1
    assert "image 2 of j1" in cli("checkpoint", "j1", "-o", "i.wckpt", "--carry-module").err
    assert len(check("agent_checkpoints", cli("checkpoints", "j1", "--json").out)) == 2
    assert len(cli("checkpoints", "j1").out.splitlines()) == 3
    assert "is hibernated, as image 3" in cli("hibernate", "j1").err
    assert cli("download", "j1", "--number", 1, "-o", "first.wckpt").code == 0
    assert (here / "first.wckpt").stat().st_mode & 0o777 == 0o600
    assert "image 4 of j1" in cli("upload", "j1", "i.wckpt").err
    assert "is pending" in cli("wake", "j1").err
    assert "is pending" in cli("restore", "j1", "--number", 2, "--runtime", "wasmtime").err
    assert "is stopped" in cli("stop", "j1").err
    assert check("agent_wait", cli("wait", "j1", "--json").out)["state"] == "stopped"
    assert cli("start", "j1").code == 0
    assert cli("rm", "j1").code == 64
    assert cli("rm", "--force", "j1").code == 0
    assert cli("logs", "j1").code == 64
    for line in cli("events", "--json").out.splitlines():
        check("agent_event", line)
    assert "job j1 was deleted" in cli("events").out
    assert check("agent_modules", cli("modules", "--json").out)
    assert "SHA256" in cli("modules").out
    assert check("agent_node", cli("node", "--json").out)["cpus"] > 0
    assert "runtimes" in cli("node").out
    assert "0 jobs frozen" in cli("drain").err
    assert cli("undrain").code == 0


SAYS = """(module
  (import "wasi_snapshot_preview1" "fd_write" (func $fd_write (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1) (data (i32.const 0) "\\08\\00\\00\\00\\02\\00\\00\\00x\\0a")
  (func (export "_start")
    (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 16)))
    (loop $l (br $l))))"""
"""A line, and then it runs until it is stopped."""


@pytest.mark.slow
def test_ctrl_c_stops_it(here: Path, spawn: Spawn, cli: Cli) -> None:  # noqa: F811
    (here / "says.wasm").write_bytes(wat(SAYS))
    process = spawn("run", "--name", "c", "says.wasm")
    assert process.stdout is not None
    # So it knows that the job is there, and looks after it.
    assert process.stdout.readline() == b"x\n", process.communicate()[1]
    process.send_signal(signal.SIGINT)
    process.wait(PATIENCE)
    assert process.returncode == 130
    assert check("agent_wait", cli("wait", "c", "--json").out)["state"] == "stopped"


@pytest.mark.slow
def test_ctrl_c_before_the_answer(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """The agent has made the job, the answer has not come: it is the job that is stopped, and there is one."""
    real, made = AgentClient.create, list[str]()

    def create(self: AgentClient, *given: Any, **more: Any) -> Any:
        job = real(self, *given, **more)
        made.append(job.id)
        if len(made) == 1:
            raise KeyboardInterrupt
        return job

    monkeypatch.setattr(AgentClient, "create", create)
    assert cli("run", "--name", "before", "forever.wasm").code == 130
    assert len(set(made)) == 1
    assert check("agent_wait", cli("wait", "before", "--json").out)["state"] == "stopped"


@pytest.mark.slow
def test_agents_that_cannot_be_asked(here: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("WASMCKPT_AGENT_TOKEN", "wrong")
    assert cli("ps").code == 77
    monkeypatch.setenv("WASMCKPT_AGENT", "http://127.0.0.1:9")
    assert cli("ps").code == 75
    monkeypatch.setenv("XDG_STATE_HOME", str(here))
    assert cli("--agent", "local", "ps").code == 75
    assert cli("--agent", "local", "--agent-token-file", "absent", "ps").code == 75
    assert cli("--agent", "x", "--agent-token-file", "absent", "ps").code == 73
    assert cli("agent", "--listen", "0.0.0.0:0").code == 64
    assert cli("agent", "--listen", "nowhere").code == 64
    assert cli("agent", "token", "ls").code == 64


@pytest.mark.slow
def test_tokens(served: Served, cli: Cli) -> None:  # noqa: F811
    made = cli("agent", "--state", served.state, "token", "create", "bob", "--scope", "jobs:read")
    assert made.out.startswith("wck_")
    tokens = check("agent_tokens", cli("agent", "--state", served.state, "token", "ls", "--json").out)
    assert {one["name"] for one in tokens} >= {"token", "bob"}
    assert "bob" in cli("agent", "--state", served.state, "token", "ls").out
    assert cli("agent", "--state", served.state, "token", "revoke", "bob").code == 0
    assert cli("agent", "--state", served.state, "token", "revoke", "bob").code == 64


def test_all_commands_are_there(cli: Cli) -> None:  # noqa: F811
    for name in REMOTE:
        assert cli("--agent", "local", name, "--help").code == 0, name
        assert f"`{name}`" in (DOCS + (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()), name


def test_the_diagram_is_one() -> None:
    """In the documentation and in the code."""
    from wasmckpt.api import states

    diagram = DOCS.partition("```\n          create")[2].partition("```")[0]
    assert len(diagram) > 500
    for line in diagram.splitlines():
        assert line.strip() in (states.__doc__ or ""), line


@pytest.mark.slow
def test_the_newcomers_path(tmp_path: Path) -> None:
    """The first commands of docs/agent.md, in a shell."""
    (tmp_path / "nbody.wasm").write_bytes(LONG)
    script = f"""set -e
    export XDG_STATE_HOME={tmp_path}/state
    W="{sys.executable} -m wasmckpt.cli"
    $W agent --listen 127.0.0.1:0 & AGENT=$!
    trap 'kill -9 $AGENT' EXIT
    ready() {{ until test -e {tmp_path}/state/wasmckpt/agent/agent.json; do kill -0 $AGENT; sleep 0.05; done; }}
    ready
    $W --agent local run -d --name j1 --checkpoint-every 100ms nbody.wasm -- 2000000000
    until $W --agent local checkpoints j1 2>/dev/null | grep -q wasmtime; do sleep 0.1; done
    kill -9 $AGENT; wait $AGENT || true; rm {tmp_path}/state/wasmckpt/agent/agent.json
    $W agent --listen 127.0.0.1:0 & AGENT=$!
    ready
    $W --agent local wait j1
    $W --agent local logs -f j1
    $W --agent local events --job j1 >&2
    """
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == b"j1\n" + LONG_OUTPUT
    assert b"the agent had died: it goes on" in done.stderr
