"""Integer instructions on bit patterns: every value is an unsigned int of 32 or 64 bits."""

from __future__ import annotations

from collections.abc import Callable

from wasmckpt.wasm.opcodes import BY_NAME

from .traps import trap

__all__ = ["Operation", "integer_operations", "of_width", "sign_extension"]

Operation = Callable[..., int]


def integer_operations() -> dict[int, Operation]:
    """Opcode to function, for all instructions whose operands and results are integers (reinterpretations too)."""
    named: dict[str, Operation] = {}
    for bits in (32, 64):
        for name, operation in of_width(bits).items():
            named[f"i{bits}.{name}"] = operation
    named["i32.wrap_i64"] = lambda a: a & 0xFFFF_FFFF
    named["i64.extend_i32_u"] = lambda a: a
    named["i64.extend_i32_s"] = sign_extension(32, 64)
    named["i64.extend32_s"] = sign_extension(32, 64)
    for name in ("i32.reinterpret_f32", "i64.reinterpret_f64", "f32.reinterpret_i32", "f64.reinterpret_i64"):
        named[name] = lambda a: a
    return {BY_NAME[name].code: operation for name, operation in named.items()}


def sign_extension(source: int, target: int) -> Operation:
    """A function that widens the low ``source`` bits of its operand, as a signed number, to ``target`` bits."""
    sign, keep, mask = 1 << source - 1, (1 << source) - 1, (1 << target) - 1
    return lambda a: (((a & keep) ^ sign) - sign) & mask


def of_width(bits: int) -> dict[str, Operation]:
    """Name without its type to function, for integers of any width."""
    mask, sign, shift_mask = (1 << bits) - 1, 1 << bits - 1, bits - 1

    def signed(a: int) -> int:
        return (a ^ sign) - sign

    def div_s(a: int, b: int) -> int:
        x, y = signed(a), signed(b)
        if y == 0:
            raise trap("integer divide by zero")
        quotient = abs(x) // abs(y) if (x < 0) == (y < 0) else -(abs(x) // abs(y))
        if quotient == sign:  # the least number by -1
            raise trap("integer overflow")
        return quotient & mask

    def div_u(a: int, b: int) -> int:
        if b == 0:
            raise trap("integer divide by zero")
        return a // b

    def rem_s(a: int, b: int) -> int:
        x, y = signed(a), signed(b)
        if y == 0:
            raise trap("integer divide by zero")
        rest = abs(x) % abs(y)
        return (-rest if x < 0 else rest) & mask

    def rem_u(a: int, b: int) -> int:
        if b == 0:
            raise trap("integer divide by zero")
        return a % b

    def shr_s(a: int, b: int) -> int:
        return (signed(a) >> (b & shift_mask)) & mask

    def rotl(a: int, b: int) -> int:
        b &= shift_mask
        return (a << b | a >> bits - b) & mask

    def rotr(a: int, b: int) -> int:
        b &= shift_mask
        return (a >> b | a << bits - b) & mask

    return {
        "eqz": lambda a: 0 if a else 1,
        "eq": lambda a, b: 1 if a == b else 0,
        "ne": lambda a, b: 1 if a != b else 0,
        # With the sign bit flipped, signed order is unsigned order.
        "lt_s": lambda a, b: 1 if a ^ sign < b ^ sign else 0,
        "gt_s": lambda a, b: 1 if a ^ sign > b ^ sign else 0,
        "le_s": lambda a, b: 1 if a ^ sign <= b ^ sign else 0,
        "ge_s": lambda a, b: 1 if a ^ sign >= b ^ sign else 0,
        "lt_u": lambda a, b: 1 if a < b else 0,
        "gt_u": lambda a, b: 1 if a > b else 0,
        "le_u": lambda a, b: 1 if a <= b else 0,
        "ge_u": lambda a, b: 1 if a >= b else 0,
        "clz": lambda a: bits - a.bit_length(),
        "ctz": lambda a: (a & -a).bit_length() - 1 if a else bits,
        "popcnt": lambda a: a.bit_count(),
        "add": lambda a, b: a + b & mask,
        "sub": lambda a, b: a - b & mask,
        "mul": lambda a, b: a * b & mask,
        "div_s": div_s,
        "div_u": div_u,
        "rem_s": rem_s,
        "rem_u": rem_u,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "shl": lambda a, b: a << (b & shift_mask) & mask,
        "shr_s": shr_s,
        "shr_u": lambda a, b: a >> (b & shift_mask),
        "rotl": rotl,
        "rotr": rotr,
        "extend8_s": sign_extension(8, bits),
        "extend16_s": sign_extension(16, bits),
    }
