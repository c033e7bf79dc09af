"""The machine: a stack of frames, a loop that executes one instruction a turn, and counters of what it passed.

It can stop before any instruction. Safepoints are counted as in a module that tests at every place: control arrives at
a loop's header (the first instruction inside the loop, when it is entered and at each branch back), and a call, of an
import too, has returned (before the next instruction). A tail call has no return of its own: the safepoint is that of
the call that its function's caller made. The n-th safepoint is where the machine stands when it has counted n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

from wasmckpt.errors import GuestTrap, UsageError
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.module import FuncType, Module

from .code import (
    BINARY,
    BR,
    BR_IF,
    BR_TABLE,
    CALL,
    CALL_INDIRECT,
    CONST,
    DROP,
    GLOBAL_GET,
    GLOBAL_SET,
    IF,
    JUMP,
    LOAD,
    LOAD_SIGNED,
    LOCAL_GET,
    LOCAL_SET,
    LOCAL_TEE,
    LOOP,
    NOP,
    OTHER,
    OUT,
    RETURN,
    RETURN_CALL,
    RETURN_CALL_INDIRECT,
    RETURN_IF,
    SELECT,
    STORE,
    THROW,
    THROW_REF,
    UNARY,
    UNREACHABLE,
    Branch,
)
from .floats import NanPolicy
from .store import Caller, Cell, Function, HostFunction, Import, Instance, Thrown, WasmFunction, zero_of
from .traps import trap

if TYPE_CHECKING:
    from wasmckpt.formats.image import Image

__all__ = ["START", "Frame", "Machine", "RepeatCall"]

START: Final = "(start)"
"""The step that runs the start section."""

Outcome = Literal["done", "stopped"]

_FOREVER: Final = 1 << 62


class RepeatCall(Exception):
    """Raised by a host function that was interrupted before it did anything: the machine stops, the call repeats."""


class Frame:
    """One activation: ``pc`` is the index of the next instruction, of a waiting frame the one behind its call."""

    __slots__ = ("function", "locals", "pc", "stack")

    def __init__(self, function: WasmFunction, locals_: list[Cell]) -> None:
        self.function = function
        self.pc = 0
        self.locals = locals_
        self.stack: list[Cell] = []


class Machine:
    """Runs one instance.

    Args:
        module: binary, or decoded and valid.
        imports: see `Instance`; host functions get a `Caller` and bits.
        nan: which NaNs arithmetic makes.
        max_depth: frames; one more is the trap "call stack exhausted".
        instance: run this one, do not instantiate.

    Attributes:
        instructions: executed so far, ``block`` and ``end`` too.
        safepoints: passed so far.
        frames: outermost first.
        results: of the last step, once `run` has returned "done".
        steps, current, arguments: the entry, see `wasmckpt.formats.image.Entry`.
        repeating: the innermost frame stands before a call that raised `RepeatCall`.

    Raises:
        LinkError, GuestTrap: by instantiation.
    """

    def __init__(
        self, module: Module | bytes, imports: Mapping[tuple[str, str], Import] | None = None, *,
        nan: NanPolicy = "canonical", max_depth: int = 20_000, instance: Instance | None = None,
    ) -> None:
        decoded = decode(module) if isinstance(module, bytes) else module
        self.instance = Instance(decoded, imports or {}, nan) if instance is None else instance
        self.module = decoded
        self.max_depth = max_depth
        self.frames: list[Frame] = []
        self.instructions = 0
        self.safepoints = 0
        self.results: tuple[Cell, ...] = ()
        self.steps: tuple[str, ...] = ()
        self.current = 0
        self.arguments: tuple[Cell, ...] = ()
        self.started = decoded.start is None
        self.repeating = False

    def nested(self, instance: Instance) -> Machine:
        """A machine on the same store, for a host function that calls back."""
        inner = Machine(instance.module, max_depth=self.max_depth - len(self.frames), instance=instance)
        inner.started = True
        return inner

    def start(self, export: str, *args: Cell) -> None:
        """Get ready to run the start section, if it has not run, and then an export."""
        self.begin([export] if self.started else [START, export], *args)

    def begin(self, steps: Sequence[str], *args: Cell) -> None:
        """Get ready to run several steps: `START` or names of exported functions; ``args`` are those of the last."""
        for step in steps:
            self.step_function(step)
        self.steps, self.current, self.arguments = tuple(steps), 0, args
        self.frames.clear()
        self.results = ()
        self.repeating = False

    def invoke(self, export: str, *args: Cell) -> tuple[Cell, ...]:
        """Run an export to its end."""
        self.start(export, *args)
        self.run()
        return self.results

    def initialize(self) -> None:
        """Run the start section to its end, if there is one and it has not run."""
        if not self.started:
            self.begin([START])
            self.run()

    def run(self, max_instructions: int | None = None, *, stop_at_safepoint: int | None = None) -> Outcome:
        """Run on.

        Args:
            max_instructions: stop after so many more.
            stop_at_safepoint: stop when `safepoints` has reached this number.

        Returns:
            "done" when all steps have returned, "stopped" before an instruction that has not run yet.

        Raises:
            GuestTrap: ``fields`` have ``kind`` (the specification's words), ``function`` and ``offset``.
        """
        end = self.instructions + max_instructions if max_instructions is not None else _FOREVER
        while True:
            if not self.frames:
                if self.current >= len(self.steps):
                    return "done"
                if self.instructions >= end:
                    return "stopped"
                if not self._enter_step():
                    continue
            if not self._execute(end, stop_at_safepoint or -1):
                return "stopped"
            self._step_done()

    # Steps

    def step_function(self, step: str) -> Function:
        if step == START and self.module.start is not None:
            return self.instance.functions[self.module.start]
        found = self.instance.export(step)
        if not isinstance(found, HostFunction | WasmFunction):
            raise UsageError(f"the module exports no function {step!r}")
        return found

    def _step_arguments(self) -> tuple[Cell, ...]:
        return self.arguments if self.current == len(self.steps) - 1 else ()

    def _enter_step(self) -> bool:
        """Make the first frame of the next step; False where it was a host function and has run."""
        function = self.step_function(self.steps[self.current])
        args = self._step_arguments()
        if len(args) != len(function.type.params):
            raise UsageError(f"{self.steps[self.current]!r} takes {len(function.type.params)} arguments",
                             hint=f"{len(args)} were given")
        if isinstance(function, HostFunction):
            self.results = tuple(self._call_host(function, self.instance, list(args)))
            self._step_done()
            return False
        self._push(function, list(args))
        return True

    def _step_done(self) -> None:
        if self.steps[self.current] == START:
            self.started = True
        self.current += 1

    # Calls

    def _push(self, function: WasmFunction, args: list[Cell]) -> Frame:
        if len(self.frames) >= self.max_depth:
            raise trap("call stack exhausted")
        frame = Frame(function, args + [zero_of(kind) for kind in function.code.locals[len(args):]])
        self.frames.append(frame)
        return frame

    def _call_host(self, function: HostFunction, instance: Instance, args: list[Cell]) -> list[Cell]:
        given = function.body(Caller(self, instance), *args)
        count = len(function.type.results)
        if count == 1 and not isinstance(given, tuple | list):
            return [given]
        results = [] if given is None else list(given)
        assert len(results) == count, "a host function returned another number of values than its type says"
        return results

    def _catch(self, thrown: Thrown) -> Branch:
        """Leave the frames that do not catch an exception; where the one that does goes on, the values on its stack.

        Raises:
            GuestTrap: none does; the frames stay.
        """
        for depth in range(len(self.frames) - 1, -1, -1):
            frame = self.frames[depth]
            tags = frame.function.instance.tags
            for start, end, handlers in frame.function.code.handlers:
                if not start < frame.pc - 1 < end:
                    continue
                for tag, reference, branch in handlers:
                    if tag >= 0 and tags[tag] is not thrown.tag:
                        continue
                    values = [*(thrown.values if tag >= 0 else ()), *([thrown] if reference else ())]
                    del self.frames[depth + 1:]
                    frame.stack[branch.height:] = values
                    return branch
        raise trap("uncaught exception")

    def _execute(self, end: int, stop_at: int) -> bool:
        """Run until the outermost frame has returned (True) or it is time to stop (False)."""
        frames = self.frames
        try:
            return self._loop(frames[-1], end, stop_at)
        except GuestTrap as error:
            if frames and "offset" not in error.fields:
                top = frames[-1]
                error.fields.update(function=top.function.index, offset=top.function.code.offsets[top.pc])
            raise

    def _loop(self, frame: Frame, end: int, stop_at: int) -> bool:
        frames = self.frames
        passed = self.safepoints
        counted = self.instructions
        pc = frame.pc
        function = frame.function
        instance, entries = function.instance, function.code.entries
        stack, variables = frame.stack, frame.locals
        memory = instance.memories[0].data if instance.memories else bytearray()
        push, pop = stack.append, stack.pop
        self.repeating = False
        try:
            for counted in range(self.instructions, end):
                kind, x, y = entries[pc]
                pc += 1
                if kind == LOCAL_GET:
                    push(variables[x])
                elif kind == CONST:
                    push(x)
                elif kind == BINARY:
                    right = pop()
                    stack[-1] = x(stack[-1], right)
                elif kind == LOCAL_SET:
                    variables[x] = pop()
                elif kind == LOCAL_TEE:
                    variables[x] = stack[-1]
                elif kind == LOAD:
                    start = stack[-1] + x
                    stop = start + y
                    if stop > len(memory):
                        raise trap("out of bounds memory access")
                    stack[-1] = int.from_bytes(memory[start:stop], "little")
                elif kind in (BR_IF, BR):
                    if kind == BR or pop():
                        pc, arity, height, loop = x
                        if len(stack) > height + arity:
                            stack[height:] = stack[len(stack) - arity:]
                        if loop:
                            passed += 1
                            if passed == stop_at:
                                counted += 1
                                return False
                elif kind == STORE:
                    value = pop()
                    start = pop() + x
                    size, mask = y
                    stop = start + size
                    if stop > len(memory):
                        raise trap("out of bounds memory access")
                    memory[start:stop] = (value & mask).to_bytes(size, "little")
                elif kind == NOP:
                    pass
                elif kind == UNARY:
                    stack[-1] = x(stack[-1])
                elif kind == LOOP:
                    passed += 1
                    if passed == stop_at:
                        counted += 1
                        return False
                elif kind == IF:
                    if not pop():
                        pc = x
                elif kind == JUMP:
                    pc = x
                elif kind == GLOBAL_GET:
                    push(instance.globals[x].value)
                elif kind == GLOBAL_SET:
                    instance.globals[x].value = pop()
                elif kind == LOAD_SIGNED:
                    start = stack[-1] + x
                    size, extend = y
                    stop = start + size
                    if stop > len(memory):
                        raise trap("out of bounds memory access")
                    stack[-1] = extend(int.from_bytes(memory[start:stop], "little"))
                elif kind == DROP:
                    pop()
                elif kind == SELECT:
                    condition, right = pop(), pop()
                    if not condition:
                        stack[-1] = right
                elif kind == OTHER:
                    x(instance, stack, y)
                elif kind == UNREACHABLE:
                    raise trap("unreachable")
                else:
                    # What is left may leave this frame, make another, or both.
                    results: list[Cell] | None = None
                    looped = False
                    if kind == RETURN:
                        results = stack[len(stack) - x:]
                    elif kind == RETURN_IF:
                        if not pop():
                            continue
                        results = stack[len(stack) - x:]
                    elif kind == BR_TABLE:
                        index = pop()
                        target, arity, height, loop = x[index] if index < len(x) else x[-1]
                        if target == OUT:
                            results = stack[len(stack) - arity:]
                        else:
                            pc = target
                            if len(stack) > height + arity:
                                stack[height:] = stack[len(stack) - arity:]
                            if loop:
                                passed += 1
                                if passed == stop_at:
                                    counted += 1
                                    return False
                            continue
                    elif kind in (THROW, THROW_REF):
                        thrown = pop() if kind == THROW_REF else Thrown(instance.tags[x], tuple(stack[len(stack) - y:]))
                        if thrown is None:
                            raise trap("null exception reference")
                        frame.pc = pc
                        target, arity, _, looped = self._catch(thrown)
                        frame = frames[-1]
                        if target == OUT:
                            results = frame.stack[len(frame.stack) - arity:]
                        else:
                            frame.pc = target
                            passed += looped
                    else:
                        tail = kind in (RETURN_CALL, RETURN_CALL_INDIRECT)
                        indirect = kind in (CALL_INDIRECT, RETURN_CALL_INDIRECT)
                        assert tail or indirect or kind == CALL, "this code cannot be reached"
                        index = pop() if indirect else 0
                        callee = _indirect(instance, x, index, y) if indirect else instance.functions[x]
                        first = len(stack) - len(callee.type.params)
                        args = stack[first:]
                        del stack[first:]
                        frame.pc = pc
                        if isinstance(callee, HostFunction):
                            self.safepoints, self.instructions = passed, counted
                            try:
                                results = self._call_host(callee, instance, args)
                            except RepeatCall:
                                stack += [*args, index] if indirect else args
                                pc -= 1
                                self.repeating = True
                                return False
                            if not tail:
                                stack += results
                                passed += 1
                                if passed == stop_at:
                                    counted += 1
                                    return False
                                continue
                        else:
                            if tail:
                                frames.pop()
                            frame = self._push(callee, args)
                    if results is not None:
                        frames.pop()
                        if not frames:
                            self.results = tuple(results)
                            counted += 1
                            return True
                        frame = frames[-1]
                        frame.stack += results
                        passed += 1
                    pc = frame.pc
                    function = frame.function
                    instance, entries = function.instance, function.code.entries
                    stack, variables = frame.stack, frame.locals
                    memory = instance.memories[0].data if instance.memories else bytearray()
                    push, pop = stack.append, stack.pop
                    if (results is not None or looped) and passed == stop_at:
                        counted += 1
                        return False
            counted = end
            return False
        except BaseException:
            pc -= 1
            raise
        finally:
            frame.pc = pc
            self.safepoints, self.instructions = passed, counted

    # Images

    def image(self, host: Mapping[str, object] | None = None, *, all_locals: bool = False) -> Image:
        """The program as it stands, in terms of its module. See `images.capture`."""
        from .images import capture

        return capture(self, host or {}, all_locals=all_locals)

    @classmethod
    def from_image(
        cls, module: Module | bytes, image: Image, imports: Mapping[tuple[str, str], Import] | None = None, *,
        nan: NanPolicy = "canonical", max_depth: int = 200_000,
    ) -> Machine:
        """A machine that stands where the image says, at any instruction. See `images.restore`."""
        from .images import restore

        machine = cls(module, imports, nan=nan, max_depth=max_depth)
        restore(machine, image)
        return machine


def _indirect(instance: Instance, table: int, index: int, kind: FuncType) -> Function:
    slots = instance.tables[table].slots
    if index >= len(slots):
        raise trap("undefined element")
    callee = slots[index]
    if callee is None:
        raise trap("uninitialized element")
    assert isinstance(callee, HostFunction | WasmFunction)
    if callee.type != kind:
        raise trap("indirect call type mismatch")
    return callee
