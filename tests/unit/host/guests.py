"""A guest without a program: calls host functions one by one, of our host layer or of wasmtime's own.

Both kinds have the same methods, so a scenario written once runs on both and the results can be compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import wasmtime

from wasmckpt.host import BytesMemory, ProcExit, Wasi, WasiConfig
from wasmckpt.host.abi import (
    ALL_RIGHTS,
    DIRENT,
    EVENT,
    FDSTAT,
    FILESTAT,
    SUBSCRIPTION,
)
from wasmckpt.wasm.values import I32

PAGES = 4
RESULT = 0x100
IOVECS = 0x200
PATH = 0x1000
PATH2 = 0x2200
BUFFER = 0x10000
BUFFER_SIZE = 0x20000
READ_RIGHTS = ALL_RIGHTS & ~(1 << 6)


class Guest:
    """Memory layout and calls with plain Python arguments; results are (errno, value)."""

    def call(self, name: str, *args: int) -> int:
        raise NotImplementedError

    def load(self, address: int, length: int) -> bytes:
        raise NotImplementedError

    def store(self, address: int, data: bytes) -> None:
        raise NotImplementedError

    def u32(self, address: int = RESULT) -> int:
        return int.from_bytes(self.load(address, 4), "little")

    def u64(self, address: int = RESULT) -> int:
        return int.from_bytes(self.load(address, 8), "little")

    def _path(self, path: str | bytes, at: int = PATH) -> tuple[int, int]:
        raw = path.encode() if isinstance(path, str) else path
        self.store(at, raw)
        return at, len(raw)

    def _buffers(self, *lengths: int) -> tuple[int, int]:
        address = BUFFER
        for number, length in enumerate(lengths):
            self.store(IOVECS + 8 * number, struct.pack("<II", address, length))
            address += length
        return IOVECS, len(lengths)

    def open(
        self, path: str | bytes, *, fd: int = 3, oflags: int = 0, rights: int = READ_RIGHTS,
        inheriting: int = ALL_RIGHTS, fdflags: int = 0, follow: bool = True,
    ) -> tuple[int, int]:
        errno = self.call("path_open", fd, int(follow), *self._path(path), oflags, rights, inheriting, fdflags, RESULT)
        return errno, self.u32()

    def write(self, fd: int, *pieces: bytes) -> tuple[int, int]:
        self.store(BUFFER, b"".join(pieces))
        errno = self.call("fd_write", fd, *self._buffers(*map(len, pieces)), RESULT)
        return errno, self.u32()

    def read(self, fd: int, *lengths: int) -> tuple[int, bytes]:
        errno = self.call("fd_read", fd, *self._buffers(*lengths), RESULT)
        return errno, b"" if errno else self.load(BUFFER, self.u32())

    def pwrite(self, fd: int, data: bytes, offset: int) -> tuple[int, int]:
        self.store(BUFFER, data)
        errno = self.call("fd_pwrite", fd, *self._buffers(len(data)), offset, RESULT)
        return errno, self.u32()

    def pread(self, fd: int, length: int, offset: int) -> tuple[int, bytes]:
        errno = self.call("fd_pread", fd, *self._buffers(length), offset, RESULT)
        return errno, b"" if errno else self.load(BUFFER, self.u32())

    def seek(self, fd: int, delta: int, whence: int = 0) -> tuple[int, int]:
        errno = self.call("fd_seek", fd, delta & (1 << 64) - 1, whence, RESULT)
        return errno, 0 if errno else self.u64()

    def tell(self, fd: int) -> tuple[int, int]:
        errno = self.call("fd_tell", fd, RESULT)
        return errno, 0 if errno else self.u64()

    def close(self, fd: int) -> int:
        return self.call("fd_close", fd)

    def fdstat(self, fd: int) -> tuple[int, tuple[int, ...]]:
        errno = self.call("fd_fdstat_get", fd, RESULT)
        return errno, () if errno else FDSTAT.unpack(self.load(RESULT, FDSTAT.size))

    def fstat(self, fd: int) -> tuple[int, tuple[int, ...]]:
        errno = self.call("fd_filestat_get", fd, RESULT)
        return errno, () if errno else FILESTAT.unpack(self.load(RESULT, FILESTAT.size))

    def stat(self, path: str | bytes, *, fd: int = 3, follow: bool = True) -> tuple[int, tuple[int, ...]]:
        errno = self.call("path_filestat_get", fd, int(follow), *self._path(path), RESULT)
        return errno, () if errno else FILESTAT.unpack(self.load(RESULT, FILESTAT.size))

    def mkdir(self, path: str | bytes, fd: int = 3) -> int:
        return self.call("path_create_directory", fd, *self._path(path))

    def rmdir(self, path: str | bytes, fd: int = 3) -> int:
        return self.call("path_remove_directory", fd, *self._path(path))

    def unlink(self, path: str | bytes, fd: int = 3) -> int:
        return self.call("path_unlink_file", fd, *self._path(path))

    def rename(self, old: str | bytes, new: str | bytes, old_fd: int = 3, new_fd: int = 3) -> int:
        return self.call("path_rename", old_fd, *self._path(old), new_fd, *self._path(new, PATH2))

    def link(self, old: str | bytes, new: str | bytes, *, follow: bool = False) -> int:
        return self.call("path_link", 3, int(follow), *self._path(old), 3, *self._path(new, PATH2))

    def symlink(self, contents: str | bytes, path: str | bytes, fd: int = 3) -> int:
        return self.call("path_symlink", *self._path(contents, PATH2), fd, *self._path(path))

    def readlink(self, path: str | bytes, size: int = 4096, fd: int = 3) -> tuple[int, bytes]:
        errno = self.call("path_readlink", fd, *self._path(path), BUFFER, size, RESULT)
        return errno, b"" if errno else self.load(BUFFER, self.u32())

    def set_times(self, path: str, access: int, modified: int, flags: int, *, follow: bool = False) -> int:
        return self.call("path_filestat_set_times", 3, int(follow), *self._path(path), access, modified, flags)

    def readdir(self, fd: int, size: int = 4096, cookie: int = 0) -> tuple[int, list[tuple[int, int, bytes, int]], int]:
        """errno, whole entries as (next cookie, inode, name, type), bytes used."""
        errno = self.call("fd_readdir", fd, BUFFER, size, cookie, RESULT)
        if errno:
            return errno, [], 0
        used = self.u32()
        raw = self.load(BUFFER, used)
        entries = []
        at = 0
        while at + DIRENT.size <= used:
            following, inode, length, filetype = DIRENT.unpack_from(raw, at)
            at += DIRENT.size + length
            if at > used:
                break
            entries.append((following, inode, raw[at - length : at], filetype))
        return errno, entries, used

    def poll(self, *subscriptions: tuple[int, ...]) -> tuple[int, list[tuple[int, ...]]]:
        """errno, events; a subscription is (userdata, kind, clock or fd[, timeout, precision, flags])."""
        for number, given in enumerate(subscriptions):
            padded = given + (0,) * (6 - len(given))
            self.store(0x300 + 48 * number, SUBSCRIPTION.pack(*padded))
        errno = self.call("poll_oneoff", 0x300, BUFFER, len(subscriptions), RESULT)
        if errno:
            return errno, []
        return errno, list(EVENT.iter_unpack(self.load(BUFFER, 32 * self.u32())))

    def clock(self, number: int = 1) -> tuple[int, int]:
        errno = self.call("clock_time_get", number, 0, RESULT)
        return errno, self.u64()

    def random(self, length: int) -> tuple[int, bytes]:
        errno = self.call("random_get", BUFFER, length)
        return errno, self.load(BUFFER, length)

    def strings(self, which: str) -> list[bytes]:
        """``args`` or ``environ`` as the guest's C library would read them."""
        assert self.call(f"{which}_sizes_get", RESULT, RESULT + 4) == 0
        count, size = self.u32(), self.u32(RESULT + 4)
        assert self.call(f"{which}_get", IOVECS, BUFFER) == 0
        raw = self.load(BUFFER, size)
        starts = [self.u32(IOVECS + 4 * number) - BUFFER for number in range(count)]
        return [raw[start : raw.index(b"\0", start)] for start in starts]


class OurGuest(Guest):
    """Calls our functions directly."""

    def __init__(self, wasi: Wasi) -> None:
        self.wasi = wasi
        self.memory = BytesMemory(bytearray(PAGES << 16))

    def call(self, name: str, *args: int) -> int:
        errno: int = self.wasi.functions[name].call(self.memory, *args)
        return errno

    def load(self, address: int, length: int) -> bytes:
        return self.memory.read(address, length)

    def store(self, address: int, data: bytes) -> None:
        self.memory.write(address, data)


class WasmtimeGuest(Guest):
    """Calls wasmtime's functions, through a module that hands each import out as an export."""

    def __init__(
        self, preopens: Sequence[tuple[str, str]], stdin: Path | None = None, stdout: Path | None = None
    ) -> None:
        engine = wasmtime.Engine()
        self._store = wasmtime.Store(engine)
        config = wasmtime.WasiConfig()
        config.argv = ["prog", "one", "two"]
        config.env = [("HOME", "/h"), ("X", "")]
        if stdin is not None:
            config.stdin_file = str(stdin)
        if stdout is not None:
            config.stdout_file = str(stdout)
        for host, guest in preopens:
            config.preopen_dir(host, guest)
        self._store.set_wasi(config)
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        self._exports = linker.instantiate(self._store, wasmtime.Module(engine, relay_module())).exports(self._store)
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self._memory = memory

    def call(self, name: str, *args: int) -> int:
        function = self._exports[name]
        assert isinstance(function, wasmtime.Func)
        try:
            signed = [_signed(arg, kind) for arg, kind in zip(args, SIGNATURES[name], strict=True)]
            result = function(self._store, *signed)
        except wasmtime.ExitTrap as trap:
            raise ProcExit(trap.code) from None
        return result if isinstance(result, int) else 0

    def load(self, address: int, length: int) -> bytes:
        return bytes(self._memory.read(self._store, address, address + length))

    def store(self, address: int, data: bytes) -> None:
        self._memory.write(self._store, bytearray(data), address)


def _signed(value: int, code: int) -> int:
    bits = 32 if code == I32 else 64
    return value - (1 << bits) if value >> (bits - 1) else value


def _signatures() -> dict[str, tuple[int, ...]]:
    wasi = Wasi(WasiConfig())
    try:
        return {name: function.params for name, function in wasi.functions.items()}
    finally:
        wasi.close()


SIGNATURES = _signatures()


def relay_module() -> bytes:
    """A module that imports all functions and exports each under its name, with the memory."""
    text = []
    for name, params in SIGNATURES.items():
        types = " ".join("i32" if code == I32 else "i64" for code in params)
        result = "" if name == "proc_exit" else "(result i32)"
        text.append(f'(import "wasi_snapshot_preview1" "{name}" (func ${name} (param {types}) {result}))')
    text.append(f'(memory (export "memory") {PAGES})')
    for name, params in SIGNATURES.items():
        types = " ".join("i32" if code == I32 else "i64" for code in params)
        gets = " ".join(f"(local.get {number})" for number in range(len(params)))
        result = "" if name == "proc_exit" else "(result i32)"
        text.append(f'(func (export "{name}") (param {types}) {result} (call ${name} {gets}))')
    return bytes(wasmtime.wat2wasm("(module\n" + "\n".join(text) + ")"))
