"""Taking the host's state: plain data, in two steps.

The first step copies what changes with each call and needs no call of the system, so that it can be done in the very
moment in which a copy of the worker is made; the second looks at the files and may take its time. Layout of the result
(a str-keyed map; ``formats/SPEC.md`` repeats it for readers in other languages):

``version``      1
``args, env``    list of bytes; list of [name, value]
``exit_code``    int or None
``clocks``       readings in ns: ``monotonic, realtime, process_cpu, thread_cpu``
``sleep``        None, or ``call`` (digest of the waiting poll_oneoff), ``deadlines`` (ns, the guest's monotonic clock)
``random``       None, or ``key`` and ``calls`` of the seeded generator
``anonymous``    list of bytes or None: contents of open files that have no name any more; None: too large to carry
``descriptors``  list by ascending ``number``; each with ``kind, filetype, rights, inheriting, flags`` and
                 stdin, stdout, stderr: ``consumed, produced, start`` (position when handed over, None for pipes)
                 preopen: ``root, listing``      directory: also ``path``, and ``removed`` (true) if it has no name any
                 more      stream: ``root, path``
                 file: ``root, path, offset, readable, writable``, and ``seen`` (see `evidence`) or ``anonymous``
                 (an index)
                 ``listing``: None, or [name, inode, file type] in the order of cookies
``guest_api``    only where the module can reach it: ``waiting`` (in ``checkpoint_here``), ``lives``, ``discarded``
                 ([first, after the last] of 4 KiB pages of memory 0 that the image leaves out: they are zero)
``journal``      only for a program with one (see `journal`): ``line`` (16 bytes that name its life), ``calls`` made
"""

from __future__ import annotations

import copy
import os
import stat

from ..lazydata import dataclass, field
from .clocks import GuestClocks
from .config import WasiConfig
from .descriptors import Descriptor, DescriptorTable, Directory, File, Stream
from .evidence import look_at
from .polling import PollCalls
from .process import ProcessCalls
from .random import RandomSource

__all__ = ["STATE_VERSION", "Mark", "present_path", "record_of", "take_mark"]

STATE_VERSION = 1
_MOST_NAMES = 100_000
"""Of files and folders, which are looked at for one of a given file."""


@dataclass(slots=True)
class Mark:
    """The state of one moment, see `Wasi.mark`. Completed or released once."""

    carry_limit: int
    table: DescriptorTable
    descriptors: list[tuple[int, Descriptor]]
    rest: dict[str, object]
    held: bool = True
    _contents: list[bytes | None] = field(default_factory=list)
    _known: dict[tuple[int, int], int] = field(default_factory=dict)

    def release(self) -> None:
        """Forget it. Idempotent."""
        if self.held:
            self.held = False
            self.table.release()

    def complete(self) -> dict[str, object]:
        """The state as plain data; releases the mark."""
        try:
            roots = {d.root: d.os_fd for _, d in self.descriptors if isinstance(d, Directory) and d.preopen}
            records = [self._record(number, descriptor, roots) for number, descriptor in self.descriptors]
            return {"version": STATE_VERSION, **self.rest, "descriptors": records, "anonymous": self._contents}
        finally:
            self.release()

    def _record(self, number: int, found: Descriptor, roots: dict[bytes, int]) -> dict[str, object]:
        record = record_of(number, found)
        if "path" not in record:
            return record
        record["path"] = present_path(found, roots.get(found.root))
        if isinstance(found, File):
            if record["path"] is None and os.fstat(found.os_fd).st_nlink:
                record["path"] = _other_name(found.os_fd, roots.get(found.root))
            if record["path"] is None:
                record |= {"path": found.path, "anonymous": self._carry(found.os_fd)}
            elif stat.S_ISREG(os.fstat(found.os_fd).st_mode):
                record["seen"] = look_at(found.os_fd)
        if record["path"] is None:
            record["path"] = found.path
            if isinstance(found, Directory) and not os.fstat(found.os_fd).st_nlink:
                record["removed"] = True
        return record

    def _carry(self, fd: int) -> int:
        """Index of the contents of a file without a name; two descriptors of one file share them."""
        info = os.fstat(fd)
        key = info.st_dev, info.st_ino
        if key not in self._known:
            self._known[key] = len(self._contents)
            contents = _read_all(fd, info.st_size) if info.st_size <= self.carry_limit else None
            self._contents.append(contents)
            self.carry_limit -= len(contents or b"")
        return self._known[key]


def take_mark(
    config: WasiConfig, table: DescriptorTable, process: ProcessCalls, clocks: GuestClocks, poll: PollCalls,
    random: RandomSource,
) -> Mark:
    """Copy what changes; no call of the system, the GIL is not let go of."""
    table.hold()
    pending = poll.pending
    rest: dict[str, object] = {
        "args": list(process.args),
        "env": [[name, value] for name, value in process.env],
        "exit_code": process.exit_code,
        "clocks": clocks.state(),
        "sleep": None if pending is None else {"call": pending.call, "deadlines": list(pending.deadlines)},
        "random": random.state(),
    }
    # A listing is replaced at a rewind, never changed, so that the shallow copy stays what it was.
    return Mark(config.carry_limit, table, [(number, copy.copy(found)) for number, found in table], rest)


def record_of(number: int, found: Descriptor) -> dict[str, object]:
    """A descriptor as plain data, without what the system would have to be asked for: its file may have another path
    by now, or contents that are not what they were."""
    record: dict[str, object] = {
        "number": number, "kind": _kind(found), "filetype": found.filetype, "rights": found.rights,
        "inheriting": found.inheriting, "flags": found.flags,
    }
    if isinstance(found, Stream) and found.name:
        return record | {"consumed": found.consumed, "produced": found.produced, "start": found.start}
    record |= {"root": found.root, "path": found.path}
    if isinstance(found, Directory):
        listing = found.listing
        record["listing"] = None if listing is None else [[e.name, e.inode, e.filetype] for e in listing]
    if isinstance(found, File):
        record |= {"offset": found.offset, "readable": found.readable, "writable": found.writable}
    return record


def _kind(found: Descriptor) -> str:
    if isinstance(found, Stream):
        return found.name or "stream"
    if isinstance(found, Directory):
        return "preopen" if found.preopen else "directory"
    return "file"


def present_path(found: Descriptor, root_fd: int | None) -> bytes | None:
    """Where the descriptor's file is now, as the guest or somebody else may have renamed it; None if it has no name."""
    if root_fd is None or found.os_fd == root_fd or not found.path:
        return found.path
    own = os.fstat(found.os_fd)
    for path in (found.path, _system_path(found.os_fd, root_fd)):
        if path is not None:
            try:
                there = os.stat(path, dir_fd=root_fd, follow_symlinks=False)
            except OSError:
                continue
            if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                return path
    return None


def _other_name(fd: int, root_fd: int | None) -> bytes | None:
    """A hard link to a file whose own name is gone: a copy of it would be another file than that one. None: there is no
    such link below the root, or too many other names."""
    if root_fd is None:
        return None
    own, left = os.fstat(fd), _MOST_NAMES
    for folder, _, names, folder_fd in os.fwalk(b".", dir_fd=root_fd):
        left -= len(names) + 1
        for name in names if left >= 0 else ():
            try:
                there = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
            except OSError:
                continue  # it went meanwhile
            if (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino):
                return os.path.join(folder, name).removeprefix(b"./")
        if left < 0:
            break
    return None


def _system_path(fd: int, root_fd: int) -> bytes | None:
    """Path below the root as the system knows it; None where it does not tell (it does on Linux)."""
    try:
        own, root = os.readlink(b"/proc/self/fd/%d" % fd), os.readlink(b"/proc/self/fd/%d" % root_fd)
    except OSError:
        return None
    prefix = root.rstrip(b"/") + b"/"
    return own[len(prefix) :] if own.startswith(prefix) else None


def _read_all(fd: int, size: int) -> bytes | None:
    try:
        readable = os.open(f"/dev/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.pread(readable, size, 0)
    finally:
        os.close(readable)
