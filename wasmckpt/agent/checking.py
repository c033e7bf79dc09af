"""Whether a module is one that we can run: by our own validator, in a process of its own.

A hostile module may make the validator take minutes and gigabytes; so it has a limit of both, and the agent goes on.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Final

from ..errors import CheckpointError, InvalidModule, NotSupported, RetryLater

__all__ = ["answer", "check"]

_SECONDS: Final = 120
_MEMORY: Final = 8 << 30
"""Bytes; a valid module takes up to 55 times its size."""
_AT_ONCE: Final = threading.BoundedSemaphore(2)
_PATIENCE: Final = 60.0
_MOST_NAMES: Final = 100
_CHECK: Final = "import sys; from wasmckpt.agent.checking import answer; answer(sys.argv[1])"
_ERRORS: Final = {"InvalidModule": InvalidModule, "NotSupported": NotSupported}


def check(path: Path) -> tuple[list[str], list[str]]:
    """What a module imports from, and the first functions that it exports.

    Raises:
        InvalidModule, NotSupported: what is wrong with it. RetryLater: others are being checked.
    """
    if not _AT_ONCE.acquire(timeout=_PATIENCE):
        raise RetryLater("other modules are being checked", hint="try again in a minute")
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _CHECK, str(path)], stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_SECONDS, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        raise InvalidModule("the module takes too long to be checked", seconds=_SECONDS) from None
    finally:
        _AT_ONCE.release()
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise InvalidModule("the module cannot be checked within the limits", status=done.returncode) from None
    if "error" in found:
        cls = _ERRORS.get(found["error"], CheckpointError)
        raise cls(found["what"], hint=found["hint"], **found["fields"])
    return found["imports"], found["exports"]


def answer(path: str) -> None:
    """What the process does: writes what it found to its standard output."""
    from ..wasm.decode import decode
    from ..wasm.module import ExternKind
    from ..wasm.validate import validate

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    found: dict[str, Any]
    try:
        module = decode(Path(path).read_bytes())
        validate(module)
        found = {
            "imports": sorted({item.module for item in module.imports})[:_MOST_NAMES],
            "exports": [item.name for item in module.exports if item.kind == ExternKind.FUNC][:_MOST_NAMES],
        }
    except CheckpointError as problem:
        fields = {name: value if isinstance(value, int) else str(value) for name, value in problem.fields.items()}
        found = {"error": type(problem).__name__, "what": problem.what, "hint": problem.hint, "fields": fields}
    sys.stdout.write(json.dumps(found))
