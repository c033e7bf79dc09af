"""Jobs under a name: how a second terminal finds a running program and asks for a checkpoint.

The process that looks after a job serves a socket in a folder that only this user can enter. The socket's name is the
job's; nothing else is written, so what a killed process leaves behind is a socket that nobody answers, and the next
look removes it.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ..errors import JobEnded, RetryLater, StorageError, UsageError
from ..snapshot.wire import Channel, Closed, error_from_plain, error_to_plain

__all__ = ["ask", "names", "serve"]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


Handler = Callable[[str, Mapping[str, Any]], dict[str, object]]
"""``handler(do, fields)`` does what another terminal asks for."""


def _folder(*, make: bool = False) -> Path:
    """The folder of the sockets, which need not be there. Raises `StorageError` if it is not this user's alone."""
    import tempfile  # slow to load, and few programs have a name

    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "wasmckpt" if base else Path(tempfile.gettempdir()) / f"wasmckpt-{os.getuid()}"
    try:
        if make:
            folder.mkdir(mode=0o700, exist_ok=True)
        info = os.lstat(folder)
    except FileNotFoundError:
        if not make:
            return folder
        raise StorageError("no folder for named jobs", path=str(folder.parent), hint="set XDG_RUNTIME_DIR") from None
    except OSError as reason:
        raise StorageError(f"no folder for named jobs: {reason.strerror}", path=str(folder),
                           hint="set XDG_RUNTIME_DIR") from reason
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise StorageError("the folder for named jobs is not this user's alone", path=str(folder),
                           hint="remove it, or set XDG_RUNTIME_DIR")
    return folder


def _path(name: str, *, make: bool = False) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no name for a job", hint="letters, digits, '.', '_' and '-', at most 64")
    return _folder(make=make) / f"{name}.sock"


@contextlib.contextmanager
def _addressed(path: Path) -> Iterator[str]:
    """A name that fits into a socket's address however long the folder's path is: by way of the folder's descriptor."""
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{path.name}"
    finally:
        os.close(descriptor)


def _listen(name: str) -> tuple[socket.socket, Path]:
    taken = UsageError(f"a job named {name!r} is running already", hint="choose another name; see wasmckpt ps")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        for _ in range(10):
            path = _path(name, make=True)
            if _alive(path):
                raise taken
            # Under its name only when it listens: a socket that refuses is taken for one that was left behind.
            hidden = path.with_name(f".{os.urandom(8).hex()}")
            try:
                with _addressed(hidden) as address:
                    server.bind(address)
                try:
                    os.chmod(hidden, 0o600)
                    server.listen(8)
                    os.link(hidden, path)
                finally:
                    hidden.unlink()
                return server, path
            except FileNotFoundError:  # the last job of before has just removed the folder
                server.close()
                server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            except FileExistsError:
                raise taken from None
            except OSError as reason:
                raise StorageError(f"no socket for the job's name: {reason.strerror}", path=str(path)) from reason
        raise StorageError("no socket for the job's name", path=str(path))
    except BaseException:
        server.close()
        raise


@contextlib.contextmanager
def serve(name: str, handler: Handler) -> Iterator[None]:
    """Answer requests under ``name`` meanwhile; in the end wait for those that are being answered.

    Raises:
        UsageError: a job of that name is running.
    """
    server, path = _listen(name)
    identity = os.lstat(path).st_ino
    answering: set[threading.Thread] = set()
    try:
        threading.Thread(target=_accept, args=(server, handler, answering), name="requests", daemon=True).start()
        yield
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes the thread
        server.close()
        with contextlib.suppress(OSError):
            if os.lstat(path).st_ino == identity:
                path.unlink()
        with contextlib.suppress(OSError):
            path.parent.rmdir()  # unless another job's socket is there
        for thread in list(answering):
            thread.join()


def _accept(server: socket.socket, handler: Handler, answering: set[threading.Thread]) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=_converse, args=(connection, handler, answering), name="request", daemon=True).start()


def _converse(connection: socket.socket, handler: Handler, answering: set[threading.Thread]) -> None:
    channel = Channel(connection)
    try:
        _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user not in (os.getuid(), 0):
            return
        try:
            message, descriptors = channel.receive()
        except Exception:  # it went away, or it talks nonsense
            return
        for descriptor in descriptors:
            os.close(descriptor)
        answering.add(threading.current_thread())
        try:
            answer: dict[str, object] = {"ok": handler(message["do"], message)}
        except Exception as problem:  # also a request of another version, or a mistake of ours: the program goes on
            answer = {"error": error_to_plain(problem)}
        channel.send(answer)
    except Closed:
        pass
    finally:
        answering.discard(threading.current_thread())
        channel.close()


def _connect(path: Path, patience: float | None = None) -> tuple[Channel, int] | None:
    """A conversation with the job behind a socket, and its process id; None if there is no job any more: its socket
    is removed then.

    Raises:
        RetryLater: it accepts nobody, or it will answer too late for ``patience``, in seconds.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(patience)
    try:
        with _addressed(path) as address:
            connection.connect(address)
    except (FileNotFoundError, NotADirectoryError):
        connection.close()
        return None
    except ConnectionRefusedError:
        connection.close()
        with contextlib.suppress(OSError):
            path.unlink()
        return None
    except (TimeoutError, BlockingIOError):  # too many wait there already
        connection.close()
        raise RetryLater(f"the job {path.stem!r} does not answer") from None
    except OSError as reason:
        connection.close()
        raise StorageError(f"a named job cannot be asked: {reason.strerror}", path=str(path)) from reason
    pid, _, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Channel(connection), pid


def ask(name: str, do: str, *, patience: float | None = None, **fields: object) -> dict[str, Any]:
    """Ask the job of that name. Raises `UsageError` (no such job), `RetryLater` if there is no answer for ``patience``
    seconds, with field ``pid``, and what the job raises."""
    connected = _connect(_path(name), patience)
    if connected is None:
        raise UsageError(f"no job named {name!r} is running", hint="see wasmckpt ps; start one with run --name")
    channel, pid = connected
    try:
        channel.send({**fields, "do": do})
        answer, _ = channel.receive()
    except Closed:
        raise JobEnded(f"the job {name!r} ended before it answered") from None
    except TimeoutError:
        raise RetryLater(f"the job {name!r} does not answer", pid=pid) from None
    finally:
        channel.close()
    if "error" in answer:
        raise error_from_plain(answer["error"])
    found: dict[str, Any] = answer["ok"]
    return found


def names() -> list[str]:
    """Names of the jobs that are running now, sorted."""
    return sorted(path.stem for path in _folder().glob("*.sock") if _alive(path))


def _alive(path: Path) -> bool:
    try:
        connected = _connect(path, 0)
    except RetryLater:
        return True
    if connected is None:
        return False
    connected[0].close()
    return True
