"""An image file is the old one or the new one, whatever fails and whenever the process is killed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wasmckpt.errors import ImageError, StorageError
from wasmckpt.formats import Image, MemoryState, encode, files, load, load_header, save

from .vectors import IMAGES

OLD = IMAGES["frames"]
NEW = replace(IMAGES["host"], memories=(MemoryState(0, 64, ((0, os.urandom(3 << 20)),)),))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save(OLD, tmp_path / "i.wck")
    return tmp_path / "i.wck"


def is_whole(path: Path) -> bool:
    """Whether the old file is there untouched, and nothing else."""
    return path.read_bytes() == encode(OLD) and os.listdir(path.parent) == [path.name]


def test_save_and_load(path: Path) -> None:
    """A second save replaces the first; nothing else is left in the folder, and nobody else can read it."""
    old_mask = os.umask(0)
    try:
        digest = save(NEW, path)
    finally:
        os.umask(old_mask)
    assert load(path) == NEW
    assert load(str(path)) == NEW
    assert load_header(path).image.host == NEW.host
    assert digest == hashlib.sha256(path.read_bytes()).digest()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == [path.name]


def test_a_name_of_the_greatest_length(tmp_path: Path) -> None:
    """The temporary file's name is not longer than the final one may be."""
    save(OLD, tmp_path / ("n" * 255))
    assert load(tmp_path / ("n" * 255)) == OLD


def fail(number: int) -> Callable[..., None]:
    def failing(*_args: object) -> None:
        raise OSError(number, os.strerror(number))
    return failing


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_step_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int) -> None:
    """The error is ours, names the path, and the old file is whole with no partial one beside it."""
    monkeypatch.setattr(os, step, fail(number))
    with pytest.raises(StorageError, match=os.strerror(number)) as caught:
        save(NEW, path)
    monkeypatch.undo()
    assert caught.value.fields["path"] == str(path)
    assert is_whole(path)


def test_a_write_that_fails_halfway(path: Path) -> None:
    """A real failure of the kernel in the middle of the file (its limit of size), not a simulated one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(StorageError, match="too large"):
            save(NEW, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_whole(path)


def test_a_full_disk(path: Path) -> None:
    """ENOSPC from a file system that is full."""
    folder = path.parent / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small tmpfs needs root; the other tests of failing writes run")
    try:
        save(OLD, folder / "i.wck")
        with pytest.raises(StorageError, match=os.strerror(errno.ENOSPC)):
            save(NEW, folder / "i.wck")
        assert is_whole(folder / "i.wck")
    finally:
        subprocess.run(["umount", folder], check=True)


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Root may write anywhere: be somebody else for a while."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_folder_that_is_not_ours(path: Path) -> None:
    """No permission is a storage error, for writing and for reading."""
    path.chmod(0)
    path.parent.chmod(0o500)
    with unprivileged(), pytest.raises(StorageError, match=os.strerror(errno.EACCES)):
        save(NEW, path)
    with unprivileged(), pytest.raises(StorageError, match=os.strerror(errno.EACCES)):
        load(path)
    path.parent.chmod(0o700)
    path.chmod(0o600)
    assert is_whole(path)


@pytest.mark.parametrize("name", ["no/such/folder.wck", "i.wck/below", "a\0b", "n" * 256])
def test_no_such_place(path: Path, name: str) -> None:
    """A path that cannot be a file is a storage error, not a traceback."""
    for use in (lambda p: save(NEW, p), load, load_header):
        with pytest.raises(StorageError):
            use(f"{path.parent}/{name}")
    assert is_whole(path)


def test_only_files_are_replaced(tmp_path: Path) -> None:
    """A folder, or a pipe (``/dev/null`` for root), is not replaced by a file."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(StorageError, match="not a file"):
            save(NEW, tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]
    with pytest.raises(StorageError):
        load(tmp_path / "folder")


def test_an_image_that_cannot_be_written(path: Path) -> None:
    """An image against the rules leaves no file behind either."""
    with pytest.raises(ImageError):
        save(replace(NEW, dropped_data=(2, 1)), path)
    assert is_whole(path)


def test_an_interrupt(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle leaves the old file and no partial one."""
    def interrupt(*_args: object) -> None:
        raise KeyboardInterrupt
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(NEW, path)
    assert is_whole(path)


def test_a_damaged_file_is_named(path: Path) -> None:
    """The error says which file."""
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ImageError) as caught:
        load(path)
    assert caught.value.fields["path"] == str(path)


class Killer:
    """Kills its own process before the n-th step of a save: opening, each write, both fsyncs, the rename."""

    def __init__(self, step: int) -> None:
        self.left = step

    def step(self) -> None:
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def before(self, function: Callable[..., object]) -> Callable[..., object]:
        def stepped(*args: object) -> object:
            self.step()
            return function(*args)
        return stepped

    def write_image(self, image: Image, file: object) -> bytes:
        """Write in many steps, each of which reaches the disk."""
        for at in range(0, len(data := encode(image)), 1 << 20):
            self.step()
            file.write(data[at:at + (1 << 20)])  # type: ignore[attr-defined]
            file.flush()  # type: ignore[attr-defined]
        return b""


def save_and_die(path: Path, step: int) -> bool:
    """Save in a child that is killed before that step; whether it was."""
    child = os.fork()
    if child == 0:
        try:
            killer = Killer(step)
            for name in ("open", "fsync", "replace"):
                setattr(os, name, killer.before(getattr(os, name)))
            files.write_image = killer.write_image  # type: ignore[attr-defined,assignment]
            save(NEW, path)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert status == 0
    return False


def test_a_kill_at_any_step(path: Path) -> None:
    """Before the rename the old file is whole, after it the new one; a partial one never has the final name."""
    outcomes: list[bool] = []
    while save_and_die(path, len(outcomes)):
        image = load(path)
        assert image in (OLD, NEW)
        outcomes.append(image == NEW)
        save(OLD, path)
    assert load(path) == NEW
    assert len(outcomes) == 9  # open, 4 writes, fsync, replace, open of the folder, its fsync
    assert outcomes == [False] * 7 + [True] * 2
