"""A folder, and a bucket behind it: copies by name and time, the nearest level that has it, and a process that copies
beside a running program."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from wasmckpt.errors import CheckpointError, ImageError, RetryLater, StorageError, UsageError
from wasmckpt.formats import Image, MemoryState, keys, save
from wasmckpt.store import Retention, Series, Store, levels
from wasmckpt.store.copier import Copied, Copier
from wasmckpt.store.interface import ImageStore
from wasmckpt.store.levels import nearest, pull, push
from wasmckpt.store.objects import Objects
from wasmckpt.store.remote import RemoteStore

from ..cli.conftest import PATIENCE, wait_for
from ..support.misbehaving import Proxy, once
from ..unit.store.images import EMPTY, MODULE, Program, memory_of

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)


def _fill(store: Store, count: int = 5, seed: int = 0, after: int = 0) -> dict[int, bytes]:
    program, series = Program(seed), Series(store, "j1", MODULE, after=after)
    return dict(program.take(series) for _ in range(count))


def _names(store: ImageStore) -> list[tuple[str, int, float]]:
    return [(entry.job, entry.number, entry.taken) for entry in store.entries()]


# Copies


def test_there_and_back(store: Store, bucket: str, tmp_path: Path) -> None:
    """The newest with all that it rests on, then the others; each image goes once, numbers and times stay."""
    held = _fill(store)
    remote = RemoteStore(bucket, create=True)
    for entry in reversed(store.entries()):
        assert push(store, remote, entry) is not None
        assert push(store, remote, entry) is None
    assert _names(remote) == _names(store)
    assert len(Objects(bucket).listed("images")) == 5
    assert len(Objects(bucket).listed("modules")) == 1
    assert remote.verify() == []
    other = Store(tmp_path / "other", create=True)
    assert pull(remote, other, "j1") is not None
    assert pull(remote, other, "j1") is None
    assert pull(remote, other, "j1", 2) is not None
    assert _names(other) == [name for name in _names(store) if name[1] in (2, 5)]
    assert {number: memory_of(other, "j1", number) for number in (2, 5)} == {n: held[n] for n in (2, 5)}
    assert other.verify() == []
    with other.reading("j1") as (_, module):
        assert module is not None
    with pytest.raises(UsageError, match="no such checkpoint"):
        pull(remote, other, "j1", 9)


def test_shared_images_go_as_differences(
    store: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To the newest earlier one that is there, a chain of so many, then a whole one again; what comes back is right,
    also when those between have been let go of and collected."""
    monkeypatch.setattr(levels, "MOST_LINKS", 3)
    held = _fill(store, 8)
    remote = RemoteStore(bucket, create=True, grace=0)
    there = [push(store, remote, entry) for entry in store.entries()]
    assert [entry and entry.position for entry in there] == [0, 1, 2, 0, 1, 2, 0, 1]
    sizes = {entry.number: entry.size for entry in remote.entries()}
    assert max(sizes[n] for n in (2, 3, 5, 6, 8)) * 3 < min(sizes[n] for n in (1, 4, 7))
    assert {n: memory_of(remote, "j1", n) for n in held} == held
    assert remote.verify() == []
    for number in (1, 2, 4, 5, 7):
        remote.remove("j1", number)
    remote.gc()
    other = Store(tmp_path / "other", create=True)
    for number in (3, 6, 8):
        assert memory_of(remote, "j1", number) == held[number]
        assert pull(remote, other, "j1", number) is not None
        assert memory_of(other, "j1", number) == held[number]
    assert remote.verify() == other.verify() == []


def test_the_newest_first_and_those_between_later(store: Store, bucket: str) -> None:
    """As the process beside a program copies: each is a difference to the one before that is there."""
    held = _fill(store, 6)
    remote = RemoteStore(bucket, create=True)
    positions = {}
    for number in (2, 6, 4, 1, 5, 3):
        entry = push(store, remote, store.entry("j1", number))
        assert entry is not None
        positions[number] = entry.position
    assert positions == {2: 0, 6: 1, 4: 1, 1: 0, 5: 2, 3: 1}
    assert {n: memory_of(remote, "j1", n) for n in held} == held
    assert remote.verify() == []


def test_whole_where_a_difference_cannot_be_had(store: Store, bucket: str, tmp_path: Path) -> None:
    """The one that is there has gone from the folder, or somebody else has put it there; or most pages are others."""
    held = _fill(store, 3)
    remote = RemoteStore(bucket, create=True)
    push(store, remote, store.entry("j1", 1))
    store.remove("j1", 1)
    other = Store(tmp_path / "other", create=True)
    theirs = _fill(other, 1, seed=9)
    assert push(other, remote, other.entry("j1")) is not None
    entry = push(store, remote, store.entry("j1", 2))
    assert entry is not None
    assert entry.position == 0
    assert memory_of(remote, "j1", entry.number) == held[2]
    program = Program(5)
    program.memory[:1 << 17] = bytes(range(256)) * (1 << 9)
    taken, image = program.take(Series(store, "j1", MODULE, after=10))
    entry = push(store, remote, store.entry("j1", taken))
    assert entry is not None
    assert entry.position == 0, "nothing is left of the earlier ones"
    assert memory_of(remote, "j1", taken) == image
    assert [memory_of(remote, "j1", n) for n in (1, 2)] == [held[1], theirs[1]]


def test_pages_that_come_and_go(store: Store, bucket: str, tmp_path: Path) -> None:
    """Memory that grows, pages that are zero, and again as in the fresh module: that a difference cannot say."""
    first = _with(2, {0: b"a", 1: b"b", 2: b"c", 20: b"d"})
    second = _with(3, {0: b"a", 1: b"b", 2: b"c", 20: b"d", 40: b"e"}, zero=(3,))
    third = _with(3, {1: b"b", 2: b"c", 20: b"d", 40: b"e"}, zero=(0, 3))
    fourth = _with(3, {1: b"b", 2: b"c", 20: b"d", 40: b"e"}, zero=(3,))
    images = {store.add("j1", partial(save, image)).number: image for image in (first, second, third, fourth)}
    remote = RemoteStore(bucket, create=True)
    there = [push(store, remote, entry) for entry in store.entries()]
    assert [entry and entry.position for entry in there] == [0, 1, 2, 0]
    assert {n: remote.load("j1", n) for n in images} == images


def _with(size: int, pages: dict[int, bytes], zero: tuple[int, ...] = ()) -> Image:
    """An image whose memory has ``size`` pages of 64 KiB, and these of 4 KiB filled with a byte."""
    data: list[tuple[int, bytes]] = []
    for page, byte in sorted(pages.items()):
        if data and data[-1][0] + len(data[-1][1]) // 4096 == page:
            data[-1] = data[-1][0], data[-1][1] + byte * 4096
        else:
            data.append((page, byte * 4096))
    return replace(EMPTY, memories=(MemoryState(0, size, tuple(data), tuple((page, 1) for page in zero)),))


def test_a_compaction_on_one_level(store: Store, bucket: str) -> None:
    """It is the same checkpoint, with another image."""
    held = _fill(store)
    remote = RemoteStore(bucket, create=True)
    push(store, remote, store.entry("j1"))
    store.compact("j1")
    assert push(store, remote, store.entry("j1")) is None
    assert push(store, remote, store.entry("j1", 4)) is not None
    assert memory_of(remote, "j1", 5) == memory_of(store, "j1", 5) == held[5]


def test_somebody_else_has_the_number(store: Store, bucket: str, tmp_path: Path) -> None:
    """Two lives of one program: none is lost; on the way back the folder's own stays."""
    other = Store(tmp_path / "other", create=True)
    mine, theirs = _fill(store, 2), _fill(other, 2, seed=9)
    remote = RemoteStore(bucket, create=True)
    for here in (store, other):
        for entry in here.entries():
            assert push(here, remote, entry) is not None
    assert [entry.number for entry in remote.entries()] == [1, 2, 3, 4]
    assert [memory_of(remote, "j1", n) for n in (1, 2, 3, 4)] == [mine[1], mine[2], theirs[1], theirs[2]]
    with pytest.raises(UsageError, match="another checkpoint"):
        pull(remote, other, "j1", 2)
    assert memory_of(other, "j1", 2) == theirs[2]
    assert other.verify() == []


def test_files_that_are_taken_away_while_they_are_copied(
    store: Store, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copying holds up nobody who tidies up, and is not held up."""
    held = _fill(store)
    entry = store.entry("j1")
    upload = Objects.upload

    def and_tidy(self: Objects, key: str, file: object) -> None:
        if key.startswith("images/"):
            store.remove("j1")
            store.gc(timeout=1.0)
        upload(self, key, file)  # type: ignore[arg-type]

    monkeypatch.setattr(Objects, "upload", and_tidy)
    remote = RemoteStore(bucket, create=True)
    assert push(store, remote, entry) is not None
    assert memory_of(remote, "j1", 5) == held[5]
    assert list((store.path / "images").iterdir()) == []


def test_the_nearest_level_that_has_it(store: Store, bucket: str, spoiled: Proxy) -> None:
    held = _fill(store, 3)
    remote = RemoteStore(bucket, create=True)
    for entry in store.entries():
        push(store, remote, entry)
    later = Program(3)
    held.update([later.take(Series(remote, "j1", MODULE))])
    store.remove("j1", 1)
    levels: list[Callable[[], ImageStore]] = [lambda: store, lambda: remote]
    assert nearest(levels, "j1") is remote, "it has a newer one"
    assert nearest(levels, "j1", 3) is store
    assert nearest(levels, "j1", 1) is remote, "the folder has let go of it"
    remote.remove("j1", 4)
    assert nearest(levels, "j1") is store
    with pytest.raises(UsageError, match="no such"):
        nearest(levels, "j1", 9)
    spoiled.rule = once("", what="unavailable", times=1000)
    said: list[CheckpointError] = []
    slow: list[Callable[[], ImageStore]] = [lambda: store, lambda: RemoteStore(bucket, timeout=0.5)]
    assert nearest(slow, "j1", say=said.append) is store
    assert isinstance(said[0], RetryLater)
    assert nearest(slow, "j1", 2) is store
    with pytest.raises(RetryLater):
        nearest(slow, "j1", 1)

    def gone() -> Store:
        raise StorageError("for the test")

    with pytest.raises(StorageError, match="for the test"):
        nearest([gone, lambda: store], "other")


# The process that copies


def test_all_is_copied_in_the_end(store: Store, bucket: str) -> None:
    """What was there before, and what comes while it runs."""
    held = _fill(store, 2)
    copier = Copier(store, bucket, "j1", patience=PATIENCE)
    program, series = Program(4), Series(store, "j1", MODULE, on_commit=copier.wake)
    held.update(program.take(series) for _ in range(6))
    assert copier.finish() == Copied(copied=8)
    remote = RemoteStore(bucket)
    assert _names(remote) == _names(store)
    assert {number: memory_of(remote, "j1", number) for number in held} == held


def test_the_newest_first_and_what_is_dropped_is_counted(store: Store, bucket: str, spoiled: Proxy) -> None:
    """Storage that is slower than the checkpoints: the folder keeps two, the bucket gets some, and the last one."""
    def slow(method: str, path: str) -> str:
        time.sleep(0.1 if method == "PUT" else 0)
        return ""

    spoiled.rule = slow
    copier = Copier(store, bucket, "j1", patience=PATIENCE)
    program = Program(4)
    series = Series(store, "j1", MODULE, longest=2, rule=Retention(last=2), on_commit=copier.wake)
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until and not (program.take(series)[0] >= 20 and _copied(bucket)):
        pass
    last = store.entry("j1").number
    said = copier.finish()
    remote = RemoteStore(bucket)
    numbers = [entry.number for entry in remote.entries()]
    assert said.dropped > 0
    assert (said.missing, said.problem) == (0, "")
    assert said.copied + said.dropped == last
    assert len(numbers) == said.copied
    assert numbers[-1] == last
    assert memory_of(remote, "j1") == program.memory
    assert remote.verify() == []


def _copied(bucket: str) -> int:
    try:
        return len(RemoteStore(bucket).entries())
    except CheckpointError:
        return 0


def test_a_bucket_that_does_not_answer_in_the_end(store: Store, bucket: str, spoiled: Proxy) -> None:
    """The bound is kept, what is missing is said, and all of it is in the folder; later it is copied."""
    spoiled.rule = once("PUT", "images/", what="unavailable", times=1000)
    copier = Copier(store, bucket, "j1", patience=2.0)
    program, series = Program(4), Series(store, "j1", MODULE, on_commit=copier.wake)
    held = dict(program.take(series) for _ in range(3))
    since = time.monotonic()
    said = copier.finish()
    assert time.monotonic() - since < 60
    assert (said.copied, said.dropped, said.missing) == (0, 0, 3)
    assert {number: memory_of(store, "j1", number) for number in held} == held
    spoiled.rule = lambda method, path: ""
    assert Copier(store, bucket, "j1", patience=PATIENCE).finish() == Copied(copied=3)
    assert memory_of(RemoteStore(bucket), "j1") == held[3]


def test_a_bucket_that_answers_again(store: Store, bucket: str, spoiled: Proxy) -> None:
    """Failures are tried again, and cost nothing but time."""
    spoiled.rule = once("", what="unavailable", times=12)
    copier = Copier(store, bucket, "j1", patience=PATIENCE)
    program, series = Program(4), Series(store, "j1", MODULE, on_commit=copier.wake)
    held = dict(program.take(series) for _ in range(3))
    assert copier.finish() == Copied(copied=3)
    assert memory_of(RemoteStore(bucket), "j1") == held[3]


def test_a_copier_that_was_killed(store: Store, bucket: str) -> None:
    """It is said; the program goes on, and nothing of what is in the folder is lost."""
    copier = Copier(store, bucket, "j1", patience=PATIENCE)
    os.kill(copier._process.pid, signal.SIGKILL)
    copier._process.wait()
    program, series = Program(4), Series(store, "j1", MODULE, on_commit=copier.wake)
    held = dict(program.take(series) for _ in range(3))
    assert copier.finish().problem
    assert memory_of(store, "j1") == held[3]


def test_the_command_is_gone(store: Store, bucket: str) -> None:
    """A copier whose command was killed hears it, finishes what is there, and ends."""
    held = _fill(store, 3)
    copier = Copier(store, bucket, "j1", patience=PATIENCE)
    assert copier._process.stdin is not None
    copier._process.stdin.close()
    assert copier._process.wait(PATIENCE) == 0
    assert memory_of(RemoteStore(bucket), "j1") == held[3]
    assert copier.finish() == Copied(copied=3)


def test_without_credentials(store: Store, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    _fill(store, 2)
    copier = Copier(store, bucket, "j1", patience=1.5)
    wait_for(lambda: os.pread(copier._said, 1, 0), "its first try")
    said = copier.finish()
    assert said.missing == 2
    assert "AWS_ACCESS_KEY_ID" in said.problem


def test_sealed_chains_go_as_they_are(
    store: Store, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever copies has no key; images go once, and are as small as differences are."""
    keys.write_keys(tmp_path / "a.key", [keys.generate(keys.ENCRYPTION)])
    monkeypatch.setenv("WASMCKPT_CONFIG", os.devnull)
    monkeypatch.setenv("WASMCKPT_ENCRYPT_WITH", str(tmp_path / "a.key"))
    held = _fill(store)
    monkeypatch.delenv("WASMCKPT_ENCRYPT_WITH")
    remote = RemoteStore(bucket, create=True)
    for entry in store.entries():
        assert push(store, remote, entry) is not None
    assert remote.entries() == store.entries()
    assert len(Objects(bucket).listed("images")) == 5
    other = Store(tmp_path / "other", create=True)
    assert pull(remote, other, "j1") == store.entry("j1")
    with pytest.raises(ImageError, match="no key"):
        other.load("j1")
    monkeypatch.setenv("WASMCKPT_DECRYPT_WITH", str(tmp_path / "a.key"))
    assert memory_of(other, "j1") == memory_of(remote, "j1") == held[5]
    assert other.verify() == []
