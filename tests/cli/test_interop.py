"""``wasmckpt export`` and ``convert``: files, what is said, and refusals, which leave no file."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from wasmckpt import formats, load_image
from wasmckpt.formats import ParentRef
from wasmckpt.formats.chain import file_name
from wasmckpt.lazydata import replace
from wasmckpt.wasm.decode import decode

from .conftest import Cli, Done, Module
from .programs import CAT, COUNT, count_result, talk, talk_output
from .test_json import check

LINES, TURNS, HALF = 20, 2_000, 2_000


@pytest.fixture
def half(cli: Cli, module: Module) -> bytes:
    """`i.wckpt`, a program in the middle, of `program.wasm`; what it has written."""
    done = cli("run", "--checkpoint-at", HALF, "--stop", "-o", "i.wckpt", module(talk(LINES, TURNS)))
    assert done.code == 0, done.err
    return done.out.encode()


def run_frozen(path: str) -> bytes:
    """What a module writes under wasmtime's own WASI, in a process without us."""
    code = (
        "import sys, wasmtime as w; s = w.Store(); c = w.WasiConfig(); c.inherit_stdout(); s.set_wasi(c); "
        "l = w.Linker(s.engine); l.define_wasi(); m = w.Module.from_file(s.engine, sys.argv[1]); "
        "l.instantiate(s, m).exports(s)['_start'](s); assert 'wasmckpt' not in sys.modules"
    )
    return subprocess.run([sys.executable, "-c", code, path], capture_output=True, check=True).stdout


def test_export(cli: Cli, half: bytes) -> None:
    done = cli("export", "i.wckpt", "--module", "program.wasm", "-o", "frozen.wasm", "--json")
    assert done.code == 0, done.err
    document = check("export", done.out)
    assert (document["entry"], document["frames"], document["losses"]) == ("_start", 2, [])
    assert document["bytes"] == os.path.getsize("frozen.wasm")
    assert stat.S_IMODE(os.stat("frozen.wasm").st_mode) == 0o600, "it holds a program's memory"
    assert "goes on by _start" in done.err
    assert half + run_frozen("frozen.wasm") == talk_output(LINES, TURNS)
    assert cli("export", "i.wckpt", "--module", "program.wasm", "-o", "again.wasm", "-q").err == ""
    assert Path("again.wasm").read_bytes() == Path("frozen.wasm").read_bytes(), "the same image gives the same bytes"


def test_what_was_exported_runs_here_too(cli: Cli, half: bytes) -> None:
    assert cli("export", "i.wckpt", "--module", "program.wasm", "-o", "frozen.wasm").code == 0
    for runtime in ("wasm3", "wasmtime"):
        assert half + cli("run", "--runtime", runtime, "frozen.wasm").out.encode() == talk_output(LINES, TURNS)


def test_an_invoked_export(cli: Cli, module: Module) -> None:
    """Another name for what goes on; one that is taken is refused."""
    path = module(COUNT)
    assert cli("run", "--checkpoint-at", 20, "--stop", "--carry-module", "-o", "i.wckpt", "--invoke", "run", path, "--",
               1000).code == 0
    taken = cli("export", "i.wckpt", "-o", "f.wasm", "--name", "swap")
    assert (taken.code, os.path.exists("f.wasm")) == (64, False)
    taken = cli("export", "i.wckpt", "-o", "f.wasm", "--name", "\udcff")
    assert (taken.code, os.path.exists("f.wasm")) == (64, False)
    document = check("export", cli("export", "i.wckpt", "-o", "f.wasm", "--name", "more", "--json").out)
    assert (document["entry"], document["results"]) == ("more", ["i32"])
    assert cli("run", "f.wasm", "--invoke", "more").out.split() == [str(count_result(1000))]


def test_convert(cli: Cli, half: bytes) -> None:
    done = cli("convert", "i.wckpt", "--to", "coredump", "--module", "program.wasm", "-o", "core.wasm", "--json")
    assert done.code == 0, done.err
    document = check("convert", done.out)
    assert (document["to"], document["frames"], document["bytes"]) == ("coredump", 2, os.path.getsize("core.wasm"))
    found = decode(Path("core.wasm").read_bytes())
    assert [part.name for part in found.customs] == ["core", "coremodules", "coreinstances", "corestack"]
    assert b"program.wasm" in Path("core.wasm").read_bytes()
    os.rename("program.wasm", b"\xff.wasm")
    assert cli("convert", "i.wckpt", "--to", "coredump", "--module", "\udcff.wasm", "-o", "other.wasm").code == 0
    assert "\ufffd.wasm".encode() in Path("other.wasm").read_bytes()
    assert stat.S_IMODE(os.stat("core.wasm").st_mode) == 0o600


def refused(done: Done, code: int, text: str) -> None:
    """With this exit code and message, in one line and a hint, and no file."""
    assert (done.code, done.out) == (code, ""), done.err
    assert text in done.err
    assert done.err.count("\n") <= 2
    left = [name for name in os.listdir() if name.startswith("out") or name.endswith(".part")]
    assert not left or left == ["out"]


@pytest.mark.parametrize("command", [["export"], ["convert", "--to", "coredump"]])
def test_bad_input(cli: Cli, module: Module, half: bytes, command: list[str]) -> None:
    """Another module, damage, no module, no image, a journal's or store's leavings: one error each, no file."""
    module(COUNT, "other.wasm")
    raw = Path("i.wckpt").read_bytes()
    Path("damaged.wckpt").write_bytes(raw[:-40] + bytes([raw[-40] ^ 1]) + raw[-39:])
    Path("short.wckpt").write_bytes(raw[: len(raw) // 2])
    given = ["--module", "program.wasm", "-o", "out.wasm"]
    refused(cli(*command, "i.wckpt", "--module", "other.wasm", "-o", "out.wasm"), 65, "another module")
    refused(cli(*command, "i.wckpt", "-o", "out.wasm"), 64, "does not carry its module")
    refused(cli(*command, "damaged.wckpt", *given), 65, "damaged.wckpt")
    refused(cli(*command, "short.wckpt", *given), 65, "short.wckpt")
    refused(cli(*command, "absent.wckpt", *given), 73, "absent.wckpt")
    refused(cli(*command, "other.wasm", *given), 65, "other.wasm")
    refused(cli(*command, "i.wckpt", "--module", "i.wckpt", "-o", "out.wasm"), 64, "this is an image")
    refused(cli(*command, "i.wckpt", "--module", "absent.wasm", "-o", "out.wasm"), 64, "absent.wasm")
    refused(cli(*command, "i.wckpt", "--module", "program.wasm"), 64, "--output")


@pytest.mark.parametrize("command", [["export"], ["convert", "--to", "coredump"]])
def test_where_nothing_can_be_written(cli: Cli, half: bytes, command: list[str]) -> None:
    """A folder that is none, one that cannot be written to (for root too: by /proc), a device, another's place."""
    os.mkdir("out")
    for place in ("absent/x.wasm", "/proc/x.wasm", "/dev/null", "out"):
        refused(cli(*command, "i.wckpt", "--module", "program.wasm", "-o", place), 73, "cannot be written")
    if os.geteuid():
        os.chmod("out", 0o500)
        refused(cli(*command, "i.wckpt", "--module", "program.wasm", "-o", "out/x.wasm"), 73, "cannot be written")


def test_what_was_there_stays_if_it_fails(cli: Cli, module: Module, half: bytes) -> None:
    module(COUNT, "other.wasm")
    Path("kept").write_bytes(b"before")
    assert cli("export", "i.wckpt", "--module", "other.wasm", "-o", "kept").code == 65
    assert Path("kept").read_bytes() == b"before"


@pytest.mark.slow
def test_a_difference_and_its_parent(cli: Cli, module: Module) -> None:
    """Images of a store are put together; without what they rest on there is one error."""
    path = module(talk(40, 40_000_000))
    assert cli("run", "--store", "s", "--name", "p", "--checkpoint-every", "20ms", "--keep", 50, path).code == 0
    images = sorted(Path("s/images").glob("*.wckpt"), key=lambda image: image.stat().st_mtime)
    assert images
    for command in (["export"], ["convert", "--to", "coredump"]):
        done = cli(*command, images[-1], "--module", path, "-o", "ok.wasm")
        assert done.code == 0, done.err
    shutil.rmtree("s/packs")
    for command in (["export"], ["convert", "--to", "coredump"]):
        done = cli(*command, images[-1], "--module", path, "-o", "out.wasm")
        assert done.code in (65, 73), done.err
        assert not os.path.exists("out.wasm")


def test_an_absent_parent(cli: Cli, half: bytes) -> None:
    """A difference beside the image that it rests on is as good as that; alone it is refused."""
    whole = load_image("i.wckpt")
    parent = ParentRef(formats.save(whole, "parent.wckpt"), 1)
    name = file_name(parent.sha256)
    os.rename("parent.wckpt", name)
    same = tuple(replace(state, data=(), zero=()) for state in whole.memories)
    formats.save(replace(whole, parent=parent, memories=same), "child.wckpt")
    given = ["child.wckpt", "--module", "program.wasm", "-o"]
    for command in (["export"], ["convert", "--to", "coredump"]):
        assert cli(*command, *given, "of-child").code == 0
        assert cli(*command, "i.wckpt", *given[1:], "of-whole").code == 0
        assert Path("of-child").read_bytes() == Path("of-whole").read_bytes()
    os.unlink(name)
    for command in (["export"], ["convert", "--to", "coredump"]):
        refused(cli(*command, *given, "out.wasm"), 65, "parent")


@pytest.mark.slow
def test_an_encrypted_image(cli: Cli, module: Module) -> None:
    """Not without its key; with it, it is said that the module is not encrypted."""
    assert cli("key", "generate", "-o", "a.key").code == 0
    path = module(talk(LINES, TURNS))
    assert cli("run", "--checkpoint-at", HALF, "--stop", "-o", "i.wckpt", "--encrypt-with", "a.key", path).code == 0
    for command in (["export"], ["convert", "--to", "coredump"]):
        refused(cli(*command, "i.wckpt", "--module", path, "-o", "out.wasm"), 65, "key")
    done = cli("export", "i.wckpt", "--module", path, "-o", "ok.wasm", "--key", "a.key", "--json")
    assert [loss["kind"] for loss in check("export", done.out)["losses"]] == ["encryption"]
    assert "note: the image is encrypted, the module is not" in done.err
    assert cli("convert", "--to", "coredump", "i.wckpt", "--module", path, "-o", "c", "--key", "a.key").code == 0


def test_what_is_lost_is_said(cli: Cli, module: Module) -> None:
    """On standard error and for programs; what would go wrong only if that is accepted."""
    path = module(CAT.replace("CAT", ""))
    os.mkdir("folder")
    done = cli("run", "--dir", "folder", "--checkpoint-at", 1, "--stop", "-o", "i.wckpt", path)
    if done.code:  # it ended before: there is no input
        pytest.fail(done.err)
    done = cli("export", "i.wckpt", "--module", path, "-o", "f.wasm", "--json")
    losses = check("export", done.out)["losses"]
    assert [(loss["kind"], loss["wrong"]) for loss in losses] == [("folder", False)]
    assert "note: it has folder folder as descriptor 3: give it as folder number 1" in done.err
