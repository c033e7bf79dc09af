"""Compiled forms of rewritten modules on disk: what a runtime that compiles has compiled once, it loads afterwards.

An entry is two files: a header (what the code was made for, its digest) and the code, which the runtime maps. To load
one is to run machine code, so the folder must be the user's own and closed to others, and so must each file; the digest
is checked before the runtime sees anything. Whatever is wrong with an entry: it is as if it were not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..cachefolder import cache_folder, keep_newest, put
from ..errors import CheckpointError
from ..instrument.instrument import Instrumented
from ..instrument.side import Side
from ..runtimes import Compiled, Engine

__all__ = ["MOST_BYTES", "Ahead", "compiled_main", "compiled_side", "default_folder"]

MOST_BYTES = 2 << 30
"""What the folder may hold; the entries that were used longest ago go first."""
_LEAST_BYTES = 8 << 10
"""Modules below this size are compiled sooner than a file is looked for among thousands."""


def default_folder() -> Path:
    """Where compiled forms are kept."""
    return cache_folder() / "compiled"


class Ahead:
    """A compiled form that is looked for in another thread, while this one makes the continuations: of a large module
    reading and checking it takes as long as that."""

    def __init__(self, engine: Engine, out: Instrumented, folder: Path | None = None) -> None:
        path = _path(engine, out.key, folder)
        self._found: Compiled | None = None
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None
        if path is None:
            return
        thread = threading.Thread(target=self._run, args=(engine, path), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system gives none
            self._run(engine, path)
        else:
            self._thread = thread

    def _run(self, engine: Engine, path: Path) -> None:
        try:
            self._found = _load(engine, path)
        except BaseException as problem:
            self._failure = problem

    def result(self) -> Compiled | None:
        """The compiled form; None: there is none. Once only: it is the caller's then."""
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure
        found, self._found = self._found, None
        return found

    def close(self) -> None:
        """Free it, if nobody has taken it."""
        if self._thread is not None:
            self._thread.join()
        if self._found is not None:
            self._found.close()


def compiled_main(
    engine: Engine, out: Instrumented, folder: Path | None = None, ahead: Ahead | None = None,
) -> Compiled:
    """The rewritten module without what a resume added, compiled, or loaded as it was compiled before.

    Args:
        ahead: where it is being looked for already.

    Raises as `Engine.compile`.
    """
    if out.side is None and out.continuations:
        return _compiled(engine, out.wasm, _path(engine, _asked_again(out), folder))
    path = _path(engine, out.key, folder)
    if path is not None and ahead is not None:
        return ahead.result() or _compiled(engine, out.wasm, path, look=False)
    return _compiled(engine, out.wasm, path)


def compiled_side(engine: Engine, out: Instrumented, side: Side, folder: Path | None = None) -> Compiled:
    """The side module of ``out``, compiled, or loaded as it was compiled before. Raises as `Engine.compile`."""
    return _compiled(engine, side.wasm, _path(engine, _asked_again(out), folder))


def _asked_again(out: Instrumented) -> str:
    """Name of its continuations, if they were asked for before: most resumes are the only ones at their place."""
    return out.resume_key if out.resumed_before else ""


def _compiled(engine: Engine, wasm: bytes, path: Path | None, *, look: bool = True) -> Compiled:
    if path is None:
        return engine.compile(wasm)
    if look and (found := _load(engine, path)) is not None:
        return found
    compiled = engine.compile(wasm)
    if len(wasm) >= _LEAST_BYTES and (kept := compiled.keep()) is not None:
        with contextlib.suppress(OSError):
            _write(path, *kept)
    return compiled


def _path(engine: Engine, key: str, folder: Path | None) -> Path | None:
    """The header's; None: nothing is kept of this module."""
    if not engine.capabilities.keeps_code or not key:
        return None
    name = hashlib.sha256(f"{engine.name} {engine.version} {key}".encode()).hexdigest()
    return (folder or default_folder()) / name


def _code_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.code")


def _load(engine: Engine, path: Path) -> Compiled | None:
    try:
        if not _own(os.lstat(path.parent), stat.S_ISDIR):
            return None
        with _opened(path) as file:
            header = file.read()
        code = _opened(_code_of(path))
        try:
            found = engine.load(header, code)
        except BaseException:
            code.close()
            raise
    except (OSError, CheckpointError):
        return None
    for used in (path, _code_of(path)):
        with contextlib.suppress(OSError):
            os.utime(used)
    return found


def _own(found: os.stat_result, kind: Callable[[int], bool]) -> bool:
    """Whether only this user can have written there."""
    return kind(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _opened(path: Path) -> BinaryIO:
    """Raises `OSError`: it is not a file of this user's alone."""
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK), "rb")
    if not _own(os.fstat(file.fileno()), stat.S_ISREG):
        file.close()
        raise PermissionError(f"{path} may be written by others")
    return file


def _write(path: Path, header: bytes, code: bytes) -> None:
    """Both files, each whole or not at all, the header last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.chmod(path.parent, 0o700)
    for target, content in ((_code_of(path), code), (path, header)):
        put(target, content)
    if path.name[-1] == "0":  # one in sixteen looks
        keep_newest(os.scandir(path.parent), MOST_BYTES)
