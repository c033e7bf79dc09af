"""A real object storage server for tests: versitygw, which serves a folder over S3, built from the Go module proxy.

`server` starts one for the whole run. It listens on this machine's loopback only.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from .ports import free_port
from .processes import SERVICES
from .toolchain import Unavailable, cache_folder

__all__ = ["Server", "build", "server"]

PACKAGE: Final = "github.com/versity/versitygw/cmd/versitygw"
VERSION: Final = "v1.8.0"
BUCKET: Final = "checkpoints"
ACCESS: Final = "tests"
SECRET: Final = "only-for-tests-of-this-machine"
_BUILDING: Final = 900.0
_STARTING: Final = 120.0


class Server:
    """A running server; ``bucket`` is the folder whose files are its only bucket's objects."""

    version: Final = VERSION

    def __init__(self, port: int, bucket: Path) -> None:
        self.port, self.bucket = port, bucket

    def environment(self, port: int | None = None) -> dict[str, str]:
        """What clients need to know; ``port``: of something in between."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}", "AWS_ACCESS_KEY_ID": ACCESS,
            "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        }


@functools.cache
def build() -> Path:
    """The server's program in the user's cache. Raises `Unavailable`: no Go, or the module is not to be had."""
    target = cache_folder() / "tools" / f"versitygw-{VERSION}"
    if target.exists():
        return target
    go = shutil.which("go")
    if go is None:
        raise Unavailable("versitygw", "versitygw is built with Go, which is not installed")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        try:
            done = subprocess.run(
                [go, "install", "-trimpath", "-ldflags=-s -w", f"{PACKAGE}@{VERSION}"], capture_output=True, text=True,
                env={**os.environ, "GOBIN": scratch, "GOFLAGS": "", "GOOS": "", "GOARCH": "", "CGO_ENABLED": "0"},
                cwd=scratch, check=False, timeout=_BUILDING,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable("versitygw", "building versitygw takes too long") from None
        if done.returncode:
            raise Unavailable("versitygw", f"versitygw cannot be built: {done.stderr.strip()[-500:]}")
        os.replace(Path(scratch, "versitygw"), target)
    return target


@functools.cache
def server() -> Server:
    """The server of this run, started when first asked for. Raises `Unavailable`, RuntimeError: it does not start."""
    program = build()
    scratch = Path(tempfile.mkdtemp(prefix="wasmckpt-s3-"))
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    bucket = scratch / "served" / BUCKET
    bucket.mkdir(parents=True)
    port = free_port()
    with (scratch / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(bucket.parent)],
            env={**os.environ, "ROOT_ACCESS_KEY": ACCESS, "ROOT_SECRET_KEY": SECRET}, cwd=scratch,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    SERVICES.add(process.pid)
    atexit.register(_end, process)
    until = time.monotonic() + _STARTING
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return Server(port, bucket)
        time.sleep(0.05)
    raise RuntimeError(f"versitygw does not start: {(scratch / 'log').read_text()[-1000:]}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


if __name__ == "__main__":
    try:
        print(build())
    except Unavailable as missing:  # the tests that need it say so
        print(missing.reason, file=sys.stderr)
