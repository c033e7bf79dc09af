"""A store: what was put in comes out, chains are made whole beside the program, and nothing that is needed goes."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from wasmckpt.errors import ImageError, RetryLater, StorageError, UsageError
from wasmckpt.formats import ParentRef, load, load_chain, save
from wasmckpt.lazydata import replace
from wasmckpt.store import Retention, Series, Store
from wasmckpt.store.interface import ImageStore
from wasmckpt.store.levels import open_store
from wasmckpt.store.objects import Objects
from wasmckpt.store.remote import RemoteStore

from .images import MODULE, Program, memory_of


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.slow)])
def any_store(request: pytest.FixtureRequest) -> ImageStore:
    """A folder, or a bucket of a real server; the bucket's frees at once what nobody needs."""
    kind: str = request.param
    made: ImageStore = request.getfixturevalue("store") if kind == "folder" else RemoteStore(
        request.getfixturevalue("bucket"), create=True, grace=0
    )
    return made


def _fill(store: ImageStore, job: str = "j1", count: int = 5, longest: int = 32) -> dict[int, bytes]:
    """Memory by number."""
    program, series = Program(), Series(store, job, MODULE, longest=longest)
    return dict(program.take(series) for _ in range(count))


def _files(store: ImageStore) -> set[str]:
    if isinstance(store, RemoteStore):
        objects = Objects(store.path)
        return {found.key for part in ("images", "modules") for found in objects.listed(part)}
    assert isinstance(store, Store)
    parts = ("images", "packs", "modules", "incoming")
    return {path.name for part in parts for path in (store.path / part).iterdir()}


def test_each_checkpoint_comes_out_as_it_went_in(any_store: ImageStore) -> None:
    held = _fill(any_store)
    assert {number: memory_of(any_store, "j1", number) for number in held} == held
    assert memory_of(any_store, "j1") == held[5]
    entries = any_store.entries("j1")
    assert [entry.position for entry in entries] == [0, 1, 2, 3, 4]
    assert all(entry.size < entries[0].size // 2 for entry in entries[1:])
    assert any_store.verify() == []
    assert [entry.job for entry in any_store.entries()] == ["j1"] * 5
    assert any_store.newest("other") is None
    assert open_store(any_store.path).entries() == any_store.entries()


def test_a_restore_finds_all_it_needs_beside_the_image(store: Store) -> None:
    held = _fill(store)
    with store.reading("j1") as (image, module):
        assert load_chain(image).memories == store.load("j1").memories
        assert module is not None
        assert module.read_bytes() == MODULE
        with pytest.raises(RetryLater):
            Store(store.path).gc(timeout=0.05)
    assert memory_of(store, "j1") == held[5]


def test_memory_holds_secrets(store: Store) -> None:
    _fill(store)
    for folder, _, names in os.walk(store.path):
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
        for name in names:
            if not name.startswith("index"):
                assert stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode) == 0o600


def test_compaction_beside_a_running_program(any_store: ImageStore) -> None:
    """The newest becomes whole, and the next one is the difference to that, though the program knows nothing of it."""
    program, series = Program(), Series(any_store, "j1")
    held = dict(program.take(series) for _ in range(4))
    whole = any_store.compact("j1")
    assert (whole.number, whole.position, whole.parent) == (4, 0, None)
    held.update([program.take(series)])
    newest = any_store.newest("j1")
    assert newest is not None
    assert (newest.position, newest.parent) == (1, whole.sha256)
    assert any_store.compact("j1", 1) == any_store.entry("j1", 1)
    assert {number: memory_of(any_store, "j1", number) for number in held} == held
    any_store.prune("j1", Retention(last=2))
    assert any_store.gc().files == 4  # three, and the fourth as it was before
    assert {number: memory_of(any_store, "j1", number) for number in (4, 5)} == {n: held[n] for n in (4, 5)}
    assert any_store.verify() == []


def test_a_chain_is_made_whole_by_itself(any_store: ImageStore) -> None:
    held = _fill(any_store, count=12, longest=3)
    assert [entry.position for entry in any_store.entries()] == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2]
    assert {number: memory_of(any_store, "j1", number) for number in held} == held


def test_a_rule_for_a_series(any_store: ImageStore) -> None:
    program, series = Program(), Series(any_store, "j1", MODULE, longest=4, rule=Retention(last=2))
    for number in range(1, 20):
        assert program.take(series)[0] == number
        assert memory_of(any_store, "j1") == program.memory
        assert [entry.number for entry in any_store.entries()] == [n for n in (number - 1, number) if n]
        assert len(_files(any_store)) < 20


def test_what_others_rest_on_stays(any_store: ImageStore) -> None:
    held = _fill(any_store)
    packs = isinstance(any_store, Store)
    assert any_store.prune("j1", Retention(last=1)) == 4
    assert any_store.gc().files == 0
    assert memory_of(any_store, "j1") == held[5]
    any_store.compact("j1")
    assert any_store.gc().files == (10 if packs else 5)  # images, and their packs, which were made one
    assert memory_of(any_store, "j1") == held[5]
    assert any_store.remove("j1") == 1
    assert any_store.gc().files == (3 if packs else 2)  # the image, its pages, and the module
    assert _files(any_store) == set()


def test_an_image_that_could_not_be_written_is_made_up_for(any_store: ImageStore) -> None:
    program, series = Program(), Series(any_store, "j1")
    program.take(series)
    program.step()

    def fails(path: Path, **more: object) -> object:
        program.checkpoint(path, **more)  # type: ignore[arg-type]  # written, and then something else goes wrong
        raise StorageError("for the test")

    with pytest.raises(StorageError):
        series.take(fails)  # type: ignore[type-var]
    assert len(any_store.entries()) == 1
    assert len(_files(any_store)) == (2 if isinstance(any_store, Store) else 1)  # the image and its pages
    program.take(series)
    assert memory_of(any_store, "j1") == program.memory
    assert [entry.position for entry in any_store.entries()] == [0, 1]


def test_two_writers_of_one_name(store: Store) -> None:
    """Neither rests on what the other wrote; all comes out."""
    programs = [Program(n) for n in range(4)]
    held: dict[int, bytes] = {}
    problems: list[BaseException] = []

    def write(program: Program) -> None:
        try:
            series = Series(Store(store.path), "j1", longest=3)
            for _ in range(8):
                held.update([program.take(series)])
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(program,)) for program in programs]
    for thread in threads:
        thread.start()
    for _ in range(5):
        store.gc()
    for thread in threads:
        thread.join()
    assert problems == []
    assert sorted(held) == list(range(1, 33))
    assert {number: memory_of(store, "j1", number) for number in held} == held
    assert store.verify() == []


def test_out_and_in_again(any_store: ImageStore, tmp_path: Path) -> None:
    held = _fill(any_store)
    any_store.export("j1", tmp_path / "j1.wckpt", 4, carry_module=True)
    image = load(tmp_path / "j1.wckpt")
    assert image.parent is None
    assert image.module.content == MODULE
    other = Store(tmp_path / "other", create=True)
    entry = other.import_image("again", tmp_path / "j1.wckpt")
    assert (entry.number, entry.module) == (1, any_store.newest("j1").module)  # type: ignore[union-attr]
    assert memory_of(other, "again") == held[4]
    with other.reading("again") as (_, module):
        assert module is not None
    bare = Store(tmp_path / "bare", create=True)
    _fill(bare)
    for path in (bare.path / "modules").iterdir():
        path.unlink()
    with pytest.raises(UsageError, match="module"):
        bare.export("j1", tmp_path / "x", carry_module=True)
    bare.export("j1", tmp_path / "x")


def test_import_of_a_chain(any_store: ImageStore, tmp_path: Path) -> None:
    held = _fill(any_store)
    with any_store.reading("j1") as (image, _):
        Store(tmp_path / "other", create=True).import_image("j1", image)
    assert memory_of(Store(tmp_path / "other"), "j1") == held[5]


# What is refused


def test_names_that_are_not_there(any_store: ImageStore) -> None:
    _fill(any_store)
    for job, number in (("j2", None), ("j1", 99)):
        with pytest.raises(UsageError, match="checkpoint of that program"):
            any_store.load(job, number)
    for name in ("", "x" * 201, "a\nb"):
        with pytest.raises(UsageError, match="printable"):
            any_store.add(name, lambda path: b"")


def test_a_parent_that_is_not_in_the_store(any_store: ImageStore, tmp_path: Path) -> None:
    _fill(any_store)
    other = Store(tmp_path / "other", create=True)
    taken = Program().checkpoint(tmp_path / "first")
    content = replace(load(tmp_path / "first"), parent=ParentRef(taken.sha256, 1))
    with pytest.raises(ImageError, match="not in the store"):
        other.add("j1", lambda path: save(content, path))
    assert other.entries() == []


def _damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[:len(data) // 2])
    elif how == "zeros":
        path.write_bytes(data[:len(data) // 2] + bytes(len(data) - len(data) // 2))
    elif how == "flipped":
        path.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])


@pytest.mark.parametrize("how", ["missing", "cut", "zeros", "flipped"])
def test_a_torn_file_is_named_and_the_others_are_unharmed(store: Store, how: str) -> None:
    held = _fill(store)
    other = _fill(store, "j2", 2)
    third = store.entry("j1", 3)
    _damage(store.path / "images" / f"{third.sha256.hex()}.wckpt", how)
    assert [problem.sha256 for problem in store.verify()] == [store.entry("j1", n).sha256 for n in (3, 4, 5)]
    for number in (3, 4, 5):
        with pytest.raises((ImageError, StorageError)):
            store.load("j1", number)
        with pytest.raises((ImageError, StorageError)):
            store.compact("j1", number)
    assert [memory_of(store, "j1", n) for n in (1, 2)] == [held[1], held[2]]
    assert [memory_of(store, "j2", n) for n in (1, 2)] == list(other.values())


def test_an_image_in_the_place_of_another(store: Store) -> None:
    _fill(store)
    _fill(store, "j2", 1)
    paths = [store.path / "images" / f"{store.entry('j1', n).sha256.hex()}.wckpt" for n in (2, 3)]
    paths[0].write_bytes(paths[1].read_bytes())
    assert {problem.sha256 for problem in store.verify()} == {store.entry("j1", n).sha256 for n in (2, 3, 4, 5)}
    with pytest.raises(ImageError):
        store.load("j1", 2)


def test_a_damaged_module(store: Store) -> None:
    _fill(store)
    (module,) = (store.path / "modules").iterdir()
    module.write_bytes(b"nonsense")
    assert "module" in store.verify()[0].what


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no store"):
        Store(tmp_path)
    (tmp_path / "index.sqlite").write_bytes(b"not a database at all, but long enough to be looked at" * 100)
    with pytest.raises(StorageError):
        Store(tmp_path)
    (tmp_path / "index.sqlite").unlink()
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        db.execute("CREATE TABLE x (y)")
    db.close()
    with pytest.raises(StorageError, match="not the index"):
        Store(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError):
        Store(tmp_path / "file" / "store", create=True)


def test_a_store_of_a_newer_version_is_left_alone(store: Store) -> None:
    _fill(store)
    with sqlite3.connect(store.path / "index.sqlite") as db:
        db.execute("PRAGMA user_version = 3")
    db.close()
    files = _files(store)
    for use in (lambda: Store(store.path), lambda: Store(store.path, create=True), store.gc, store.verify,
                lambda: store.load("j1"), lambda: store.compact("j1"), lambda: Program().take(Series(store, "j1"))):
        with pytest.raises(StorageError, match="newer"):
            use()
    assert _files(store) == files


def test_a_folder_that_may_not_be_written(store: Store) -> None:
    """Reading goes on, writing is a clear error. (Root may write everywhere, so that another user tries.)"""
    held = _fill(store)
    if os.geteuid():
        pytest.skip("needs root, to be somebody else")
    child = os.fork()
    if not child:
        status = 1
        try:
            for folder, _, names in os.walk(store.path):
                os.chmod(folder, 0o755)
                for name in names:
                    os.chmod(os.path.join(folder, name), 0o644)
            for parent in store.path.parents:
                os.chmod(parent, os.stat(parent).st_mode | 0o11)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            reader = Store(store.path)
            assert memory_of(reader, "j1") == held[5]
            assert reader.verify() == []
            for use in (lambda: Program().take(Series(reader, "j1")), lambda: reader.compact("j1"), reader.gc):
                with pytest.raises(StorageError):
                    use()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
