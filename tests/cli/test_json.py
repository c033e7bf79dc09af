"""What ``--json`` prints is one document, of the form that docs/cli.schema.json promises to programs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, Final

import jsonschema
import pytest

from wasmckpt import runtimes
from wasmckpt.cli import doctor

from .conftest import PATIENCE, Cli, Module, Spawn, wait_for, worker_of
from .programs import COUNT, FOREVER, TRAPS, talk

SCHEMA: Final[dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[2] / "docs" / "cli.schema.json").read_text()
)


def check(name: str, text: str) -> Any:
    """The document in a text, if it is what the schema calls ``name``."""
    document = json.loads(text)
    jsonschema.Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{name}"}).validate(document)
    return document


def last_line(text: str) -> str:
    return text.splitlines()[-1]


def test_the_schema_is_one_and_strict() -> None:
    """A field that is too many, missing or of another type is found."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    good = {"image": "i", "good": True, "against_module": False, "encrypted_with": [], "signed_by": None}
    check("verify", json.dumps(good))
    for bad in ({**good, "more": 1}, {"image": "i"}, {**good, "image": 3}):
        with pytest.raises(jsonschema.ValidationError):
            check("verify", json.dumps(bad))


def test_views(cli: Cli, module: Module) -> None:
    """Every command that shows something, with and without names."""
    path = module(talk(20, 20_000))
    ended = check("run", last_line(cli("run", "--checkpoint-at", 7000, "--stop", "--json", "-o", "a.wckpt", path).out))
    assert (ended["how"], ended["checkpoints"]) == ("stopped", 1)
    cli("run", "--checkpoint-at", 8000, "--stop", "--carry-module", "-o", "b.wckpt", path)
    for command, name in (
        ("inspect a.wckpt", "inspect"), ("inspect b.wckpt --pages", "inspect"), ("diff a.wckpt b.wckpt", "diff"),
        ("inspect a.wckpt --module program.wasm --pages", "inspect"), ("verify a.wckpt", "verify"), ("ps", "ps"),
        ("instrument program.wasm", "instrument"), ("doctor", "doctor"), ("doctor program.wasm", "doctor"),
        ("version", "version"), ("runtimes", "runtimes"), ("cache warm program.wasm", "warm"),
    ):
        done = cli(*command.split(), "--json")
        assert done.code == (1 if name == "diff" else 0), done.err
        check(name, done.out)


def test_a_runtime_that_is_missing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    absent = runtimes.Facts("wasm3", None, "not installed", None)
    monkeypatch.setattr(doctor, "facts_apart", lambda names: [absent for _ in names])
    done = cli("doctor", "--json")
    assert done.code == 1
    assert check("doctor", done.out)["runtimes"][0]["version"] is None


def test_the_last_line_below_the_programs_own(cli: Cli, module: Module) -> None:
    done = cli("run", "--json", module(talk(3, 1)))
    assert done.out.count("\n") == 5, "three lines of the program, an empty one, the document"
    document = check("run", last_line(done.out))
    assert not any(document.pop("checkpoint_times").values())
    assert document == {"how": "done", "exit_code": 0, "results": [], "checkpoints": 0, "moves": []}


@pytest.mark.parametrize(("arguments", "type_", "code"), [
    ("run traps.wasm", "GuestTrap", 134), ("run absent.wasm", "UsageError", 64), ("run --bogus", "UsageError", 64),
    ("inspect traps.wasm", "ImageError", 65), ("checkpoint nobody", "UsageError", 64), ("bogus", "UsageError", 64),
    ("migrate nobody --to wasm3", "UsageError", 64), ("instrument absent", "UsageError", 64),
    ("diff traps.wasm traps.wasm", "ImageError", 65), ("run count.wasm --invoke none", "UsageError", 64),
    ("verify absent", "StorageError", 73),
])
def test_errors(cli: Cli, module: Module, arguments: str, type_: str, code: int) -> None:
    """On standard error for people, and as the last line of standard output for programs; the same exit code."""
    module(TRAPS, "traps.wasm")
    module(COUNT, "count.wasm")
    done = cli(*arguments.split(), "--json")
    assert done.code == code
    assert done.err.startswith("wasmckpt: ")
    error = check("run", last_line(done.out))["error"]
    assert (error["type"], error["exit_code"]) == (type_, code)


def test_the_programs_own_option_is_not_ours(cli: Cli) -> None:
    assert cli("run", "absent.wasm", "--", "--json").out == ""


def test_a_named_program(spawn: Spawn, cli: Cli, module: Module) -> None:
    """Listed, checkpointed, moved there and back, ended; what it prints in the end knows of the moves."""
    process = spawn("run", "--name", "j1", "--json", module(FOREVER))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    (row,) = check("ps", cli("ps", "--json").out)
    assert (row["name"], row["pid"], row["runtime"]) == ("j1", process.pid, "wasmtime")
    assert row["worker"] != process.pid
    check("checkpoint", cli("checkpoint", "j1", "--json").out)
    for source, target in (("wasmtime", "wasm3"), ("wasm3", "wasmtime")):
        move = check("migrate", cli("migrate", "j1", "--to", target, "--json").out)
        assert (move["source"], move["target"]) == (source, target)
        assert check("ps", cli("ps", "--json").out)[0]["runtime"] == target
    process.terminate()
    out, _ = process.communicate(timeout=PATIENCE)
    ended = check("run", last_line(out.decode()))
    assert (ended["how"], ended["exit_code"], process.returncode) == ("killed", 143, 143)
    assert [(move["source"], move["target"]) for move in ended["moves"]] == [
        ("wasmtime", "wasm3"), ("wasm3", "wasmtime"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("who", ["command", "worker"])
def test_a_stopped_job_does_not_hold_up_the_list(spawn: Spawn, cli: Cli, module: Module, who: str) -> None:
    process = spawn("run", "--name", "j1", module(FOREVER))
    spawn("run", "--name", "j2", module(FOREVER, "other.wasm"))
    wait_for(lambda: cli("ps").out.count("running") == 2, "the jobs in the list")
    stopped = process.pid if who == "command" else worker_of(process)
    os.kill(stopped, signal.SIGSTOP)
    try:
        listed = check("ps", cli("ps", "--json").out)
        assert [(row["name"], row["state"]) for row in listed] == [("j1", "silent"), ("j2", "running")]
        assert listed[0]["pid"] == process.pid
        assert cli("ps").out.count("silent") == 1
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_for(lambda: cli("ps").out.count("running") == 2, "both to answer again")
