"""A store in a bucket of a real server: many writers, failures of all kinds on the way, and none of them costs more
than what it hits."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from wasmckpt.errors import CheckpointError, ImageError, RetryLater, StorageError, UsageError
from wasmckpt.formats import keys
from wasmckpt.formats.files import seal_of
from wasmckpt.store import Retention, Series, Store, objects
from wasmckpt.store.objects import Objects
from wasmckpt.store.records import folder_of, new_token, pack_record, parse_record, record_key
from wasmckpt.store.remote import RemoteStore

from ..support import versitygw
from ..support.misbehaving import Proxy, once
from ..support.tiers import by_tier
from ..unit.store.images import MODULE, Program, memory_of

pytestmark = pytest.mark.slow

QUICK = 0.6
"""Seconds that a request may take, where a test waits for it to take too long."""


def _filled(url: str, job: str = "j1", count: int = 4, **how: Any) -> tuple[RemoteStore, dict[int, bytes]]:
    store = RemoteStore(url, create=True, **how)
    program, series = Program(), Series(store, job, MODULE)
    return store, dict(program.take(series) for _ in range(count))


def _folder(server: versitygw.Server, url: str) -> Path:
    """Where the server keeps the objects."""
    return server.bucket / url.rpartition("/")[2]


def _object(server: versitygw.Server, store: RemoteStore, number: int) -> Path:
    record = store.known("j1", number)
    return _folder(server, store.path) / record.images[0].key


# Commits and numbers


def test_nothing_shows_before_all_is_there(bucket: str, spoiled: Proxy) -> None:
    """Whatever write fails, of the module, the image or the record: no checkpoint, and the next one is as ever."""
    store = RemoteStore(bucket, create=True, timeout=3 * QUICK)  # some of its requests are to succeed
    for part in ("modules/", "images/", "checkpoints/"):
        program, series = Program(), Series(store, "j1", MODULE)
        spoiled.rule = once("PUT", part, what="unavailable", times=1000)
        with pytest.raises(RetryLater, match="status 503"):
            program.take(series)
        assert store.entries() == []
    spoiled.rule = lambda method, path: ""
    store = RemoteStore(bucket)
    program, series = Program(), Series(store, "j1", MODULE)
    held = dict(program.take(series) for _ in range(3))
    assert {number: memory_of(store, "j1", number) for number in held} == held
    assert store.verify() == []


@pytest.mark.parametrize("what", ["drop", "unavailable", "lost", "cut"])
@pytest.mark.parametrize("part", ["modules/", "images/", "checkpoints/"])
def test_a_connection_that_drops_once(bucket: str, spoiled: Proxy, what: str, part: str) -> None:
    """Before or after the server has done it: it is done, and not twice."""
    store = RemoteStore(bucket, create=True)
    spoiled.rule = once("PUT", part, what=what)
    program, series = Program(), Series(store, "j1", MODULE)
    held = dict(program.take(series) for _ in range(2))
    assert [seen for _, _, seen in spoiled.seen].count(what) == 1
    assert list(held) == [entry.number for entry in store.entries()] == [1, 2]
    assert {number: memory_of(store, "j1", number) for number in held} == held


@pytest.mark.parametrize("what", ["drop", "unavailable", "lost", "cut"])
@pytest.mark.parametrize("part", ["modules/", "images/", "checkpoints/j1/", "list-type", "store.json"])
def test_an_answer_that_drops_once(bucket: str, spoiled: Proxy, what: str, part: str) -> None:
    """What was being read is read on."""
    _, held = _filled(bucket)
    store = RemoteStore(bucket)
    spoiled.seen.clear()
    spoiled.rule = once("GET", part, what=what)
    if part == "store.json":
        store = RemoteStore(bucket)
    with store.reading("j1") as (_, module):
        assert module is not None
        assert module.read_bytes() == MODULE
    assert store.entries("j1")[-1].number == 4
    assert [seen for _, _, seen in spoiled.seen].count(what) == 1
    spoiled.rule = lambda method, path: ""
    assert memory_of(store, "j1") == held[4]


def test_a_large_image_over_bad_connections(bucket: str, spoiled: Proxy, tmp_path: Path) -> None:
    """20 MiB, in pieces; each second answer is cut in the middle, and each third request is dropped."""
    objects, content = Objects(bucket), os.urandom(20 << 20)
    (tmp_path / "a").write_bytes(content)
    count = [0]

    def rule(method: str, path: str) -> str:
        count[0] += 1
        return "drop" if count[0] % 3 == 0 else "cut" if count[0] % 2 == 0 and method == "GET" else ""

    spoiled.rule = rule
    with (tmp_path / "a").open("rb") as file:
        objects.upload("images/large", file)
    import hashlib

    objects.download("images/large", tmp_path / "b", len(content), hashlib.sha256(content).digest())
    assert (tmp_path / "b").read_bytes() == content
    assert {"drop", "cut"} <= {what for _, _, what in spoiled.seen}


def test_many_writers_of_one_name_and_gc(bucket: str) -> None:
    """Each gets numbers of its own, no checkpoint is lost, though somebody tidies up all the time."""
    RemoteStore(bucket, create=True)
    held: dict[int, bytes] = {}
    problems: list[BaseException] = []
    turns = by_tier(check=2, test=4, soak=20)

    def write(seed: int) -> None:
        try:
            store = RemoteStore(bucket)
            program, series = Program(seed), Series(store, "j1", MODULE, longest=2)
            for _ in range(turns):
                held.update([program.take(series)])
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    tidier = RemoteStore(bucket, grace=30.0)
    while any(thread.is_alive() for thread in threads):
        tidier.gc()
    for thread in threads:
        thread.join()
    assert problems == []
    store = RemoteStore(bucket)
    assert sorted(held) == [entry.number for entry in store.entries("j1")] == list(range(1, 4 * turns + 1))
    assert {number: memory_of(store, "j1", number) for number in held} == held
    assert store.verify() == []


def test_two_who_compact_the_same(bucket: str) -> None:
    """One does it, the other is told; the checkpoint is whole, and what it held."""
    one, held = _filled(bucket)
    two = RemoteStore(bucket)
    records = one.known("j1", 4), two.known("j1", 4)
    assert records[0] == records[1]
    adding = one.adding("j1")
    assert one.compact("j1").position == 0
    with pytest.raises(RetryLater, match="changed by somebody"):
        adding.exchange(records[1], records[1])
    assert two.compact("j1").position == 0, "done already"
    assert memory_of(two, "j1") == held[4]


# Taking away


def test_what_somebody_may_rely_on_stays(bucket: str, bucket_server: versitygw.Server) -> None:
    """A removed checkpoint's images, however old they are, and images whose record is yet to come, for a time; then
    they go."""
    store, held = _filled(bucket)
    writer, series = Program(5), Series(RemoteStore(bucket), "j2", MODULE)
    writer.take(series)
    old = store.adding("j3").image(b"\1" * 32, _file(b"an upload that was given up"), 0, "none")
    assert store.gc().files == 0
    _age(_folder(bucket_server, bucket))
    young = store.adding("j3").image(b"\2" * 32, _file(b"an upload that goes on"), 0, "none")
    last = store.known("j1", 4)
    store.remove("j1")
    assert store.gc().files == 1, "the upload that was given up"
    adding = store.adding("j1")
    adding.commit(last)  # as who has looked before it was removed
    assert memory_of(RemoteStore(bucket), "j1", 4) == held[4]
    store.remove("j1")
    _age(_folder(bucket_server, bucket) / "removed")
    assert store.gc().files == 5, "four images and the module"
    left = [found.key for found in Objects(bucket).listed("images")]
    assert old.key not in left
    assert young.key in left
    assert len(left) == 2
    assert memory_of(RemoteStore(bucket), "j2") == writer.memory
    assert Objects(bucket).listed("removed") == []


def _age(folder: Path) -> None:
    """Make all that is in a folder of the server two hours older than it is."""
    then = time.time() - 7200
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "store.json":
            os.utime(path, (then, then))


def _file(content: bytes) -> Any:
    import io

    return io.BytesIO(content)


def test_a_writer_that_takes_too_long_gives_up(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has relied on may be gone, so it does not commit."""
    store = RemoteStore(bucket, create=True, grace=10)
    adding = store.adding("j1")
    monotonic = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 6)
    image = adding.image(b"\1" * 32, _file(b"x"), 0, "none")
    with pytest.raises(RetryLater, match="too long"):
        adding.commit(_record(image))
    assert store.entries() == []


def _record(image: Any) -> Any:
    from wasmckpt.store import Entry
    from wasmckpt.store.records import Record

    entry = Entry("j1", 1, 1.0, image.sha256, image.size, 0, None, bytes(32), 0, "none")
    return Record(entry, (image,), None, new_token())


# What is wrong, slow, or not there


def _bounded(act: Callable[[], object], most: float = 60.0) -> CheckpointError:
    """The error that something ends with, in bounded time."""
    since = time.monotonic()
    with pytest.raises(CheckpointError) as caught:
        act()
    assert time.monotonic() - since < most
    return caught.value


def _impatient(url: str) -> RemoteStore:
    """For which a request has taken too long after `QUICK`; so may those with which it is opened, on a busy machine."""
    for _ in range(50):
        with contextlib.suppress(RetryLater):
            return RemoteStore(url, timeout=QUICK)
    raise AssertionError("it cannot be opened")


FAILING = [(what, part) for what in ("unavailable", "hang", "drop", "cut", "drip", "page", "endless")
           for part in ("images/", "checkpoints/j1/", "list-type", "store.json")]
FAILING.remove(("endless", "list-type"))  # the library collects one page of a list in memory: bounded by time alone


def test_a_list_without_an_end(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages and pages of names: an error before they take all memory."""
    store = RemoteStore(bucket, create=True)
    moment = datetime.now(UTC)
    page = [{"path": f"images/{n}", "size": 1, "last_modified": moment, "e_tag": "x"} for n in range(1000)]
    given = itertools.count()

    def pages(*_: object, **__: object) -> Iterator[list[dict[str, object]]]:
        while next(given) >= 0:
            yield page

    monkeypatch.setattr(store._objects._obs, "list", pages)
    monkeypatch.setattr(objects, "_MOST_LISTED", 20_000)
    assert "lists more objects" in str(_bounded(store.entries))
    assert next(given) == 21  # pages asked for


@pytest.mark.parametrize(("what", "part"), FAILING)
def test_a_server_that_goes_on_failing(bucket: str, spoiled: Proxy, what: str, part: str) -> None:
    """A clear error, in bounded time and memory; and when it is over all is there."""
    _, held = _filled(bucket)
    store = _impatient(bucket)
    spoiled.rule = once("GET", part, what=what, times=1000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    problem = _bounded({
        "images/": lambda: store.load("j1"), "checkpoints/j1/": lambda: store.load("j1", 4),
        "list-type": lambda: store.entries(), "store.json": lambda: RemoteStore(bucket, timeout=QUICK),
    }[part])
    assert isinstance(problem, (RetryLater, StorageError)), problem
    assert "object storage" in str(problem) or "store" in str(problem)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 128 << 10, "KiB"
    spoiled.rule = lambda method, path: ""
    assert memory_of(RemoteStore(bucket), "j1") == held[4]


@pytest.mark.parametrize("what", ["flip", "short"])
def test_an_answer_that_is_not_what_was_put_there(bucket: str, spoiled: Proxy, what: str) -> None:
    """An image that comes out changed or short is told from what was put there; no file of it is left."""
    store, held = _filled(bucket)
    third = store.known("j1", 3)
    spoiled.rule = once("GET", third.images[0].key, what=what, times=1000)
    for number in (3, 4):
        problem = _bounded(lambda: store.load("j1", number))  # noqa: B023
        assert isinstance(problem, StorageError)
        assert "was put there" in str(problem)
    assert memory_of(store, "j1", 2) == held[2]
    assert [problem.sha256 for problem in store.verify()] == [third.entry.sha256, store.entry("j1", 4).sha256]


@pytest.mark.parametrize("how", ["missing", "cut", "longer", "zeros", "flipped", "another"])
def test_objects_that_are_damaged(bucket: str, bucket_server: versitygw.Server, how: str) -> None:
    """In the server's own folder: named by `verify`, refused, and the others are unharmed."""
    store, held = _filled(bucket)
    other, others = _filled(bucket, "j2", 2)
    path = _object(bucket_server, store, 3)
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "another":
        shutil.copyfile(_object(bucket_server, store, 2), path)
    else:
        path.write_bytes({"cut": data[:-100], "longer": data + b"x", "zeros": bytes(len(data)),
                          "flipped": data[:100] + bytes([data[100] ^ 1]) + data[101:]}[how])
    assert [problem.sha256 for problem in store.verify()] == [store.entry("j1", n).sha256 for n in (3, 4)]
    for number in (3, 4):
        assert isinstance(_bounded(lambda: store.load("j1", number)), StorageError)  # noqa: B023
        assert isinstance(_bounded(lambda: store.compact("j1", number)), StorageError)  # noqa: B023
    assert [memory_of(store, "j1", n) for n in (1, 2)] == [held[1], held[2]]
    assert [memory_of(other, "j2", n) for n in (1, 2)] == list(others.values())


@pytest.mark.parametrize("content", [
    b"", b"{}", b"null", b"[" * 100_000, b"\xff\xfe", b'{"version": 1}', b'{"version": "1"}',
])
def test_a_record_that_is_nonsense(bucket: str, bucket_server: versitygw.Server, content: bytes) -> None:
    _, held = _filled(bucket)
    path = _folder(bucket_server, bucket) / record_key("j1", 2)
    path.write_bytes(content)
    store = RemoteStore(bucket)
    for act in (lambda: store.load("j1", 2), store.entries, store.gc):
        problem = _bounded(act)
        assert isinstance(problem, StorageError)
        assert record_key("j1", 2) in str(problem)
    assert memory_of(store, "j1", 4) == held[4]


def test_records_that_lie(bucket: str, bucket_server: versitygw.Server) -> None:
    """Of another number, another image, a chain that is none, objects elsewhere, a size of a terabyte."""
    store, _ = _filled(bucket)
    path = _folder(bucket_server, bucket) / record_key("j1", 4)
    good = json.loads(path.read_bytes())

    def with_(**change: Any) -> None:
        path.write_bytes(json.dumps({**good, **change}).encode())

    images = good["images"]
    changes: list[dict[str, Any]] = [
        {"number": 3}, {"job": "j2"}, {"number": 0}, {"number": True}, {"taken": "now"}, {"taken": float("nan")},
        {"images": []}, {"images": images[:1]}, {"images": [images[0], *images[2:]]},
        {"images": [images[0]] * 3}, {"images": [{**images[0], "key": "../../etc/passwd"}, *images[1:]]},
        {"images": [{**images[0], "key": "checkpoints/j1/000000000001.json"}, *images[1:]]},
        {"images": [{**images[0], "size": 1 << 40}, *images[1:]]}, {"images": [{**images[0], "size": -1}, *images[1:]]},
        {"images": [{**images[0], "sha256": images[1]["sha256"]}, *images[1:]]},
        {"images": [{**images[0], "object_sha256": "00" * 32}, *images[1:]]}, {"version": 2},
        {"module": {"sha256": "00" * 32, "key": good["module"]["key"], "size": good["module"]["size"]}},
    ]
    for change in changes:
        with_(**change)
        problem = _bounded(lambda: store.load("j1", 4))
        assert isinstance(problem, (StorageError, ImageError)), (change, problem)
    with_(version=2)
    assert "newer" in str(_bounded(lambda: store.load("j1", 4)))
    with_()
    store.load("j1", 4)


def test_a_store_of_a_newer_version_and_what_is_none(bucket: str, bucket_server: versitygw.Server) -> None:
    with pytest.raises(StorageError, match="there is no store"):
        RemoteStore(bucket)
    _filled(bucket, count=1)
    mark = _folder(bucket_server, bucket) / "store.json"
    for content, what in ((b'{"wasmckpt": "store", "version": 2}', "newer"), (b"{}", "not a store"),
                          (b"[]", "not a store"), (b'{"wasmckpt": "store", "version": "x"}', "not a store")):
        mark.write_bytes(content)
        for create in (False, True):
            with pytest.raises(StorageError, match=what):
                RemoteStore(bucket, create=create)


def test_who_may_not(bucket: str, bucket_server: versitygw.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong or no credentials, no bucket, no server, no URL: each by its name, and no secret in any of it."""
    _filled(bucket, count=1)
    said = []
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-mine")
    said.append(_bounded(lambda: RemoteStore(bucket)))
    assert "refuses" in str(said[-1])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody-known")
    said.append(_bounded(lambda: RemoteStore(bucket)))
    assert isinstance(said[-1], StorageError)
    for name, value in bucket_server.environment().items():
        monkeypatch.setenv(name, value)
    said.append(_bounded(lambda: RemoteStore("s3://absent-bucket/x", create=True)))
    assert isinstance(said[-1], StorageError)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    said.append(_bounded(lambda: RemoteStore(bucket, timeout=QUICK)))
    assert isinstance(said[-1], RetryLater)
    assert "cannot be reached" in str(said[-1])
    for url in ("s3:/x", "s3://", "s3://UPPER/x", "s3://b/../x", "s3://b//x", "s3://b/x?y", "http://b/x"):
        said.append(_bounded(lambda: RemoteStore(url)))  # noqa: B023
        assert isinstance(said[-1], UsageError)
    monkeypatch.setenv("WASMCKPT_S3_TIMEOUT", "soon")
    said.append(_bounded(lambda: RemoteStore(bucket)))
    monkeypatch.delenv("WASMCKPT_S3_TIMEOUT")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    said.append(_bounded(lambda: RemoteStore(bucket)))
    assert "AWS_ACCESS_KEY_ID" in said[-1].hint
    everything = " ".join(f"{problem} {problem!r} {problem.fields} {problem.__cause__}" for problem in said)
    assert "another-secret-of-mine" not in everything
    assert versitygw.SECRET not in everything


# Names, and seals


@pytest.mark.parametrize("job", ["a b/c", "..", ".", "%41", "Ünïcödé " * 20, "x" * 200, "a=b", "~", "日本" * 100])
def test_names_of_programs(bucket: str, job: str) -> None:
    """Whatever a program is called, it is one folder, of its own."""
    store, held = _filled(bucket, job, 2)
    assert [entry.job for entry in store.entries()] == [job, job]
    assert memory_of(store, job) == held[2]
    assert store.entries(job + "x" if len(job) < 200 else "x") == []


def test_folders_are_apart() -> None:
    names = ["a", "A", "a.b", "a=2eb", "a/b", "a b", "=", "=3d", "x" * 200, "é" * 199, "é" * 200]
    assert len({folder_of(name) for name in names}) == len(names)


def test_records_come_out_as_they_went_in() -> None:
    from wasmckpt.store.records import ImageObject

    key = "images/" + "0" * 64 + "." + "1" * 16
    record = _record(ImageObject(b"\1" * 32, key, 5, b"\2" * 32, 7, "wasm3"))
    assert parse_record(pack_record(record), "x").images == record.images


def test_sealed_images(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains, compaction and checks as without; the server never has anything in the clear."""
    for name, kind in (("a.key", keys.ENCRYPTION), ("a.sign", keys.SIGNING)):
        key = keys.generate(kind)
        keys.write_keys(tmp_path / name, [key])
    monkeypatch.setenv("WASMCKPT_CONFIG", os.devnull)
    monkeypatch.setenv("WASMCKPT_ENCRYPT_WITH", str(tmp_path / "a.key"))
    monkeypatch.setenv("WASMCKPT_SIGN_WITH", str(tmp_path / "a.sign"))
    monkeypatch.setenv("WASMCKPT_REQUIRE_SIGNED_BY", keys.public_of(key).text)
    store = RemoteStore(bucket, create=True, grace=0)
    program, series = Program(), Series(store, "j1", MODULE, longest=3)
    held = dict(program.take(series) for _ in range(6))
    assert {number: memory_of(store, "j1", number) for number in held} == held
    assert store.verify() == []
    with store.reading("j1") as (path, _):
        assert seal_of(path).keys
        for image in path.parent.glob("*.wckpt"):
            assert image.read_bytes().startswith(b"\x89WCKSL")
    store.prune("j1", Retention(last=1))
    assert store.gc().files > 0
    assert memory_of(store, "j1") == held[6]
    monkeypatch.delenv("WASMCKPT_ENCRYPT_WITH")
    assert "no key" in str(_bounded(lambda: store.load("j1")))
    assert "no key" in store.verify()[0].what


def test_local_and_remote_are_told_apart(bucket: str, tmp_path: Path) -> None:
    from wasmckpt.store.levels import open_store

    assert isinstance(open_store(tmp_path / "s", create=True), Store)
    assert isinstance(open_store(bucket, create=True), RemoteStore)


def test_a_record_is_read_once(bucket: str, spoiled: Proxy) -> None:
    """With a hundred checkpoints the next one does not read a hundred records; a changed one is read anew."""
    store, _ = _filled(bucket)
    other = RemoteStore(bucket)
    other.entries()
    spoiled.seen.clear()
    other.entries()
    assert not [path for _, path, _ in spoiled.seen if "checkpoints/j1/" in path and "list-type" not in path]
    store.compact("j1")
    assert other.entry("j1") == store.entry("j1")
    assert other.entries() == store.entries()
    assert other.entries()[-1].position == 0
