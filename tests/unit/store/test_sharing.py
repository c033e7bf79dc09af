"""Pages that a store keeps once: in a chain, across programs, at other places; and what is shared is what it says."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from wasmckpt.errors import ImageError, StorageError
from wasmckpt.formats import Image, MemoryState, ParentRef, difference, load, save
from wasmckpt.store import Retention, Series, Store, as_file, load_image
from wasmckpt.store.index import Index
from wasmckpt.store.packs import PackReader

from .images import EMPTY, MODULE, Program, memory_of

PAGE = 4096


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store", create=True)


def put(store: Store, job: str, memory: bytes) -> int:
    """A whole image of a program with this memory; gives the bytes that it brought to the store."""
    image = replace(EMPTY, memories=(difference(0, memory, bytes(len(memory))),))
    return store.add(job, lambda path: save(image, path)).size


def pages_kept(store: Store) -> int:
    """Pages in all packs."""
    total = 0
    for path in (store.path / "packs").iterdir():
        reader = PackReader(path, bytes.fromhex(path.stem))
        total += reader.pages
        reader.close()
    return total


def held(store: Store, job: str, size: int) -> bytes:
    memory = store.load(job).memories[0]
    whole = bytearray(size)
    for first, raw in memory.data:
        whole[first * PAGE:first * PAGE + len(raw)] = raw
    return bytes(whole)


@pytest.mark.slow
def test_a_fleet_of_one_module_takes_one_and_the_differences(store: Store) -> None:
    draw = random.Random(1)
    size = 32 << 16
    common = bytearray(draw.randbytes(size))
    first = put(store, "j0", bytes(common))
    memories = {"j0": bytes(common)}
    for n in range(1, 20):
        mine = bytearray(common)
        for page in draw.sample(range(size // PAGE), 5):
            mine[page * PAGE:(page + 1) * PAGE] = draw.randbytes(PAGE)
        memories[f"j{n}"] = bytes(mine)
        assert put(store, f"j{n}", bytes(mine)) < 5 * PAGE + 1500
    assert first > size
    assert pages_kept(store) == size // PAGE + 19 * 5
    assert {job: held(store, job, size) for job in memories} == memories
    assert store.verify() == []


def test_pages_at_other_places_and_twice_in_one_image(store: Store) -> None:
    draw = random.Random(2)
    a, b, c = (draw.randbytes(PAGE) for _ in range(3))
    one = a + b + a + bytes(PAGE) + a + b + c + bytes(9 * PAGE)
    put(store, "one", one)
    assert pages_kept(store) == 3
    other = bytes(5 * PAGE) + c + b + a + a + bytes(7 * PAGE)
    assert put(store, "other", other) < 1000
    assert pages_kept(store) == 3
    assert held(store, "one", len(one)) == one
    assert held(store, "other", len(other)) == other


def test_what_was_there_earlier_in_a_chain(store: Store) -> None:
    """Between two states for ever: from the second turn on no page is new."""
    program, series = Program(), Series(store, "j", MODULE)
    first = bytearray(program.memory)
    second = bytearray(program.memory)
    second[8 * PAGE:40 * PAGE] = random.Random(3).randbytes(32 * PAGE)
    sizes = []
    for turn in range(8):
        program.memory = (first, second)[turn % 2]
        entry, _ = series.take(program.checkpoint)
        sizes.append(entry.size)
        assert memory_of(store, "j") == bytes(program.memory)
    assert sizes[1] > 32 * PAGE
    assert all(size < 1500 for size in sizes[2:])
    assert store.verify() == []


def test_the_three_states_stay_apart_in_a_chain(store: Store) -> None:
    """As in the parent, zero now, newly grown; and a page that is what another one was."""
    draw = random.Random(4)
    a, b = draw.randbytes(PAGE), draw.randbytes(PAGE)
    start = replace(EMPTY, memories=(MemoryState(0, 1, ((0, a + b), (5, a)), ()),))
    first = store.add("j", lambda path: save(start, path))
    grown = replace(EMPTY, parent=ParentRef(first.sha256, 1),
                    memories=(MemoryState(0, 2, ((1, a), (20, b)), ((5, 1),)),))
    store.add("j", lambda path: save(grown, path))
    kept = store._stored(store.entry("j").sha256)
    assert kept.image.memories == (MemoryState(0, 2, (), ((5, 1),)),)
    assert [(page, count) for _, page, _, _, count in kept.places] == [(1, 1), (20, 1)]
    assert pages_kept(store) == 2
    for _ in range(2):
        image = store.load("j")
        assert image.memories == (MemoryState(0, 2, ((0, a + a), (20, b)), ((5, 1),)),)
        store.compact("j")


def _several(first: tuple[tuple[int, bytes], ...], second: tuple[tuple[int, bytes], ...]) -> Image:
    return replace(EMPTY, memories=(MemoryState(0, 1, first), MemoryState(3, 2, second, ((7, 2),))))


def test_several_memories(store: Store) -> None:
    a, b = (random.Random(n).randbytes(PAGE) for n in range(2))
    image = _several(((0, a), (3, b)), ((1, b + a), (20, a)))
    store.add("j", lambda path: save(image, path))
    assert pages_kept(store) == 2
    assert store.load("j").memories == image.memories


def test_compaction_writes_no_page_again(store: Store) -> None:
    program, series = Program(), Series(store, "j", MODULE)
    big = random.Random(5).randbytes(1100 * PAGE)
    image = replace(EMPTY, memories=(difference(0, big + bytes(52 * PAGE), bytes(1152 * PAGE)),))
    put(store, "big", big + bytes(52 * PAGE))
    for _ in range(3):
        program.take(series)
    before = pages_kept(store)
    assert store.compact("j").size < 1500
    assert pages_kept(store) == before
    assert store.compact("big") == store.entry("big")
    assert store.load("big").memories == image.memories


def test_an_image_keeps_no_more_than_twice_its_size_alive(store: Store) -> None:
    """Of a big pack little is needed in the end: compaction copies that, and the pack goes."""
    draw = random.Random(6)
    base = draw.randbytes(512 * PAGE)
    put(store, "base", base)
    mine = draw.randbytes(500 * PAGE) + base[:12 * PAGE]
    put(store, "mine", mine)
    store.remove("base")
    assert store.gc().size < 1500  # the pages are needed yet
    assert pages_kept(store) == 512 + 500
    compacted = store.compact("mine")
    store.gc()
    assert pages_kept(store) == 512
    assert held(store, "mine", len(mine)) == mine
    assert store.compact("mine") == compacted
    assert store.verify() == []


@pytest.mark.slow
def test_long_lives_leave_few_files(store: Store) -> None:
    program, series = Program(3), Series(store, "j", MODULE, longest=5, rule=Retention(last=2))
    for _ in range(60):
        program.take(series)
        assert memory_of(store, "j") == bytes(program.memory)
    assert len(list((store.path / "packs").iterdir())) < 16
    assert pages_kept(store) < 4 * 64


def _index(store: Store, change: str, *given: object) -> None:
    with sqlite3.connect(store.path / "index.sqlite") as db:
        db.execute(change, given)
    db.close()


@pytest.mark.parametrize("lie", [
    "UPDATE page SET number = number + 1", "UPDATE page SET number = 0", "UPDATE page SET number = 1 << 40",
    "UPDATE page SET key = key + 1",
])
def test_an_index_that_lies_about_pages_changes_no_image(store: Store, lie: str) -> None:
    memory = random.Random(7).randbytes(32 * PAGE)
    put(store, "one", memory)
    _index(store, lie)
    put(store, "other", memory)
    assert held(store, "one", len(memory)) == held(store, "other", len(memory)) == memory
    assert store.verify() == []
    assert put(store, "third", memory) < 1000  # what was found wrong has been put right


def test_a_damaged_pack_harms_only_those_who_need_it(store: Store) -> None:
    memory = random.Random(8).randbytes(32 * PAGE)
    turned = memory[16 * PAGE:] + memory[:16 * PAGE]
    put(store, "one", memory)
    (pack,) = (store.path / "packs").iterdir()
    good = pack.read_bytes()
    pack.write_bytes(good[:5000] + bytes([good[5000] ^ 1]) + good[5001:])
    put(store, "other", turned)
    assert held(store, "other", len(memory)) == turned
    with pytest.raises(ImageError, match="damaged"):
        store.load("one")
    with pytest.raises(ImageError, match="damaged"), store.reading("one"):
        pass
    assert [problem.sha256 for problem in store.verify()] == [store.entry("one").sha256]
    pack.unlink()
    assert "missing" in store.verify()[0].what
    pack.write_bytes(good[:5000])
    put(store, "third", bytes(16 * PAGE) + memory)
    assert held(store, "third", 48 * PAGE) == bytes(16 * PAGE) + memory


def test_an_index_that_forgets_a_need_is_named(store: Store) -> None:
    put(store, "one", random.Random(9).randbytes(16 * PAGE))
    _index(store, "DELETE FROM needs")
    _index(store, "DELETE FROM pack")
    assert "does not know" in store.verify()[0].what
    put(store, "other", random.Random(9).randbytes(16 * PAGE))  # the same image again: known from now on
    assert store.verify() == []


def test_a_store_of_version_one_is_read_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As version 1 made it: images with their pages, in no packs. The next one rests on them all the same."""
    store, program, memories = _store_of_version_one(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Index, "upgrade", lambda self: None)  # whoever only reads leaves it as it is
        for number, memory in memories.items():
            assert memory_of(store, "j", number) == memory
        assert store.verify() == []
    with store.reading("j") as (path, _):
        assert path.read_bytes()
    last = store.entry("j")
    program.step()
    sha = program.checkpoint(tmp_path / "x", parent=ParentRef(last.sha256, last.position + 1), since=last.sha256).sha256
    store.add("j", lambda path: (path.write_bytes((tmp_path / "x").read_bytes()), sha)[1])
    memories[last.number + 1] = bytes(program.memory)
    assert store.entry("j").position == last.position + 1
    assert {number: memory_of(store, "j", number) for number in memories} == memories
    assert store.verify() == []
    store.compact("j")
    store.prune("j", Retention(last=1))
    assert store.gc().files == 4  # three of version 1, and the one that was made whole
    assert memory_of(store, "j") == bytes(program.memory)
    assert Store(store.path).verify() == []


def _store_of_version_one(tmp_path: Path) -> tuple[Store, Program, dict[int, bytes]]:
    store = Store(tmp_path / "old", create=True)
    for table in ("page", "needs", "pack"):
        _index(store, f"DROP TABLE {table}")
    _index(store, "PRAGMA user_version = 1")
    (store.path / "packs").rmdir()
    program, parent, since, memories = Program(), None, None, {}
    for number in range(1, 4):
        program.step()
        new = store.path / "incoming" / "new"
        sha256 = program.checkpoint(new, parent=parent, since=since).sha256
        size = new.stat().st_size
        new.rename(store.path / "images" / f"{sha256.hex()}.wckpt")
        _index(store, "INSERT INTO image VALUES (?, ?, ?, ?, ?, 0, 'none')", sha256, size, number - 1, since,
               EMPTY.module.sha256)
        _index(store, "INSERT INTO checkpoint VALUES ('j', ?, 0.0, ?)", number, sha256)
        parent, since = ParentRef(sha256, number), sha256
        memories[number] = bytes(program.memory)
    return Store(store.path), program, memories


def test_an_upgrade_that_is_cut_off_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, program, memories = _store_of_version_one(tmp_path)
    monkeypatch.setenv("WASMCKPT_FAULT", "store.upgrading:EIO")
    for use in (lambda: program.take(Series(store, "j")), store.gc, lambda: store.compact("j")):
        with pytest.raises(StorageError):
            use()
    monkeypatch.delenv("WASMCKPT_FAULT")
    assert memory_of(store, "j") == memories[3]
    program.take(Series(store, "j"))
    assert memory_of(store, "j") == bytes(program.memory)


def test_an_image_by_the_name_of_its_file(store: Store, tmp_path: Path) -> None:
    program, series = Program(), Series(store, "j", MODULE)
    for _ in range(3):
        program.take(series)
    entry = store.entry("j")
    path = store.path / "images" / f"{entry.sha256.hex()}.wckpt"
    assert load_image(path) == store.load("j")
    alone = load_image(path, whole=False)
    assert alone.parent is not None
    assert 0 < len(alone.memories[0].data) < len(store.load("j").memories[0].data) + 5
    with as_file(path) as file:
        assert load(file) == store.load("j")
    store.export("j", tmp_path / "whole")
    assert load_image(tmp_path / "whole") == store.load("j")
    with as_file(tmp_path / "whole") as file:
        assert file == str(tmp_path / "whole")
    with pytest.raises(ImageError, match="store export"):
        load(path)
    (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(ImageError, match="not in its store"):
        load_image(tmp_path / path.name)
    with pytest.raises(StorageError):
        load_image(tmp_path / "none")


def test_an_image_that_is_not_what_was_said_does_not_come_in(store: Store, tmp_path: Path) -> None:
    image = replace(EMPTY, memories=(MemoryState(0, 1, ((0, b"x" * PAGE),)),))

    def lies(path: Path) -> bytes:
        save(image, path)
        return bytes(32)

    def cut(path: Path) -> bytes:
        sha256 = save(image, path)
        path.write_bytes(path.read_bytes()[:-50])
        return sha256

    writers: tuple[Callable[[Path], bytes], ...] = (lies, cut)
    for write in writers:
        with pytest.raises(ImageError):
            store.add("j", write)
    assert store.entries() == []
    assert all(list((store.path / part).iterdir()) == [] for part in ("images", "packs", "incoming"))
