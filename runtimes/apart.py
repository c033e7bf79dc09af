"""Asks runtimes for their facts, each in a process of its own.

Libraries that define the same C symbols never meet that way, one may need another C library than this process has, and
one that crashes takes nothing else down.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from wasmckpt import runtimes

__all__ = ["answer", "facts_apart"]

_SECONDS: Final = 60
_ASK: Final = "import sys; from wasmckpt.runtimes.apart import answer; answer(sys.argv[1])"
_SETS: Final = ("features", "lowerings")


def facts_apart(names: Sequence[str]) -> list[runtimes.Facts]:
    """As `runtimes.facts`, for several at once, and without loading one here.

    Raises:
        UsageError: a name without an adapter.
    """
    with ThreadPoolExecutor(max(1, len(names))) as pool:
        return list(pool.map(_ask, names))


def answer(name: str) -> None:
    """What the process of a runtime does: writes the facts to stdout."""
    facts = runtimes.facts(name)
    print(json.dumps(dataclasses.asdict(facts), default=sorted))


def _ask(name: str) -> runtimes.Facts:
    if missing := runtimes.absent(name):
        return runtimes.Facts(name, None, str(missing), None)
    places = [str(Path(runtimes.__file__).parents[2]), *sys.path]
    try:
        done = subprocess.run(
            [*runtimes.loader(name), sys.executable, "-P", "-c", _ASK, name], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(place for place in places if place)},
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return runtimes.Facts(name, None, f"{name} cannot be asked: {problem}", None)
    if done.returncode:
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        words = done.stderr.strip().splitlines()[-1:]
        return runtimes.Facts(name, None, f"{name} breaks when it is loaded ({how}): {''.join(words)}", None)
    found: dict[str, Any] = json.loads(done.stdout)
    can = found["capabilities"]
    return runtimes.Facts(name, found["version"], found["problem"],
                          None if can is None else runtimes.Capabilities(**can | {k: frozenset(can[k]) for k in _SETS}))
