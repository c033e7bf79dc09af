"""The reference interpreter in the place of a program on a runtime: as much of `Program` as a move needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wasmckpt.errors import GuestTrap
from wasmckpt.formats import Entry, Image
from wasmckpt.host import BytesMemory, ProcExit
from wasmckpt.host import RepeatCall as HostRepeatCall
from wasmckpt.runtimes import HostFunction
from wasmckpt.snapshot.program import Host, Outcome, Status
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import ExternKind, FuncType, GlobalType, Limits, TableType
from wasmckpt.wasm.values import Value

from .interpreter import Caller, Global, Import, Machine, RepeatCall, Tag
from .interpreter import HostFunction as MachineFunction
from .interpreter.images import to_bits, to_cell
from .interpreter.store import Cell, Memory, Table

__all__ = ["REFERENCE", "ReferenceProgram"]

REFERENCE = "reference"


class ReferenceProgram:
    """A program in the interpreter, at its beginning or where an image holds it.

    `freeze_at` counts every loop header and every return of a call, as the plan ``all`` of the rewriter does.
    """

    def __init__(self, wasm: bytes, host: Host, entry: Entry, image: Image | None = None) -> None:
        self.host = host
        imports: dict[tuple[str, str], Import] = {
            key: MachineFunction(FuncType(f.params, f.results), _body(f, key in host.wants_memory))
            for key, f in host.functions.items()
        }
        imports |= {key: Global(GlobalType(g.type, g.mutable), g.bits) for key, g in host.globals.items()}
        module = decode(wasm)
        tags = (Tag(module.payload(n)) for n in range(len(module.tags)))
        for item, tag in zip(module.imported(ExternKind.TAG), tags, strict=False):
            imports[item.module, item.name] = tag
        for item in module.imports:  # memories and tables are the program's own, whoever would define them
            if isinstance(item.type, Limits):
                imports[item.module, item.name] = Memory(item.type)
            elif isinstance(item.type, TableType):
                imports[item.module, item.name] = Table(item.type)
        if image is None:
            self.machine = Machine(wasm, imports)
            instance = self.machine.instance
            self.machine.begin(entry.steps, *[to_cell(instance, value) for value in entry.arguments])
        else:
            self.machine = Machine.from_image(wasm, image, imports)
        self._stop: int | None = None

    def freeze_at(self, safepoint: int) -> None:
        """Freeze at the n-th safepoint passed from now."""
        self._stop = self.machine.safepoints + safepoint

    def run(self) -> Outcome:
        """Run until the program ends or is frozen. Raises `GuestTrap`."""
        try:
            if self.machine.run(stop_at_safepoint=self._stop) == "stopped":
                return Outcome(Status.FROZEN)
        except ProcExit as end:
            self._ended()
            return Outcome(Status.EXITED, exit_code=end.code)
        except GuestTrap:
            self._ended()
            raise
        machine = self.machine
        kinds = machine.step_function(machine.steps[-1]).type.results if machine.steps else ()
        return Outcome(Status.DONE, tuple(
            to_bits(machine.instance, kind, cell) for kind, cell in zip(kinds, machine.results, strict=True)
        ))

    def begin(self, export: str, arguments: Sequence[Value] = ()) -> None:
        """Call another export of the same instance with the next `run`."""
        self.machine.begin([export], *[to_cell(self.machine.instance, value) for value in arguments])
        self._stop = None

    def abandon(self) -> None:
        """As in `Program`: a trap leaves nothing to give up here."""

    def read_global(self, index: int) -> int:
        """The bits of a global."""
        found = self.machine.instance.globals[index]
        return to_bits(self.machine.instance, found.kind.type, found.value)

    def _ended(self) -> None:
        self.machine.frames.clear()
        self.machine.current = len(self.machine.steps)

    def capture(self) -> Image:
        """The image as it stands."""
        return self.machine.image(self.host.state())

    capture_idle = capture

    def close(self) -> None:
        """Nothing is held."""


def _body(function: HostFunction, wants_memory: bool) -> Callable[..., object]:
    call = function.call

    def body(caller: Caller, *cells: Cell) -> object:
        instance = caller.instance
        arguments = [to_bits(instance, kind, cell) for kind, cell in zip(function.params, cells, strict=True)]
        try:
            made = call(BytesMemory(caller.memory()), *arguments) if wants_memory else call(*arguments)
        except HostRepeatCall as error:
            raise RepeatCall from error
        results = made if isinstance(made, tuple) else () if made is None else (made,)
        return [to_cell(instance, Value(*pair)) for pair in zip(function.results, results, strict=True)]

    return body
