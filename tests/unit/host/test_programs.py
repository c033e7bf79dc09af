"""A program built by a C compiler: same output, exit code and files under our host as under wasmtime's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from wasmckpt.host import Wasi, WasiConfig

from ...support.tiers import missing
from ...support.toolchain import Unavailable, build_c
from .engine import run_with_ours, run_with_wasmtime

SOURCE = Path(__file__).with_name("everyday.c")


@pytest.fixture(scope="module")
def program() -> bytes:
    try:
        return build_c("everyday", [SOURCE], []).read_bytes()
    except Unavailable as error:
        missing(error.need, error.reason)


def test_an_everyday_program(program: bytes, tmp_path: Path) -> None:
    text = "".join(f"line {number} of the input\n" for number in range(2000))
    (tmp_path / "in").write_text(text)
    results = []
    for name in ("ours", "theirs"):
        folder = tmp_path / name
        folder.mkdir()
        out = tmp_path / f"{name}.out"
        if name == "ours":
            fds = os.open(tmp_path / "in", os.O_RDONLY), os.open(out, os.O_WRONLY | os.O_CREAT)
            wasi = Wasi(WasiConfig(
                args=["prog", "first", "second arg"], env={"HOME": "/home/x"}, preopens=[(folder, "/d")], stdin=fds[0],
                stdout=fds[1],
            ))
            code = run_with_ours(program, wasi)
            assert wasi.exit_code == code
            wasi.close()
            for fd in fds:
                os.close(fd)
        else:
            code = run_with_wasmtime(
                program, args=["prog", "first", "second arg"], env=[("HOME", "/home/x")], stdin=str(tmp_path / "in"),
                stdout=str(out), preopens=[(str(folder), "/d")],
            )
        files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        results.append((code, out.read_text(), files))
    assert results[0] == results[1]
    code, output, files = results[0]
    assert code == 7
    assert output.endswith("done\n")
    assert len(output.splitlines()) > 10
    assert files["log.txt"] == b"one\ntwo\n"


def test_a_reader_that_leaves_is_the_programs_affair() -> None:
    """Even where the signal would kill: the write gives ``EPIPE``, the process lives."""
    script = """
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
from wasmckpt.host import BytesMemory, Wasi, WasiConfig
r, w = os.pipe()
wasi = Wasi(WasiConfig(stdout=w))
os.close(r)
memory = BytesMemory(bytearray(64))
memory.write(0, (16).to_bytes(4, "little") + (5).to_bytes(4, "little"))
print(wasi.functions["fd_write"].call(memory, 1, 0, 1, 8))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "64\n"), done.stderr
    assert done.returncode != -signal.SIGPIPE
