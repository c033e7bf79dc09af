"""Landlock: a process takes from itself, for good, all of the file system but what it names, and other things beside.

It holds for the thread that asks for it and all that this one makes; so it is asked for by a process's only thread.
Files that are open already stay so, and what is in no folder (pipes, files in memory) is not concerned. Each version of
the interface knows more rights; those that this kernel does not know are not withheld.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from typing import Final

__all__ = ["interface", "restrict"]

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION: Final = 1
_BENEATH: Final = 1
_EXECUTE, _WRITE, _READ, _LIST, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_RIGHTS: Final = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""Version -> the rights on files and folders that there are from it on."""
_TCP: Final = 0b11
"""From version 4: bind, connect."""
_SCOPES: Final = 0b11
"""From version 6: abstract sockets of processes outside, signals to them."""
_OF_FILES: Final = _EXECUTE | _WRITE | _READ | _TRUNCATE | _IOCTL
"""Rights that mean something for a file that is no folder."""


def interface() -> int:
    """Version of the kernel's interface; 0: it has none, or it is not switched on."""
    return max(0, int(ctypes.CDLL(None).syscall(_CREATE, None, 0, _VERSION)))


def restrict(read: Iterable[str | int], change: Iterable[str | int]) -> None:
    """Take from this thread all but to read what is below ``read``, and to do anything but execute below ``change``:
    paths or descriptors. What is not there, or in no folder, is passed over.

    Raises:
        OSError: it cannot be done; then nothing has been taken.
    """
    version = interface()
    all_rights = max(rights for since, rights in _RIGHTS.items() if since <= version)
    words = [all_rights, *([_TCP] if version >= 4 else []), *([_SCOPES] if version >= 6 else [])]
    attributes = struct.pack(f"<{len(words)}Q", *words)
    libc = ctypes.CDLL(None, use_errno=True)
    rules = int(libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    if rules < 0:
        raise OSError(ctypes.get_errno(), "there is no Landlock")
    try:
        for places, rights in ((read, _READ | _LIST), (change, all_rights & ~_EXECUTE)):
            for place in places:
                _allow(libc, rules, place, rights & all_rights)
        if libc.syscall(_RESTRICT, rules, 0):
            raise OSError(ctypes.get_errno(), "Landlock refuses")
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, place: str | int, rights: int) -> None:
    with contextlib.ExitStack() as opened:
        if isinstance(place, int):
            where = place
        else:
            try:
                where = os.open(place, os.O_PATH | os.O_CLOEXEC)
            except OSError:
                return
            opened.callback(os.close, where)
        try:
            folder = os.path.isdir(where)
        except OSError:
            return
        rule = struct.pack("<Qi", rights if folder else rights & _OF_FILES, where)
        if libc.syscall(_ADD, rules, _BENEATH, rule, 0) and ctypes.get_errno() not in (errno.EBADFD, errno.EBADF):
            raise OSError(ctypes.get_errno(), f"Landlock does not take {place!r}")
