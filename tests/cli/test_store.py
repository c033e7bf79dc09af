"""Stores on the command line: a program that is killed at any moment goes on from there, on another runtime."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from wasmckpt.errors import StorageError
from wasmckpt.formats import load
from wasmckpt.store import Series, Store

from ..unit.store.images import MODULE, Program
from .conftest import Cli, Module, Spawn, wait_for, worker_of
from .programs import FOREVER, talk, talk_output
from .test_json import check

LINES, TURNS = 10, 150_000_000


def _count(path: Path) -> int:
    try:
        return len(Store(path).entries())
    except StorageError:  # it is being made
        return 0


@pytest.mark.slow
def test_a_killed_program_goes_on_from_its_store(cli: Cli, module: Module, spawn: Spawn, tmp_path: Path) -> None:
    """The output up to the kill, then that of the restored program: what is repeated is repeated alike."""
    store, path = tmp_path / "store", module(talk(LINES, TURNS))
    process = spawn("run", "--store", store, "--checkpoint-every", "60ms", "--name", "j1", path)
    wait_for(lambda: _count(store) >= 5, "five checkpoints")
    process.kill()
    first = process.communicate()[0]
    path.unlink()
    newest = Store(store).entry("j1")
    assert newest.position > 0
    done = cli("restore", "--store", store, "j1", "--checkpoint-every", "200ms", "--keep", "2")
    assert done.code == 0, done.err
    whole = talk_output(LINES, TURNS)
    assert whole.startswith(first)
    assert whole.endswith(done.out.encode())
    assert len(first) + len(done.out) >= len(whole)
    entries = Store(store).entries("j1")
    assert len(entries) in (1, 2, newest.number)
    assert Store(store).verify() == []


@pytest.mark.slow
def test_signals_and_the_last_image(cli: Cli, module: Module, spawn: Spawn, tmp_path: Path) -> None:
    """SIGUSR1 adds to the store; so does the image that a program ends with, which leaves no other file."""
    store, path = tmp_path / "store", module(FOREVER)
    process = spawn("run", "--store", store, path)
    worker_of(process)
    for number in (1, 2, 3):
        process.send_signal(signal.SIGUSR1)
        wait_for(lambda: _count(store) >= number, f"checkpoint {number}")  # noqa: B023
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    done = cli("restore", "--store", store, "program", "--checkpoint-after", "100ms", "--stop")
    assert done.code == 0, done.err
    assert "checkpoint 4 of program in" in done.err
    assert {name.name for name in store.iterdir()} == {
        "images", "packs", "modules", "incoming", "index.sqlite", "lock", "turn"
    }
    again = cli("restore", "--store", store, "program", "--number", "4", "--checkpoint-after", "100ms", "--stop")
    assert again.code == 0, again.err


def _made(cli: Cli, module: Module) -> Path:
    """A store with three images of "j1", and one of them as a file. No program has run."""
    module(FOREVER)
    store = Store("s", create=True)
    Program().take(Series(store, "j1", MODULE))
    cli("store", "export", "s", "j1", "-o", "a.wckpt", "--carry-module")
    for _ in range(2):
        assert cli("store", "import", "s", "a.wckpt", "--name", "j1").code == 0
    return store.path


def test_looking_after_a_store(cli: Cli, module: Module) -> None:
    """Every command, and what it prints for programs."""
    store = _made(cli, module)
    listed = check("store-ls", cli("store", "ls", store, "--json").out)
    assert [(row["job"], row["number"], row["position"]) for row in listed] == [("j1", n, 0) for n in (1, 2, 3)]
    assert cli("store", "ls", store, "j1").out.count("j1") == 3
    assert cli("store", "ls", store, "other").out.count("\n") == 1
    assert check("store-verify", cli("store", "verify", store, "--json").out) == {"good": True, "problems": []}
    assert cli("store", "compact", store).code == 0
    assert check("store-gc", cli("store", "gc", store, "--keep-last", "1", "--json").out)["images"] == 2
    assert cli("store", "export", store, "j1", "-o", "out.wckpt", "--carry-module").code == 0
    exported = load("out.wckpt")
    assert exported.parent is None
    assert exported.module.content is not None
    assert cli("diff", "a.wckpt", "out.wckpt").code == 0
    assert cli("store", "rm", store, "j1").code == 0
    assert cli("store", "gc", store).code == 0
    assert list((store / "images").iterdir()) == []


def test_a_damaged_image_is_named(cli: Cli, module: Module) -> None:
    store = _made(cli, module)
    (image,) = (store / "images").iterdir()
    image.write_bytes(image.read_bytes()[:-5])
    done = cli("store", "verify", store)
    assert done.code == 65
    assert image.name[:12] in done.out
    assert check("store-verify", cli("store", "verify", store, "--json").out)["good"] is False
    done = cli("restore", "--store", store, "j1")
    assert done.code == 65
    assert "cut short" in done.err


@pytest.mark.parametrize(("words", "code", "says"), [
    ("run --store s -o x.wckpt program.wasm", 64, "not to both"),
    ("run --keep 3 program.wasm", 64, "without a store"),
    ("restore --number 2 a.wckpt", 64, "without a store"),
    ("restore --store s j2", 64, "no checkpoint of that program"),
    ("restore --store s j1 --number 9", 64, "no such checkpoint"),
    ("restore --store nowhere j1", 73, "no store"),
    ("store ls nowhere", 73, "no store"),
    ("store export s j2 -o x", 64, "no checkpoint of that program"),
    ("store import s program.wasm --name x", 65, "not an image"),
    ("run --store program.wasm program.wasm", 73, "cannot be written"),
])
def test_what_is_refused(cli: Cli, module: Module, words: str, code: int, says: str) -> None:
    _made(cli, module)
    done = cli(*words.split())
    assert (done.code, says in done.err) == (code, True), done.err


@pytest.mark.slow
def test_images_from_a_store_are_files(cli: Cli, module: Module, spawn: Spawn, tmp_path: Path) -> None:
    """inspect, verify and diff take an image that rests on others, and say so if one of them is gone."""
    store, path = tmp_path / "store", module(FOREVER)
    process = spawn("run", "--store", store, "--checkpoint-every", "50ms", "--name", "j1", path)
    wait_for(lambda: _count(store) >= 3, "three checkpoints")
    process.kill()
    process.communicate()
    one, two = (store / "images" / f"{Store(store).entry('j1', n).sha256.hex()}.wckpt" for n in (1, 3))
    shown = json.loads(cli("inspect", two, "--pages", "--json").out)
    assert shown["parent"]["position"] == 2
    assert cli("verify", two).code == 0
    assert cli("diff", one, two).code == 1
    assert cli("restore", "--module", path, two, "--checkpoint-after", "50ms", "--stop").code == 0
    one.unlink()
    for words in (("verify", two), ("diff", two, two), ("restore", "--module", path, two)):
        done = cli(*words)
        assert done.code == 65
        assert one.stem in done.err
