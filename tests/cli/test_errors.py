"""Bad input: one clear line, its exit code, and nothing has run or is lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from wasmckpt.cli import version

from .conftest import PATIENCE, Cli, Module, Spawn, ends_by, worker_of
from .programs import COUNT, FOREVER, talk, talk_output, wat


class Case(NamedTuple):
    """Arguments, exit code, and what the line must say. Files: see ``prepare``."""

    arguments: str
    code: int
    says: str


SIMD = """(module (memory (export "memory") 1)
  (func (export "_start") (drop (i32x4.splat (i32.const 1)))))"""
MISSING = """(module (import "env" "absent" (func $absent)) (memory (export "memory") 1)
  (func (export "_start") (call $absent)))"""
NO_START = """(module (memory (export "memory") 1) (func (export "other")))"""
RESERVED = """(module (memory (export "memory") 1) (func (export "_start")) (func (export "__wasmckpt_x")))"""

CASES = [
    Case("", 64, "Usage:"),
    Case("bogus", 64, "no such command 'bogus'"),
    Case("run", 64, "missing argument 'MODULE'"),
    Case("run --bogus good.wasm", 64, "no such option '--bogus'"),
    Case("run good.wasm --checkpoint-after 3", 64, "'3' is no duration"),
    Case("run good.wasm --checkpoint-after 9999999h", 64, "longer than a year"),
    Case("run good.wasm --checkpoint-every 1us", 64, "shorter than 10 ms"),
    Case("run good.wasm --stop", 64, "--stop without a time"),
    Case("run good.wasm --runtime nothing", 64, "'nothing' is no runtime"),
    Case("run good.wasm --stack-size 3", 64, "not between 64k and 512M"),
    Case("run good.wasm --stack-size 1G", 64, "not between 64k and 512M"),
    Case("run good.wasm --checkpoint-at 9999999999999999999", 64, "is not in the range"),
    Case("run good.wasm --env =x", 64, "has no name"),
    Case("run good.wasm --dir ::/data", 64, "names no folder"),
    Case("run good.wasm --name ../x", 64, "is no name for a job"),
    Case("run good.wasm --checkpoint-at 0", 64, "is not in the range"),
    Case("run absent.wasm", 64, "cannot be read: No such file"),
    Case("run .", 64, "cannot be read: Is a directory"),
    Case("run nonsense.wasm", 65, "not a WebAssembly"),
    Case("run good.wckpt", 64, "this is an image, not a module"),
    Case("run empty.wasm", 65, ""),
    Case("run cut.wasm", 65, ""),
    Case("run invalid.wasm", 65, "function 0"),
    Case("run reserved.wasm", 65, "reserved prefix"),
    Case("run nostart.wasm", 64, "exports no function '_start'"),
    Case("run missing.wasm", 69, "absent"),
    Case("run missing.wasm --runtime wasm3", 69, "absent"),
    Case("run simd.wasm --runtime wasm3", 69, "wasm3 cannot run this module: it uses"),
    Case("migrate simd.wasm --from wasmtime --to wasm3 --after 1s", 69, "wasm3 cannot run this module: it uses"),
    Case("migrate good.wasm --from wasmtime --to wasm3 --after 1s --after 2s", 64, "more --after than --to"),
    Case("migrate nobody --to wasm3", 64, "no job named 'nobody'"),
    Case("migrate nobody", 64, "missing option '--to'"),
    Case("migrate nobody --to nothing", 64, "'nothing' is no runtime"),
    Case("migrate nobody --to wasm3 --to wasmtime", 64, "one --to at a time"),
    Case("migrate nobody --to wasm3 --after 2s", 64, "--after is for a program that is started here"),
    Case("migrate nobody --to wasm3 --dir .", 64, "--dir is for a program that is started here"),
    Case("migrate nobody --to wasm3 -- x", 64, "args is for a program that is started here"),
    Case("migrate good.wasm --to wasm3 --after 1s", 64, "--from is missing"),
    Case("migrate good.wasm --from wasmtime --to wasm3", 64, "--after is missing"),
    Case("run good.wasm --dir absent::/data", 66, "absent"),
    Case("run good.wasm --dir good.wasm::/data", 66, "good.wasm"),
    Case("run good.wasm --invoke nothing", 64, "exports no function 'nothing'"),
    Case("run count.wasm --invoke run", 64, "takes 1 arguments, 0 are given"),
    Case("run count.wasm --invoke run 1.5", 64, "'1.5' is not a value of type i32"),
    Case("run count.wasm --invoke run 4294967296", 64, "is not a value of type i32"),
    Case("run count.wasm --invoke run i64:1", 64, "a value of type i32 is wanted"),
    Case("run good.wasm -o absent/i.wckpt --checkpoint-after 1s", 73, "no such folder"),
    Case("run good.wasm -o . --checkpoint-after 1s", 73, "is a folder's"),
    Case("restore absent.wckpt", 73, "cannot be read: No such file"),
    Case("restore good.wasm", 65, "this is not an image"),
    Case("restore good.wckpt", 65, "does not carry its module"),
    Case("restore good.wckpt --module other.wasm", 65, "of another module"),
    Case("restore damaged.wckpt --module good.wasm", 65, "offset"),
    Case("restore cut.wckpt --module good.wasm", 65, "offset"),
    Case("restore newer.wckpt --module good.wasm", 65, "is of version 2, newer than 1"),
    Case("inspect good.wasm", 65, "this is not an image"),
    Case("inspect newer.wckpt", 65, "newer than 1"),
    Case("inspect good.wckpt --module other.wasm", 65, "of another module"),
    Case("verify damaged.wckpt", 65, "offset"),
    Case("verify cut.wckpt", 65, "offset"),
    Case("verify good.wckpt --module other.wasm", 65, "of another module"),
    Case("diff good.wckpt", 64, "missing argument 'AFTER'"),
    Case("diff good.wckpt absent.wckpt", 73, "cannot be read: No such file"),
    Case("diff good.wckpt damaged.wckpt", 65, "offset"),
    Case("diff cut.wckpt good.wckpt", 65, "offset"),
    Case("diff good.wckpt good.wckpt --module other.wasm", 65, "of another module"),
    Case("diff good.wckpt good.wckpt --ignore nothing", 64, "'nothing' is not one of"),
    Case("completion tcsh", 64, "'tcsh' is not one of"),
    Case("instrument nonsense.wasm", 65, "not a WebAssembly"),
    Case("instrument good.wasm -o absent/x.wasm", 73, "cannot be written"),
    Case("instrument simd.wasm --explain --runtime nothing", 64, "is no runtime"),
    Case("checkpoint nobody", 64, "no job named 'nobody'"),
    Case("doctor absent.wasm", 64, "cannot be read"),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all the good and bad files that the cases name."""
    from wasmckpt.cli.main import main

    folder = tmp_path_factory.mktemp("files")
    good = wat(talk(3, 10))
    (folder / "good.wasm").write_bytes(good)
    (folder / "other.wasm").write_bytes(wat(talk(3, 11)))
    (folder / "count.wasm").write_bytes(wat(COUNT))
    (folder / "nonsense.wasm").write_bytes(b"#!/bin/sh\necho no\n")
    (folder / "empty.wasm").write_bytes(b"")
    (folder / "cut.wasm").write_bytes(good[: len(good) // 2])
    body = b"\x00\x41\x00\x0b"  # an i32 where nothing is wanted
    (folder / "invalid.wasm").write_bytes(
        b"\0asm\1\0\0\0" + b"\x01\x04\x01\x60\x00\x00" + b"\x03\x02\x01\x00" + b"\x07\x0a\x01\x06_start\x00\x00"
        + b"\x0a\x06\x01\x04" + body
    )
    for name, text in (("simd", SIMD), ("missing", MISSING), ("nostart", NO_START), ("reserved", RESERVED)):
        (folder / f"{name}.wasm").write_bytes(wat(text))
    image = folder / "good.wckpt"
    assert main(["run", "-q", "--checkpoint-at", "15", "--stop", "-o", str(image), str(folder / "good.wasm")]) == 0
    raw = image.read_bytes()
    (folder / "damaged.wckpt").write_bytes(raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:])
    (folder / "cut.wckpt").write_bytes(raw[: len(raw) // 2])
    (folder / "newer.wckpt").write_bytes(raw[:8] + b"\x02" + raw[9:])
    return folder


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.arguments or "(nothing)")
def test_bad_input(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch, case: Case) -> None:
    monkeypatch.chdir(files)
    before = sorted(os.listdir(files))
    done = cli(*case.arguments.split())
    assert done.code == case.code, done.err
    assert done.out == "", "nothing ran"
    assert case.says in done.err
    lines = done.err.splitlines()
    if case.arguments:
        assert lines[0].startswith("wasmckpt: error: ")
        assert all(line.startswith("wasmckpt: hint: ") for line in lines[1:])
        assert len(lines) <= 2
    assert sorted(os.listdir(files)) == before


GOOD = [
    "run good.wasm", "run good.wasm --runtime wasm3", "run simd.wasm", "run count.wasm --invoke run 1 ",
    "restore good.wckpt --module good.wasm", "verify good.wckpt --module good.wasm", "inspect good.wckpt",
    "inspect good.wckpt --pages --json --module good.wasm", "instrument good.wasm --explain", "doctor good.wasm",
    "run good.wasm --dir .::/data --env A=B --stack-size 64k --name x --checkpoint-after 1h", "version", "--version",
    "run --help", "--help", "ps", "diff good.wckpt good.wckpt --module good.wasm --ignore host", "completion bash",
    "migrate good.wasm --from wasmtime --to wasm3 --after 1h --dir .",
]


@pytest.mark.parametrize("arguments", GOOD)
def test_their_twins_pass(cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    """The same without the cause works, so a refusal is not for another reason."""
    monkeypatch.chdir(files)
    assert cli(*arguments.split()).code == 0


@pytest.mark.parametrize("arguments", [
    "run good.wasm --runtime wasm3", "restore good.wckpt --runtime wasm3 --module good.wasm",
    "migrate good.wasm --from wasmtime --to wasm3 --after 1s",
])
def test_a_runtime_that_is_not_installed(
    cli: Cli, files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: str
) -> None:
    """It says what to type; a move is refused before anything has run."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['wasm3'] = None\n")
    monkeypatch.syspath_prepend(tmp_path)  # a worker finds modules where this process does
    monkeypatch.chdir(files)
    done = cli(*arguments.split())
    assert (done.code, done.out) == (69, "")
    assert done.err == (
        "wasmckpt: error: wasm3 is not installed (no wasm3) (runtime wasm3)\n"
        "wasmckpt: hint: wasmckpt runtimes install wasm3\n"
    )


@pytest.mark.slow
def test_a_full_disk_loses_nothing(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    """The image that was there stays, the program goes on, and says at its end that the image could not be written."""
    old = tmp_path / "i.wckpt"
    old.write_bytes(b"the image before")
    process = spawn("run", "-o", "i.wckpt", module(talk(12, 450_000_000)))
    assert process.stdout is not None
    first = process.stdout.readline()
    resource.prlimit(worker_of(process), resource.RLIMIT_FSIZE, (100, 100))
    process.send_signal(signal.SIGUSR1)
    out, err = process.communicate(timeout=PATIENCE)
    assert first + out == talk_output(12, 450_000_000)
    assert err.startswith(b"wasmckpt: error: the image cannot be written: File too large")
    assert process.returncode == 73
    assert old.read_bytes() == b"the image before"
    assert sorted(os.listdir(tmp_path)) == ["i.wckpt", "program.wasm"]


def test_a_rewritten_module_is_written_whole_or_not_at_all(
    cli: Cli, module: Module, tmp_path: Path, spawn: Spawn,
) -> None:
    """A full disk leaves the file that was there, and no other; a pipe is written to, not replaced."""
    old = tmp_path / "out.wasm"
    old.write_bytes(b"the file before")
    module(talk(3, 3))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # noqa: E731
    process = spawn("instrument", "program.wasm", "-o", "out.wasm", preexec_fn=limit)
    _, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err.splitlines()[0]) == (
        73, b"wasmckpt: error: the module cannot be written: File too large (path out.wasm)")
    assert old.read_bytes() == b"the file before"
    assert sorted(os.listdir(tmp_path)) == ["out.wasm", "program.wasm"]
    process = spawn("instrument", "-q", "program.wasm", "-o", "/dev/stdout")
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, err, out[:4]) == (0, b"", b"\0asm")


def test_a_folder_that_is_gone(spawn: Spawn, module: Module, tmp_path: Path) -> None:
    """It was there at the start: the request fails, the program runs on."""
    (tmp_path / "images").mkdir()
    process = spawn("run", "--checkpoint-after", "1h", "-o", "images/i.wckpt", module(FOREVER))
    worker_of(process)
    (tmp_path / "images").rmdir()
    process.send_signal(signal.SIGUSR1)
    assert process.stderr is not None
    assert process.stderr.readline().startswith(b"wasmckpt: error: the image cannot be written")
    assert process.poll() is None
    assert ends_by(process, signal.SIGTERM) == 143


@pytest.mark.parametrize("arguments", [("inspect", "good.wckpt"), ("version",), ("run", "--json", "good.wasm")])
def test_output_to_a_full_disk(files: Path, spawn: Spawn, arguments: tuple[str, ...]) -> None:
    named = [files / word if word.startswith("good") else word for word in arguments]
    with open("/dev/full", "wb") as full:
        process = spawn(*named, stdout=full)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 73
    assert err == b"wasmckpt: error: the output cannot be written: No space left on device\n"


def test_an_image_comes_through_a_pipe(cli: Cli, files: Path, spawn: Spawn, tmp_path: Path) -> None:
    before = cli("run", "-q", "--checkpoint-at", "4", "--stop", "-o", "i.wckpt", files / "good.wasm").out
    raw = (tmp_path / "i.wckpt").read_bytes()
    for data, code, rest in ((raw, 0, talk_output(3, 10).removeprefix(before.encode())), (raw[:-9], 65, b"")):
        process = spawn("restore", "/dev/stdin", "--module", files / "good.wasm", stdin=subprocess.PIPE)
        assert process.communicate(data, timeout=PATIENCE)[0] == rest
        assert process.returncode == code


def test_names_that_are_not_utf8_come_back_in_errors(cli: Cli, files: Path) -> None:
    done = cli("run", files / "good.wasm", "--dir", "absent\udcff::/data")
    assert done.code == 66, "the worker's answer came"
    assert "absent\\xdcff" in done.err
    done = cli("run", "--json", files / "good.wasm", "--dir", "absent\udcff::/data")
    assert json.loads(done.out)["error"]["fields"]["path"] == "absent\udcff"


def test_a_hostile_name_cannot_forge_a_line(cli: Cli) -> None:
    done = cli("run", "x\nwasmckpt: checkpoint written\n\x1b[2J")
    assert done.code == 64
    assert len(done.err.splitlines()) == 1
    assert "\x1b" not in done.err


def test_internal_errors_are_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(names: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(version, "facts_apart", broken)
    done = cli("version")
    assert done.code == 70
    assert done.err.startswith("wasmckpt: error: internal error: ZeroDivisionError: planted\n")

