"""The validated bodies of a whole module, packed: only those that somebody looks at are there as `Code`.

Aim: a module's rewriting must not take many times its size. A `Code` takes 25 times its function's bytes (each number
is an object), so those of all functions together were most of what a rewriting took. Packed they take three times the
bytes, and packing and unpacking take a tenth of the time of an analysis. Analyzing a function again whenever it is
looked at takes less memory still, and half as long again. Who looks for certain instructions only asks `using`, which
leaves out the functions that have none of them.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Iterator, Mapping, Set

from .limits import most_values, within
from .module import FuncType, Module
from .validate import MOVED, Code, analyze

__all__ = ["Codes"]


class Codes(Mapping[int, Code]):
    """The analyzed bodies of all functions that a module defines, by function. Each look gives a new object.

    Attributes:
        block_types: types of blocks -> the first function that has one. (Not: those without values, of functions where
            no other is.)

    Raises as `analyze`.
    """

    def __init__(self, module: Module) -> None:
        self._functions = range(module.imported_funcs, len(module.func_types))
        self._packed: list[bytes] = []
        self._used: list[bytes] = []
        """For each function the first bytes of the instructions that it has."""
        self.block_types: dict[FuncType, int] = {}
        moved, most = 0, most_values(len(module.data))
        for func in self._functions:
            code = analyze(module, func)
            moved += code.moved
            within(moved, most, MOVED, function=func)
            self._packed.append(_pack(code))
            self._used.append(bytes(sorted({op if op < 0x100 else op >> 16 for op in set(code.ops)})))
            if code.label_values:
                for i in code.match:
                    if i >= 0 and code.ops[i] != 0x05:
                        self.block_types.setdefault(code.imms[i], func)  # type: ignore[arg-type]

    def __getitem__(self, func: int) -> Code:
        if func not in self._functions:
            raise KeyError(func)
        return _unpack(func, self._packed[func - self._functions.start])

    def __iter__(self) -> Iterator[int]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._packed)

    def using(self, first: Set[int]) -> Iterator[tuple[int, Code]]:
        """The functions that have an instruction that begins with one of these bytes (the set may change meanwhile)."""
        for func, used in zip(self._functions, self._used, strict=True):
            if not first.isdisjoint(used):
                yield func, self[func]


def _pack(code: Code) -> bytes:
    """All of a `Code` but what was watched."""
    narrow = max(code.ops) < 0x100
    short = code.pos[-1] < 0x10000
    return pickle.dumps((
        narrow, bytes(code.ops) if narrow else array("I", code.ops).tobytes(),
        short, array("H" if short else "I", code.pos).tobytes(), code.imms,
        code.match, code.loops, code.calls, code.tail_calls, code.catches, code.heights, code.padded, code.outward,
        code.special, code.label_values,
    ), 5)


def _unpack(func: int, packed: bytes) -> Code:
    code = Code(func)
    (
        narrow, ops, short, pos, code.imms, code.match, code.loops, code.calls, code.tail_calls, code.catches,
        code.heights, code.padded, code.outward, code.special, code.label_values,
    ) = pickle.loads(packed)
    code.ops = list(ops) if narrow else _numbers("I", ops)
    code.pos = _numbers("H" if short else "I", pos)
    return code


def _numbers(kind: str, packed: bytes) -> list[int]:
    found = array(kind)
    found.frombytes(packed)
    return found.tolist()
