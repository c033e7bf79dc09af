"""Canonical NaNs: after arithmetic on floats whatever NaN came out becomes the positive quiet one without a payload.

WebAssembly leaves sign and payload of such a NaN open, and processors differ: 0/0 has its sign set on x86-64 and not on
arm64. A program that looks at these bits (it stores one, hashes it, tests its sign) then differs, too. With
`Options.canonical_nans` it gives the same bits everywhere:

    f64.div          f64.div  local.tee $t  f64.const nan  local.get $t  local.get $t  f64.ge  select

Vectors do the same for each lane by a comparison and ``v128.bitselect``. What moves bits only (``neg``, ``abs``,
``copysign``, ``pmin``, ``pmax``, ``reinterpret``, loads, constants, what the host returns) keeps them, by the
specification, and so does this.

Nothing is added where nobody can see the bits: where the value goes straight into an instruction that only asks whether
it is a NaN (a comparison, a conversion to an integer) or makes another NaN of it that is made canonical in turn. So a
chain of arithmetic pays once. That the value goes there is seen only within code without branches, blocks and calls: no
safepoint lies between, and an image holds canonical NaNs only.

The offsets of the original are kept as those of all that is added are: what follows an instruction belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ..wasm.leb128 import uleb
from ..wasm.opcodes import BY_NAME, TABLE
from ..wasm.validate import Code
from ..wasm.values import F32, F64, V128
from . import emit

__all__ = ["CANONICAL", "MAKING_NANS", "canonical", "to_make_canonical"]

CANONICAL: Final = {F32: 0x7FC0_0000, F64: 0x7FF8_0000_0000_0000}
"""Bits of the canonical NaN."""

_FLOATS: Final = ("f32", "f64", "f32x4", "f64x2")
_ARITHMETIC: Final = "add sub mul div min max sqrt ceil floor trunc nearest"


def _making() -> dict[int, int]:
    rows = {f"{shape}.{name}": lane for shape, lane in zip(_FLOATS, (F32, F64, F32, F64), strict=True)
            for name in _ARITHMETIC.split()}
    rows |= {"f32.demote_f64": F32, "f64.promote_f32": F64, "f32x4.demote_f64x2_zero": F32,
             "f64x2.promote_low_f32x4": F64}
    return {BY_NAME[name].code: lane for name, lane in rows.items()}


MAKING_NANS: Final = _making()
"""The instructions whose NaNs are open -> type of the result, or of its lanes."""
_ASKING: Final = frozenset(
    [BY_NAME[f"{shape}.{name}"].code for shape in _FLOATS for name in ("eq", "ne", "lt", "gt", "le", "ge")]
    + [op.code for op in TABLE.values() if op.name.partition(".")[2].startswith("trunc_")]
)
"""The instructions that ask no more of a NaN than whether it is one."""
_BLIND: Final = _ASKING.union(MAKING_NANS)
_FARTHEST: Final = 64
"""Instructions that are looked at for where a value goes."""


def to_make_canonical(code: Code) -> Iterator[int]:
    """The instructions of a function after which a NaN has to be made canonical."""
    ops = code.ops
    for i, op in enumerate(ops):
        if op in MAKING_NANS and not _goes_unseen(code, i):
            yield i


def _goes_unseen(code: Code, i: int) -> bool:
    """Whether what instruction ``i`` makes is taken by one that does not look at a NaN's bits."""
    above = 0
    width = TABLE[code.ops[i]].pushes
    for op in code.ops[i + 1 : i + 1 + _FARTHEST]:
        if op == 0x20 or op == 0x23:  # local.get, global.get
            above += 1
            continue
        row = TABLE[op]
        if row.pops is None or row.pushes is None:
            return False
        if len(row.pops) > above:
            # Lanes of another width are other numbers: half of a NaN's bits may be seen as a float of its own.
            same = _lane(op) == MAKING_NANS[code.ops[i]] or width != (V128,)
            return op in _BLIND and same
        above += len(row.pushes) - len(row.pops)
    return False


def _lane(op: int) -> int:
    """Type of the float lanes that an instruction takes; 0: none."""
    name = TABLE[op].name
    if "demote" in name or "f64x2_" in name:
        return F64
    if "promote" in name or "f32x4_" in name:
        return F32
    return {"f32x4": F32, "f64x2": F64}.get(name.partition(".")[0], 0)


def canonical(op: int, local: int) -> bytes:
    """What comes after an instruction of `MAKING_NANS`; ``local`` is a spare one of the type of its result."""
    lane = MAKING_NANS[op]
    again = emit.local_get(local)
    bits = CANONICAL[lane].to_bytes(4 if lane == F32 else 8, "little")
    if TABLE[op].pushes != (V128,):
        constant = (b"\x43" if lane == F32 else b"\x44") + bits
        is_number = b"\x60" if lane == F32 else b"\x66"  # ge: one condition of the processor, for eq x86-64 tests two
        return emit.local_tee(local) + constant + again + again + is_number + b"\x1b"  # select
    equal = _vector("f32x4.eq" if lane == F32 else "f64x2.eq")
    return (emit.local_tee(local) + _vector("v128.const") + bits * (4 if lane == F32 else 2) + again + again + equal
            + _vector("v128.bitselect"))


def _vector(name: str) -> bytes:
    return b"\xfd" + uleb(BY_NAME[name].code & 0xFFFF)
