"""Functions that the user of the library gives to a guest, beside WASI: how they are declared and what they get.

What a function does to the world cannot be taken back, so each says what a freeze may do while it runs:

``atomic``      the freeze waits until it has returned; its result is part of the image
``repeatable``  the freeze need not wait: an image may hold the call as not begun, and whoever goes on from the image
                makes it again with the same arguments. A program that goes on where it was keeps the run it has.

Either way the guest sees a call that was made once or not at all: what a function stores in the guest's memory is kept
back until it has returned, so a call that was given up has left no trace there.
"""

from __future__ import annotations

import functools
import importlib
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

from wasmckpt.errors import GuestTrap, HostFunctionError, UsageError
from wasmckpt.wasm.values import F32, F64, I32, I64, TYPE_NAMES, WIDTH

from ..lazydata import dataclass, field
from .memory import MemoryFault
from .signals import ProcExit

__all__ = ["Call", "HostFunctions", "UserFunction", "invoke"]

_CODES: Final = {TYPE_NAMES[code]: code for code in (I32, I64, F32, F64)}


@dataclass(frozen=True, slots=True)
class UserFunction:
    """One function for a guest to import.

    Attributes:
        signature: its type, ``"i32 i64 -> i32"``; either side may be empty. Types: i32, i64, f32, f64.
        call: called as ``call(context, *arguments)`` with a `Call`. Arguments are bit patterns (unsigned; a float's
            IEEE bits); it returns None, an int, or a sequence of ints as the signature says, where -1 may stand for
            all bits set. A callable runs in the process of the `Job`, in a thread of its own; a text
            ``"package.module:function"`` is imported and run where the program runs, without the way there and back
            (some 0.2 ms).
        freeze: "atomic" or "repeatable", see the module's text.

    Raises:
        UsageError: the signature or ``freeze`` is none, or the text names no function.
    """

    signature: str
    call: Callable[..., Any] | str
    freeze: Literal["atomic", "repeatable"] = "atomic"

    def __post_init__(self) -> None:
        if self.freeze not in ("atomic", "repeatable"):
            raise UsageError("a host function is atomic or repeatable", field="freeze", given=repr(self.freeze))
        if isinstance(self.call, str):
            module, colon, name = self.call.partition(":")
            if not (colon and module and name) or module == "__main__":
                raise UsageError("a host function is named package.module:function", given=repr(self.call))
        elif not callable(self.call):
            raise UsageError("a host function is a callable or the name of one", given=repr(self.call))
        _ = self.types

    @property
    def types(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Type codes of parameters and results."""
        return _types(self.signature)

    def named(self) -> Callable[..., Any]:
        """The function that the text ``call`` names. Raises `UsageError`."""
        assert isinstance(self.call, str)
        module, _, name = self.call.partition(":")
        try:
            found = operator.attrgetter(name)(importlib.import_module(module))
        except Exception as problem:  # whatever the user's module does when it is imported
            raise UsageError(
                f"a host function cannot be imported: {type(problem).__name__}: {problem}", given=self.call
            ) from problem
        if not callable(found):
            raise UsageError("a host function is not callable", given=self.call)
        return found  # type: ignore[no-any-return]


HostFunctions = Mapping[tuple[str, str], UserFunction]
"""(module, name) of an import -> the function that answers it."""


@functools.cache
def _types(signature: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    left, _, right = signature.partition("->")
    try:
        return tuple(_CODES[t] for t in left.split()), tuple(_CODES[t] for t in right.split())
    except KeyError as unknown:
        raise UsageError(
            f"no type of a host function: {unknown}", given=repr(signature), hint='write it as "i32 i64 -> i32"'
        ) from None


@dataclass(slots=True, eq=False)
class Call(ABC):
    """A call under way, as the function sees it; unusable after it has returned.

    Attributes:
        name: (module, name) of the import.
        size: bytes of the guest's memory (its first one); 0 if it has none.
    """

    name: tuple[str, str]
    size: int
    writes: list[tuple[int, bytes]] = field(default_factory=list)

    @property
    @abstractmethod
    def abandoned(self) -> bool:
        """Whether nobody waits for the result any more: the program has ended, or makes this call again elsewhere."""

    def read(self, address: int, length: int) -> bytes:
        """Bytes of the guest's memory, with what this call has written.

        Raises:
            IndexError: outside. JobEnded: the call is `abandoned`.
        """
        self._check(address, length)
        data = self._read(address, length) if length else b""
        if self.writes:
            patched = bytearray(data)
            for at, written in self.writes:
                first, last = max(at, address), min(at + len(written), address + length)
                if first < last:
                    patched[first - address : last - address] = written[first - at : last - at]
            data = bytes(patched)
        return data

    def write(self, address: int, data: bytes | bytearray | memoryview) -> None:
        """Store bytes in the guest's memory; the guest sees them when the call returns. Raises IndexError."""
        copied = bytes(data)
        self._check(address, len(copied))
        self.writes.append((address, copied))

    def call_export(self, export: str, *arguments: int) -> tuple[int, ...]:
        """Call an exported function of the guest with bit patterns; gives its results' bit patterns.

        What was written so far is stored first. A freeze that is asked for meanwhile waits until this call of the host
        has returned. For atomic functions only.

        Raises:
            UsageError: no such export, or other arguments; or the function is repeatable. GuestTrap: the guest trapped.
        """
        writes, self.writes = self.writes, []
        return self._call_export(export, arguments, writes)

    def _check(self, address: int, length: int) -> None:
        if address < 0 or length < 0 or address + length > self.size:
            raise MemoryFault(f"{length} bytes at {address:#x} of {self.size:#x}")

    @abstractmethod
    def _read(self, address: int, length: int) -> bytes: ...

    @abstractmethod
    def _call_export(
        self, export: str, arguments: Sequence[int], writes: list[tuple[int, bytes]]
    ) -> tuple[int, ...]: ...


def invoke(function: Callable[..., Any], results: tuple[int, ...], call: Call, arguments: Sequence[int]) -> list[int]:
    """Run a user's function; gives its results as bit patterns.

    Raises:
        HostFunctionError: it raised (the cause), or returned something else than its signature says.
        GuestTrap, ProcExit: of an export that it called.
    """
    try:
        given = function(call, *arguments)
        values = () if given is None else given if isinstance(given, list | tuple) else (given,)
        if len(values) != len(results):
            raise TypeError(f"{len(values)} results, {len(results)} declared")
        return [_bits(value, type_) for value, type_ in zip(values, results, strict=True)]
    except (GuestTrap, ProcExit):
        raise
    except BaseException as problem:
        raise HostFunctionError(
            f"a host function failed: {type(problem).__name__}: {problem}", function=".".join(call.name)
        ) from problem


def _bits(value: Any, type_: int) -> int:
    number = operator.index(value)  # refuses floats
    width = 8 * WIDTH[type_]
    if not -(1 << (width - 1)) <= number < 1 << width:
        raise OverflowError(f"{number} is no {TYPE_NAMES[type_]}")
    return number & ((1 << width) - 1)
