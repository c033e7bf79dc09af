"""Runs programs in this process: undisturbed, or frozen at every n-th safepoint and moved on through runtimes.

What a run leaves behind (`Trace`) is compared whole: results, exit code, output, host calls, final memory and globals.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from wasmckpt import formats, runtimes
from wasmckpt.errors import GuestTrap
from wasmckpt.formats import Image, TableState
from wasmckpt.host import MODULE_NAME, HostClocks, Wasi, WasiConfig
from wasmckpt.instrument.options import Options
from wasmckpt.runtimes import Engine, HostFunction, HostGlobal, run_in_guest_thread
from wasmckpt.snapshot.program import Host, Outcome, Program, Status, entry_for
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind, FuncType, GlobalType
from wasmckpt.wasm.values import I32, Value

from .partner import REFERENCE, ReferenceProgram
from .samples import Sample

COUNTING = Options(count=True)
"""The shipped plan, deterministic mode."""
EVERYWHERE = Options(count=True, plan="all")
"""Every loop header and every call is a safepoint."""


@dataclass(frozen=True)
class Trace:
    """What a run leaves behind. ``hops`` (how often it was moved) and ``images`` do not count in comparisons."""

    results: tuple[int, ...] = ()
    trap: str = ""
    exit_code: int = 0
    stdout: bytes = b""
    log: tuple[int, ...] = ()
    memory: str = ""
    globals: tuple[tuple[int, int], ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()
    wasi: tuple[tuple[tuple[str, object], ...], ...] = ()
    """What each open descriptor is: number, kind, rights, flags, path, offset, bytes consumed and produced."""
    tables: tuple[TableState, ...] = ()
    hops: int = field(default=0, compare=False)
    images: tuple[bytes, ...] = field(default=(), compare=False)


class World:
    """The host side of one life: log and files live on while the program moves.

    ``repeatable``: the same in every life, clocks (each look at one takes a millisecond) and random numbers too.
    """

    def __init__(self, sample: Sample | None = None, imported: Mapping[tuple[str, str], HostGlobal] | None = None,
                 folder: Path | None = None, *, repeatable: bool = False) -> None:
        self.sample = sample
        self.imported = dict(imported or {})
        self.folder = folder
        ticks = [itertools.count(0, 1_000_000).__next__ for _ in range(3)]
        self.clocks = HostClocks(*ticks) if repeatable else HostClocks()
        self.seed = 1 if repeatable else None
        self.log: list[int] = []
        self.hooks: list[Callable[[], None]] = []
        self.wasi: Wasi | None = None
        self.stdout = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the world)
        self.stderr: IO[bytes] | None = None
        """None: that goes to ``stdout`` too."""
        self.stdin = tempfile.TemporaryFile()  # noqa: SIM115
        self._stubs: dict[tuple[str, str], HostFunction] = {}
        for file in (self.stdout, self.stdin):
            weakref.finalize(self, file.close)
        if sample:
            self.stdin.write(sample.stdin)
            self.stdin.seek(0)
            if folder:
                for name, content in sample.files.items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(content)
            module = decode(sample.wasm)
            for item in module.imported(ExternKind.FUNC):
                if f"{item.module}.{item.name}" in sample.stubs:
                    assert isinstance(item.type, int)
                    kind = module.types[item.type]
                    self._stubs[item.module, item.name] = HostFunction(
                        kind.params, kind.results, _returning(sample.stubs[f"{item.module}.{item.name}"], kind))
            mutable = {(item.module, item.name) for item in module.imported(ExternKind.GLOBAL)
                       if isinstance(item.type, GlobalType) and item.type.mutable}
            for key, value in sample.globals.items():
                place, _, name = key.partition(".")
                self.imported[place, name] = HostGlobal(value.type, (place, name) in mutable, value.bits)

    def _config(self) -> WasiConfig:
        sample, errors = self.sample, (self.stderr or self.stdout).fileno()
        if sample is None:
            return WasiConfig(stdin=self.stdin.fileno(), stdout=self.stdout.fileno(), stderr=errors)
        preopens = [(str(self.folder), sample.guest_dir)] if self.folder and sample.guest_dir else []
        return WasiConfig(args=sample.argv, env=sample.env, preopens=preopens, stdin=self.stdin.fileno(),
                          stdout=self.stdout.fileno(), stderr=errors, clocks=self.clocks,
                          random_seed=self.seed)

    def host(self, state: Mapping[str, object] | None = None) -> Host:
        """The host functions, fresh or from an image's state."""
        self.leave()
        self.wasi = wasi = Wasi(self._config()) if state is None else Wasi.restore(self._config(), state)
        functions = {
            (MODULE_NAME, name): HostFunction(f.params, f.results, f.call) for name, f in wasi.functions.items()
        }
        wants = frozenset(functions)
        functions["env", "log"] = HostFunction((I32,), (), self.log.append)
        functions["env", "hook"] = HostFunction((), (), self._hook)
        functions |= self._stubs
        return Host(functions=functions, wants_memory=wants, globals=self.imported, mark=wasi.mark, state=wasi.state,
                    interrupt=wasi.interrupt, resume_calls=wasi.clear_interrupt)

    def _hook(self) -> None:
        for hook in self.hooks:
            hook()

    def leave(self) -> None:
        """The program leaves this process."""
        if self.wasi:
            self.wasi.close()
            self.wasi = None

    def files(self) -> tuple[tuple[str, bytes], ...]:
        """What lies in the guest's folder."""
        if self.folder is None:
            return ()
        paths = [path for path in sorted(self.folder.rglob("*")) if path.is_file()]
        return tuple((str(path.relative_to(self.folder)), path.read_bytes()) for path in paths)

    def descriptors(self) -> tuple[tuple[tuple[str, object], ...], ...]:
        """A command's open descriptors, without what is the host's own: inodes and times."""
        if self.sample is None or self.wasi is None:
            return ()
        records = self.wasi.state()["descriptors"]
        assert isinstance(records, list)
        return tuple(
            tuple((key, value) for key, value in sorted(record.items()) if key not in ("seen", "listing", "start"))
            for record in records
        )

    def output(self) -> bytes:
        """All that was written to stdout and stderr so far."""
        self.stdout.seek(0)
        return self.stdout.read()


def _returning(number: int, kind: FuncType) -> Callable[..., int | None]:
    return lambda *_: number if kind.results else None


def run_program(engine: Engine | None, program: Program | ReferenceProgram) -> Outcome:
    """Run in a guest thread with the stack that the engine needs; the interpreter needs none."""
    if isinstance(program, ReferenceProgram):
        return program.run()
    assert engine is not None
    return run_in_guest_thread(program.run, stack_bytes=engine.thread_stack_bytes(program.stack_bytes))


def _load(name: str) -> Engine | None:
    return None if name == REFERENCE else runtimes.load(name)


def finish(program: Program | ReferenceProgram, outcome: Outcome | None, trap: str, world: World, hops: int,
           images: Sequence[bytes]) -> Trace:
    """The trace of a program that has ended."""
    image = program.capture_idle()
    memory = hashlib.sha256()
    for state in image.memories:
        memory.update(repr((state.index, state.pages, state.zero)).encode())
        for page, data in state.data:
            memory.update(page.to_bytes(4, "little") + data)
    return Trace(
        outcome.results if outcome else (), trap, outcome.exit_code if outcome else 0, world.output(),
        tuple(world.log), memory.hexdigest(), tuple((g.index, g.bits) for g in image.globals), world.files(),
        world.descriptors(), image.tables, hops, tuple(images),
    )


def move(
    wasm: bytes, engines: Sequence[str], nth: int, *, options: Options = COUNTING, world: World | None = None,
    invoke: str | None = None, arguments: Sequence[Value] = (), most_hops: int = 10_000, keep_images: bool = False,
    stack_bytes: int = runtimes.DEFAULT_STACK_BYTES, touch: Callable[[Image], Image] = lambda image: image,
) -> Trace:
    """Run a program, freeze it at each ``nth`` safepoint (0: never), go on on the next engine in turn; ``reference``
    names the interpreter.

    Every image goes through its bytes. ``touch`` may look at each image or change it.
    """
    world = world or World()
    place = 0
    engine = _load(engines[0])
    entry = entry_for(decode(wasm), invoke, arguments)
    program: Program | ReferenceProgram
    if engine is None:
        program = ReferenceProgram(wasm, world.host(), entry)
    else:
        program = Program.fresh(engine, wasm, world.host(), entry, options=options, stack_bytes=stack_bytes)
    hops = 0
    images: list[bytes] = []
    try:
        while True:
            if nth and hops < most_hops:
                program.freeze_at(nth)
            try:
                outcome = run_program(engine, program)
            except GuestTrap as trap:
                return finish(program, None, str(trap.fields.get("kind", trap)), world, hops, images)
            if outcome.status is not Status.FROZEN:
                return finish(program, outcome, "", world, hops, images)
            raw = formats.encode(touch(program.capture()))
            if keep_images:
                images.append(raw)
            image = formats.decode(raw)
            program.close()
            place = (place + 1) % len(engines)
            engine = _load(engines[place])
            if engine is None:
                program = ReferenceProgram(wasm, world.host(image.host), image.entry, image)
            else:
                program = Program.restored(engine, wasm, world.host(image.host), image, options=options,
                                           stack_bytes=stack_bytes)
            hops += 1
    finally:
        program.close()
        world.leave()
