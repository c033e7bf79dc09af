"""What the host had and a module has not: listed, and refused where the program would go wrong without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wasmckpt.errors import ImageError, NotSupported
from wasmckpt.formats import Image
from wasmckpt.interop import Loss, export, losses
from wasmckpt.lazydata import replace
from wasmckpt.wasm.decode import decode

from ..cli.programs import talk, talk_output, wat
from ..cli.test_json import SCHEMA
from ..support.moving import EVERYWHERE
from ..support.samples import sample
from .frozen import freeze
from .plain import run_plainly, valid

STREAM = {"filetype": 2, "rights": 0, "inheriting": 0, "flags": 0, "consumed": 0, "produced": 0, "start": None}
STDIO = [{**STREAM, "number": n, "kind": kind} for n, kind in enumerate(("stdin", "stdout", "stderr"))]
PREOPEN = {"filetype": 3, "rights": 0, "inheriting": 0, "flags": 0, "root": b"/data", "path": b"", "listing": None}


def lost(imports: str, **host: Any) -> list[Loss]:
    """The losses of a program with these imports and this host state."""
    wasm = wat(f"(module {imports} (memory (export \"memory\") 1) (func (export \"_start\")))")
    frozen = freeze(wat(talk(2, 5)), "wasmtime", 3)
    return losses(replace(frozen.image, host=host), decode(wasm))


def clock(name: str, params: str, result: str = "(result i32)") -> str:
    return f'(import "wasi_snapshot_preview1" "{name}" (func (param {params}) {result}))'


def test_canonical_nans_are_the_rewriters() -> None:
    frozen = freeze(wat(talk(2, 5)), "wasmtime", 3)
    module = decode(frozen.wasm)
    assert [loss for loss in losses(frozen.image, module) if loss.kind == "nans"] == []
    found = [loss for loss in losses(replace(frozen.image, canonical_nans=True), module) if loss.kind == "nans"]
    assert [loss.wrong for loss in found] == [True]


@pytest.mark.parametrize(("imports", "host", "wanted"), [
    ("", {}, []),
    ("", {"descriptors": STDIO}, []),
    ("", {"descriptors": STDIO[:2]}, [("descriptor", False)]),
    ("", {"descriptors": [*STDIO[:2], {**STDIO[2], "number": 7}]}, [("descriptor", True)]),
    ("", {"descriptors": [{**STDIO[0], "consumed": 5}, *STDIO[1:]]}, [("stdin", False)]),
    ("", {"descriptors": [*STDIO, {**PREOPEN, "number": 3}]}, [("folder", False)]),
    ("", {"descriptors": [*STDIO, {**PREOPEN, "number": 3}, {**PREOPEN, "number": 4}]}, [("folder", False)] * 2),
    ("", {"descriptors": [*STDIO, {**PREOPEN, "number": 4}]}, [("folder", True)]),
    ("", {"descriptors": [*STDIO, {**PREOPEN, "number": 3, "listing": []}]}, [("folder", False)] * 2),
    ("", {"descriptors": [*STDIO, {**PREOPEN, "number": 3}, {
        **PREOPEN, "number": 4, "kind": "file", "path": b"a", "offset": 7,
    }]}, [("folder", False), ("descriptor", True)]),
    ("", {"descriptors": [*STDIO, {**PREOPEN, "number": 5, "kind": "directory"}]}, [("descriptor", True)]),
    ("", {"sleep": {"call": b"", "deadlines": [1]}}, [("sleep", False)]),
    ("", {"clocks": {"monotonic": 5}}, []),
    (clock("clock_time_get", "i32 i64 i32"), {"clocks": {"monotonic": 5}}, [("clock", False)]),
    ("", {"random": {"key": b"", "calls": 1}}, []),
    (clock("random_get", "i32 i32"), {"random": {"key": b"", "calls": 1}}, [("random", False)]),
    ("", {"journal": {"line": b"", "calls": 1}}, [("journal", False)]),
    ("", {"something": 1}, [("host", False)]),
    ('(import "env" "log" (func (param i32)))', {}, [("import", False)]),
    ('(import "wasmckpt" "lives" (func (result i32)))', {}, [("import", True)]),
])
def test_each(imports: str, host: dict[str, Any], wanted: list[tuple[str, bool]]) -> None:
    if "descriptors" in host:
        host = {"descriptors": [{"kind": "preopen", **record} for record in host["descriptors"]]}
    found = lost(imports, **host)
    assert [(loss.kind, loss.wrong) for loss in found] == wanted
    kinds = SCHEMA["$defs"]["export"]["properties"]["losses"]["items"]["properties"]["kind"]["enum"]
    assert {loss.kind for loss in found} <= set(kinds)


def test_a_damaged_state_is_refused() -> None:
    hosts: list[dict[str, Any]] = [{"descriptors": [{}]}, {"descriptors": [{"number": 1, "kind": 3}]}]
    for host in hosts:
        with pytest.raises(ImageError, match="damaged"):
            lost("", **host)


@pytest.mark.slow
def test_an_open_file(tmp_path: Path) -> None:
    """Refused by name and place; accepted, the program has what it would have if the file had been closed."""
    program = sample("wordcount", "tiny")
    image: Image | None = None
    for nth in range(100, 400, 60):
        folder = tmp_path / str(nth)
        folder.mkdir()
        frozen = freeze(program.wasm, "wasmtime", nth, sample=program, folder=folder)
        if any(record["kind"] == "file" for record in frozen.image.host["descriptors"]):  # type: ignore[attr-defined]
            image = frozen.image
            break
    assert image is not None
    with pytest.raises(NotSupported, match=r"descriptor \d is an open file, /data/.* at \d+.*accept") as refused:
        export(image, program.wasm)
    assert refused.value.fields["need"] == "descriptor"
    made = export(image, program.wasm, accept_losses=True)
    assert any(loss.wrong for loss in made.losses)
    valid(made.wasm)


def test_its_twin_without_files_needs_no_leave() -> None:
    frozen = freeze(wat(talk(3, 10)), "wasmtime", 12, options=EVERYWHERE)
    made = export(frozen.image, frozen.wasm)
    assert made.losses == ()
    assert frozen.output + run_plainly("wasmtime", made.wasm, sample("multi")).output == talk_output(3, 10)
