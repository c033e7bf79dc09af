"""Calls that change files, and were under way when their process was killed: were they made?

Most may simply be made again: the same bytes to the same place of a file, the same size, the same times. Those here may
not (a folder that is there cannot be made). So what they are about is looked at first, and written down; whoever makes
the call again looks once more, and what has happened in between was this call. The world is taken to be still
meanwhile, as files that an image finds again are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..abi import FDFLAG_APPEND, OFLAG_CREAT, OFLAG_EXCL, U32, WasiError
from ..descriptors import DescriptorTable, Directory, File
from ..files import gather
from ..memory import GuestMemory
from ..preopens import Place

__all__ = ["look", "settle"]

_Args = tuple[int, ...]
_PATHS: Final[Mapping[str, tuple[tuple[int, int, int], ...]]] = {
    "path_open": ((0, 2, 3),),
    "path_create_directory": ((0, 1, 2),),
    "path_remove_directory": ((0, 1, 2),),
    "path_unlink_file": ((0, 1, 2),),
    "path_rename": ((0, 1, 2), (3, 4, 5)),
    "path_link": ((4, 5, 6), (0, 2, 3)),
    "path_symlink": ((2, 3, 4),),
}
"""Which arguments are the folder, the address and the length of each path; first the one that decides."""
_OFLAGS: Final = 4


def look(name: str, table: DescriptorTable, memory: GuestMemory, args: _Args) -> Any:
    """What there is before the call; None: it may simply be made again."""
    try:
        if name == "fd_write":
            file = table.get(args[0])
            return [os.fstat(file.os_fd).st_size] if isinstance(file, File) and file.flags & FDFLAG_APPEND else None
        if name not in _PATHS or (name == "path_open" and not _exclusive(args)):
            return None
        return [_identity(table, memory, args, place) for place in _PATHS[name]]
    except (OSError, WasiError, IndexError):
        return None  # so will the call, and it does nothing


def settle(
    name: str, before: Any, table: DescriptorTable, memory: GuestMemory, args: _Args, call: Callable[..., Any],
) -> Any:
    """Make the call, unless it was made; gives its result."""
    if before is not None:
        try:
            if name == "fd_write":
                done = _appended(before[0], table, memory, args)
                if done:
                    return 0
            elif _was_made(name, before, table, memory, args):
                if name != "path_open":
                    return 0
                args = (*args[:_OFLAGS], args[_OFLAGS] & ~OFLAG_EXCL, *args[_OFLAGS + 1 :])
        except (OSError, WasiError, IndexError):
            pass  # the call says it again
    return call(memory, *args)


def _was_made(name: str, before: Any, table: DescriptorTable, memory: GuestMemory, args: _Args) -> bool:
    now = _identity(table, memory, args, _PATHS[name][0])
    if name in ("path_remove_directory", "path_unlink_file", "path_rename"):
        return before[0] is not None and now != before[0]
    if before[0] is not None or now is None:
        return False
    if name == "path_link":
        return bool(now == before[1])
    if name == "path_symlink":
        with _place(table, memory, args, _PATHS[name][0]) as place:
            return os.readlink(place.name, dir_fd=place.parent) == memory.read(args[0], args[1])
    return True


def _appended(size: int, table: DescriptorTable, memory: GuestMemory, args: _Args) -> int:
    """How many of the bytes to be appended stand behind the file's old end: then that was the call."""
    file = table.get(args[0])
    assert isinstance(file, File)
    data = gather(memory, args[1], args[2])
    done = arrived(file.os_fd, size, data)
    if done:
        file.offset = size + done
        memory.write(args[3], U32.pack(done))
    return done


def arrived(fd: int, at: int, data: bytes) -> int:
    """How many bytes of ``data`` stand in a file from ``at`` on. Raises OSError."""
    readable = os.open(f"/dev/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.pread(readable, len(data), at)
    finally:
        os.close(readable)
    return len(there) if data.startswith(there) else 0


def _exclusive(args: _Args) -> bool:
    return args[_OFLAGS] & (OFLAG_CREAT | OFLAG_EXCL) == OFLAG_CREAT | OFLAG_EXCL


def _place(table: DescriptorTable, memory: GuestMemory, args: _Args, where: tuple[int, int, int]) -> Place:
    base = table.require(args[where[0]])
    if not isinstance(base, Directory):
        raise OSError
    return Place(base.os_fd, memory.read(args[where[1]], args[where[2]]))


def _identity(
    table: DescriptorTable, memory: GuestMemory, args: _Args, where: tuple[int, int, int]
) -> list[int] | None:
    """What has this name; None: nothing."""
    with _place(table, memory, args, where) as place:
        try:
            info = place.stat()
        except FileNotFoundError:
            return None
    return [info.st_dev, info.st_ino]
