"""Nothing outside the granted folder can be reached: by dots, symlinks, renames, or races of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wasmckpt.host import Errno
from wasmckpt.host.abi import ALL_RIGHTS, OFLAG_CREAT, OFLAG_DIRECTORY

from ...support.tiers import by_tier
from .guests import OurGuest

SECRET = b"outside"
RACE_TRIES = by_tier(check=500, test=10_000, soak=100_000)


@pytest.fixture
def outside(folder: Path) -> Path:
    """A folder beside the granted one, with a secret in it."""
    path = folder.parent / "outside"
    path.mkdir()
    (path / "secret").write_bytes(SECRET)
    return path


@pytest.mark.parametrize(
    "path",
    [
        "../outside/secret", "d/../../outside/secret", "d/../d/../../outside/secret", "./../outside/secret",
        "up/outside/secret", "d/up2/outside/secret", "absolute/secret", "chain/secret", "file_up",
        "d/../up/outside/secret", "up", "..", "d/../..", "up/", "up/.", "absolute", "absolute/",
    ],
)
def test_paths_that_climb_out(guest: OurGuest, folder: Path, outside: Path, path: str) -> None:
    (folder / "d").mkdir()
    (folder / "up").symlink_to("..")
    (folder / "d" / "up2").symlink_to("../..")
    (folder / "absolute").symlink_to(outside)
    (folder / "chain").symlink_to("chain2")
    (folder / "chain2").symlink_to("d/../up/outside")
    (folder / "file_up").symlink_to("../outside/secret")
    before = sorted(os.listdir(outside))
    if path == "file_up" or path in ("up", "absolute"):
        # Not followed, the symlink itself is inside.
        assert guest.stat(path, follow=False)[0] == 0
        assert guest.open(path, follow=False)[0] == Errno.LOOP
    else:
        assert guest.stat(path, follow=False)[0] == Errno.PERM
    assert guest.open(path)[0] == guest.stat(path)[0] == Errno.PERM
    assert guest.open(path, oflags=OFLAG_CREAT, rights=ALL_RIGHTS)[0] in (Errno.PERM, Errno.NOTDIR)
    assert guest.open(path, oflags=OFLAG_DIRECTORY)[0] == Errno.PERM
    assert guest.mkdir(path + "/new") == guest.symlink("x", path + "/new") == Errno.PERM
    assert guest.rename("d", path + "/new") == guest.link("file_up", path + "/new") == Errno.PERM
    assert guest.unlink(path + "/secret") == guest.rmdir(path + "/x") == Errno.PERM
    assert sorted(os.listdir(outside)) == before
    assert sorted(os.listdir(folder.parent)) == ["granted", "outside"]


def test_symlinks_that_stay_inside_are_followed(guest: OurGuest, folder: Path) -> None:
    """The twin: dots and symlinks are not refused as such."""
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "f").write_bytes(b"found")
    (folder / "a" / "b" / "l").symlink_to("../../f")
    (folder / "dl").symlink_to("a/b/")
    (folder / "dl2").symlink_to("./a/../dl")
    for path in ("f", "./f", "a/../f", "a/b/../../f", "a/b/l", "dl/l", "dl2/l", "dl2/../../f", "a//b///l"):
        errno, fd = guest.open(path)
        assert (path, errno) == (path, 0)
        assert guest.read(fd, 9) == (0, b"found")
        guest.close(fd)


def test_a_directory_is_a_root_of_its_own(guest: OurGuest, folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "f").touch()
    (folder / "d" / "l").symlink_to("../f")
    _, fd = guest.open("d", oflags=OFLAG_DIRECTORY)
    assert guest.open("../f", fd=fd)[0] == guest.open("l", fd=fd)[0] == Errno.PERM
    assert guest.open("d/l")[0] == 0


def test_a_dangling_symlink_creates_its_target_inside_only(guest: OurGuest, folder: Path, outside: Path) -> None:
    (folder / "in").symlink_to("made")
    (folder / "out").symlink_to("../outside/made")
    assert guest.open("in", oflags=OFLAG_CREAT, rights=ALL_RIGHTS)[0] == 0
    assert (folder / "made").exists()
    assert guest.open("out", oflags=OFLAG_CREAT, rights=ALL_RIGHTS)[0] == Errno.PERM
    assert not (outside / "made").exists()


@pytest.mark.parametrize("length", [39, 40, 41, 200])
def test_chains_of_symlinks_have_an_end(guest: OurGuest, folder: Path, length: int) -> None:
    (folder / "l0").write_bytes(b"end")
    for number in range(1, length + 1):
        (folder / f"l{number}").symlink_to(f"l{number - 1}")
    assert guest.open(f"l{length}")[0] == (0 if length <= 40 else Errno.LOOP)


def test_loops_of_symlinks(guest: OurGuest, folder: Path) -> None:
    (folder / "self").symlink_to("self")
    (folder / "a").symlink_to("b/x")
    (folder / "b").symlink_to("a/y")
    (folder / "grow").symlink_to("grow/grow")
    for path in ("self", "a", "a/z", "grow", "grow/x"):
        assert guest.open(path)[0] == Errno.LOOP


def test_links_of_proc_lead_nowhere(make: Callable[..., OurGuest]) -> None:
    """``/proc`` has symlinks that the system follows without a path."""
    guest = make(preopens=[("/proc", "/p")])
    for path in ("self/root/etc/passwd", "self/cwd", "self/fd/0", "thread-self/root"):
        assert guest.open(path)[0] in (Errno.PERM, Errno.NOENT, Errno.LOOP)


def test_deep_paths_need_few_host_descriptors(guest: OurGuest, folder: Path, no_leak: Callable[[], int]) -> None:
    path = "/".join(["d"] * 200)
    fd = os.open(folder, os.O_RDONLY)
    for _ in range(200):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    before = no_leak()
    assert guest.stat(path)[0] == 0
    assert guest.stat("d/../" * 200 + "d")[0] == 0
    assert no_leak() == before


def until_lost(seen: Collection[int]) -> Iterator[None]:
    """So many tries, and more until it was won and lost at least once each; ends in any case."""
    begin = time.monotonic()
    tries = 0
    while tries < RACE_TRIES or ((0 not in seen or len(seen) < 2) and time.monotonic() < begin + 60):
        tries += 1
        yield


@contextmanager
def racing(swap: Callable[[], None]) -> Iterator[None]:
    """Calls ``swap`` over and over in another thread."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.is_set():
                swap()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failed


def test_a_directory_swapped_for_a_symlink_while_it_is_resolved(guest: OurGuest, folder: Path, outside: Path) -> None:
    """One thread exchanges ``d`` and a symlink that leads out: the secret is never read, no file is ever made there."""
    (folder / "d").mkdir()
    (folder / "d" / "secret").write_bytes(b"inside")
    (folder / "evil").symlink_to("../outside")

    def swap() -> None:
        os.rename(folder / "d", folder / "kept")
        os.rename(folder / "evil", folder / "d")
        os.rename(folder / "d", folder / "evil")
        os.rename(folder / "kept", folder / "d")

    seen: dict[int, int] = {}
    with racing(swap):
        for _ in until_lost(seen):
            errno, fd = guest.open("d/secret")
            seen[errno] = seen.get(errno, 0) + 1
            if errno == 0:
                assert guest.read(fd, 99) == (0, b"inside")
                guest.close(fd)
            errno, fd = guest.open("d/made", oflags=OFLAG_CREAT, rights=ALL_RIGHTS)
            if errno == 0:
                guest.close(fd)
            guest.mkdir("d/dir")
            guest.symlink("x", "d/link")
            guest.rename("d/made", "d/moved")
            guest.unlink("d/moved")
            guest.rmdir("d/dir")
            guest.unlink("d/link")
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_bytes() == SECRET
    assert set(seen) <= {0, Errno.PERM, Errno.NOENT, Errno.NOTDIR}
    assert seen[0] > 0
    assert len(seen) > 1, "the race was never lost: nothing was tested"


def test_the_last_component_swapped_for_a_symlink(guest: OurGuest, folder: Path, outside: Path) -> None:
    (folder / "f").write_bytes(b"inside")
    (folder / "evil").symlink_to("../outside/secret")

    def swap() -> None:
        os.rename(folder / "f", folder / "kept")
        os.rename(folder / "evil", folder / "f")
        os.rename(folder / "f", folder / "evil")
        os.rename(folder / "kept", folder / "f")

    seen: set[int] = set()
    with racing(swap):
        for _ in until_lost(seen):
            for follow in (True, False):
                errno, fd = guest.open("f", follow=follow, rights=ALL_RIGHTS)
                seen.add(errno)
                if errno == 0:
                    assert guest.read(fd, 99) == (0, b"inside")
                    guest.close(fd)
            guest.set_times("f", 1, 1, 5, follow=True)
            info = guest.stat("f", follow=True)
            assert info[0] or info[1][1] != (outside / "secret").stat().st_ino
    assert (outside / "secret").stat().st_mtime_ns != 1
    assert seen <= {0, Errno.PERM, Errno.NOENT, Errno.LOOP}
    assert len(seen) > 1


def test_a_directory_moved_out_while_one_stands_in_it(guest: OurGuest, folder: Path, outside: Path) -> None:
    """Dots are resolved from the root again: a directory that was moved out does not lead its ``..`` outside."""
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "secret").write_bytes(b"inside")

    def swap() -> None:
        os.rename(folder / "a" / "b", outside / "b")
        os.rename(outside / "b", folder / "a" / "b")

    seen: set[int] = set()
    with racing(swap):
        for _ in until_lost(seen):
            errno, fd = guest.open("a/b/../secret")
            seen.add(errno)
            if errno == 0:
                assert guest.read(fd, 99) == (0, b"inside")
                guest.close(fd)
    assert seen == {0, Errno.NOENT}
