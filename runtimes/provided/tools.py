"""Programs that recipes run: found or named, quiet, their complaints turned into one sentence."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wasmckpt.errors import RuntimeMissing

__all__ = ["find", "run"]

_ELSEWHERE = {"cargo": ".cargo/bin"}
"""Where, below the user's folder, a program may lie that is not on the path."""


def find(program: str, *, of: str, hint: str) -> str:
    """The program's path. Raises `RuntimeMissing`: it is not here, and ``hint`` says how to get it (``of``: a runtime).
    """
    elsewhere = Path.home() / _ELSEWHERE[program] if program in _ELSEWHERE else ""
    found = shutil.which(program) or shutil.which(program, path=str(elsewhere))
    if found is None:
        raise RuntimeMissing(f"{of} cannot be installed: there is no {program} here", hint=hint, runtime=of)
    return found


def run(command: Sequence[str], *, of: str, complaint: str = "", cwd: Path | None = None,
        env: Mapping[str, str] | None = None, progress: Callable[[str], None] | None = None) -> list[str]:
    """Runs a program to its end.

    Args:
        of: the runtime that is being installed.
        complaint: how the lines begin by which it says what went wrong; else its last one is shown.
        env: settings beside those of this process.
        progress: gets each line of what it writes, as it comes.

    Returns:
        The lines that it wrote, complaints among them.

    Raises:
        RuntimeMissing: it failed or could not be started.
    """
    told: list[str] = []
    name = Path(command[0]).name
    try:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, errors="replace", cwd=cwd, process_group=0,
                              env={**os.environ, "LC_ALL": "C", **(env or {})}) as process:
            try:
                for line in process.stdout or ():
                    told.append(line.rstrip())
                    if progress:
                        progress(told[-1])
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)  # make's compilers, too
                raise
    except OSError as problem:
        raise RuntimeMissing(f"{of} cannot be installed: {name} does not start: {problem.strerror}",
                             runtime=of) from problem
    if process.returncode < 0:
        raise RuntimeMissing(f"{of} cannot be installed: {name} was ended by signal {-process.returncode}", runtime=of,
                             hint="try again: what was fetched or built is kept")
    if process.returncode:
        words = [line for line in told if complaint and line.lstrip().startswith(complaint)] or told[-1:]
        raise RuntimeMissing(f"{of} cannot be installed: {name} failed: {''.join(words[:1]).strip()}", runtime=of,
                             hint=f"see whether {name} works by itself on this machine")
    return told
