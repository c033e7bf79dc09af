"""Vector instructions: a v128 is an int of 128 bits, lane 0 lowest; most go lane by lane through scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from wasmckpt.wasm.opcodes import TABLE

from .floats import FLOAT32, FLOAT64, NanPolicy, arithmetic, comparisons, saturating_truncation, width_change
from .integers import Operation, of_width, sign_extension
from .traps import trap

if TYPE_CHECKING:
    from .store import Instance

__all__ = ["VECTOR_REST", "vector_operations"]

ALL: Final = (1 << 128) - 1


def lanes(vector: int, width: int) -> list[int]:
    """The lanes of ``width`` bits, lowest first."""
    mask = (1 << width) - 1
    return [vector >> at & mask for at in range(0, 128, width)]


def joined(values: Iterable[int], width: int) -> int:
    """A vector of lanes; missing ones are zero."""
    return sum(value << i * width for i, value in enumerate(values))


def signed(value: int, width: int) -> int:
    return (value ^ 1 << width - 1) - (1 << width - 1)


def clamped(number: int, width: int, is_signed: bool) -> int:
    """The nearest number that ``width`` bits hold, as bits."""
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if is_signed else (0, (1 << width) - 1)
    return min(max(number, low), high) & (1 << width) - 1


@cache
def vector_operations(policy: NanPolicy) -> dict[int, Operation]:
    """Opcode to function, for all vector instructions without immediates."""
    named = _whole()
    for width in (8, 16, 32, 64):
        shape = f"i{width}x{128 // width}."
        named.update({shape + name: operation for name, operation in _integers(width).items()})
    for width in (32, 64):
        shape = f"f{width}x{128 // width}."
        named.update({shape + name: operation for name, operation in _floats(width, policy).items()})
    named.update(_conversions(policy))
    return {code: named[op.name] for code, op in TABLE.items() if 0xFD0000 <= code < 0xFE0000 and op.imm == "-"}


def _whole() -> dict[str, Operation]:
    def bitselect(a: int, b: int, mask: int) -> int:
        return a & mask | b & ~mask

    def swizzle(a: int, b: int) -> int:
        source = lanes(a, 8)
        return joined([source[i] if i < 16 else 0 for i in lanes(b, 8)], 8)

    return {
        "v128.not": lambda a: a ^ ALL,
        "v128.and": lambda a, b: a & b,
        "v128.andnot": lambda a, b: a & ~b,
        "v128.or": lambda a, b: a | b,
        "v128.xor": lambda a, b: a ^ b,
        "v128.bitselect": bitselect,
        "v128.any_true": lambda a: 1 if a else 0,
        "i8x16.swizzle": swizzle,
    }


def unary(width: int, operation: Operation) -> Operation:
    return lambda a: joined([operation(x) for x in lanes(a, width)], width)


def binary(width: int, operation: Operation) -> Operation:
    return lambda a, b: joined([operation(x, y) for x, y in zip(lanes(a, width), lanes(b, width), strict=True)], width)


def comparison(width: int, operation: Operation) -> Operation:
    """A comparison gives all ones for true."""
    ones = (1 << width) - 1
    return binary(width, lambda x, y: ones if operation(x, y) else 0)


def _integers(width: int) -> dict[str, Operation]:
    scalar = of_width(width)
    mask = (1 << width) - 1

    def shift(operation: Operation) -> Operation:
        return lambda a, count: joined([operation(x, count) for x in lanes(a, width)], width)

    def saturating(compute: Callable[[int, int], int], is_signed: bool) -> Operation:
        def run(x: int, y: int) -> int:
            if is_signed:
                x, y = signed(x, width), signed(y, width)
            return clamped(compute(x, y), width, is_signed)
        return binary(width, run)

    def chosen(choose: Callable[[int, int], int], is_signed: bool) -> Operation:
        if is_signed:
            return binary(width, lambda x, y: choose(signed(x, width), signed(y, width)) & mask)
        return binary(width, choose)

    named: dict[str, Operation] = {
        "splat": lambda a: joined([a & mask] * (128 // width), width),
        "abs": unary(width, lambda x: abs(signed(x, width))),
        "neg": unary(width, lambda x: -x & mask),
        "popcnt": unary(width, scalar["popcnt"]),
        "all_true": lambda a: 1 if all(lanes(a, width)) else 0,
        "bitmask": lambda a: joined([x >> width - 1 for x in lanes(a, width)], 1),
        "avgr_u": binary(width, lambda x, y: x + y + 1 >> 1),
        "q15mulr_sat_s": binary(
            width, lambda x, y: clamped(signed(x, width) * signed(y, width) + 0x4000 >> 15, width, True)),
    }
    for name in ("add", "sub", "mul"):
        named[name] = binary(width, scalar[name])
    for name in ("shl", "shr_s", "shr_u"):
        named[name] = shift(scalar[name])
    for name in ("eq", "ne", "lt_s", "lt_u", "gt_s", "gt_u", "le_s", "le_u", "ge_s", "ge_u"):
        named[name] = comparison(width, scalar[name])
    for kind in ("s", "u"):
        named[f"add_sat_{kind}"] = saturating(lambda x, y: x + y, kind == "s")
        named[f"sub_sat_{kind}"] = saturating(lambda x, y: x - y, kind == "s")
        named[f"min_{kind}"] = chosen(min, kind == "s")
        named[f"max_{kind}"] = chosen(max, kind == "s")
        if width < 64:
            named[f"narrow_i{2 * width}x{64 // width}_{kind}"] = _narrow(width, kind == "s")
        if width > 8:
            _widening(named, width, kind)
    if width == 32:
        named["dot_i16x8_s"] = _dot
    return named


def _narrow(width: int, is_signed: bool) -> Operation:
    """Two vectors of wide signed lanes to one of narrow lanes, saturating."""
    return lambda a, b: joined(
        [clamped(signed(x, 2 * width), width, is_signed) for x in lanes(a, 2 * width) + lanes(b, 2 * width)], width)


def _widening(named: dict[str, Operation], width: int, kind: str) -> None:
    """The instructions from lanes of half the width."""
    half = width // 2
    of = f"i{half}x{128 // half}_{kind}"
    mask = (1 << width) - 1

    def wide(vector: int) -> list[int]:
        return [signed(x, half) if kind == "s" else x for x in lanes(vector, half)]

    def part(vector: int, which: str) -> list[int]:
        every = wide(vector)
        middle = len(every) // 2
        return every[:middle] if which == "low" else every[middle:]

    def extend(which: str) -> Operation:
        return lambda a: joined([x & mask for x in part(a, which)], width)

    def extmul(which: str) -> Operation:
        return lambda a, b: joined([x * y & mask for x, y in zip(part(a, which), part(b, which), strict=True)], width)

    for which in ("low", "high"):
        named[f"extend_{which}_{of}"] = extend(which)
        named[f"extmul_{which}_{of}"] = extmul(which)
    named[f"extadd_pairwise_{of}"] = lambda a: joined(
        [x + y & mask for x, y in zip(wide(a)[::2], wide(a)[1::2], strict=True)], width)


def _dot(a: int, b: int) -> int:
    products = [signed(x, 16) * signed(y, 16) for x, y in zip(lanes(a, 16), lanes(b, 16), strict=True)]
    return joined([x + y & 0xFFFF_FFFF for x, y in zip(products[::2], products[1::2], strict=True)], 32)


def _floats(width: int, policy: NanPolicy) -> dict[str, Operation]:
    form = FLOAT32 if width == 32 else FLOAT64
    less = comparisons(form)["lt"]
    named: dict[str, Operation] = {
        "splat": lambda a: joined([a] * (128 // width), width),
        "pmin": binary(width, lambda x, y: y if less(y, x) else x),
        "pmax": binary(width, lambda x, y: y if less(x, y) else x),
    }
    for name, operation in comparisons(form).items():
        named[name] = comparison(width, operation)
    for name, operation in arithmetic(form, policy).items():
        one = name in ("abs", "neg", "ceil", "floor", "trunc", "nearest", "sqrt")
        named[name] = unary(width, operation) if one else binary(width, operation)
    return named


def _conversions(policy: NanPolicy) -> dict[str, Operation]:
    demote = width_change(FLOAT64, FLOAT32, policy)
    promote = width_change(FLOAT32, FLOAT64, policy)
    named: dict[str, Operation] = {
        "f32x4.demote_f64x2_zero": lambda a: joined([demote(x) for x in lanes(a, 64)], 32),
        "f64x2.promote_low_f32x4": lambda a: joined([promote(x) for x in lanes(a, 32)[:2]], 64),
        "f32x4.convert_i32x4_u": unary(32, FLOAT32.from_int),
        "f32x4.convert_i32x4_s": unary(32, lambda x: FLOAT32.from_int(signed(x, 32))),
        "f64x2.convert_low_i32x4_u": lambda a: joined([FLOAT64.from_int(x) for x in lanes(a, 32)[:2]], 64),
        "f64x2.convert_low_i32x4_s": lambda a: joined([FLOAT64.from_int(signed(x, 32)) for x in lanes(a, 32)[:2]], 64),
    }
    for kind in ("s", "u"):
        from32 = saturating_truncation(FLOAT32, 32, kind == "s")
        named[f"i32x4.trunc_sat_f32x4_{kind}"] = unary(32, from32)
        named[f"i32x4.trunc_sat_f64x2_{kind}_zero"] = _truncate_pair(saturating_truncation(FLOAT64, 32, kind == "s"))
    return named


def _truncate_pair(operation: Operation) -> Operation:
    return lambda a: joined([operation(x) for x in lanes(a, 64)], 32)


# Instructions with immediates: they take the instance, the operand stack and the immediates

Stack = list[Any]
Rest = Callable[["Instance", Stack, Any], None]


def _extract(width: int, result: int, extended: bool) -> Rest:
    extend = sign_extension(width, result) if extended else None

    def run(instance: Instance, stack: Stack, lane: int) -> None:
        value = lanes(stack.pop(), width)[lane]
        stack.append(extend(value) if extend else value)
    return run


def _replace(width: int) -> Rest:
    def run(instance: Instance, stack: Stack, lane: int) -> None:
        value, vector = stack.pop(), stack.pop()
        stack.append(_with_lane(vector, width, lane, value & (1 << width) - 1))
    return run


def _with_lane(vector: int, width: int, lane: int, value: int) -> int:
    values = lanes(vector, width)
    values[lane] = value
    return joined(values, width)


def _shuffle(instance: Instance, stack: Stack, order: Sequence[int]) -> None:
    second, first = stack.pop(), stack.pop()
    source = lanes(first, 8) + lanes(second, 8)
    stack.append(joined([source[i] for i in order], 8))


def _read(instance: Instance, memory: int, start: int, size: int) -> int:
    data = instance.memories[memory].data
    if start + size > len(data):
        raise trap("out of bounds memory access")
    return int.from_bytes(data[start:start + size], "little")


def _write(instance: Instance, memory: int, start: int, size: int, value: int) -> None:
    data = instance.memories[memory].data
    if start + size > len(data):
        raise trap("out of bounds memory access")
    data[start:start + size] = value.to_bytes(size, "little")


def _load(size: int, made: Operation) -> Rest:
    def run(instance: Instance, stack: Stack, imm: tuple[int, int]) -> None:
        memory, offset = imm
        stack.append(made(_read(instance, memory, stack.pop() + offset, size)))
    return run


def _load_extend(width: int, is_signed: bool) -> Operation:
    extend: Operation = sign_extension(width, 2 * width) if is_signed else lambda x: x
    return lambda a: joined([extend(x) for x in lanes(a, width)[:64 // width]], 2 * width)


def _load_splat(width: int) -> Operation:
    return lambda a: joined([a] * (128 // width), width)


def _load_lane(width: int) -> Rest:
    def run(instance: Instance, stack: Stack, imm: tuple[int, int, int]) -> None:
        memory, offset, lane = imm
        vector, address = stack.pop(), stack.pop()
        stack.append(_with_lane(vector, width, lane, _read(instance, memory, address + offset, width // 8)))
    return run


def _store_lane(width: int) -> Rest:
    def run(instance: Instance, stack: Stack, imm: tuple[int, int, int]) -> None:
        memory, offset, lane = imm
        vector, address = stack.pop(), stack.pop()
        _write(instance, memory, address + offset, width // 8, lanes(vector, width)[lane])
    return run


def _store(instance: Instance, stack: Stack, imm: tuple[int, int]) -> None:
    memory, offset = imm
    value, address = stack.pop(), stack.pop()
    _write(instance, memory, address + offset, 16, value)


def _rest() -> dict[str, Rest]:
    named: dict[str, Rest] = {"i8x16.shuffle": _shuffle, "v128.store": _store, "v128.load": _load(16, lambda a: a)}
    for kind, widths in (("i", (8, 16, 32, 64)), ("f", (32, 64))):
        for width in widths:
            shape = f"{kind}{width}x{128 // width}"
            named[f"{shape}.extract_lane"] = _extract(width, width, False)
            named[f"{shape}.extract_lane_u"] = _extract(width, 32, False)
            named[f"{shape}.extract_lane_s"] = _extract(width, 32, True)
            named[f"{shape}.replace_lane"] = _replace(width)
    for width in (8, 16, 32, 64):
        named[f"v128.load{width}_splat"] = _load(width // 8, _load_splat(width))
        named[f"v128.load{width}_zero"] = _load(width // 8, lambda a: a)
        named[f"v128.load{width}_lane"] = _load_lane(width)
        named[f"v128.store{width}_lane"] = _store_lane(width)
        for sign in ("s", "u"):
            named[f"v128.load{width}x{64 // width}_{sign}"] = _load(8, _load_extend(width, sign == "s"))
    return named


def _by_code(named: dict[str, Rest]) -> dict[int, Rest]:
    wanted = {code: op.name for code, op in TABLE.items()
              if 0xFD0000 <= code < 0xFE0000 and op.imm not in ("-", "v128")}
    return {code: named[name] for code, name in wanted.items()}


VECTOR_REST: Final[dict[int, Rest]] = _by_code(_rest())
