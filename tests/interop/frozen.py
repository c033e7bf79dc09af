"""Programs frozen in the middle: the image, and what they had written until then."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wasmckpt import formats, runtimes
from wasmckpt.formats import Image
from wasmckpt.instrument.options import Options
from wasmckpt.snapshot.program import Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import Value

from ..matrix.check import closing_world
from ..support.moving import COUNTING, World, run_program
from ..support.partner import REFERENCE, ReferenceProgram
from ..support.samples import Sample

__all__ = ["Frozen", "freeze"]


@dataclass(frozen=True)
class Frozen:
    """``image`` has been through its bytes; ``output``: standard output and error, ``log``: what went to ``env.log``;
    ``consumed``: bytes of standard input."""

    wasm: bytes
    image: Image
    output: bytes
    log: tuple[int, ...]
    consumed: int


def freeze(
    wasm: bytes, engine: str, nth: int, *, sample: Sample | None = None, folder: Path | None = None,
    invoke: str | None = None, arguments: Sequence[Value] = (), options: Options = COUNTING,
    stack_bytes: int = runtimes.DEFAULT_STACK_BYTES,
) -> Frozen:
    """Run a program on ``engine`` (the reference interpreter too) and freeze it at its ``nth`` safepoint."""
    world = World(sample, folder=folder)
    entry = entry_for(decode(wasm), invoke, arguments)
    with closing_world(world):
        loaded = None if engine == REFERENCE else runtimes.load(engine)
        program: Program | ReferenceProgram
        if loaded is None:
            program = ReferenceProgram(wasm, world.host(), entry)
        else:
            program = Program.fresh(loaded, wasm, world.host(), entry, options=options, stack_bytes=stack_bytes)
        with contextlib.closing(program):
            program.freeze_at(nth)
            outcome = run_program(loaded, program)
            assert outcome.status is Status.FROZEN, f"ended before safepoint {nth}"
            image = formats.decode(formats.encode(program.capture()))
            consumed = 0
            for record in image.host.get("descriptors", []):  # type: ignore[attr-defined]
                if record["kind"] == "stdin":
                    consumed = record["consumed"]
            return Frozen(wasm, image, world.output(), tuple(world.log), consumed)
