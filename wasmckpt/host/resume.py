"""Bringing the host's state back: descriptors are opened again, below what the target grants and nowhere else."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping

from wasmckpt.errors import HostStateError, ImageError

from .abi import (
    DIRECTORY_RIGHTS,
    FILE_RIGHTS,
    FILETYPE_REGULAR_FILE,
    STREAM_RIGHTS,
    Errno,
    Rights,
    WasiError,
    filetype_of,
)
from .clocks import GuestClocks
from .config import WasiConfig, encode
from .descriptors import Descriptor, DescriptorTable, Directory, Entry, File, Stream
from .evidence import difference
from .grants import granted_rights, open_preopen
from .paths import access_flags, descriptor_flags, open_place
from .plain import Fields
from .polling import PendingSleep, PollCalls
from .preopens import Place
from .process import ProcessCalls
from .random import RandomSource
from .snapshot import STATE_VERSION
from .streams import open_stream

__all__ = ["restore_into"]

_HIGHEST_NUMBER = (1 << 31) - 1
_ALL_FLAGS = 31
_LATEST = (1 << 63) - 1
"""A clock that stands near 2**64 would overflow soon after the resume; this is 292 years."""


def restore_into(
    state: Mapping[str, object], config: WasiConfig, standard: Mapping[str, Stream], table: DescriptorTable,
    process: ProcessCalls, clocks: GuestClocks, poll: PollCalls, random: RandomSource, *, accept_changed: bool,
) -> None:
    """Fill the parts of a fresh `Wasi` from a state. Raises `HostStateError`, `ImageError`."""
    fields = Fields(state, "host")
    if fields.integer("version") != STATE_VERSION:
        raise fields.bad("version", f"this tool reads version {STATE_VERSION}")
    process.args[:] = fields.octets_list("args")
    process.env[:] = _pairs(fields)
    process.exit_code = fields.integer("exit_code", 0xFFFF_FFFF) if "exit_code" in fields else None
    readings = fields.sub("clocks")
    clocks.resume(
        {name: readings.integer(name, _LATEST) for name in ("monotonic", "realtime", "process_cpu", "thread_cpu")},
        suspended_time_counts=config.suspended_time_counts,
    )
    if "sleep" in fields:
        sleep = fields.sub("sleep")
        poll.pending = PendingSleep(sleep.octets("call"), tuple(sleep.integer_list("deadlines")))
    if "random" in fields:
        generator = fields.sub("random")
        random.resume(generator.octets("key"), generator.integer("calls"))
    with _Opener(config, standard, fields, accept_changed=accept_changed) as opener:
        for record in fields.records("descriptors"):
            number = record.integer("number", _HIGHEST_NUMBER)
            if table.get(number) is not None:
                raise record.bad("number", "descriptor number used twice")
            table.place(number, opener.descriptor(record))


def _pairs(fields: Fields) -> list[tuple[bytes, bytes]]:
    pairs = []
    for pair in fields.items("env"):
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not all(isinstance(part, bytes) for part in pair):
            raise fields.bad("env", "not a list of pairs of bytes")
        pairs.append((pair[0], pair[1]))
    return pairs


class _Opener:
    """Opens descriptors of one state; holds the granted folders and anonymous files meanwhile."""

    def __init__(
        self, config: WasiConfig, standard: Mapping[str, Stream], fields: Fields, *, accept_changed: bool
    ) -> None:
        self._config = config
        self._standard_streams = standard
        self._accept_changed = accept_changed
        self._granted = {encode(guest): host for host, guest in reversed(config.preopens)}
        self._roots: dict[bytes, Directory] = {}
        self._anonymous = fields.items("anonymous")
        self._files: dict[int, int] = {}
        self._used: set[str] = set()

    def __enter__(self) -> _Opener:
        return self

    def __exit__(self, *_: object) -> None:
        for fd in [root.os_fd for root in self._roots.values()] + list(self._files.values()):
            os.close(fd)

    def descriptor(self, record: Fields) -> Descriptor:
        """The descriptor of one record."""
        kind = record.text("kind")
        if kind in ("stdin", "stdout", "stderr"):
            return self._standard(record, kind)
        if kind == "preopen":
            return self._preopen(record)
        if kind in ("file", "directory", "stream"):
            return self._opened(record, kind)
        raise record.bad("kind", "unknown kind of descriptor")

    def _standard(self, record: Fields, kind: str) -> Stream:
        # A guest cannot duplicate descriptors, so each stream stands in a state once at most, perhaps renumbered.
        stream = self._standard_streams[kind]
        if kind in self._used:
            raise record.bad("kind", "standard stream used twice")
        self._used.add(kind)
        stream.rights &= record.integer("rights")
        stream.flags = record.integer("flags", _ALL_FLAGS)
        stream.consumed = record.integer("consumed")
        stream.produced = record.integer("produced")
        if kind == "stdin" and "start" in record and stream.start is not None:
            position = record.integer("start") + stream.consumed
            size = os.fstat(stream.os_fd).st_size
            if size < position and not self._accept_changed:
                raise HostStateError(
                    "standard input is not the file it was", path=kind, difference=f"truncated: {size} bytes, "
                    f"{position} had been read", hint="give the same file, or accept changed files",
                )
            os.lseek(stream.os_fd, position, os.SEEK_SET)
            stream.start = position - stream.consumed
        return stream

    def _root(self, record: Fields) -> Directory:
        name = record.octets("root")
        if name not in self._roots:
            if name not in self._granted:
                raise HostStateError(
                    "the program uses a preopened folder that is not granted here", path=name.decode(errors="replace"),
                    difference="preopen is gone", hint="grant a folder under this name",
                )
            self._roots[name] = open_preopen(self._config, self._granted[name], name)
        return self._roots[name]

    def _preopen(self, record: Fields) -> Directory:
        root = self._root(record)
        found = Directory(
            os.dup(root.os_fd), root.filetype, root.rights & record.integer("rights"),
            root.inheriting & record.integer("inheriting"), record.integer("flags", _ALL_FLAGS), root.root,
            preopen=True,
        )
        found.listing = _listing(record)
        return found

    def _opened(self, record: Fields, kind: str) -> Descriptor:
        root = self._root(record)
        path = record.octets("path")
        flags = record.integer("flags", _ALL_FLAGS)
        granted = granted_rights(self._config, root.root)
        rights = record.integer("rights")
        writable = record.boolean("writable") if kind == "file" else kind == "stream" and bool(rights & Rights.FD_WRITE)
        if writable and not granted & Rights.FD_WRITE:
            raise _differs(
                root.root, path, "was open for writing, and the folder is granted for reading only",
                hint="grant the folder for writing",
            )
        rights &= granted
        inheriting = record.integer("inheriting") & granted
        readable = record.boolean("readable") if kind == "file" else bool(rights & Rights.FD_READ)
        access = access_flags(reading=readable or not writable, writing=writable) | descriptor_flags(flags)
        if kind == "file" and "anonymous" in record:
            os_fd = self._open_anonymous(record, root.root, path, access)
        elif kind == "directory" and "removed" in record:
            os_fd = _removed_directory(root, path, access)
        else:
            os_fd = _open_below(root, path, access)
        try:
            return self._describe(record, kind, os_fd, root.root, path, rights, inheriting, flags, readable, writable)
        except BaseException:
            os.close(os_fd)
            raise

    def _describe(
        self, record: Fields, kind: str, os_fd: int, root: bytes, path: bytes, rights: int, inheriting: int, flags: int,
        readable: bool, writable: bool,
    ) -> Descriptor:
        mode = os.fstat(os_fd).st_mode
        filetype = filetype_of(mode)
        if filetype != record.integer("filetype", 255):
            raise _differs(root, path, "is of another file type than it was")
        if kind == "directory" and stat.S_ISDIR(mode):
            return Directory(
                os_fd, filetype, rights & DIRECTORY_RIGHTS, inheriting, flags, root, path, listing=_listing(record)
            )
        if kind == "file" and (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            if "seen" in record:
                seen = _seen(record)
                how = "" if self._accept_changed or filetype != FILETYPE_REGULAR_FILE else difference(os_fd, seen)
                if how:
                    raise _differs(root, path, how, hint="bring back the file as it was, or accept changed files")
            return File(
                os_fd, filetype, rights & FILE_RIGHTS, inheriting & FILE_RIGHTS, flags, root, path,
                offset=record.integer("offset", (1 << 63) - 1), readable=readable, writable=writable,
            )
        if kind == "stream":
            stream = Stream(os_fd, filetype, rights & STREAM_RIGHTS, inheriting & STREAM_RIGHTS, flags, root, path)
            stream.access &= ~((0 if readable else Rights.FD_READ) | (0 if writable else Rights.FD_WRITE))
            open_stream(stream)
            return stream
        raise record.bad("kind", "kind and file type do not fit")

    def _open_anonymous(self, record: Fields, root: bytes, path: bytes, access: int) -> int:
        index = record.integer("anonymous", max(0, len(self._anonymous) - 1))
        contents = self._anonymous[index] if self._anonymous else None
        if contents is None:
            raise _differs(root, path, "had no name any more and was too large to carry, or written after the image")
        if not isinstance(contents, bytes):
            raise record.bad("anonymous", "not bytes")
        if index not in self._files:
            self._files[index] = _anonymous_file(contents)
        return os.open(f"/dev/fd/{self._files[index]}", access & ~os.O_NOFOLLOW)


def _open_below(root: Directory, path: bytes, access: int) -> int:
    try:
        with Place(root.os_fd, path or b".") as place:
            return open_place(place, access, follow=False)
    except WasiError as error:
        if error.errno == Errno.PERM:
            raise ImageError("path of an open file leaves its folder", path=_shown(root.root, path)) from None
        raise _differs(root.root, path, f"cannot be opened: {Errno(error.errno).name}") from None
    except FileNotFoundError:
        raise _differs(root.root, path, "is missing") from None
    except OSError as error:
        raise _differs(root.root, path, f"cannot be opened: {error.strerror}") from None


def _removed_directory(root: Directory, path: bytes, access: int) -> int:
    """An empty directory without a name, in which nothing can be made; for a moment it has one, in the system's folder
    for such things, or (a sandbox may keep the process out of that) in the granted one."""
    for place in (None, f"/dev/fd/{root.os_fd}"):
        try:
            there = tempfile.mkdtemp(prefix=".wasmckpt-", dir=place)
            try:
                return os.open(there, access)
            finally:
                os.rmdir(there)
        except OSError:
            continue
    raise _differs(root.root, path, "had been removed while it was open, and no such directory can be made here")


def _anonymous_file(contents: bytes) -> int:
    fd = os.memfd_create("wasmckpt", os.MFD_CLOEXEC)
    view = memoryview(contents)
    done = 0
    while done < len(contents):
        done += os.pwrite(fd, view[done:], done)
    return fd


def _listing(record: Fields) -> list[Entry] | None:
    if "listing" not in record:
        return None
    entries = []
    for entry in record.items("listing"):
        match entry:
            case [bytes() as name, int() as inode, int() as filetype] if 0 <= inode < 1 << 64 and 0 <= filetype < 256:
                entries.append(Entry(name, inode, filetype))
            case _:
                raise record.bad("listing", "not a list of names, inodes and file types")
    return entries


def _seen(record: Fields) -> dict[str, object]:
    seen = record.sub("seen")
    found: dict[str, object] = {name: seen.integer(name) for name in ("size", "modified", "changed", "device", "inode")}
    if "digest" in seen:
        found["digest"] = seen.octets("digest")
    return found


def _shown(root: bytes, path: bytes) -> str:
    return (root.rstrip(b"/") + b"/" + path).decode(errors="replace")


def _differs(
    root: bytes, path: bytes, how: str, *, hint: str = "bring back the file as it was"
) -> HostStateError:
    return HostStateError("an open file is not what it was", path=_shown(root, path), difference=how, hint=hint)
