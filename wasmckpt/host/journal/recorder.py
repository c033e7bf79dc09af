"""The journal of one program: its calls pass through here, are made and written down, or answered from the journal."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from wasmckpt.errors import CheckpointError, HostStateError, ImageError
from wasmckpt.faults import hot_point as point

from ...lazydata import dataclass
from ..abi import OFLAG_TRUNC, U32
from ..calls import HostFunction
from ..descriptors import File, Stream
from ..files import gather
from ..memory import GuestMemory, MemoryFault, read_iovecs
from ..signals import ProcExit
from ..snapshot import present_path, record_of
from .doubt import arrived, look, settle
from .file import INBOX, INBOX_SIZE, Frame, Header, JournalFile, Moment
from .items import ATTACH, ERRAND, ERRAND_END, INTENT, folded, input_taken, output_in, output_sent
from .options import JournalOptions
from .surroundings import Surroundings

__all__ = ["Journal", "Replayed"]

Name = tuple[str, str]

_FULL: Final = 1 << 16
"""Bytes that are kept in memory before they are written."""
_PAUSE: Final = 0.1
"""Seconds between two syncs of "batch"."""
_SPLICE_F_NONBLOCK: Final = 2
_NOT_SO: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
"""What the kernel says where it cannot move bytes by itself."""

_WRITES: Final = {"fd_write", "fd_pwrite"}
_PATHS: Final[Mapping[str, tuple[tuple[int, int], ...]]] = {
    "path_open": ((2, 3),), "path_create_directory": ((1, 2),), "path_remove_directory": ((1, 2),),
    "path_unlink_file": ((1, 2),), "path_filestat_get": ((2, 3),), "path_filestat_set_times": ((2, 3),),
    "path_link": ((2, 3), (5, 6)), "path_rename": ((1, 2), (4, 5)), "path_symlink": ((0, 1), (3, 4)),
    "path_readlink": ((1, 2),),
}
"""Which arguments are address and length of paths."""
_EFFECTS: Final = {
    "fd_write", "fd_pwrite", "fd_allocate", "fd_filestat_set_size", "fd_filestat_set_times", "fd_datasync", "fd_sync",
    "path_open", "path_create_directory", "path_remove_directory", "path_unlink_file", "path_filestat_set_times",
    "path_link", "path_rename", "path_symlink",
}
"""Calls that do something outside: what led to them is written first."""
_POSITIONS: Final = {"fd_read", "fd_write", "fd_seek"}
_RECORDS: Final = {"fd_fdstat_set_flags", "fd_fdstat_set_rights", "fd_readdir", "fd_close"}
_CONTENTS: Final = {"fd_pwrite", "fd_allocate", "fd_filestat_set_size", "fd_filestat_set_times"}
_NAMES: Final = {"path_unlink_file", "path_rename", "path_remove_directory", "path_link", "path_filestat_set_times"}
WASI: Final = "wasi_snapshot_preview1"
GUEST_API: Final = "wasmckpt"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What is answered from a journal: calls, and bytes of output that are not written again."""

    calls: int = 0
    suppressed: int = 0


class _Recorder:
    """The guest's memory during one call: what is stored is noted."""

    __slots__ = ("inner", "writes")

    def __init__(self, inner: GuestMemory) -> None:
        self.inner = inner
        self.writes: list[tuple[int, bytes]] = []

    @property
    def size(self) -> int:
        return self.inner.size

    def read(self, address: int, length: int) -> bytes:
        return self.inner.read(address, length)

    def write(self, address: int, data: bytes) -> None:
        self.inner.write(address, data)
        self.writes.append((address, data))


class Journal:
    """Made by `begin` and `resume`; then `wrap` the host's functions and `surround` it with the host.

    Everything is called by the guest's thread, or by others while that stands still, but `cut_at`, `position`.

    Attributes:
        replayed: what is answered from the journal.
        live: set when all of it has been: images may be taken from then on.
        state: the host's state behind the journal, to be restored from; None: the image's own.
    """

    def __init__(self, options: JournalOptions, file: JournalFile, names: Sequence[Name], line: bytes) -> None:
        self.options = options
        self._file = file
        self._line = line
        self._numbers: dict[Name, int] = {}
        for number, name in enumerate(names):
            self._numbers.setdefault(name, number)
        self._names = list(names)
        self.calls = file.calls
        """Calls that have returned, the buffered ones included."""
        self._buffer: list[bytes] = []
        self._size = self._buffered = 0
        self._queue: deque[list[Any]] | None = None
        self._doubt: list[Any] | None = None
        self._cut: tuple[int, bytes | None] | None = None
        self._current: tuple[int, int, tuple[int, ...], _Recorder] | None = None
        self._out: bytes | None = None
        self._begun = False
        self._at = 0
        self._cell = 0
        self._plain: set[int] = set()
        """Descriptors of the host to which the kernel does not move bytes by itself."""
        self._errands: list[_Recorder] = []
        self._broken: CheckpointError | None = None
        self._around: Surroundings | None = None
        self._touched = False
        """Whether files were changed since they were synced."""
        self._news: threading.Event | None = None
        self.replayed = Replayed()
        self.live = threading.Event()
        self.state: dict[str, Any] | None = None

    # Making one

    @classmethod
    def begin(
        cls, options: JournalOptions, module: bytes, names: Sequence[Name], image: bytes | None = None,
    ) -> Journal:
        """A new one, for a program at its beginning, or at an image (SHA-256 of its file). Raises `StorageError`."""
        line = os.urandom(16)
        journal = cls(options, JournalFile.create(options.path, Header(module, image, line, 0)), names, line)
        journal.live.set()
        return journal

    @classmethod
    def resume(
        cls, options: JournalOptions, module: bytes, names: Sequence[Name], host: Mapping[str, Any],
        image: Callable[[], bytes],
    ) -> Journal | None:
        """An existing one, for a program that goes on from an image; None: it is of another one that had a journal.

        Args:
            module: SHA-256. host: the image's host state. image: gives the SHA-256 of its file.

        Raises:
            StorageError, RetryLater: see `JournalFile.open`.
            ImageError: damaged, or the image's journal is another one.
            HostStateError: it cannot be known whether a call was made, see `JournalOptions.in_doubt`.
        """
        file, frames = JournalFile.open(options.path)
        try:
            start = _start(file, frames, module, host, image)
            if start is None:
                file.close()
                return None
            line = os.urandom(16)
            journal = cls(options, file, names, line)
            try:
                journal._load(start, frames, host)
            except (KeyError, TypeError, ValueError, IndexError) as problem:
                raise ImageError("the journal is damaged: what stands in it does not fit", path=options.path,
                                 reason=type(problem).__name__) from problem
            return journal
        except BaseException:
            file.close()
            raise

    def _load(self, start: int, frames: list[Frame], host: Mapping[str, Any]) -> None:
        items: list[list[Any]] = []
        where: list[Frame] = []
        number = start
        kept: list[Frame] = []
        for frame in frames:
            at = frame.before
            for item in frame.items:
                if at >= start:
                    if at > number:
                        raise ImageError("calls are missing in the journal between the image and its newer ones",
                                         path=self.options.path, hint="use the newer image")
                    items.append(item)
                    where.append(frame)
                if item[0] >= 0:
                    at += 1
                    number = max(number, at)
            if at > start or (at == start and frame.before >= start):
                kept.append(frame)
        self.calls = max(start, self._file.calls)
        while items and items[-1][0] == ATTACH:
            items.pop()
            where.pop()
        finished = self._settle(items, where[-1]) if items and items[-1][0] == INTENT else None
        if finished is not None:
            items.append(finished)
            self._buffer_item(finished)
        opened = 0
        for item in items:
            opened += (item[0] == ERRAND) - (item[0] == ERRAND_END)
        if opened > 0 or (items and items[-1][0] == ERRAND_END):
            raise self._unknown("a function of the user's that had called an export", skip=False, repeat=False)
        if kept:
            touched = bool(items) and items[-1][0] == INTENT and items[-1][3] == "do"
            self.state = folded(host, items, kept, touched=touched)
        self.replayed = Replayed(sum(item[0] >= 0 for item in items), output_in(items))
        self._doubt = items.pop() if items and items[-1][0] == INTENT else None
        while items and items[-1][0] < 0:
            items.pop()  # calls that were interrupted before they did anything
        if items:
            self._queue = deque(items)
        else:
            self.live.set()

    def _settle(self, items: list[list[Any]], frame: Frame) -> list[Any] | None:
        """The last thing that is known is that something was about to be done. Was it? Gives the call if it was; else
        it is made again."""
        intent = items[-1]
        kind = intent[3]
        if kind in ("out", "in") and intent[4] >= 0:
            cell = self._file.cells[intent[4]].value
            if kind == "out":
                sent = cell - (frame.end - len(intent[8]))
                return output_sent(intent, sent) if 0 < sent <= len(intent[8]) else None
            taken = cell - INBOX
            return input_taken(intent, self._file.inbox(taken)) if 0 < taken <= INBOX_SIZE else None
        if kind == "out":
            return self._settle_output(intent)
        if kind == "user" and self.options.in_doubt != "repeat":
            name = ".".join(self._names[intent[1]])
            raise self._unknown(f"the host function {name}", skip=False)
        return None

    def _settle_output(self, intent: list[Any]) -> list[Any] | None:
        evidence, data = intent[7], intent[8]
        if evidence is not None:
            device, inode, size = evidence
            for fd in (1, 2):
                try:
                    info = os.fstat(fd)
                    if (info.st_dev, info.st_ino) == (device, inode):
                        sent = arrived(fd, size, data)
                        return output_sent(intent, sent) if sent else None
                except OSError:
                    continue
        if self.options.in_doubt == "refuse":
            raise self._unknown(f"a write of {len(data)} bytes to descriptor {intent[6][0]}")
        return output_sent(intent, len(data)) if self.options.in_doubt == "skip" else None

    def _unknown(self, what: str, *, skip: bool = True, repeat: bool = True) -> HostStateError:
        ways = [way for way, possible in (("repeat", repeat), ("skip", skip)) if possible]
        return HostStateError(
            f"{what} was under way when the program was killed, and nobody knows whether it was made",
            path=self.options.path,
            hint=f"say what to do: {' or '.join(ways)} it (--in-doubt)" if ways else "restore without the journal",
        )

    def surround(self, around: Surroundings) -> None:
        """What the journal looks at; from now on it writes."""
        self._around = around
        self._attach()

    def _attach(self) -> None:
        self._write([_PACK([ATTACH, self._line])])
        if self.options.sync == "batch":
            self._news = threading.Event()
            threading.Thread(target=self._sync_now_and_then, args=(self._news,), name="journal", daemon=True).start()

    @property
    def replaying(self) -> bool:
        """Whether the next call is answered, and not made."""
        return self._queue is not None

    # In the guest's thread

    def wrap(self, functions: Mapping[Name, HostFunction]) -> dict[Name, HostFunction]:
        """The host's functions, to be imported instead."""
        return {
            name: function if name not in self._numbers else function._replace(call=self._wrapped(name, function))
            for name, function in functions.items()
        }

    def _wrapped(self, name: Name, function: HostFunction) -> Callable[..., Any]:
        number = self._numbers[name]
        call = function.call
        pack = struct.Struct(f"<{len(function.params)}Q").pack
        crc32 = zlib.crc32
        short = name[1] if name[0] == WASI else ""
        user = name[0] not in (WASI, GUEST_API)
        looks = short in _WRITES or short in _PATHS
        effect = short in _EFFECTS
        change = self._change_of(name)

        def wrapped(memory: GuestMemory, *args: int) -> Any:
            check = crc32(pack(*args))
            if looks:
                check = _with_contents(check, short, memory, args)
            if self._queue is not None:
                answered, result = self._answer(number, check, memory)
                if answered:
                    return result
            if self._cut is not None or self._broken is not None:
                self._between_calls()
            recorder = _Recorder(memory)
            before = self._current
            self._current = number, check, args, recorder
            try:
                if user:
                    self._write([_PACK([INTENT, number, check, "user"])])
                    point("journal.calling")
                    self._errands.append(recorder)
                    try:
                        result = call(recorder, *args)
                    finally:
                        self._errands.pop()
                elif effect:
                    result = self._effect(short, number, check, recorder, args, call)
                else:
                    result = call(recorder, *args)
            except ProcExit as leaving:
                self._add([number, check, None, recorder.writes, {"exit": leaving.code}])
                self._write()
                raise
            finally:
                self._current = before
                self._out = None
            changed = change(args, result, recorder) if change is not None else None
            self._add([number, check, result, recorder.writes] if changed is None
                      else [number, check, result, recorder.writes, changed])
            return result

        return wrapped

    def _effect(
        self, name: str, number: int, check: int, memory: _Recorder, args: tuple[int, ...], call: Callable[..., Any],
    ) -> Any:
        around = self._around
        assert around is not None
        doubt, self._doubt = self._doubt, None
        if name == "fd_write" and isinstance(around.table.get(args[0]), Stream):
            return call(memory, *args)  # it says itself when something goes out
        if doubt is not None and doubt[1:3] == [number, check] and doubt[3] == "do":
            self._write([_PACK(doubt)])
            return settle(name, doubt[4], around.table, memory, args, call)
        evidence = look(name, around.table, memory, args)
        self._write([_PACK([INTENT, number, check, "do", evidence])])
        self._touched = True
        point("journal.doing")
        result = call(memory, *args)
        point("journal.done")
        return result

    def call_export(
        self, call: Callable[[str, Sequence[int]], tuple[int, ...]], export: str, arguments: Sequence[int],
    ) -> tuple[int, ...]:
        """Call an export for a function of the user's; it will be called again in a replay."""
        recorder = self._errands[-1]
        writes, recorder.writes = recorder.writes, []
        self._buffer_item([ERRAND, export, list(arguments), writes])
        results = call(export, arguments)
        self._buffer_item([ERRAND_END])
        return results

    def _answer(self, number: int, check: int, memory: GuestMemory) -> tuple[bool, Any]:
        """A call's result from the journal; False: it is not in there."""
        queue = self._queue
        while queue:
            item = queue.popleft()
            kind = item[0]
            if kind >= 0:
                if kind != number or item[1] != check:
                    raise self._diverged(number, kind)
                for address, data in item[3]:
                    memory.write(address, data)
                if not queue:
                    self._queue = None
                    self.live.set()
                if len(item) > 4 and "exit" in item[4]:
                    raise ProcExit(item[4]["exit"])
                result = item[2]
                return True, tuple(result) if isinstance(result, list) else result
            if kind == INTENT and item[1:3] != [number, check]:
                raise self._diverged(number, item[1])
            if kind == ERRAND:
                for address, data in item[3]:
                    memory.write(address, data)
                self._host.call_export(item[1], item[2])
        raise AssertionError("a journal's last item is a call")

    def _diverged(self, called: int, recorded: int) -> ImageError:
        there = ".".join(self._names[recorded]) if 0 <= recorded < len(self._names) else "nothing"
        here = ".".join(self._names[called])
        what = f"calls {here} where the journal has {there}" if here != there else (
            f"calls {here} with other arguments than in the journal")
        return ImageError(f"the program does not do again what it did: it {what}", path=self.options.path,
                          hint="the journal is of another program, or has been changed")

    # What calls change

    def _change_of(self, name: Name) -> Callable[[tuple[int, ...], Any, _Recorder], dict[str, Any] | None] | None:
        module, short = name
        if module == GUEST_API:
            return lambda args, result, recorder: {"api": dict(self._host.api())}
        if module != WASI:
            return None
        if short in _POSITIONS:
            return self._position_change if short != "fd_write" else self._write_change
        if short in _RECORDS:
            return lambda args, result, recorder: self._records(args[0]) if not result else None
        if short == "fd_renumber":
            return lambda args, result, recorder: self._records(args[0], args[1]) if not result else None
        if short == "path_open":
            return self._opened_change
        if short in _CONTENTS:
            return lambda args, result, recorder: {"w": [args[0]]} if not result else None
        if short in _NAMES:
            return self._names_change
        if short == "fd_advise":  # perhaps the door to the guest API
            return lambda args, result, recorder: {"api": dict(self._host.api())} if args[0] >= 1 << 20 else None
        return None

    @property
    def _host(self) -> Surroundings:
        assert self._around is not None
        return self._around

    def _position_change(self, args: tuple[int, ...], result: Any, recorder: _Recorder) -> dict[str, Any] | None:
        if result:
            return None
        found = self._host.table.get(args[0])
        if isinstance(found, Stream):
            return {"p": [args[0], found.consumed, found.produced]}
        return {"p": [args[0], found.offset]} if isinstance(found, File) else None

    def _write_change(self, args: tuple[int, ...], result: Any, recorder: _Recorder) -> dict[str, Any] | None:
        change = self._position_change(args, result, recorder)
        if change is not None and len(change["p"]) == 2:
            change["w"] = [args[0]]
        return change

    def _opened_change(self, args: tuple[int, ...], result: Any, recorder: _Recorder) -> dict[str, Any] | None:
        if result:
            return None
        number = U32.unpack(recorder.writes[-1][1])[0]
        change = self._records(number)
        if args[4] & OFLAG_TRUNC and isinstance(self._host.table.get(number), File):
            change["w"] = [number]
        return change

    def _names_change(self, args: tuple[int, ...], result: Any, recorder: _Recorder) -> dict[str, Any] | None:
        if result:
            return None
        return {"world": 1, **self._records(*(number for number, found in self._host.table if found.root))}

    def _records(self, *numbers: int) -> dict[str, Any]:
        """What these descriptors are now."""
        table = self._host.table
        records: dict[int, Any] = {}
        gone = []
        for number in numbers:
            found = table.get(number)
            records[number] = record = None if found is None else record_of(number, found)
            if found is not None and record is not None and "path" in record:
                path = present_path(found, table.root_fd(found.root))
                if path is None:
                    gone.append(number)
                else:
                    record["path"] = path
        return {"d": records, "gone": gone} if gone else {"d": records}

    # Streams: see `wasmckpt.host.descriptors.Tap`

    def sending(self, stream: Stream, data: bytes) -> None:
        """All of ``data`` is about to be sent."""
        self._out, self._begun = data, False

    def send(self, stream: Stream, fd: int, at: int, length: int) -> int:
        """Send a piece of it: by ``sendfile`` from the journal, whose position the kernel keeps in the cell."""
        assert self._out is not None
        if not self._begun:
            self._begin_output(stream, by_kernel=stream.os_fd not in self._plain)
        if self._at >= 0:
            point("journal.sending")
            sent = int(_sendfile(fd, self._file.fd, ctypes.addressof(self._file.cells[self._cell]), length))
            if sent >= 0:
                point("journal.sent")
                return sent
            reason = ctypes.get_errno()
            if reason not in _NOT_SO or at:
                raise OSError(reason, os.strerror(reason))
            self._plain.add(stream.os_fd)
            self._begin_output(stream, by_kernel=False)
        point("journal.sending")
        done = os.write(fd, memoryview(self._out)[at : at + length])
        point("journal.sent")
        return done

    def _begin_output(self, stream: Stream, *, by_kernel: bool) -> None:
        assert self._current is not None
        assert self._out is not None
        number, check, args, _ = self._current
        position = [args[0], stream.consumed, stream.produced]
        evidence = None
        if not by_kernel:
            info = os.fstat(stream.os_fd)
            if stat.S_ISREG(info.st_mode):
                evidence = [info.st_dev, info.st_ino, info.st_size]
        cell = self._other_cell() if by_kernel else -1
        item = _PACK([INTENT, number, check, "out", cell, args[3], position, evidence, self._out])
        self._at = -1
        moment = self._host.moment()
        if by_kernel:
            self._at = self._file.frame_end(moment, [*self._buffer, item]) - len(self._out)
            self._file.cells[cell].value = self._at
        self._write([item], moment)
        self._begun = True

    def take(self, stream: Stream, length: int) -> bytes:
        """Input: from a pipe the kernel moves it into the journal, and the cell says how much."""
        fd = stream.os_fd
        if not stream.piece or self._current is None:
            return os.read(fd, length)
        number, check, args, recorder = self._current
        buffers = read_iovecs(recorder, args[1], args[2])
        cell = self._other_cell()
        self._file.cells[cell].value = INBOX
        position = [args[0], stream.consumed, stream.produced]
        self._write([_PACK([INTENT, number, check, "in", cell, args[3], buffers, position])])
        point("journal.taking")
        address = ctypes.addressof(self._file.cells[cell])
        taken = _splice(fd, None, self._file.fd, address, min(length, INBOX_SIZE), _SPLICE_F_NONBLOCK)
        if taken < 0:
            reason = ctypes.get_errno()
            if reason in _NOT_SO:
                return os.read(fd, length)
            raise OSError(reason, os.strerror(reason))
        point("journal.taken")
        return self._file.inbox(taken)

    def _other_cell(self) -> int:
        """The cell of the last transfer is still good until what it led to has been written."""
        self._cell = 1 - self._cell
        return self._cell

    # Writing

    def _add(self, item: list[Any]) -> None:
        self.calls += 1
        self._buffered += 1
        packed = _PACK(item)
        self._buffer.append(packed)
        self._size += len(packed)
        if self._size > _FULL:
            self._write(effect=False)

    def _buffer_item(self, item: list[Any]) -> None:
        self._buffer.append(_PACK(item))
        if item[0] >= 0:
            self._buffered += 1
            self.calls += 1

    def _write(
        self, more: Sequence[bytes] = (), moment: Moment | None = None, *, effect: bool = True, always: bool = False,
    ) -> None:
        """Write what is kept in memory, and ``more``, which is about to be done."""
        if self._broken is not None:
            raise self._broken
        items = [*self._buffer, *more]
        if items or always:
            try:
                self._file.append(self.calls - self._buffered, moment or self._host.moment(), items, self._buffered)
            except CheckpointError as problem:
                self._broken = problem
                raise
            self._buffer, self._size, self._buffered = [], 0, 0
            if self._news is not None:
                self._news.set()
        if effect and self.options.sync == "always":
            self._sync()

    def before_wait(self) -> None:
        """The guest is about to wait, perhaps for long."""
        self._write(always=True)  # the moment counts: that of a sleep says when it is over

    def _sync(self) -> None:
        if self._touched:
            self._touched = False
            for fd in self._host.table.root_fds():
                _syncfs(fd)
        self._file.sync()

    def _sync_now_and_then(self, news: threading.Event) -> None:
        pause = threading.Event()
        while news is self._news:
            news.wait()
            news.clear()
            pause.wait(_PAUSE)
            with contextlib.suppress(CheckpointError):  # the next frame will tell; or the file was cut just now
                self._file.sync()

    # Images

    def cut_at(self, calls: int, image: bytes | None) -> None:
        """From any thread: an image has been written, so many calls into the program. The journal is cut when the
        guest makes its next call; until then it is good for this image as well as for the one before."""
        self._cut = calls, image

    def _between_calls(self) -> None:
        if self._broken is not None:
            raise self._broken
        cut, self._cut = self._cut, None
        if cut is not None:
            self._write()
            try:
                self._file = self._file.cut(*cut, self._line)
            except CheckpointError:
                pass  # it goes on as it is, and the next image cuts it

    def position(self) -> dict[str, object]:
        """Where the program stands in its journal, as an image says it. Never lets go of the GIL."""
        return {"line": self._line, "calls": self.calls}

    def release(self) -> None:
        """Write all, and let another process have it: the program is held."""
        if self._broken is None and self._file.fd >= 0:
            self._write()
            self._file.sync()
        news, self._news = self._news, None
        if news is not None:
            news.set()
        self._file.close()

    def take_back(self) -> None:
        """After `release`: the program goes on here after all. Nothing happens if there was none."""
        if self._file.fd >= 0 or self._broken is not None:
            return
        try:
            self._file, _ = JournalFile.open(self.options.path)
            self._line = os.urandom(16)
            self._attach()
        except CheckpointError as problem:
            self._broken = problem  # the guest's next call ends it

    def close(self) -> None:
        """The program has ended."""
        try:
            self.release()
        except CheckpointError:
            pass  # it has been told where it mattered


_PACK: Final = msgpack.Packer(autoreset=True).pack
_libc: Final = ctypes.CDLL(None, use_errno=True)
_sendfile: Final = _libc.sendfile
_sendfile.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
_sendfile.restype = ctypes.c_ssize_t
_splice: Final = _libc.splice
_splice.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
_splice.restype = ctypes.c_ssize_t
_syncfs: Final = _libc.syncfs


def _with_contents(check: int, name: str, memory: GuestMemory, args: tuple[int, ...]) -> int:
    try:
        if name in _WRITES:
            return zlib.crc32(gather(memory, args[1], args[2]), check)
        for address, length in _PATHS[name]:
            check = zlib.crc32(memory.read(args[address], min(args[length], 4096)), check)
    except (IndexError, MemoryFault):
        pass  # the call will say so
    return check


def _start(
    file: JournalFile, frames: list[Frame], module: bytes, host: Mapping[str, Any], image: Callable[[], bytes],
) -> int | None:
    """Calls before the image, in terms of the journal; None: it is not this image's, which never had one."""
    header = file.header
    if header.module != module:
        raise ImageError("the journal is of another module", path=file.path, need=module.hex(),
                         given=header.module.hex())
    position = host.get("journal")
    line, calls = (position.get("line"), position.get("calls")) if isinstance(position, dict) else (None, None)
    if isinstance(line, bytes) and isinstance(calls, int):
        lives = [(header.base, header.line)]
        for frame in frames:
            at = frame.before
            for item in frame.items:
                if item[0] == ATTACH:
                    lives.append((at, item[1]))
                at += item[0] >= 0
        ends = [first for first, _ in lives[1:]]
        for (first, name), end in zip(lives, [*ends, calls], strict=True):
            if name == line and first <= calls <= end:
                return calls
    if header.image is not None and header.image == image():
        return header.base
    if position is None:
        return None
    raise ImageError("the journal does not follow this image", path=file.path, calls=calls,
                     hint="use the image that it follows, or go on from this one alone: --no-journal")
