"""Compiled forms on disk are loaded if they are whole, ours alone, and made for this very machine; else made anew."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from wasmtime import wat2wasm

from wasmckpt.cachefolder import keep_newest
from wasmckpt.instrument import cache
from wasmckpt.instrument.cache import cached_instrument
from wasmckpt.instrument.instrument import Instrumented
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Engine, load
from wasmckpt.snapshot import kept
from wasmckpt.snapshot.kept import Ahead, compiled_main
from wasmckpt.snapshot.prepare import options_for
from wasmckpt.wasm.decode import decode

from .fork_guests import MIXER, TURNS, Life

WASM = bytes(wat2wasm(f"""(module (memory (export "m") 1) (data (i32.const 0) "{"x" * 9000}")
  (func (export "f") (param i32) (result i32) (loop (br_if 0 (i32.lt_s (local.get 0) (i32.const -9))))
    (i32.mul (local.get 0) (i32.const 3))))"""))


@pytest.fixture
def engine() -> Engine:
    return load("wasmtime")


@pytest.fixture
def out(engine: Engine, tmp_path: Path) -> Instrumented:
    return cached_instrument(decode(WASM), options_for(engine), tmp_path / "rewritten")


@pytest.fixture
def compiled(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the runtime was asked to compile."""
    seen: list[bytes] = []
    real = engine.compile

    def compile_(wasm: bytes) -> Any:
        seen.append(wasm)
        return real(wasm)

    monkeypatch.setattr(engine, "compile", compile_)
    return seen


def works(engine: Engine, found: Any) -> bool:
    """In stacks of two sizes."""
    for stack in (64 << 10, 1 << 20):
        with engine.instantiate(found, {}, stack_bytes=stack) as instance:
            if instance.call("f", (5,)) != (15,) or instance.memory("m").read(8999, 2) != b"x\0":
                return False
    found.close()
    return True


def entries(folder: Path) -> tuple[Path, Path]:
    """The header and the code of the one entry."""
    header, code = sorted(folder.iterdir())
    return header, code


def test_the_second_time_nothing_is_compiled(
    engine: Engine, out: Instrumented, compiled: list[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    assert works(engine, compiled_main(engine, out, folder))
    assert len(compiled) == 1
    assert works(engine, compiled_main(engine, out, folder))
    assert works(engine, compiled_main(engine, out, folder, Ahead(engine, out, folder)))
    assert len(compiled) == 1
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in entries(folder))


def test_ahead_of_nothing(engine: Engine, out: Instrumented, compiled: list[bytes], tmp_path: Path) -> None:
    ahead = Ahead(engine, out, tmp_path / "kept")
    ahead.close()
    assert works(engine, compiled_main(engine, out, tmp_path / "kept", ahead))
    assert len(compiled) == 1


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def _through_a_link(path: Path) -> None:
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


DAMAGE: dict[str, Callable[[Path, Path], object]] = {
    "header flipped": lambda header, code: _flip(header, 100),
    "header's magic": lambda header, code: _flip(header, 0),
    "header empty": lambda header, code: header.write_bytes(b""),
    "header cut": lambda header, code: header.write_bytes(header.read_bytes()[:-1]),
    "header gone": lambda header, code: header.unlink(),
    "code flipped": lambda header, code: _flip(code, code.stat().st_size // 2),
    "code's last byte": lambda header, code: _flip(code, -1),
    "code empty": lambda header, code: code.write_bytes(b""),
    "code cut": lambda header, code: os.truncate(code, 4096),
    "code gone": lambda header, code: code.unlink(),
    "code longer": lambda header, code: code.write_bytes(code.read_bytes() + b"\0"),
    "others may write the code": lambda header, code: code.chmod(0o622),
    "the group may write the header": lambda header, code: header.chmod(0o660),
    "others may write the folder": lambda header, code: header.parent.chmod(0o777),
    "the code is a link": lambda header, code: _through_a_link(code),
    "the header is a link": lambda header, code: _through_a_link(header),
    "the header is a folder": lambda header, code: _folder(header),
    "the header is a pipe": lambda header, code: _pipe(header),
    "the code is a pipe": lambda header, code: _pipe(code),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_whatever_is_wrong_it_is_as_if_it_were_not_there(
    name: str, engine: Engine, out: Instrumented, compiled: list[bytes], tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    compiled_main(engine, out, folder).close()
    DAMAGE[name](*entries(folder))
    assert works(engine, compiled_main(engine, out, folder))
    assert len(compiled) == 2


def test_an_entry_of_another_version_is_not_used(
    engine: Engine, out: Instrumented, compiled: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Even under the right name: of another version of the runtime, or for another processor."""
    folder = tmp_path / "kept"
    compiled_main(engine, out, folder).close()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_kept_tag", lambda: "wasmtime 1.2.3 another processor")
        assert works(engine, compiled_main(engine, out, folder))
        assert len(compiled) == 2
    assert works(engine, compiled_main(engine, out, folder))
    assert len(compiled) == 3


def test_an_entry_of_another_module_is_not_taken(
    engine: Engine, out: Instrumented, compiled: list[bytes], tmp_path: Path
) -> None:
    """Its code, put under this one's name: the header tells."""
    folder, other_folder = tmp_path / "kept", tmp_path / "other"
    other = cached_instrument(decode(WASM.replace(b"x" * 9000, b"y" * 9000)), out.options, tmp_path / "rewritten")
    compiled_main(engine, out, folder).close()
    compiled_main(engine, other, other_folder).close()
    shutil.copy(entries(other_folder)[1], entries(folder)[1])
    assert works(engine, compiled_main(engine, out, folder))
    assert len(compiled) == 3


def test_what_cannot_be_written_is_no_error(
    engine: Engine, out: Instrumented, compiled: list[bytes], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    for _ in range(2):
        assert works(engine, compiled_main(engine, out, tmp_path / "file" / "kept"))
    assert len(compiled) == 2


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    for n in range(4):
        (tmp_path / str(n)).write_bytes(bytes(100))
        os.utime(tmp_path / str(n), (n, n))
    os.utime(tmp_path / "0", (9, 9))
    keep_newest(os.scandir(tmp_path), 250)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "3"]


@pytest.mark.parametrize("name", ["bodies", "sites"])
@pytest.mark.parametrize("damage", [b"", b"x" * 40, None])
def test_what_a_resume_does_not_read_is_made_again_when_it_is_needed(
    name: str, damage: bytes | None, engine: Engine, out: Instrumented, tmp_path: Path
) -> None:
    """The rewritten bodies and the sites, which lie in files of their own."""
    folder = tmp_path / "rewritten"
    path, = folder.rglob(f"*.{name}")
    good = path.read_bytes()
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    again = cached_instrument(decode(WASM), out.options, folder)
    assert again.wasm == out.wasm
    assert list(again.sites) == list(out.sites)
    assert len(out.sites) == 1
    assert path.read_bytes() == good


def test_the_plan_without_side_modules_is_one_file(tmp_path: Path) -> None:
    cached_instrument(decode(WASM), Options(), tmp_path)
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    assert cache.cached_instrument(decode(WASM), Options(), tmp_path).key


def test_a_resume_at_the_same_place_compiles_nothing_the_third_time(
    engine: Engine, compiled: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one keeps what was rewritten, the second what was compiled; what goes on is frozen again as ever."""
    monkeypatch.setenv("WASMCKPT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "_LEAST_BYTES", 0)  # small modules are not looked for
    turns = 10 * TURNS[engine.name]  # so that what goes on at an image still runs when it is looked at
    results = Life(engine, MIXER, (turns, 0)).result()
    source = Life(engine, MIXER, (turns, 0))
    image = source.live.snapshot(60, "fork").image
    assert source.result() == results
    counts, later = [], []
    for _ in range(4):
        compiled.clear()
        again = Life(engine, MIXER, image=image)
        counts.append(len(compiled))
        assert again.live.program.out.side is not None
        later.append(again.live.snapshot(60, "fork").image)
        assert again.result() == results
    assert counts == [1, 1, 0, 0]
    assert [Life(engine, MIXER, image=one).result() for one in later] == [results] * 4
