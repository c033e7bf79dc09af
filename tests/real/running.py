"""Runs programs of the table: under wasmtime's own WASI, under ours, and frozen at one point after the other on the way
through several runtimes. What a run leaves behind is compared whole, as in `tests.matrix`."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from wasmckpt import UserFunction
from wasmckpt.errors import NotSupported
from wasmckpt.formats import Image
from wasmckpt.host import HostClocks
from wasmckpt.snapshot.job import check
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind
from wasmckpt.wasm.values import TYPE_NAMES

from ..matrix.check import closing_world, difference, safepoints
from ..support.moving import COUNTING, Trace, World, move
from ..support.samples import Sample
from ..support.undisturbed import Outcome, run_undisturbed

__all__ = ["RealWorld", "Subject", "as_trace", "refused"]

BETWEEN: Final = b"\n== standard error ==\n"
STACK_BYTES: Final = 64 << 20
NOON: Final = 1_700_000_000 * 10**9


class RealWorld(World):
    """As `World`; what goes to standard error stands behind all that went to standard output. Random numbers are the
    same in each life and, unless the program would wait for it, so is the time: it stands still (`World` has one that
    goes on with each look, and a move looks too)."""

    def __init__(self, sample: Sample, folder: Path, *, time_goes_on: bool) -> None:
        super().__init__(sample, folder=folder, repeatable=True)
        self.clocks = HostClocks() if time_goes_on else HostClocks(lambda: NOON, lambda: NOON, lambda: 0)
        self.stderr = self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the world)
        weakref.finalize(self, self._errors.close)

    def output(self) -> bytes:
        self._errors.seek(0)
        return super().output() + BETWEEN + self._errors.read()


class Subject:
    """A program on its way: what it leaves behind undisturbed is found once and kept. ``scratch``: for its files."""

    def __init__(self, sample: Sample, scratch: Path, *, time_goes_on: bool = False) -> None:
        self.sample = sample
        self.time_goes_on = time_goes_on
        self.scratch = scratch
        self.invoke = sample.calls[0].export if sample.calls else None
        self._undisturbed: dict[str, Trace] = {}
        self._repeats: bool | None = None
        self._count = 0

    def world(self) -> World:
        """A new one, with its own copy of the files."""
        return RealWorld(self.sample, Path(tempfile.mkdtemp(dir=self.scratch)), time_goes_on=self.time_goes_on)

    def plain(self) -> Outcome:
        """Under wasmtime's own WASI: nothing of ours is in it."""
        return run_undisturbed(self.sample)

    def undisturbed(self, engine: str) -> Trace:
        """Under ours, never frozen."""
        if engine not in self._undisturbed:
            self._undisturbed[engine] = self._run([engine], 0, 0)
        return self._undisturbed[engine]

    def repeats(self, engine: str) -> bool:
        """Whether two undisturbed lives end with the same memory: not so where a file's number, or what time it is,
        lies in it. Then memories are not compared."""
        if self._repeats is None:
            self._repeats = self._run([engine], 0, 0) == self.undisturbed(engine)
        return self._repeats

    def safepoints(self, engine: str = "wasmtime") -> int:
        """How many it passes."""
        if not self._count:
            self._count = safepoints(self.sample.wasm, engine, COUNTING, invoke=self.invoke, world=self.world)
        return self._count

    def moved(self, engines: Sequence[str], nth: int, most_hops: int,
              touch: Callable[[Image], Image] = lambda image: image) -> str:
        """How a life differs from the undisturbed one: it is frozen at each ``nth`` safepoint, ``most_hops`` times, and
        goes on on the next of ``engines`` in turn. Empty: in nothing. One that was not frozen differs, too."""
        seen: list[Trace] = []
        repeats = self.repeats(engines[0])

        def comparable(trace: Trace) -> Trace:
            return trace if repeats else replace(trace, memory="", globals=())

        def run(names: Sequence[str], every: int) -> Trace:
            seen.append(self._run(names, every, most_hops, touch))
            return comparable(seen[-1])

        wrong = difference(run, engines, nth, comparable(self.undisturbed(engines[0])))
        return wrong or ("it was never frozen" if not seen[-1].hops else "")

    def _run(self, engines: Sequence[str], nth: int, most_hops: int,
             touch: Callable[[Image], Image] = lambda image: image) -> Trace:
        world = self.world()
        with closing_world(world):
            return move(self.sample.wasm, engines, nth, options=COUNTING, world=world, invoke=self.invoke,
                        most_hops=most_hops, stack_bytes=STACK_BYTES, touch=touch)


def as_trace(end: Outcome) -> tuple[bytes, int, dict[str, bytes]]:
    """What `Subject.plain` and an undisturbed `Trace` have in common: output, exit code, files."""
    return end.stdout + BETWEEN + end.stderr, end.exit_code, end.files


def refused(sample: Sample, engine: str) -> str:
    """What a runtime lacks for a module, by its name; empty: nothing."""
    module = decode(sample.wasm)
    given = {}
    for item in module.imported(ExternKind.FUNC):
        if f"{item.module}.{item.name}" in sample.stubs:
            assert isinstance(item.type, int)
            kind = module.types[item.type]
            words = [" ".join(TYPE_NAMES[one] for one in types) for types in (kind.params, kind.results)]
            given[item.module, item.name] = UserFunction(" -> ".join(words), lambda call, *_: 0)
    try:
        check(sample.wasm, engine, host_functions=given)
    except NotSupported as reason:
        return str(reason.fields.get("need"))
    return ""
