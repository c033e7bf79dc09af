"""Floating point instructions on bit patterns, rounded as IEEE 754 says, in pure Python.

A Python float is a double. For ``+ - * /`` and the square root of f32, computing in double and rounding once more gives
the right result, since a double has more than twice as many digits plus two; for integers to f32 it does not, so those
are rounded by hand. NaNs never pass through a Python float: hardware may change their bits on the way.

Which NaN an instruction makes is not fixed by the specification. Two policies: ``"canonical"`` always makes the
positive canonical one; ``"x86"`` does what that processor's instructions do: the first operand that is a NaN, made
quiet, else the negative canonical one.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Final, Literal

from wasmckpt.wasm.opcodes import BY_NAME

from .integers import Operation
from .traps import trap

__all__ = ["FLOAT32", "FLOAT64", "Format", "NanPolicy", "float_operations"]

NanPolicy = Literal["canonical", "x86"]

_INTS: Final = {32: struct.Struct("<I"), 64: struct.Struct("<Q")}
_FLOATS: Final = {32: struct.Struct("<f"), 64: struct.Struct("<d")}


class Format:
    """One of the two formats: conversions between bits and Python floats, and the bits that matter."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.mantissa = 23 if bits == 32 else 52
        self.sign = 1 << bits - 1
        self.magnitude = self.sign - 1
        self.infinity = self.magnitude ^ ((1 << self.mantissa) - 1)
        self.quiet = 1 << self.mantissa - 1
        self.canonical = self.infinity | self.quiet
        self._pack_int, self._unpack_int = _INTS[bits].pack, _INTS[bits].unpack
        self._pack, self._unpack = _FLOATS[bits].pack, _FLOATS[bits].unpack

    def is_nan(self, a: int) -> bool:
        return a & self.magnitude > self.infinity

    def to_float(self, a: int) -> float:
        """The number; of a NaN some NaN."""
        value: float = self._unpack(self._pack_int(a))[0]
        return value

    def from_float(self, x: float) -> int:
        """The bits of the nearest number, ties to even, infinite where it is too large. Not for NaNs."""
        try:
            bits: int = self._unpack_int(self._pack(x))[0]
        except OverflowError:
            return self.infinity | (self.sign if x < 0 else 0)
        return bits

    def from_int(self, number: int) -> int:
        """The bits of the number nearest to an integer, ties to even."""
        size = abs(number)
        excess = size.bit_length() - (self.mantissa + 1)
        if excess > 0:
            kept, rest, half = size >> excess, size & (1 << excess) - 1, 1 << excess - 1
            if rest > half or (rest == half and kept & 1):
                kept += 1
            size = kept << excess
        return self.from_float(float(-size if number < 0 else size))


FLOAT32: Final = Format(32)
FLOAT64: Final = Format(64)


def float_operations(policy: NanPolicy) -> dict[int, Operation]:
    """Opcode to function, for all instructions with a floating point operand or result but for reinterpretations."""
    named: dict[str, Operation] = {}
    for form in (FLOAT32, FLOAT64):
        name = f"f{form.bits}"
        for rest, operation in {**comparisons(form), **arithmetic(form, policy)}.items():
            named[f"{name}.{rest}"] = operation
        for bits in (32, 64):
            named[f"{name}.convert_i{bits}_u"] = form.from_int
            named[f"{name}.convert_i{bits}_s"] = _convert_signed(form, bits)
            for signed in (True, False):
                kind = "s" if signed else "u"
                named[f"i{bits}.trunc_{name}_{kind}"] = _truncate(form, bits, signed)
                named[f"i{bits}.trunc_sat_{name}_{kind}"] = saturating_truncation(form, bits, signed)
    named["f32.demote_f64"] = width_change(FLOAT64, FLOAT32, policy)
    named["f64.promote_f32"] = width_change(FLOAT32, FLOAT64, policy)
    return {BY_NAME[name].code: operation for name, operation in named.items()}


def comparisons(form: Format) -> dict[str, Operation]:
    """Instruction name without its type, to function."""
    to_float = form.to_float
    return {
        "eq": lambda a, b: 1 if to_float(a) == to_float(b) else 0,
        "ne": lambda a, b: 1 if to_float(a) != to_float(b) else 0,
        "lt": lambda a, b: 1 if to_float(a) < to_float(b) else 0,
        "gt": lambda a, b: 1 if to_float(a) > to_float(b) else 0,
        "le": lambda a, b: 1 if to_float(a) <= to_float(b) else 0,
        "ge": lambda a, b: 1 if to_float(a) >= to_float(b) else 0,
    }


def arithmetic(form: Format, policy: NanPolicy) -> dict[str, Operation]:
    """Instruction name without its type, to function."""
    to_float, from_float = form.to_float, form.from_float
    magnitude, infinity, sign, quiet = form.magnitude, form.infinity, form.sign, form.quiet

    def made(*operands: int) -> int:
        """The NaN that an instruction makes of its operands."""
        if policy == "canonical":
            return form.canonical
        return next((a | quiet for a in operands if a & magnitude > infinity), form.canonical | sign)

    def result(x: float, *operands: int) -> int:
        return from_float(x) if x == x else made(*operands)

    def binary(compute: Callable[[float, float], float]) -> Operation:
        def run(a: int, b: int) -> int:
            x = compute(to_float(a), to_float(b))
            return from_float(x) if x == x else made(a, b)
        return run

    def rounding(compute: Callable[[float], float]) -> Operation:
        def run(a: int) -> int:
            size = a & magnitude
            if size > infinity:
                return made(a)
            if size == infinity:
                return a
            return from_float(compute(to_float(a))) | a & sign  # a zero keeps its sign
        return run

    def sqrt(a: int) -> int:
        x = to_float(a)
        if x != x or x < 0:
            return made(a)
        return from_float(math.sqrt(x))  # of -0 it is -0

    def extreme(negative_first: bool) -> Operation:
        def run(a: int, b: int) -> int:
            if form.is_nan(a) or form.is_nan(b):
                return made(a, b)
            x, y = to_float(a), to_float(b)
            if x == y:  # equal, or zeros of either sign
                return a | b if negative_first else a & b
            return a if (x < y) == negative_first else b
        return run

    return {
        "abs": lambda a: a & magnitude,
        "neg": lambda a: a ^ sign,
        "copysign": lambda a, b: a & magnitude | b & sign,
        "ceil": rounding(math.ceil),
        "floor": rounding(math.floor),
        "trunc": rounding(math.trunc),
        "nearest": rounding(round),  # Python's rounds to even
        "sqrt": sqrt,
        "add": binary(lambda x, y: x + y),
        "sub": binary(lambda x, y: x - y),
        "mul": binary(lambda x, y: x * y),
        "div": binary(_divide),
        "min": extreme(True),
        "max": extreme(False),
    }


def _divide(x: float, y: float) -> float:
    if y != 0:
        return x / y
    if x == 0 or x != x:
        return math.nan
    return math.copysign(math.inf, math.copysign(1.0, x) * math.copysign(1.0, y))


def _convert_signed(form: Format, bits: int) -> Operation:
    sign = 1 << bits - 1
    return lambda a: form.from_int((a ^ sign) - sign)


def integer_range(bits: int, signed: bool) -> tuple[int, int]:
    """Least and greatest number."""
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


def _truncate(form: Format, bits: int, signed: bool) -> Operation:
    least, greatest = integer_range(bits, signed)
    mask = (1 << bits) - 1

    def run(a: int) -> int:
        if form.is_nan(a):
            raise trap("invalid conversion to integer")
        if a & form.magnitude == form.infinity:
            raise trap("integer overflow")
        number = math.trunc(form.to_float(a))
        if not least <= number <= greatest:
            raise trap("integer overflow")
        return number & mask
    return run


def saturating_truncation(form: Format, bits: int, signed: bool) -> Operation:
    """A function that truncates to the nearest integer of the range; a NaN gives 0."""
    least, greatest = integer_range(bits, signed)
    mask = (1 << bits) - 1

    def run(a: int) -> int:
        if form.is_nan(a):
            return 0
        if a & form.magnitude == form.infinity:
            return (least if a & form.sign else greatest) & mask
        return min(max(math.trunc(form.to_float(a)), least), greatest) & mask
    return run


def width_change(source: Format, target: Format, policy: NanPolicy) -> Operation:
    """A function from one format to the other: demotion or promotion."""
    shift = source.mantissa - target.mantissa

    def run(a: int) -> int:
        if not source.is_nan(a):
            return target.from_float(source.to_float(a))
        if policy == "canonical":
            return target.canonical
        payload = a & (1 << source.mantissa) - 1
        payload = payload >> shift if shift > 0 else payload << -shift
        return (target.sign if a & source.sign else 0) | target.canonical | payload
    return run
