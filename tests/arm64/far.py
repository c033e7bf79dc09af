"""The process on the other processor: it takes calls and answers them, one after the other.

A call is (module of this package, function, arguments), pickled, with its length in front; so is the answer: (True,
result), or (False, text of the error). Starting Python under qemu takes seconds, so one process serves a whole run.
"""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import traceback
from typing import IO, Any

from ..support.arm64 import Arm64

__all__ = ["Far", "FarError"]


class FarError(Exception):
    """What went wrong on the other side."""


class Far:
    """This side of the process."""

    def __init__(self, arm64: Arm64, cache: str) -> None:
        """``cache``: folder of its caches."""
        self._process = subprocess.Popen(
            [arm64.python, "-m", __name__], env={**arm64.settings(), "WASMCKPT_CACHE": cache}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def __call__(self, module: str, function: str, *arguments: Any) -> Any:
        """Call a function there. Raises `FarError`: it raised, or the process is gone."""
        process = self._process
        assert process.stdin
        assert process.stdout
        try:
            _send(process.stdin, (module, function, arguments))
            fine, answer = _receive(process.stdout)
        except (OSError, EOFError) as problem:
            raise FarError(f"the arm64 process is gone: status {process.wait(10)}") from problem
        if not fine:
            raise FarError(answer)
        return answer

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def _send(stream: IO[bytes], thing: object) -> None:
    data = pickle.dumps(thing, protocol=4)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    """Raises EOFError: the other side has ended."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(head, "little")))


def _serve() -> None:
    calls, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed here
    while True:
        try:
            module, function, arguments = _receive(calls)
        except EOFError:
            return
        try:
            answer = True, getattr(importlib.import_module(f".{module}", __package__), function)(*arguments)
        except Exception:
            answer = False, traceback.format_exc()
        _send(answers, answer)


if __name__ == "__main__":
    _serve()
