"""Every function of WASI with every kind of argument, beside wasmtime's own host: same errno, or a reason here.

wasmtime traps (ends the program) where an argument is no value of its type: a flag or clock that is not defined, an
address outside the memory or not aligned. Ours gives an errno, as the interface allows, for a program's mistake is no
reason to end it; the class ``trap`` stands for that. The other classes are named in `REASONS`.
"""

from __future__ import annotations

import itertools
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from wasmckpt.host import ProcExit
from wasmckpt.host.abi import ALL_RIGHTS, SUBSCRIPTION, Errno

from ..unit.host.guests import SIGNATURES, Guest
from ..unit.host.test_differential import Pair

pytestmark = pytest.mark.slow

FAR, ODD = 0xFFFF_FFF0, 0xFFFF_FFFE
FDS = (0, 1, 3, 4, 5, 99, 0xFFFF_FFFF)
"""Standard input and output, the preopen, a file, a directory, and two that are none."""
PATHS = (b"f", b"d", b"nope", b"", b"..", b"\xff", b"loop1", b"d/x")
TEXT, FLAGS, LONG = 0x1000, (0, 1, 2, 0xFFFF_FFFF), (0, 5, 1 << 40, 1 << 63)
FIXED: dict[str, list[tuple[int, ...]]] = {
    "args_get": [(0x200, 0x400), (FAR, 0x400), (0x200, FAR)],
    "environ_get": [(0x200, 0x400), (FAR, 0x400), (0x200, FAR)],
    "args_sizes_get": [(0x200, 0x204), (FAR, 0x200), (0x200, ODD)],
    "environ_sizes_get": [(0x200, 0x204), (FAR, 0x200), (0x200, ODD)],
    "clock_res_get": [(clock, at) for clock in (0, 1, 2, 3, 4, 99) for at in (0x100, FAR)],
    "clock_time_get": [(clock, 0, at) for clock in (0, 1, 2, 3, 4, 99) for at in (0x100, FAR)],
    "sched_yield": [()], "random_get": [(0x200, 5), (0x200, 0), (FAR, 32), (0x3FFFF, 2)],
    "proc_exit": [(code,) for code in (0, 7, 125, 126, 0xFFFF_FFFF)], "proc_raise": [(0,), (1,), (99,)],
    "poll_oneoff": [
        (0x2000, 0x3000, 0, 0x100), (0x2000, 0x3000, 1, 0x100), (FAR, 0x3000, 1, 0x100), (0x2000, FAR, 1, 0x100)
    ],
}
BY_DESCRIPTOR: dict[str, tuple[tuple[int, ...], ...]] = {
    "fd_read": ((0x800, FAR), (0, 1, 2), (0x100, ODD)), "fd_write": ((0x800, FAR), (0, 1, 2), (0x100, ODD)),
    "fd_pread": ((0x800, FAR), (0, 1, 2), (0, 3, 1 << 63), (0x100, ODD)),
    "fd_pwrite": ((0x800, FAR), (0, 1, 2), (0, 3, 1 << 63), (0x100, ODD)),
    "fd_readdir": ((0x3000, FAR), (0, 64, 400), (0, 2, 99, 1 << 63), (0x100, ODD)),
    "fd_seek": ((0, 3, 1 << 62, 1 << 63, (1 << 64) - 1), (0, 1, 2, 3), (0x100, ODD)),
    "fd_prestat_dir_name": ((0x3000, FAR), (0, 1, 2, 64)), "fd_renumber": (FDS,),
    "fd_allocate": ((0, 5, 1 << 63), (0, 5, 1 << 63)), "fd_filestat_set_size": ((0, 5, 1 << 63),),
    "sock_accept": ((0, 4), (0x100,)), "sock_recv": ((0x800,), (1,), (0,), (0x100,), (0x200,)),
    "sock_send": ((0x800,), (1,), (0,), (0x100,)), "sock_shutdown": ((0, 1, 3),),
}

REASONS = [
    # functions (prefixes), ours, theirs, why
    ("clock_", {"SUCCESS", "FAULT"}, {"BADF"}, "the clocks of processor time are kept here, over moves too"),
    ("fd_advise fd_allocate fd_pread fd_pwrite fd_filestat_set_size", {"SPIPE"}, {"BADF"},
     "what has no position is no bad descriptor: POSIX says ESPIPE"),
    ("fd_advise", {"INVAL"}, {"SUCCESS"}, "no file is longer than 2^63 bytes"),
    ("fd_allocate", {"SUCCESS", "INVAL"}, {"NOTSUP"}, "supported here"),
    ("fd_datasync fd_sync fd_fdstat_set_flags", {"SUCCESS"}, {"BADF"}, "streams take it"),
    ("fd_fdstat_set_rights", {"SUCCESS", "NOTCAPABLE"}, {"BADF", "NOTSUP"}, "supported here"),
    ("fd_read fd_write fd_pread fd_pwrite fd_readdir", {"FAULT"}, {"SUCCESS"},
     "an address outside is told even where no byte is transferred"),
    ("fd_read", {"SUCCESS", "FAULT"}, {"INTR"}, "a read of nothing is done at once"),
    ("fd_seek", {"FAULT"}, {"INVAL"}, "which of two mistakes is told first"),
    ("fd_seek", {"INVAL"}, {"SUCCESS"}, "the position would overflow"),
    ("fd_prestat_dir_name", {"BADF"}, {"NOTDIR"}, "as fd_prestat_get says it"),
    ("fd_readdir path_", {"NOTDIR"}, {"BADF", "ILSEQ"}, "a file is no bad descriptor, but no directory"),
    ("path_", {"FAULT", "ILSEQ", "NOENT", "INVAL", "PERM", "BADF", "NOTDIR", "LOOP"},
     {"BADF", "ILSEQ", "INVAL", "NOENT", "PERM"}, "which of two mistakes is told first"),
    ("path_open", {"SUCCESS", "ISDIR", "LOOP", "NOENT", "PERM"}, {"NOTSUP"}, "synchronous files are supported here"),
    ("path_open", {"NOTDIR"}, {"LOOP"}, "a symlink that is not followed is no directory"),
    ("sock_accept", {"NOTSUP"}, {"NOTSOCK"}, "sockets are not supported"),
]


def explained(name: str, ours: str, theirs: str) -> bool:
    return theirs == "trap" or any(
        any(name.startswith(prefix) for prefix in names.split()) and ours in a and theirs in b
        for names, a, b, _ in REASONS
    )


def argument_lists(name: str) -> Iterator[tuple[int, ...]]:
    if name in FIXED:
        yield from FIXED[name]
    elif name.startswith("path_"):
        for fd, first, second, flag in itertools.product(FDS, range(len(PATHS)), (0, 2), FLAGS):
            a, b = ((TEXT + 64 * n, len(PATHS[n])) for n in (first, second))
            both = ALL_RIGHTS, ALL_RIGHTS
            lists: dict[str, list[tuple[int, ...]]] = {
                "path_open": [
                    (fd, flag, *a, 0, *both, 0, 0x100), (fd, 0, *a, flag, *both, 0, 0x100),
                    (fd, 0, *a, 0, *both, flag, 0x100),
                ],
                "path_filestat_get": [(fd, flag, *a, 0x100), (fd, flag, *a, FAR)],
                "path_filestat_set_times": [(fd, flag, *a, 5, 6, 5), (fd, 1, *a, 5, 6, flag)],
                "path_link": [(fd, flag, *a, 3, *b), (3, 0, *a, fd, *b)],
                "path_rename": [(fd, *a, 3, *b), (3, *a, fd, *b)], "path_symlink": [(*a, fd, *b), (*b, fd, *a)],
                "path_readlink": [(fd, *a, 0x3000, 64, 0x100), (fd, *a, FAR, 64, 0x100), (fd, *a, 0x3000, 0, 0x100)],
            }
            yield from lists.get(name, [(fd, *a)])
    else:
        rest = BY_DESCRIPTOR.get(name) or [
            LONG if code == 0x7E else (0, 1, 4, 0x100, 0xFFFF_FFFF) for code in SIGNATURES[name][1:]
        ]
        yield from ((fd, *values) for fd in FDS for values in itertools.product(*rest))


def prepared(guest: Guest) -> None:
    for number, path in enumerate(PATHS):
        guest.store(TEXT + 64 * number, path)
    guest.store(0x800, struct.pack("<IIII", 0x4000, 5, 0x5000, 3))
    guest.store(0x2000, SUBSCRIPTION.pack(7, 0, 1, 0, 0, 0))


def outcome(guest: Guest, name: str, arguments: tuple[int, ...]) -> str:
    prepared(guest)
    try:
        return Errno(guest.call(name, *arguments)).name
    except ProcExit as end:
        return f"exit {end.code}"
    except Exception:  # whatever wasmtime's Python API makes of a trap; ours never raises
        assert type(guest).__name__ == "WasmtimeGuest"
        return "trap"


@pytest.mark.parametrize("name", SIGNATURES)
def test_all_arguments(name: str) -> None:
    changes = name.startswith("path_") or name in ("fd_close", "fd_renumber", "fd_fdstat_set_rights")
    count = 0
    with tempfile.TemporaryDirectory() as scratch:
        pair, number = None, 0
        for arguments in dict.fromkeys(argument_lists(name)):
            if pair is None:
                number += 1
                Path(scratch, str(number)).mkdir()
                pair = Pair(Path(scratch, str(number)))
                for guest in (pair.ours, pair.theirs):
                    assert guest.open("f", rights=ALL_RIGHTS) == (0, 4)
                    assert guest.open("d", oflags=2) == (0, 5)
            ours, theirs = outcome(pair.ours, name, arguments), outcome(pair.theirs, name, arguments)
            assert ours == theirs or explained(name, ours, theirs), (name, [*map(hex, arguments)], ours, theirs)
            count += 1
            if changes and "SUCCESS" in (ours, theirs):
                pair.close()  # what one of them has changed must not be seen in the next call
                pair = None
        if pair is not None:
            pair.close()
    assert count


def test_each_reason_says_something() -> None:
    assert not explained("fd_tell", "SUCCESS", "BADF")
    assert not explained("path_rename", "SUCCESS", "PERM")
    assert not explained("fd_write", "SUCCESS", "BADF")
