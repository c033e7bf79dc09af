"""One leg of a program's way: it starts or goes on from an image on one runtime, and runs to where it is frozen
next, or to its end. What is passed on is plain data, so that the next leg may be run by a process on another processor.

The world outside stays where it is: folder and output lie in files that both sides open.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from wasmckpt import formats, runtimes
from wasmckpt.errors import GuestTrap
from wasmckpt.instrument.options import Options
from wasmckpt.snapshot.program import Program, Status, entry_for
from wasmckpt.wasm.decode import decode

from ..support.moving import COUNTING, Trace, World, finish, move, run_program
from ..support.samples import Call, Sample

__all__ = ["Life", "Where", "begin", "images_of", "machine", "run_leg"]


@dataclass(frozen=True)
class Where:
    """Where a program stands.

    Attributes:
        image: it; empty: at its beginning. read: bytes of standard input that it has taken.
        log: what it has told ``env.log``. trace: what it left behind, once it has ended.
    """

    image: bytes = b""
    read: int = 0
    log: tuple[int, ...] = ()
    trace: Trace | None = None


@dataclass(frozen=True)
class Life:
    """What stays the same from leg to where. ``folder``, ``output``: paths of the guest's folder and of the file with
    what it has written so far."""

    sample: Sample
    call: Call | None
    folder: str
    output: str
    options: Options = COUNTING


def begin(sample: Sample, call: Call | None, scratch: Path, options: Options = COUNTING) -> Life:
    """A program at its beginning, with a world in ``scratch``."""
    folder = scratch / "folder"
    folder.mkdir()
    for name, content in sample.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    output = scratch / "output"
    output.touch()
    return Life(sample, call, str(folder), str(output), options)


def run_leg(life: Life, where: Where, engine_name: str, nth: int) -> Where:
    """Run on a runtime of this process up to the ``nth`` safepoint (0: to the end)."""
    world = World(life.sample)
    world.folder = Path(life.folder)
    world.stdout.close()
    world.stdout = open(life.output, "a+b", buffering=0)  # type: ignore[assignment]  # noqa: SIM115 (the world closes it)
    world.stdin.seek(where.read)
    world.log = list(where.log)
    engine = runtimes.load(engine_name)
    wasm = life.sample.wasm
    with contextlib.ExitStack() as closing:
        for file in (world.stdout, world.stdin):
            closing.callback(file.close)
        closing.callback(world.leave)
        if where.image:
            image = formats.decode(where.image)
            program = Program.restored(engine, wasm, world.host(image.host), image, options=life.options)
        else:
            call = life.call
            entry = entry_for(decode(wasm), call.export if call else None, call.args if call else ())
            program = Program.fresh(engine, wasm, world.host(), entry, options=life.options)
        try:
            if nth:
                program.freeze_at(nth)
            trap, outcome = "", None
            try:
                outcome = run_program(engine, program)
            except GuestTrap as error:
                trap = str(error.fields.get("kind", error))
            if outcome is not None and outcome.status is Status.FROZEN:
                raw = formats.encode(program.capture())
                return Where(image=raw, read=world.stdin.tell(), log=tuple(world.log))
            return Where(trace=finish(program, outcome, trap, world, 0, ()))
        finally:
            program.close()



def images_of(life: Life, engine_name: str, nth: int, most: int) -> tuple[list[bytes], Trace]:
    """A whole life on one runtime of this process in a world that is the same each time: its images at every ``nth``
    safepoint, ``most`` at most, from each of which it goes on."""
    world = World(life.sample, repeatable=True)
    world.folder = Path(life.folder)
    call = life.call
    with contextlib.ExitStack() as closing:
        for file in (world.stdout, world.stdin):
            closing.callback(file.close)
        closing.callback(world.leave)
        trace = move(life.sample.wasm, [engine_name], nth, options=life.options, world=world,
                     invoke=call.export if call else None, arguments=call.args if call else (), most_hops=most,
                     keep_images=True)
    return list(trace.images), replace(trace, images=())


def machine() -> str:
    """What processor this process runs on."""
    return os.uname().machine
