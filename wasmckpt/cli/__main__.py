"""Entry point of the process. A worker takes as long to start as the command takes to find out what to run: so the
worker comes first, before anything else is even imported.
"""

import contextlib
import os
import signal
import sys

_RUNNING = ("run", "restore", "migrate")


def main() -> int:
    """Run the command that the process was started with; gives the exit code, or ends the process with it."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback while modules are imported
    _open_standard_streams()
    arguments = sys.argv[1:]
    runs_a_program = _runs_a_program(arguments)
    if runs_a_program:
        from ..snapshot.launch import prespawn

        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # kept for whoever takes checkpoints
        prespawn(_runtime(arguments))
    from .main import main as run

    code = run(arguments)
    if runs_a_program:
        _end_at_once(code)
    return code


def _end_at_once(code: int) -> None:
    """Python's own way to end takes 15 ms, and all has been put away."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # has been told, or cannot be
            stream.flush()
    os._exit(code)


def _runs_a_program(arguments: list[str]) -> bool:
    if not arguments or arguments[0] not in _RUNNING or {"-h", "--help"}.intersection(arguments):
        return False
    return arguments[0] != "migrate" or any(word.startswith("--from") for word in arguments)  # else: one that runs


def _runtime(arguments: list[str]) -> str:
    """A guess at the runtime that the worker will be told to load; a wrong one costs only time."""
    for n, word in enumerate(arguments):
        if word in ("--runtime", "--from"):
            return arguments[n + 1] if n + 1 < len(arguments) else ""
        if word.startswith(("--runtime=", "--from=")):
            return word.partition("=")[2]
        if word == "--":
            break
    return "wasmtime"


def _open_standard_streams() -> None:
    """A caller may have closed some; their numbers must not go to files of ours."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # it was closed when Python started
            setattr(sys, name, os.fdopen(fd, "w", closefd=False))


if __name__ == "__main__":
    sys.exit(main())
