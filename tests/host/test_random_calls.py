"""Random calls of all of WASI: under a wrapper that watches rights and memory, and beside a guest that never moves."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest

from wasmckpt.host import BytesMemory, ProcExit, Wasi, WasiConfig
from wasmckpt.host.abi import ALL_RIGHTS, Errno, Rights
from wasmckpt.host.descriptors import Descriptor

from ..support.tiers import by_tier
from ..unit.host.guests import SIGNATURES, OurGuest
from ..unit.host.test_differential import populate, random_call, tree

NEEDED = {
    "fd_advise": Rights.FD_ADVISE, "fd_allocate": Rights.FD_ALLOCATE, "fd_datasync": Rights.FD_DATASYNC,
    "fd_fdstat_set_flags": Rights.FD_FDSTAT_SET_FLAGS, "fd_filestat_get": Rights.FD_FILESTAT_GET,
    "fd_filestat_set_size": Rights.FD_FILESTAT_SET_SIZE, "fd_filestat_set_times": Rights.FD_FILESTAT_SET_TIMES,
    "fd_pread": Rights.FD_READ | Rights.FD_SEEK, "fd_pwrite": Rights.FD_WRITE | Rights.FD_SEEK,
    "fd_read": Rights.FD_READ, "fd_readdir": Rights.FD_READDIR, "fd_seek": Rights.FD_TELL, "fd_sync": Rights.FD_SYNC,
    "fd_tell": Rights.FD_TELL, "fd_write": Rights.FD_WRITE, "path_create_directory": Rights.PATH_CREATE_DIRECTORY,
    "path_filestat_get": Rights.PATH_FILESTAT_GET, "path_filestat_set_times": Rights.PATH_FILESTAT_SET_TIMES,
    "path_link": Rights.PATH_LINK_SOURCE, "path_open": Rights.PATH_OPEN, "path_readlink": Rights.PATH_READLINK,
    "path_remove_directory": Rights.PATH_REMOVE_DIRECTORY, "path_rename": Rights.PATH_RENAME_SOURCE,
    "path_symlink": Rights.PATH_SYMLINK, "path_unlink_file": Rights.PATH_UNLINK_FILE,
}
"""Rights that the interface asks of the descriptor that a call names (the first one, where there are two)."""
SECOND = {"path_link": (4, Rights.PATH_LINK_TARGET), "path_rename": (3, Rights.PATH_RENAME_TARGET)}
"""Where the second descriptor stands among the arguments, and its right."""
FD_AT = {"path_symlink": 2}
PATHS = (
    "f", "d", "d/x", "l", "dl", "new", "d/new", "..", "../outside/secret", "abs", "up/x", "loop1", "",
    "d/sub", ".", "evil",
)
CHANGING = ("path_create_directory", "path_rename", "path_unlink_file", "path_remove_directory", "path_symlink",
            "path_link", "fd_write", "fd_pwrite", "fd_allocate", "fd_filestat_set_size")


class Watched:
    """Calls with arguments of all kinds, checked after each: whoever succeeded had the right to."""

    def __init__(self, wasi: Wasi, rng: random.Random) -> None:
        self.wasi, self.rng = wasi, rng
        self.memory = BytesMemory(bytearray(1 << 18))
        self.seen: dict[str, set[int]] = {}

    def number(self) -> int:
        known = [number for number, _ in self.wasi._table]
        return self.rng.choice([*known, *known, 3, 3, 3, 99, 0xFFFFFFFF])

    def arguments(self, name: str) -> list[int]:
        """Of the right kinds, mostly inside the memory."""
        rng = self.rng
        given: list[int] = []
        params = SIGNATURES[name]
        for at, code in enumerate(params):
            if code == 0x7E:
                given.append(rng.choice([0, 1, 7, 1 << 20, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, rng.getrandbits(30)]))
            elif at == FD_AT.get(name, 0) or at == SECOND.get(name, (-1, 0))[0]:
                given.append(self.number())
            else:
                near = rng.randrange(0x400)
                given.append(rng.choice([0, 1, 2, 4, 8, near, near, rng.getrandbits(32)]))
        # Texts and buffers are put where the arguments point to.
        for at in self.path_places(name):
            text = rng.choice(PATHS).encode()
            given[at : at + 2] = [0x1000 + 0x100 * at, len(text)]
            self.memory.write(given[at], text)
        if name in ("fd_read", "fd_write", "fd_pread", "fd_pwrite"):
            given[1:3] = [0x800, rng.randrange(3)]
            self.memory.write(0x800, struct.pack("<IIII", 0x4000, rng.randrange(64), 0x5000, rng.randrange(64)))
        if name == "path_open":
            granted = self.wasi._table.get(given[0])
            most = granted.inheriting if granted else ALL_RIGHTS
            given[4] = rng.choice([0, 0, 1, 1, 2, 8, 9, 5])
            given[5], given[6] = (most & rng.getrandbits(30) | rng.choice([0, Rights.FD_READ, most]) for _ in "ab")
            given[7], given[8] = rng.choice([0, 0, 1, 4]), 0x40
        if name == "fd_readdir":
            given[1:5] = [0x6000, rng.randrange(300), rng.randrange(4), 0x40]
        if name == "poll_oneoff":
            self.memory.write(0x2000, struct.pack("<QBxxxxxxxIxxxxQQHxxxxxx", 5, 0, 1, 0, 0, 0))
            given[:] = [0x2000, 0x3000, 1, 0x40]
        if name == "random_get":
            given[:] = [0x7000, rng.randrange(99)]
        if name == "fd_allocate" or name == "fd_filestat_set_size":
            given[1:] = [rng.randrange(1 << 12) for _ in given[1:]]
        if name in ("fd_seek", "fd_pwrite", "fd_pread"):
            given[1 if name == "fd_seek" else 3] = rng.choice([0, 5, 1 << 12, (1 << 64) - 1])
        if name == "fd_seek":
            given[2] = rng.randrange(4)
        if name == "fd_fdstat_set_rights":
            found = self.wasi._table.get(given[0])
            # Rights are lost one at a time, or nothing would be left to try.
            given[1:] = [r & ~(1 << rng.randrange(30)) for r in (found.rights, found.inheriting)] if found else [0, 0]
        return given

    @staticmethod
    def path_places(name: str) -> tuple[int, ...]:
        return {
            "path_open": (2,), "path_filestat_get": (2,), "path_filestat_set_times": (2,), "path_link": (2, 5),
            "path_rename": (1, 4), "path_symlink": (0, 3), "path_create_directory": (1,), "path_readlink": (1,),
            "path_remove_directory": (1,), "path_unlink_file": (1,),
        }.get(name, ())

    def call(self, name: str) -> None:
        arguments = self.arguments(name)
        before = {number: (d.rights, d.inheriting) for number, d in self.wasi._table}
        try:
            errno = self.wasi.functions[name].call(self.memory, *arguments)
        except ProcExit:
            assert name == "proc_exit"
            return
        assert type(errno) is int
        Errno(errno)
        self.seen.setdefault(name, set()).add(errno)
        after = dict(self.wasi._table)
        if errno == 0:
            self.check_rights(name, arguments, before)
        if name == "path_open" and errno == 0:
            opened = int.from_bytes(self.memory.read(0x40, 4), "little")
            assert opened not in before
            assert after[opened].rights | after[opened].inheriting <= ALL_RIGHTS
            assert not (after[opened].rights | after[opened].inheriting) & ~before[arguments[0]][1]
        for number, found in after.items():
            self.check(name, number, found, before)

    def check_rights(self, name: str, arguments: list[int], before: dict[int, tuple[int, int]]) -> None:
        shown = name, [hex(a) for a in arguments]
        if name in NEEDED:
            rights = before[arguments[FD_AT.get(name, 0)]][0]
            rights |= Rights.FD_TELL if rights & Rights.FD_SEEK else 0
            assert not NEEDED[name] & ~rights, shown
            if name == "fd_seek" and (arguments[2] != 1 or arguments[1]):
                assert rights & Rights.FD_SEEK, shown
            if name == "path_open" and arguments[4] & 8:
                assert rights & Rights.PATH_FILESTAT_SET_SIZE, shown
        if name in SECOND:
            at, right = SECOND[name]
            assert before[arguments[at]][0] & right, shown

    @staticmethod
    def check(name: str, number: int, found: Descriptor, before: dict[int, tuple[int, int]]) -> None:
        assert 0 <= number < 1 << 31
        if number in before and name not in ("fd_renumber", "path_open"):
            assert not found.rights & ~before[number][0], name
            assert not found.inheriting & ~before[number][1], name
        assert getattr(found, "offset", 0) in range(1 << 63)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    root = tmp_path / "granted"
    root.mkdir()
    populate(root)
    (root / "evil").symlink_to("../outside/secret")
    before = sorted(os.listdir("/proc/self/fd"))
    yield root
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert tree(tmp_path / "outside") == {"secret": b"secret"}
    assert sorted(os.listdir(tmp_path)) == ["granted", "outside"]


@pytest.mark.parametrize("read_only", [False, True], ids=["all", "read-only"])
def test_whoever_succeeds_had_the_right_to(folder: Path, read_only: bool) -> None:
    rng = random.Random(by_tier(check=2, test=2, soak=3))
    null = os.open(os.devnull, os.O_RDWR)
    before = tree(folder)
    seen: dict[str, set[int]] = {}
    for _ in range(by_tier(check=50, test=50, soak=1000)):  # 200 calls each: rights only ever get fewer
        wasi = Wasi(WasiConfig(
            args=["a"], env={"b": "c"}, preopens=[(folder, "/g")], read_only=["/g"] if read_only else [], stdin=null,
            stdout=null, stderr=null,
        ))
        guest = Watched(wasi, rng)
        guest.seen = seen
        names = [name for name in SIGNATURES if name != "fd_close"]
        for _ in range(200):
            guest.call(rng.choice([*names, *["path_open"] * 12]) if rng.random() < 0.97 else "fd_close")
        wasi.close()
        if not read_only:
            populate(folder)
            (folder / "evil").symlink_to("../outside/secret")
    os.close(null)
    assert set(seen) == set(SIGNATURES) - {"proc_exit"}
    never = {name for name, errnos in seen.items() if 0 not in errnos}
    unsupported = {"proc_raise", "sock_accept", "sock_recv", "sock_send", "sock_shutdown"}
    if read_only:
        assert tree(folder) == before
        assert never >= unsupported | set(CHANGING) - {"fd_write"}
    else:
        assert never == unsupported


def test_a_guest_that_moves_after_each_call_is_as_one_that_never_moves(tmp_path: Path) -> None:
    """1,000 random calls, 1,000 moves: same results, same files, same state but for the clocks."""
    roots = tmp_path / "still", tmp_path / "moved"
    for root in roots:
        root.mkdir()
    null = os.open(os.devnull, os.O_RDWR)

    def config(side: int) -> WasiConfig:
        return WasiConfig(preopens=[(roots[side], "/g")], stdin=null, stdout=null, stderr=null, random_seed=7)

    rng = random.Random(by_tier(check=1, test=2, soak=3))
    hosts = [Wasi(config(0)), Wasi(config(1))]
    guests = [OurGuest(host) for host in hosts]
    fds: list[tuple[int, int]] = []
    for number in range(by_tier(check=200, test=1000, soak=10_000)):
        shown, call = random_call(rng, fds)
        results = [call(guest, side) for side, guest in enumerate(guests)]
        if number % 7 == 0:
            results = [(result, guest.random(5)) for result, guest in zip(results, guests, strict=True)]
        assert results[0] == results[1], shown
        outcome: object = results[0][0] if number % 7 == 0 else results[0]  # type: ignore[index]
        if shown.startswith("open") and isinstance(outcome, tuple) and outcome[0] == 0:
            fds.append((outcome[1], outcome[1]))
        elif shown.startswith("close") and outcome == 0:
            fds.pop(int(shown.split(" slot ")[1].split()[0]))
        state = msgpack.packb(hosts[1].state())
        hosts[1].close()
        hosts[1] = guests[1].wasi = Wasi.restore(config(1), msgpack.unpackb(state))
        if number % 50 == 0:
            assert tree(roots[0]) == tree(roots[1])
            assert comparable(hosts[0].state(), roots[0]) == comparable(hosts[1].state(), roots[1])
    for host in hosts:
        host.close()
    os.close(null)


def comparable(state: dict[str, object], root: Path) -> object:
    """Without what tells the time, names an inode, or is the last name of what has none any more; of several names of
    one file (hard links, ways through symbolic ones) always the same one."""
    names: dict[int, str] = {}
    for path in sorted(root.rglob("*")):
        names.setdefault(path.lstat().st_ino, str(path.relative_to(root)))

    def strip(value: object) -> object:
        if isinstance(value, dict):
            gone = ("path",) if "removed" in value or ("anonymous" in value and "number" in value) else ()
            kept = {k: strip(v) for k, v in value.items() if k not in ("clocks", "seen", "inode", *gone)}
            path = kept.get("path")
            if isinstance(path, bytes) and path:
                kept["path"] = names[os.lstat(os.fsencode(root) + b"/" + path).st_ino]
            return kept
        if isinstance(value, list) and len(value) == 3 and isinstance(value[0], bytes):
            return [value[0], value[2]]  # an entry of a listing
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(state)


def test_nothing_here_is_left_out() -> None:
    """All 46 functions either need a right, or none."""
    without = {
        "args_get", "args_sizes_get", "clock_res_get", "clock_time_get", "environ_get", "environ_sizes_get", "fd_close",
        "fd_fdstat_get", "fd_fdstat_set_rights", "fd_prestat_dir_name", "fd_prestat_get", "fd_renumber", "poll_oneoff",
        "proc_exit", "proc_raise", "random_get", "sched_yield", "sock_accept", "sock_recv", "sock_send",
        "sock_shutdown",
    }
    assert set(SIGNATURES) - set(NEEDED) == without
    assert len(SIGNATURES) == 46

