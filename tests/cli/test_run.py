"""``run`` gives what the program gives: output, exit code, results, traps."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ..support import samples
from .conftest import PATIENCE, Cli, Module, Spawn
from .programs import COUNT, TRAPS, count_result, exits, talk, talk_output


@pytest.mark.parametrize("runtime", ["wasmtime", "wasm3"])
def test_output(cli: Cli, module: Module, runtime: str) -> None:
    done = cli("run", "--runtime", runtime, module(talk(5, 100)))
    assert done == (0, talk_output(5, 100).decode(), "")


@pytest.mark.parametrize(("code", "seen"), [(0, 0), (42, 42), (134, 134), (255, 255), (0x7FFFFFFF, 255)])
def test_exit_code_passes_through(cli: Cli, module: Module, code: int, seen: int) -> None:
    assert cli("run", module(exits(code))) == (seen, "", "")


def test_a_trap_is_134_and_one_line(cli: Cli, module: Module) -> None:
    done = cli("run", module(TRAPS))
    assert done == (134, "", "wasmckpt: trap: unreachable in function 0 (inner)\n")


def test_a_trap_in_a_function_without_a_name(cli: Cli, module: Module) -> None:
    done = cli("run", module(TRAPS.replace("$inner", "").replace("call ", "call 0 ")))
    assert done == (134, "", "wasmckpt: trap: unreachable in function 0\n")


@pytest.mark.parametrize("runtime", ["wasmtime", "wasm3"])
def test_invoke_prints_results(cli: Cli, module: Module, runtime: str) -> None:
    path = module(COUNT)
    assert cli("run", "--runtime", runtime, path, "--invoke", "run", "1000") == (0, f"{count_result(1000)}\n", "")
    done = cli("run", "--runtime", runtime, "--invoke", "swap", path, "--", "-2", "0.1")
    assert done == (0, "0.1\n-2\n", "")


def test_values_are_exact(cli: Cli, module: Module) -> None:
    path = module(COUNT)
    done = cli("run", "--json", "--invoke", "swap", path, "i64:0x8000000000000000", "f32:-nan:0x1")
    assert json.loads(done.out)["results"] == [
        {"type": "f32", "value": "-nan:0x1", "bits": "0xff800001"},
        {"type": "i64", "value": "-9223372036854775808", "bits": "0x8000000000000000"},
    ]


def test_arguments_environment_and_folders(spawn: Spawn, tmp_path: Path) -> None:
    sample = samples.sample("wordcount", "tiny")
    folder = tmp_path / "data"
    folder.mkdir()
    for name, content in sample.files.items():
        (folder / name).write_bytes(content)

    def run(grant: str) -> tuple[int, bytes]:
        process = spawn("run", "--dir", grant, sample.path, "--", *sample.args, stdin=subprocess.PIPE)
        out, _ = process.communicate(sample.stdin, timeout=PATIENCE)
        return process.returncode, out

    assert run(f"data::{sample.guest_dir}") == (sample.exit_code, sample.stdout)
    for name, content in sample.files_after.items():
        assert (folder / name).read_bytes() == content
    assert run(f"data::{sample.guest_dir}::ro")[0] != 0, "it writes a file, and the folder was granted for reading"
