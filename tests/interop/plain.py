"""Runs modules as anybody would who has never heard of us: on runtimes with their own WASI, in processes of their own.

wasmtime by `tests.support.undisturbed`, which uses the WASI of its PyPI package; Node by ``node:wasi``; WasmEdge by the
command line that its library contains. The builds of Wasm3, WAMR and wasmer here have no WASI of their own.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from wasmckpt import runtimes
from wasmckpt.runtimes import provided

from ..support.samples import Call, Sample
from ..support.spec import wasm_tools
from ..support.tiers import missing
from ..support.toolchain import Unavailable
from ..support.undisturbed import run_undisturbed

__all__ = ["RUNNERS", "Ended", "run_plainly", "valid"]

RUNNERS: Final = ("wasmtime", "node", "wasmedge")
_WASMEDGE_TRAP: Final = re.compile(rb"\[\d{4}-\d\d-\d\d [^\n]*\[error\] execution failed")
"""It says so on standard output."""
_NODE: Final = Path(__file__).with_name("plain.mjs")


@dataclass(frozen=True)
class Ended:
    """What a run left behind; ``results``: of an export that was called, as numbers or floats."""

    output: bytes
    exit_code: int = 0
    trapped: bool = False
    results: tuple[Any, ...] = ()
    log: tuple[int, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)


def valid(wasm: bytes) -> None:
    """An independent validator passes the module."""
    try:
        tool = wasm_tools()
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    done = subprocess.run([tool, "validate", "--features", "all", "-"], input=wasm, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def run_plainly(
    runner: str, wasm: bytes, sample: Sample, *, stdin: bytes = b"", invoke: str | None = None,
    folder: Path | None = None, results: int = 0,
) -> Ended:
    """Run a module on a runtime of `RUNNERS`, with the arguments, variables and folder of ``sample``."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        path = place / "frozen.wasm"
        path.write_bytes(wasm)
        kind = "command" if invoke is None else "module"
        as_sample = replace(sample, path=path, stdin=stdin, kind=kind, calls=() if invoke is None else (
            Call(invoke, (), ()),
        ))
        if runner == "wasmtime":
            return _wasmtime(as_sample)
        if folder is None:
            folder = place / "folder"
            folder.mkdir()
        command = _node(as_sample, folder) if runner == "node" else _wasmedge(as_sample, folder)
        return _process(command, as_sample, place, folder)


def _wasmtime(sample: Sample) -> Ended:
    got = run_undisturbed(sample)
    values = tuple(value.bits for result in got.results for value in result)
    return Ended(got.stdout + got.stderr, got.exit_code, bool(got.trap), values, tuple(got.host_log), got.files)


def _node(sample: Sample, folder: Path) -> list[str]:
    node = shutil.which("node")
    if node is None:
        missing("node", "Node is not here")
    task = {
        "wasm": str(sample.path), "args": list(sample.argv), "env": sample.env,
        "preopens": {sample.guest_dir: str(folder)} if sample.guest_dir else {},
        "invoke": sample.calls[0].export if sample.calls else None,
    }
    return [node, "--no-warnings", "--stack-size=6000", str(_NODE), json.dumps(task)]


def _wasmedge(sample: Sample, folder: Path) -> list[str]:
    if "wasmedge" not in runtimes.available():
        missing("wasmedge", "WasmEdge is not here")
    library = str(provided.library("wasmedge"))
    options = [f"--dir={sample.guest_dir}:{folder}"] if sample.guest_dir else []
    options += [f"--env={name}={value}" for name, value in sample.env.items()]
    assert not sample.calls, "its command line prints results as text"
    code = (
        "import ctypes, sys; words = [w.encode() for w in sys.argv[2:]]; "
        "sys.exit(ctypes.CDLL(sys.argv[1]).WasmEdge_Driver_Tool(len(words), (ctypes.c_char_p * len(words))(*words)))"
    )
    program = [*runtimes.loader("wasmedge"), sys.executable, "-c", code, library]
    return [*program, "wasmedge", "--force-interpreter", *options, str(sample.path), *sample.args]


def _process(command: list[str], sample: Sample, place: Path, folder: Path) -> Ended:
    (place / "stdin").write_bytes(sample.stdin)
    with open(place / "stdin", "rb") as stdin, open(place / "output", "wb") as output:
        done = subprocess.run(command, stdin=stdin, stdout=output, stderr=subprocess.PIPE, check=False,
                              env={**os.environ, "NODE_OPTIONS": ""}, timeout=120)
    written, errors = (place / "output").read_bytes(), done.stderr
    results: tuple[Any, ...] = ()
    log: tuple[int, ...] = ()
    told_of_trap = _WASMEDGE_TRAP.search(written)
    trapped = told_of_trap is not None
    if told_of_trap:
        written = written[: told_of_trap.start()]
    if b"\n@@" in errors:
        errors, _, last = errors.rpartition(b"\n@@")
        told = json.loads(last)
        results = tuple(int(bits, 16) for bits in told["results"])
        log, trapped = tuple(told["log"]), told["trapped"]
    files = {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}
    code = 0 if trapped else done.returncode
    return Ended(written + (b"" if trapped else errors), code, trapped, results, log, files)
