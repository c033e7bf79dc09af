"""What is measured of each program, and the table of ``docs/compatibility.md`` that shows it.

``figures.json`` holds a row for each program; ``python -m tests.real NAME ...`` measures some anew and writes both.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from wasmckpt import formats, runtimes
from wasmckpt.formats import Image
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.snapshot.program import Program, Status
from wasmckpt.wasm.decode import decode

from ..matrix.check import closing_world
from ..support.moving import COUNTING, run_program
from ..support.pairs import circle
from .programs import PROGRAMS, RealProgram
from .running import STACK_BYTES, Subject, as_trace

__all__ = ["FIGURES", "PAGE", "load", "measure", "store", "table", "with_table"]

FIGURES: Final = Path(__file__).with_name("figures.json")
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN: Final = "<!-- the table: written by `python -m tests.real` -->\n"
END: Final = "<!-- end of the table -->\n"
ORDER: Final = ("wasmtime", "wasm3", "wamr", "wasmer", "wasmedge")
SIGNS: Final = {"wasm3": "Wasm3", "wamr": "WAMR", "wasmedge": "WasmEdge"}

HEAD: Final = (
    "| program | version | language | module, MB | functions | moved between | moves | rewriting, s | grows | "
    "image, KiB | resume, ms |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
)


def load() -> dict[str, dict[str, Any]]:
    """The rows, by program."""
    found: dict[str, dict[str, Any]] = json.loads(FIGURES.read_text())
    return found


def store(rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the rows, in the table's order, and the page's table."""
    ordered = {one.name: rows[one.name] for one in PROGRAMS if one.name in rows}
    FIGURES.write_text(json.dumps(ordered, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), ordered))


def with_table(page: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The page with the table of these rows in its place."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table(rows) + END + after


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Markdown; a program that was not measured has dashes."""
    lines = []
    for one in PROGRAMS:
        version = one.package.rpartition("==")[2] if "==" in one.package else one.package.rpartition("@")[2]
        cells: list[object] = [f"`{one.name}`: {one.what}", version, one.language]
        row = rows.get(one.name)
        if row is None:
            cells += ["-"] * 8
        else:
            engines = ", ".join(SIGNS.get(name, name) for name in row["runtimes"])
            cells += [f"{row['bytes'] / 1e6:.1f}", f"{row['functions']:,}", engines, row["moves"],
                      f"{row['rewriting']:.1f}", f"{row['grows']:.2f}", f"{row['image'] / 1024:,.0f}",
                      f"{row['resume'] * 1e3:,.0f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |\n")
    return HEAD + "".join(lines)


def measure(program: RealProgram, engines: Sequence[str], hops: int | None = None) -> dict[str, Any]:
    """One program's row: checked as in `test_real`, with times of this machine.

    Args:
        engines: that it is moved between, wasmtime first. hops: moves; all ordered pairs if None.
    """
    with tempfile.TemporaryDirectory() as scratch:
        sample = program.sample()
        subject = Subject(sample, Path(scratch), time_goes_on=program.time_goes_on)
        wasm = sample.wasm
        module = decode(wasm)
        began = time.process_time()
        made = instrument(wasm, Options())
        size = len(made.wasm)
        rewriting = time.process_time() - began
        plain = as_trace(subject.plain())
        for engine in engines:
            got = subject.undisturbed(engine)
            assert (got.stdout, got.exit_code, dict(got.files)) == plain, (engine, got.trap, got.stdout[-500:])
        count = subject.safepoints(engines[0])
        order = circle(engines) if len(engines) > 1 else tuple(engines)
        hops = hops or len(order)
        images: list[Image] = []

        def keep(image: Image) -> Image:
            images.append(image)
            return image

        wrong = subject.moved(order, max(1, count // (hops + 1)), hops, keep)
        assert not wrong, wrong
        middle = images[len(images) // 2]
        return {
            "bytes": len(wasm), "functions": len(module.bodies), "runtimes": [e for e in ORDER if e in engines],
            "moves": len(images), "rewriting": round(rewriting, 2), "grows": round(size / len(wasm), 3),
            "image": len(formats.encode(middle)), "frames": len(middle.frames), "safepoints": count,
            "resume": round(min(_resume(subject, middle) for _ in range(3)), 4),
        }


def _resume(subject: Subject, image: Image) -> float:
    """Seconds from the image to the program going on, on wasmtime, its module compiled before."""
    engine = runtimes.load("wasmtime")
    world = subject.world()
    with closing_world(world):
        try:
            host = world.host(image.host)
        except Exception:  # its files are of another life
            host = world.host()
        began = time.monotonic_ns()
        program = Program.restored(engine, subject.sample.wasm, host, image, options=COUNTING, stack_bytes=STACK_BYTES)
        try:
            program.freeze_at(1)
            outcome = run_program(engine, program)
            assert outcome.status is Status.FROZEN
            return (program.went_on_ns - began) / 1e9
        finally:
            program.close()
