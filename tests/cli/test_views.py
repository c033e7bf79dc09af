"""`inspect`, `verify`, `instrument`, `doctor`, `version`: what they say, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wasmckpt import runtimes
from wasmckpt.cli.instrument import explain
from wasmckpt.cli.main import COMMANDS
from wasmckpt.formats import load
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.wasm.decode import decode

from .conftest import Cli, Module
from .programs import COUNT, FOREVER, talk, wat


@pytest.fixture
def image(cli: Cli, module: Module) -> Path:
    """``image.wckpt`` of ``program.wasm``: `talk`, stopped in the inner loop."""
    path = module(talk(20, 20_000))
    assert cli("run", "--checkpoint-at", 7000, "--stop", "-o", "image.wckpt", path).code == 0
    return path.parent / "image.wckpt"


def test_inspect(cli: Cli, image: Path) -> None:
    """Function names, offsets that are instructions of the original module, typed values, memory, host state."""
    done = cli("inspect", image, "--module", "program.wasm", "--pages")
    assert done.code == 0
    lines = done.out.splitlines()
    spin = load(image).frames[-1].point
    for wanted in (
        "entry      [_start]", "frames     2, innermost first",
        "  0x00000000  #...............", "arguments  program.wasm", "fd 0       stdin", "fd 2       stderr",
    ):
        assert wanted in lines, done.out
    assert any(line.startswith("     locals    l0 i32 ") for line in lines)
    at = decode(Path("program.wasm").read_bytes()).body(1).expr + spin.offset
    assert Path("program.wasm").read_bytes()[at] == 0x23
    assert f"  #0 f1 spin stands at {spin.offset:#x} (global.get, module {at:#x})" in lines
    assert any(line.startswith("     g0 i32 ") for line in lines)
    assert any(line.startswith("  #1 f3 _start waits in the call at 0x") for line in lines)
    assert "bytes written" in done.out
    assert cli("inspect", image).out.count("spin") == 0, "names are in the module, not in the image"


def test_inspect_for_programs(cli: Cli, image: Path) -> None:
    data = json.loads(cli("inspect", image, "--module", "program.wasm", "--json").out)
    held = load(image)
    assert [(f["func"], f["name"], f["offset"], f["kind"]) for f in data["frames"]] == [
        (3, "_start", held.frames[0].point.offset, "call"), (1, "spin", held.frames[1].point.offset, "safepoint"),
    ]
    assert data["frames"][1]["locals"]["0"] == {"type": "i32", "bits": f"0x{held.frames[1].locals()[0].bits:08x}"}
    whole = json.loads(cli("inspect", image, "--pages", "--json").out)
    assert whole["memories"][0]["data"] == [[0, 1]]


def test_verify(cli: Cli, image: Path) -> None:
    assert cli("verify", image).out == f"{image}: good (digest and structure)\n"
    done = cli("verify", image, "--module", "program.wasm")
    assert done.out == f"{image}: good (digest, structure, and against the module)\n"
    data = json.loads(cli("verify", image, "--json").out)
    assert data == {
        "image": str(image), "good": True, "against_module": False, "encrypted_with": [], "signed_by": None,
    }


def test_verify_finds_what_is_impossible_in_the_module(cli: Cli, image: Path) -> None:
    """The digest is right, the offset is none of an instruction."""
    from dataclasses import replace

    from wasmckpt.formats import Frame, save

    held = load(image)
    inner = held.frames[-1]
    moved = Frame(replace(inner.point, offset=inner.point.offset + 1), inner.values)
    save(replace(held, frames=(*held.frames[:-1], moved)), "hostile.wckpt")
    assert cli("verify", "hostile.wckpt").code == 0
    done = cli("verify", "hostile.wckpt", "--module", "program.wasm")
    assert (done.code, done.out) == (65, "")
    assert "offset" in done.err
    assert cli("restore", "hostile.wckpt", "--module", "program.wasm").code == 65


def test_explain_names_what_was_done_and_why(cli: Cli, module: Module) -> None:
    path = module(COUNT)
    lines = cli("instrument", "-q", path, "--explain").out.splitlines()
    assert lines[0].startswith("f0 mix: as it is (cannot suspend: no loop, no recursion, no import below it)")
    assert lines[1].startswith("f1 run: rewritten (loop), ")
    wasm = wat(COUNT)
    (loop,) = [line for line in lines if line.strip().startswith("loop at")]
    at = int(loop.split("(module ")[1].split(",")[0].rstrip(")"), 16)
    assert wasm[at - 2 : at] == b"\x03\x40", "the first instruction inside of the loop"
    data = json.loads(cli("instrument", "-q", path, "--json").out)
    assert [f["touched"] for f in data["functions"]] == [False, True, False]
    assert data["functions"][1]["bytes_after"] > data["functions"][1]["bytes_before"]


def test_explain_knows_every_site() -> None:
    out = instrument(wat(talk(3, 3)), Options())
    shown = [s for f in explain(out)["functions"] for s in f["safepoints"]]
    assert len(shown) == len(out.sites)
    assert {s["kind"] for s in shown} == {"loop", "call"}


@pytest.mark.parametrize("runtime", ["wasmtime", "wasm3"])
def test_the_rewritten_module_is_one(cli: Cli, module: Module, runtime: str) -> None:
    done = cli("instrument", module(talk(3, 3)), "--runtime", runtime, "-o", "out.wasm")
    assert (done.code, done.out) == (0, "")
    assert "3 of 3 functions rewritten" in done.err
    written = Path("out.wasm").read_bytes()
    runtimes.load(runtime).validate(written)
    assert any(e.name.startswith("__wasmckpt_") for e in decode(written).exports)


def test_doctor(cli: Cli, module: Module) -> None:
    data = json.loads(cli("doctor", "--json").out)
    assert [row["name"] for row in data["runtimes"]] == list(runtimes.names())
    assert {"kernel", "fork for snapshots", "pidfd"} <= set(data["system"])
    assert "module" not in data
    simd = module(FOREVER.replace("(loop $next", "(drop (i32x4.splat (i32.const 1))) (loop $next"))
    done = cli("doctor", simd)
    assert done.code == 0
    assert f"wasmtime     can run {simd}" in done.out
    assert "wasm3        cannot: it uses" in done.out
    able = ", ".join(row["name"] for row in data["runtimes"] if "simd" in row.get("features", ()))
    assert ", " not in able or f"It moves between any two of {able}." in done.out
    nothing = module('(module (import "env" "absent" (func)) (memory (export "memory") 1) (func (export "_start")))')
    assert cli("doctor", nothing, "--json").code == 1


def test_version(cli: Cli) -> None:
    from wasmckpt.version import __version__

    assert cli("--version").out == f"wasmckpt {__version__}\n"
    data = json.loads(cli("version", "--json").out)
    assert data["wasmckpt"] == __version__
    assert data["image format"] == "1"
    assert {"wasmtime", "wasm3", "python"} <= set(data)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_its_options(cli: Cli, name: str) -> None:
    """No option without a help text."""
    import importlib

    import click

    command = importlib.import_module(f"wasmckpt.cli.{name}").command
    assert isinstance(command, click.Command)
    for option in command.params:
        assert isinstance(option, click.Argument) or getattr(option, "help", None), option.name
    done = cli(name, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: wasmckpt {name}")
