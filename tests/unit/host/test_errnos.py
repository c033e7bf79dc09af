"""Errno by errno: each call is told what is wrong with it, and a fault has no effect."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from wasmckpt.errors import HostStateError, UsageError
from wasmckpt.host import Errno, ProcExit, Wasi, WasiConfig
from wasmckpt.host.abi import ALL_RIGHTS, CHANGING_RIGHTS, OFLAG_CREAT, Rights
from wasmckpt.wasm.values import I32, I64

from .conftest import Maker
from .guests import BUFFER, IOVECS, PAGES, RESULT, OurGuest

END = PAGES << 16

PREVIEW1 = {
    "args_get": "ii", "args_sizes_get": "ii", "environ_get": "ii", "environ_sizes_get": "ii", "clock_res_get": "ii",
    "clock_time_get": "iIi", "fd_advise": "iIIi", "fd_allocate": "iII", "fd_close": "i", "fd_datasync": "i",
    "fd_fdstat_get": "ii", "fd_fdstat_set_flags": "ii", "fd_fdstat_set_rights": "iII", "fd_filestat_get": "ii",
    "fd_filestat_set_size": "iI", "fd_filestat_set_times": "iIIi", "fd_pread": "iiiIi", "fd_prestat_get": "ii",
    "fd_prestat_dir_name": "iii", "fd_pwrite": "iiiIi", "fd_read": "iiii", "fd_readdir": "iiiIi", "fd_renumber": "ii",
    "fd_seek": "iIii", "fd_sync": "i", "fd_tell": "ii", "fd_write": "iiii", "path_create_directory": "iii",
    "path_filestat_get": "iiiii", "path_filestat_set_times": "iiiiIIi", "path_link": "iiiiiii",
    "path_open": "iiiiiIIii", "path_readlink": "iiiiii", "path_remove_directory": "iii", "path_rename": "iiiiii",
    "path_symlink": "iiiii", "path_unlink_file": "iii", "poll_oneoff": "iiii", "proc_exit": "i", "proc_raise": "i",
    "sched_yield": "", "random_get": "ii", "sock_accept": "iii", "sock_recv": "iiiiii", "sock_send": "iiiii",
    "sock_shutdown": "ii",
}


def test_all_functions_are_there_with_their_types(guest: OurGuest) -> None:
    """The table was written from the interface, not from the code."""
    codes = {"i": I32, "I": I64}
    found = {name: (function.params, function.results) for name, function in guest.wasi.functions.items()}
    assert found == {
        name: (tuple(codes[letter] for letter in letters), () if name == "proc_exit" else (I32,))
        for name, letters in PREVIEW1.items()
    }


ON_DESCRIPTORS = [name for name in PREVIEW1 if name.startswith(("fd_", "path_", "sock_"))]


@pytest.mark.parametrize("name", ON_DESCRIPTORS)
def test_a_number_that_is_no_descriptor(guest: OurGuest, name: str) -> None:
    args = [99 if letter == "i" and number == 0 else 1 for number, letter in enumerate(PREVIEW1[name])]
    if name == "path_symlink":
        args = [0x1000, 1, 99, 0x1000, 1]
    elif name == "path_link":
        args[1] = 0
    guest.store(0, b"\0" * 64)
    guest.store(0x1000, b"x")
    assert guest.call(name, *args) == Errno.BADF


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("args_get", (END, 0)), ("args_sizes_get", (0, END - 2)), ("args_sizes_get", (END - 2, 0)),
        ("args_get", (0, END - 2)), ("clock_time_get", (1, 0, END - 7)), ("clock_res_get", (1, END)),
        ("random_get", (END - 4, 8)), ("random_get", (0, 0xFFFF_FFFF)), ("fd_write", (4, END - 4, 1, RESULT)),
        ("fd_write", (4, IOVECS, 0xFFFF_FFFF, RESULT)), ("fd_write", (4, IOVECS, 1, END)),
        ("fd_read", (4, END, 1, RESULT)), ("fd_read", (4, IOVECS, 1, END - 1)), ("fd_pread", (4, IOVECS, 1, 0, END)),
        ("fd_pwrite", (4, IOVECS, 1, 0, END)), ("fd_seek", (4, 1, 0, END)), ("fd_tell", (4, END)),
        ("fd_fdstat_get", (4, END - 8)), ("fd_filestat_get", (4, END - 63)), ("fd_prestat_get", (3, END)),
        ("fd_prestat_dir_name", (3, END - 1, 2)), ("fd_readdir", (3, END - 10, 20, 0, RESULT)),
        ("fd_readdir", (3, BUFFER, 20, 0, END)), ("path_open", (3, 0, END, 1, 0, 2, 2, 0, RESULT)),
        ("path_open", (3, 0, 0x1000, 1, OFLAG_CREAT, 2, 2, 0, END - 3)), ("path_create_directory", (3, END - 1, 2)),
        ("path_filestat_get", (3, 0, 0x1000, 1, END)), ("path_readlink", (3, 0x1000, 1, END - 1, 2, RESULT)),
        ("poll_oneoff", (END - 47, BUFFER, 1, RESULT)), ("poll_oneoff", (0x300, END - 31, 1, RESULT)),
    ],
)
def test_an_address_outside_the_memory(guest: OurGuest, folder: Path, name: str, args: tuple[int, ...]) -> None:
    (folder / "f").write_bytes(b"contents")
    guest.open("f", rights=ALL_RIGHTS)
    guest.store(0x1000, b"f")
    guest.store(IOVECS, struct.pack("<II", BUFFER, 4))
    assert guest.call(name, *args) == Errno.FAULT
    assert (folder / "f").read_bytes() == b"contents"
    assert guest.tell(4) == (0, 0)
    assert len(os.listdir(folder)) == 1


def test_a_fault_in_the_second_buffer_consumes_nothing(make: Maker, pipe: tuple[int, int]) -> None:
    guest = make(stdin=pipe[0])
    os.write(pipe[1], b"precious")
    guest.store(IOVECS, struct.pack("<IIII", BUFFER, 4, END - 1, 4))
    assert guest.call("fd_read", 0, IOVECS, 2, RESULT) == Errno.FAULT
    assert guest.read(0, 100) == (0, b"precious")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"", Errno.NOENT), (b"nothing", Errno.NOENT), (b"file/x", Errno.NOTDIR), (b"file/", Errno.NOTDIR),
        (b"\xff\xfe", Errno.ILSEQ), (b"a\0b", Errno.INVAL), (b"n" * 256, Errno.NAMETOOLONG),
        (b"d/" * 2100, Errno.NAMETOOLONG), (b"/file", Errno.PERM), (b"..", Errno.PERM), (b"loop", Errno.LOOP),
    ],
)
def test_paths(guest: OurGuest, folder: Path, path: bytes, expected: int) -> None:
    (folder / "file").touch()
    (folder / "loop").symlink_to("loop")
    assert guest.open(path)[0] == expected
    if path != b"loop":
        assert guest.stat(path)[0] == expected


def test_calls_that_change_names(guest: OurGuest, folder: Path) -> None:
    for name in ("dir", "full", "full/x"):
        (folder / name).mkdir()
    (folder / "file").write_bytes(b"")
    assert guest.mkdir("dir") == guest.mkdir("file") == guest.mkdir(".") == Errno.EXIST
    assert guest.mkdir("no/dir") == Errno.NOENT
    assert guest.rmdir("file") == Errno.NOTDIR
    assert guest.rmdir("full") == Errno.NOTEMPTY
    assert guest.rmdir(".") == guest.rmdir("dir/.") == Errno.INVAL
    assert guest.unlink("dir") == guest.unlink(".") == Errno.ISDIR
    assert guest.unlink("file/") == Errno.NOTDIR
    assert guest.rename("file", "dir") == Errno.ISDIR
    assert guest.rename("dir", "file") == Errno.NOTDIR
    assert guest.rename("full", "full/x/y") == Errno.INVAL
    assert guest.rename("dir", "full") == Errno.NOTEMPTY
    assert guest.rename(".", "z") == guest.rename("file", ".") == Errno.BUSY
    assert guest.link("file", "dir") == Errno.EXIST
    assert guest.link("dir", "z") == Errno.PERM
    assert guest.link("file", "z", follow=True) == Errno.INVAL
    assert guest.symlink("x", "file") == guest.symlink("x", "dir/") == Errno.EXIST
    assert guest.symlink("x", "z/") == guest.symlink("", "z") == Errno.NOENT
    assert guest.symlink("/etc", "z") == Errno.PERM
    assert guest.readlink("file")[0] == Errno.INVAL
    assert sorted(os.listdir(folder)) == ["dir", "file", "full"]


def test_names_are_changed(guest: OurGuest, folder: Path) -> None:
    """The twin of the refusals above."""
    assert guest.mkdir("dir/") == guest.mkdir("dir/sub") == 0
    (folder / "file").write_bytes(b"x")
    assert guest.link("file", "dir/hard") == guest.symlink("../file", "dir/soft") == 0
    assert guest.readlink("dir/soft") == (0, b"../file")
    assert guest.readlink("dir/soft", 3) == (0, b"../")
    assert guest.rename("dir/hard", "moved") == guest.rename("dir/sub/", "subdir/") == 0
    assert guest.unlink("file") == guest.rmdir("subdir/") == guest.unlink("dir/soft") == guest.rmdir("dir") == 0
    assert os.listdir(folder) == ["moved"]


def test_rights_can_be_given_up_but_not_regained(guest: OurGuest, folder: Path) -> None:
    (folder / "f").write_bytes(b"abc")
    _, fd = guest.open("f", rights=ALL_RIGHTS)
    held = guest.fdstat(fd)[1]
    keep = Rights.FD_READ | Rights.FD_FDSTAT_SET_FLAGS
    assert guest.call("fd_fdstat_set_rights", fd, keep, 0) == 0
    assert guest.fdstat(fd)[1][2:] == (keep, 0)
    assert guest.read(fd, 3) == (0, b"abc")
    assert guest.call("fd_fdstat_set_rights", fd, held[2], held[3]) == Errno.NOTCAPABLE
    refused = [
        guest.write(fd, b"x")[0], guest.seek(fd, 1)[0], guest.seek(fd, 0, 1)[0], guest.tell(fd)[0],
        guest.pread(fd, 1, 0)[0], guest.pwrite(fd, b"x", 0)[0], guest.fstat(fd)[0], guest.call("fd_sync", fd),
        guest.call("fd_datasync", fd), guest.call("fd_allocate", fd, 0, 9), guest.call("fd_advise", fd, 0, 0, 0),
        guest.call("fd_filestat_set_size", fd, 9), guest.call("fd_filestat_set_times", fd, 1, 1, 1),
    ]
    assert refused == [Errno.NOTCAPABLE] * 13
    assert (folder / "f").read_bytes() == b"abc"


PATH_CALLS = {
    Rights.PATH_OPEN: lambda g: g.open("f")[0],
    Rights.PATH_CREATE_FILE: lambda g: g.open("new", oflags=1)[0],
    Rights.PATH_FILESTAT_SET_SIZE: lambda g: g.open("f", oflags=8)[0],
    Rights.PATH_CREATE_DIRECTORY: lambda g: g.mkdir("new"),
    Rights.PATH_REMOVE_DIRECTORY: lambda g: g.rmdir("d"),
    Rights.PATH_UNLINK_FILE: lambda g: g.unlink("f"),
    Rights.PATH_RENAME_SOURCE: lambda g: g.rename("f", "z"),
    Rights.PATH_RENAME_TARGET: lambda g: g.rename("f", "z"),
    Rights.PATH_LINK_SOURCE: lambda g: g.link("f", "z"),
    Rights.PATH_LINK_TARGET: lambda g: g.link("f", "z"),
    Rights.PATH_SYMLINK: lambda g: g.symlink("f", "z"),
    Rights.PATH_READLINK: lambda g: g.readlink("l")[0],
    Rights.PATH_FILESTAT_GET: lambda g: g.stat("f")[0],
    Rights.PATH_FILESTAT_SET_TIMES: lambda g: g.set_times("f", 1, 1, 1),
    Rights.FD_READDIR: lambda g: g.readdir(3)[0],
    Rights.FD_FILESTAT_GET: lambda g: g.fstat(3)[0],
}


@pytest.mark.parametrize("right", sorted(PATH_CALLS))
def test_each_right_of_a_directory_is_needed(make: Maker, right: int) -> None:
    """Without the right refused and nothing changed; with it, the same call passes."""
    (make.folder / "d").mkdir()
    (make.folder / "f").write_bytes(b"abc")
    (make.folder / "l").symlink_to("f")
    guest = make()
    _, _, base, inheriting = guest.fdstat(3)[1]
    assert guest.call("fd_fdstat_set_rights", 3, base & ~right, inheriting) == 0
    assert PATH_CALLS[right](guest) == Errno.NOTCAPABLE
    assert sorted(os.listdir(make.folder)) == ["d", "f", "l"]
    assert (make.folder / "f").read_bytes() == b"abc"
    assert PATH_CALLS[right](make()) == 0


def test_what_is_opened_inherits_no_more_than_granted(guest: OurGuest, folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "f").touch()
    _, directory = guest.open("d", rights=Rights.PATH_OPEN, inheriting=Rights.FD_READ)
    assert guest.open("f", fd=directory, rights=Rights.FD_READ | Rights.FD_WRITE)[0] == Errno.NOTCAPABLE
    errno, fd = guest.open("f", fd=directory, rights=Rights.FD_READ)
    assert errno == 0
    assert guest.fdstat(fd)[1][2:] == (Rights.FD_READ, Rights.FD_READ)
    assert guest.mkdir("x", fd=directory) == Errno.NOTCAPABLE


def test_bits_that_are_no_rights_are_ignored(guest: OurGuest, folder: Path) -> None:
    (folder / "f").touch()
    errno, fd = guest.open("f", rights=Rights.FD_READ | 1 << 31 | 1 << 63, inheriting=(1 << 64) - 1)
    assert (errno, guest.fdstat(fd)[1][2]) == (0, Rights.FD_READ)


def test_a_read_only_folder(make: Maker) -> None:
    (make.folder / "f").write_bytes(b"abc")
    guest = make(read_only=["/g"])
    errno, fd = guest.open("f", rights=ALL_RIGHTS & ~CHANGING_RIGHTS)
    assert (errno, guest.read(fd, 9)) == (0, (0, b"abc"))
    assert guest.open("f", rights=ALL_RIGHTS)[0] == Errno.NOTCAPABLE
    assert guest.mkdir("x") == guest.unlink("f") == guest.rename("f", "g") == Errno.NOTCAPABLE
    assert guest.open("x", oflags=1, rights=Rights.FD_READ)[0] == Errno.NOTCAPABLE
    assert os.listdir(make.folder) == ["f"]


def test_not_opened_for_it_is_a_bad_descriptor(guest: OurGuest, folder: Path) -> None:
    (folder / "f").write_bytes(b"abc")
    _, reader = guest.open("f")
    _, writer = guest.open("f", rights=ALL_RIGHTS & ~Rights.FD_READ)
    assert guest.write(reader, b"x")[0] == guest.read(writer, 1)[0] == Errno.BADF
    assert guest.read(1, 1)[0] == guest.write(0, b"x")[0] == Errno.BADF


@pytest.mark.parametrize(
    ("delta", "whence", "expected"),
    [(-1, 0, Errno.INVAL), (-4, 1, Errno.INVAL), (-4, 2, Errno.INVAL), (1, 3, Errno.INVAL), (-3, 2, 0)],
)
def test_seek(guest: OurGuest, folder: Path, delta: int, whence: int, expected: int) -> None:
    (folder / "f").write_bytes(b"abc")
    _, fd = guest.open("f")
    assert guest.seek(fd, delta, whence)[0] == expected
    assert guest.tell(fd) == (0, 0)


def test_offsets_of_more_than_63_bits(guest: OurGuest, folder: Path) -> None:
    (folder / "f").write_bytes(b"abc")
    _, fd = guest.open("f", rights=ALL_RIGHTS)
    assert guest.pread(fd, 1, 1 << 63)[0] == guest.pwrite(fd, b"x", 1 << 63)[0] == Errno.INVAL
    assert guest.seek(fd, (1 << 63) - 1) == (0, (1 << 63) - 1)
    assert guest.seek(fd, 1, 1)[0] == Errno.INVAL


def test_streams_have_no_position(guest: OurGuest) -> None:
    for fd in (0, 1, 2):
        assert guest.seek(fd, 0, 1)[0] == guest.tell(fd)[0] == guest.pread(fd, 1, 0)[0] == Errno.SPIPE
        assert not guest.fdstat(fd)[1][2] & (Rights.FD_SEEK | Rights.FD_TELL)


def test_sockets_are_not_supported(guest: OurGuest) -> None:
    assert guest.call("sock_accept", 0, 0, RESULT) == Errno.NOTSUP
    assert guest.call("sock_recv", 0, IOVECS, 1, 0, RESULT, RESULT) == Errno.NOTSOCK
    assert guest.call("sock_send", 0, IOVECS, 1, 0, RESULT) == guest.call("sock_shutdown", 0, 1) == Errno.NOTSOCK


def test_clocks_and_signals(guest: OurGuest) -> None:
    for clock in range(4):
        assert guest.call("clock_res_get", clock, RESULT) == 0
        assert 1 <= guest.u64() <= 1_000_000_000
        assert guest.clock(clock)[0] == 0
    assert guest.call("clock_res_get", 4, RESULT) == guest.clock(4)[0] == Errno.INVAL
    assert guest.call("proc_raise", 6) == Errno.NOTSUP
    assert guest.call("sched_yield") == 0


def test_exit_leaves_the_guest(guest: OurGuest) -> None:
    assert guest.wasi.exit_code is None
    with pytest.raises(ProcExit) as left:
        guest.call("proc_exit", 0xFFFF_FFFF)
    assert left.value.code == guest.wasi.exit_code == 0xFFFF_FFFF


def test_arguments_and_environment(make: Maker) -> None:
    guest = make(args=["prog", "", "ü", b"\xff"], env={"A": "1", "EMPTY": "", "Ö": "=x="})
    assert guest.strings("args") == [b"prog", b"", "ü".encode(), b"\xff"]
    assert guest.strings("environ") == [b"A=1", b"EMPTY=", "Ö==x=".encode()]
    bare = make(args=[], env={})
    assert bare.strings("args") == bare.strings("environ") == []


def test_results_are_plain_ints(guest: OurGuest) -> None:
    """An adapter may hand them to C: a subclass of int is not welcome everywhere."""
    results = [guest.write(9, b"")[0], guest.write(0, b"")[0], guest.open("..")[0], guest.call("sched_yield")]
    assert {type(result) for result in results} == {int}


def test_a_preopen_that_is_missing_or_no_folder(tmp_path: Path, make: Maker) -> None:
    (tmp_path / "file").touch()
    for host in (tmp_path / "gone", tmp_path / "file"):
        with pytest.raises(HostStateError) as error:
            Wasi(WasiConfig(preopens=[(tmp_path, "/ok"), (host, "/x")]))
        assert error.value.fields["path"] == str(host)
    with pytest.raises(UsageError):
        make(preopens=[(tmp_path, "/x"), (make.folder, "/x")])
