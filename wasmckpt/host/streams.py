"""Transfer of bytes through streams: what may wait, waits here."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import sys
import termios

from .abi import (
    FDFLAG_NONBLOCK,
    FILETYPE_CHARACTER_DEVICE,
    FILETYPE_SOCKET_STREAM,
    STREAM_RIGHTS,
    Errno,
    Rights,
    WasiError,
    filetype_of,
)
from .descriptors import Stream
from .signals import RepeatCall
from .waiting import Waiter

__all__ = ["bytes_waiting", "open_stream", "read_stream", "standard_stream", "write_stream"]

_READ_PIECE = 1 << 20
_MEMORY_DEVICES = 1 if sys.platform == "linux" else -1
# Not the right to set times: a terminal or file that was merely handed over is not the guest's to change.
_READ_RIGHTS = STREAM_RIGHTS & ~(Rights.FD_WRITE | Rights.FD_DATASYNC | Rights.FD_SYNC | Rights.FD_FILESTAT_SET_TIMES)
_WRITE_RIGHTS = STREAM_RIGHTS & ~(Rights.FD_READ | Rights.FD_FILESTAT_SET_TIMES)


def standard_stream(name: str, os_fd: int) -> Stream:
    """Descriptor for ``stdin``, ``stdout`` or ``stderr``; one that is closed on the host gives ``EBADF`` when used."""
    rights = _READ_RIGHTS if name == "stdin" else _WRITE_RIGHTS
    stream = Stream(os_fd, 0, rights, name=name, owned=False, access=rights)
    open_stream(stream)
    return stream


def open_stream(stream: Stream) -> None:
    """Find out what the host's descriptor is: its file type, and whether and how it can block.

    A closed one becomes -1, so that it cannot come to mean what is opened under its number later.
    """
    try:
        info = os.fstat(stream.os_fd)
    except OSError:
        stream.os_fd = -1
        stream.may_block = False
        return
    mode = info.st_mode
    stream.filetype = filetype_of(mode)
    # Memory devices (/dev/null, zero, random ...) never wait either.
    memory_device = stat.S_ISCHR(mode) and os.major(info.st_rdev) == _MEMORY_DEVICES
    stream.may_block = not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISBLK(mode) or memory_device)
    if stat.S_ISREG(mode):
        stream.start = os.lseek(stream.os_fd, 0, os.SEEK_CUR)
    # A pipe that is writable takes PIPE_BUF bytes without waiting; a terminal may take a single one.
    stream.piece = select.PIPE_BUF if stat.S_ISFIFO(mode) else 0


def read_stream(stream: Stream, length: int, waiter: Waiter) -> bytes:
    """At least one byte, or none at the end. Raises `RepeatCall`, OSError, `WasiError` (``EAGAIN``)."""
    fd = stream.os_fd
    while True:
        if stream.may_block:
            _wait(stream, select.POLLIN, waiter)
        try:
            wanted = min(length, _READ_PIECE)
            data = os.read(fd, wanted) if stream.tap is None else stream.tap.take(stream, wanted)
        except BlockingIOError:
            # The host's own descriptor does not block and another reader was faster.
            continue
        stream.consumed += len(data)
        return data


def write_stream(stream: Stream, data: bytes, waiter: Waiter) -> int:
    """Write all of ``data``, or what went out before an interruption or an error; returns how many bytes.

    Raises `RepeatCall`, OSError or `WasiError` (``EAGAIN``) only if nothing was written.
    """
    total = len(data)
    view = memoryview(data)
    tap = stream.tap
    if tap is not None:
        tap.sending(stream, data)
    done = 0 if stream.may_block else _write_piece(stream, view, 0)
    try:
        while done < total:
            if stream.may_block:
                _wait(stream, select.POLLOUT, waiter)
            try:
                done += _write_piece(stream, view[done:], done)
            except BlockingIOError:
                if stream.flags & FDFLAG_NONBLOCK:
                    raise
    except (RepeatCall, WasiError, OSError):
        if not done:
            raise
    stream.produced += done
    return done


def bytes_waiting(fd: int) -> int:
    """Bytes that can be read at once, as far as the system says; 1 if it does not say."""
    try:
        raw = fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0")
    except OSError:
        return 1
    return int.from_bytes(raw, "little")


def _wait(stream: Stream, events: int, waiter: Waiter) -> None:
    if stream.flags & FDFLAG_NONBLOCK:
        if not waiter.ready_now(stream.os_fd, events):
            raise WasiError(Errno.AGAIN)
    else:
        waiter.until_ready(stream.os_fd, events)


def _write_piece(stream: Stream, view: memoryview, at: int) -> int:
    """Write what fits without waiting of the bytes from ``at`` on; the descriptor was reported writable."""
    fd, tap = stream.os_fd, stream.tap
    if stream.piece:
        view = view[: stream.piece]
    elif stream.filetype == FILETYPE_SOCKET_STREAM and tap is None:
        borrowed = socket.socket(fileno=fd)
        try:
            return borrowed.send(view, socket.MSG_DONTWAIT)
        finally:
            borrowed.detach()
    elif stream.filetype == FILETYPE_CHARACTER_DEVICE and stream.may_block:
        fd = _private_fd(stream)
    return os.write(fd, view) if tap is None else tap.send(stream, fd, at, len(view))


def _private_fd(stream: Stream) -> int:
    """A second opening of a terminal that does not block: the first one is shared with other processes, leave it be."""
    if stream.write_fd < 0:
        try:
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            stream.write_fd = os.open(f"/dev/fd/{stream.os_fd}", flags)
        except OSError:
            stream.write_fd = os.dup(stream.os_fd)
    return stream.write_fd
