"""Our host against wasmtime's own: same calls, same errno, same bytes, same files left behind.

Where the two differ on purpose, the list below says so with the reason; everything else has to be equal.

- Several buffers in one call: wasmtime transfers the first only, we all (both allowed; equal with one buffer each).
- What kind a standard stream is, and rights: wasmtime reports fewer.
- ``path_*`` and ``fd_readdir`` on something that is no directory: ours ``ENOTDIR`` as POSIX, wasmtime ``EBADF``.
- ``fd_allocate``, ``fd_fdstat_set_rights``, processor clocks, syncing a directory: wasmtime does not support them.
- ``rmdir`` and ``unlink`` of ``name/``: ours as the Linux kernel, wasmtime ``EINVAL`` or what it points to.
- A wrong subscription of ``poll_oneoff``: ours an event with the error, wasmtime fails the call.
- A file created or truncated without the right to write can be written under wasmtime, not here.
- A symlink opened as a directory and not followed: ours ``ENOTDIR`` as Linux, wasmtime ``ELOOP``.
- The position after an append while another descriptor made the file grow: ours is the end, wasmtime's is not.
- Seeking beyond 2**63 and addresses outside the memory: wasmtime wraps, and traps.
- The number of a new descriptor: ours the lowest free one, wasmtime not always.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wasmckpt.host import Wasi, WasiConfig
from wasmckpt.host.abi import ALL_RIGHTS, Rights

from ...support.tiers import by_tier
from .guests import RESULT, Guest, OurGuest, WasmtimeGuest

Scenario = Callable[[Guest], object]


def populate(root: Path) -> None:
    """The same small tree for both, whatever was there before."""
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)
    (root / "d" / "sub").mkdir(parents=True)
    (root / "f").write_bytes(b"hello world")
    (root / "d" / "x").write_bytes(b"x" * 10)
    links = {
        "l": "f", "abs": "/etc", "up": "..", "loop1": "loop2", "loop2": "loop1", "dl": "d", "dang": "nothing",
        "d/uf": "../f", "d/ux": "sub/../x",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)


class Pair:
    """Both guests, each over a tree of its own."""

    def __init__(self, base: Path) -> None:
        self.roots = base / "ours", base / "theirs"
        for root in self.roots:
            root.mkdir()
            populate(root)
        (base / "in").write_bytes(b"input\n")
        self._fds = [os.open(base / "in", os.O_RDONLY), os.open(base / "out", os.O_RDWR | os.O_CREAT)]
        self.wasi = Wasi(WasiConfig(
            args=["prog", "one", "two"], env={"HOME": "/h", "X": ""}, preopens=[(self.roots[0], "/g")],
            stdin=self._fds[0], stdout=self._fds[1],
        ))
        self.ours = OurGuest(self.wasi)
        self.theirs = WasmtimeGuest([(str(self.roots[1]), "/g")], base / "in", base / "out2")
        self.outputs = base / "out", base / "out2"

    def same(self, scenario: Scenario) -> object:
        """The result, which has to be the same for both."""
        results = [scenario(self.ours), scenario(self.theirs)]
        assert results[0] == results[1]
        return results[0]

    def trees(self) -> list[dict[str, object]]:
        """What is in each tree: names, kinds, contents."""
        return [tree(root) for root in self.roots]

    def close(self) -> None:
        self.wasi.close()
        for fd in self._fds:
            os.close(fd)


def tree(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(folder, name)
            shown = str(path.relative_to(root))
            if path.is_symlink():
                found[shown] = "-> " + os.readlink(path)
            else:
                found[shown] = path.read_bytes() if path.is_file() else "directory"
    return found


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


LOOKUPS: list[str | bytes] = [
    "f", "l", "abs", "abs/passwd", "up", "up/f", "loop1", "dl", "dl/x", "dang", "d", "d/", "f/", "f/.", "d/.", "d/..",
    "d/../f", "..", "../A/f", "/f", "/", "", "nope", "nope/x", "f/x", "d/uf", "d/ux", "dl/", "l/", ".", "./f", "d//x",
    "x" * 300, "d/" * 3000, b"\xff", b"a\0b", "up/", "dl/../f", "d/sub/../../f", "d/sub/../../..",
]


def close_again(guest: Guest, opened: tuple[int, int]) -> int:
    errno, fd = opened
    if errno == 0:
        assert guest.close(fd) == 0
    return errno


def test_looking_up_paths(pair: Pair) -> None:
    for path in LOOKUPS:
        for follow in (True, False):
            shown = pair.same(lambda g: (path, follow, close_again(g, g.open(path, follow=follow))))  # noqa: B023
            assert shown
            pair.same(lambda g: (path, follow, g.stat(path, follow=follow)[1][2:4]))  # noqa: B023
            pair.same(lambda g: (path, g.stat(path, follow=follow)[0], g.readlink(path) if path != "dl/" else 0))  # noqa: B023


@pytest.mark.parametrize("oflags", range(16))
def test_opening_and_creating(pair: Pair, oflags: int) -> None:
    for path in ("f", "l", "dang", "d", "d/", "new", "new2/", "loop1", "nope/x", "abs", "up", "dl"):
        for rights in (ALL_RIGHTS, Rights.FD_READ):
            pair.same(lambda g: (path, close_again(g, g.open(path, oflags=oflags, rights=rights))))  # noqa: B023
    ours, theirs = pair.trees()
    assert ours == theirs


ONE_NAME = [
    "f", "l", "d", "f/", "l/", "dl", ".", "..", "d/..", "new", "new/", "nope/x", "", "dang", "loop1", "/x", "abs",
    "d/sub",
]
TWO_NAMES = [
    ("f", "g"), ("f", "d"), ("d", "f"), ("d", "e"), ("d/", "e/"), ("f/", "g"), ("f", "g/"), ("d", "d/sub/z"),
    ("l", "l2"), ("dl/", "zz"), ("nope", "z"), ("f", "nope/x"), (".", "z"), ("f", "."), ("..", "z"), ("f", "f"),
    ("d", "dl"),
    ("f", "dang"), ("", "z"), ("f", ""), ("d", "newd/"), ("/f", "z"), ("f", "up/z"), ("d/sub", "d/x"), ("/f", "g"),
    ("../f", "g"), ("f", "d/"), ("f", "d/z"), ("f/", "g"),
]


def test_changing_names(pair: Pair) -> None:
    calls: list[tuple[str, tuple[str, ...]]] = [
        (name, (path,)) for name in ("mkdir", "rmdir", "unlink") for path in ONE_NAME
    ] + [(name, names) for name in ("rename", "link", "symlink") for names in TWO_NAMES]
    for name, args in calls:
        for root in pair.roots:
            populate(root)
        pair.same(lambda g: (name, args, getattr(g, name)(*args)))  # noqa: B023
        ours, theirs = pair.trees()
        assert ours == theirs, (name, args)


FILE_STEPS: list[tuple[str, Callable[[Guest, int], object]]] = [
    ("tell", lambda g, fd: g.tell(fd)),
    ("read", lambda g, fd: g.read(fd, 3)),
    ("read nothing", lambda g, fd: (g.read(fd, 0), g.read(fd))),
    ("write", lambda g, fd: g.write(fd, b"abc")[0]),
    ("tell", lambda g, fd: g.tell(fd)),
    ("pwrite", lambda g, fd: g.pwrite(fd, b"XY", 3)[0]),
    ("pread", lambda g, fd: g.pread(fd, 5, 2)),
    ("tell", lambda g, fd: g.tell(fd)),
    ("end", lambda g, fd: g.seek(fd, -2, 2)),
    ("before 0", lambda g, fd: (g.seek(fd, -1, 0), g.seek(fd, -100, 1))),
    ("far", lambda g, fd: (g.seek(fd, 1 << 40, 0), g.read(fd, 3))),
    ("read at end", lambda g, fd: (g.seek(fd, 100, 0), g.read(fd, 3))),
    *(("advise", lambda g, fd, a=advice: g.call("fd_advise", fd, 0, 10, a)) for advice in range(6)),
    ("size", lambda g, fd: g.call("fd_filestat_set_size", fd, 20)),
    ("size", lambda g, fd: g.call("fd_filestat_set_size", fd, 1 << 63)),
    ("stat", lambda g, fd: g.fstat(fd)[1][2:4]),
    *(("times", lambda g, fd, f=flags: (g.call("fd_filestat_set_times", fd, 5, 6, f), g.fstat(fd)[1][6]))
      for flags in (5, 4, 1, 0)),
    *(("times", lambda g, fd, f=flags: g.call("fd_filestat_set_times", fd, 5, 6, f)) for flags in (10, 3, 12, 15)),
    ("prestat", lambda g, fd: g.call("fd_prestat_get", fd, RESULT)),
]


@pytest.mark.parametrize("rights", [ALL_RIGHTS, Rights.FD_READ, ALL_RIGHTS & ~Rights.FD_READ], ids=["rw", "r", "w"])
@pytest.mark.parametrize("fdflags", [0, 1])
def test_files(pair: Pair, rights: int, fdflags: int) -> None:
    rights |= ALL_RIGHTS & ~(Rights.FD_READ | Rights.FD_WRITE)
    assert pair.same(lambda g: g.open("f", rights=rights, fdflags=fdflags)) == (0, 4)
    for name, step in FILE_STEPS:
        pair.same(lambda g: (name, step(g, 4)))  # noqa: B023
        ours, theirs = pair.trees()
        assert ours == theirs, name
    for flags in (1, 2, 4, 8, 16, 0, 5):
        pair.same(lambda g: (g.call("fd_fdstat_set_flags", 4, flags), g.fdstat(4)[1][1]))  # noqa: B023
    pair.same(lambda g: (g.call("fd_renumber", 4, 77), g.call("fd_renumber", 77, 4), g.call("fd_renumber", 4, 4)))
    pair.same(lambda g: (g.call("fd_renumber", 4, 0), g.read(0, 3)[0], g.close(4), g.close(0), g.close(0)))


def test_directories(pair: Pair) -> None:
    def entries(guest: Guest) -> object:
        return sorted((name, kind) for _, _, name, kind in guest.readdir(3)[1])

    assert pair.same(entries)
    for size in (0, 10, 24, 25, 30, 49, 50):
        pair.same(lambda g: (g.readdir(3, size)[0], g.readdir(3, size)[2]))  # noqa: B023
    pair.same(lambda g: g.readdir(3, 4096, 1000))

    def in_pieces(guest: Guest) -> object:
        found: list[bytes] = []
        cookie = 0
        while True:
            errno, got, used = guest.readdir(3, 64, cookie)
            assert errno == 0
            found += [entry[2] for entry in got]
            if used < 64:
                return sorted(found)
            cookie = got[-1][0]

    assert pair.same(in_pieces)
    pair.same(lambda g: g.open("d", oflags=2))
    for step in (
        lambda g: g.read(4, 1)[0], lambda g: g.write(4, b"x")[0], lambda g: g.seek(4, 0)[0], lambda g: g.tell(4)[0],
        lambda g: g.pread(4, 1, 0)[0], lambda g: g.call("fd_filestat_set_size", 4, 1), lambda g: g.fdstat(4)[1][0],
        lambda g: close_again(g, g.open("x", fd=4)), lambda g: g.open("../f", fd=4)[0], lambda g: g.open("uf", fd=4)[0],
    ):
        pair.same(step)


def test_process(pair: Pair) -> None:
    pair.same(lambda g: (g.strings("args"), g.strings("environ")))
    pair.same(lambda g: (g.read(0, 3), g.read(0, 10), g.read(0, 10)))
    pair.same(lambda g: (g.write(1, b"to standard output"), g.read(1, 3)[0], g.write(0, b"x")[0], g.seek(1, 0, 1)))
    assert pair.outputs[0].read_bytes() == pair.outputs[1].read_bytes() == b"to standard output"
    pair.same(lambda g: [(g.clock(c)[0], g.call("clock_res_get", c, RESULT)) for c in (0, 1)])
    pair.same(lambda g: [g.call("fd_prestat_dir_name", 3, RESULT, size) for size in (0, 1, 2, 3)])
    pair.same(lambda g: g.call("fd_prestat_get", 0, RESULT))
    pair.same(lambda g: (g.call("sched_yield"), g.random(8)[0]))
    pair.same(lambda g: (g.call("sock_shutdown", 0, 1), g.call("sock_accept", 99, 0, RESULT)))


@pytest.mark.parametrize(
    "subscriptions",
    [
        [(7, 0, 1, 1000, 0, 0)], [(7, 0, 1, 1000, 0, 0), (8, 0, 1, 1 << 40, 0, 0)], [(7, 0, 1, 1000, 0, 1)],
        [(7, 0, 0, 1000, 0, 1)], [(7, 0, 1, 0, 0, 0)], [(7, 1, 0)], [(7, 2, 1)],
    ],
)
def test_polling(pair: Pair, subscriptions: list[tuple[int, ...]]) -> None:
    pair.same(lambda g: (g.poll(*subscriptions)[0], [event[:3] for event in g.poll(*subscriptions)[1]]))


NAMES = ["a", "b", "d", "d/a", "d/b", "d/d", "l", "d/l", "../a", "d/../a", "l/a", ""]
TARGETS = ["a", "d", "../a", "b", ".", "..", "d/l", "nope"]


def random_call(rng: random.Random, fds: list[tuple[int, int]]) -> tuple[str, Callable[[Guest, int], object]]:
    """A call with its arguments drawn; the second parameter of the call says which guest's descriptors to use."""
    name = rng.choice([
        "open", "open", "open", "close", "write", "read", "seek", "tell", "pread", "pwrite", "size", "mkdir", "rmdir",
        "unlink", "rename", "link", "symlink", "readlink", "stat", "readdir",
    ])
    path, other = rng.choice(NAMES), rng.choice(NAMES)
    slot = rng.randrange(len(fds)) if fds else -1
    number = rng.randrange(-3, 30)
    data = rng.randbytes(rng.randrange(0, 20))
    oflags, whence = rng.choice([0, 0, 1, 1, 9, 5, 2, 8]), rng.randrange(3)
    rights = ALL_RIGHTS if oflags & 9 or rng.random() < 0.5 else ALL_RIGHTS & ~Rights.FD_WRITE
    follow = bool(oflags & 2) or rng.random() < 0.5
    target = rng.choice(TARGETS)

    def fd(side: int) -> int:
        return fds[slot][side] if slot >= 0 else 77

    calls: dict[str, Callable[[Guest, int], object]] = {
        "open": lambda g, _: g.open(path, oflags=oflags, rights=rights, follow=follow),
        "close": lambda g, side: g.close(fd(side)),
        "write": lambda g, side: g.write(fd(side), data)[0],
        "read": lambda g, side: g.read(fd(side), len(data)),
        "seek": lambda g, side: g.seek(fd(side), number, whence),
        "tell": lambda g, side: g.tell(fd(side)),
        "pread": lambda g, side: g.pread(fd(side), len(data), abs(number)),
        "pwrite": lambda g, side: g.pwrite(fd(side), data, abs(number))[0],
        "size": lambda g, side: g.call("fd_filestat_set_size", fd(side), abs(number)),
        "mkdir": lambda g, _: g.mkdir(path),
        "rmdir": lambda g, _: g.rmdir(path),
        "unlink": lambda g, _: g.unlink(path),
        "rename": lambda g, _: g.rename(path, other),
        "link": lambda g, _: g.link(path, other),
        "symlink": lambda g, _: g.symlink(target, path),
        "readlink": lambda g, _: g.readlink(path),
        "stat": lambda g, _: g.stat(path, follow=follow)[0],
        "readdir": lambda g, _: sorted(entry[2:] for entry in g.readdir(3)[1]),
    }
    shown = f"{name} {path!r} {other!r} {target!r} slot {slot} {number} {data!r} {oflags} {rights:#x} {follow}"
    return shown, calls[name]


@pytest.mark.parametrize("seed", range(by_tier(check=3, test=10, soak=100)))
def test_random_calls(pair: Pair, seed: int) -> None:
    """1,000 calls a seed; each is compared, and the trees at the end."""
    rng = random.Random(seed)
    for root in pair.roots:
        for name in os.listdir(root):
            shutil.rmtree(root / name) if (root / name).is_dir() and not (root / name).is_symlink() else (
                root / name
            ).unlink()
    fds: list[tuple[int, int]] = []
    log: list[str] = []
    for _ in range(1000):
        shown, call = random_call(rng, fds)
        log.append(shown)
        ours, theirs = call(pair.ours, 0), call(pair.theirs, 1)
        if shown.startswith("open"):
            assert isinstance(ours, tuple)
            assert isinstance(theirs, tuple)
            if ours[0] == theirs[0] == 0:
                fds.append((ours[1], theirs[1]))
            ours, theirs = ours[0], theirs[0]
        elif shown.startswith("close") and ours == 0:
            fds.pop(int(shown.split(" slot ")[1].split()[0]))
        assert ours == theirs, log[-5:]
    trees = pair.trees()
    assert trees[0] == trees[1]
