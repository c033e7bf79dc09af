"""The opcode table: one row per instruction; length, operand types, needed feature and printed name all derive from it.

An instruction's code is its byte, or ``prefix << 16 | sub`` for those behind 0xFC, 0xFD and 0xFE. A row is
``code name immediates signature``; the signature is ``operands:results`` in letters (i I f F V = i32 i64 f32 f64 v128)
or ``*`` where it depends on the context (control, locals, references), which the validator knows by the code.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from .values import F32, F64, I32, I64, V128

__all__ = ["BLOCKS", "BY_NAME", "TABLE", "Op"]


class Op(NamedTuple):
    """One instruction: ``imm`` names its immediates, ``pops`` and ``pushes`` are type codes (None: depends)."""

    code: int
    name: str
    imm: str
    pops: tuple[int, ...] | None
    pushes: tuple[int, ...] | None
    feature: str


_LETTER: Final = {"i": I32, "I": I64, "f": F32, "F": F64, "V": V128}

_CORE: Final = """
00 unreachable - *|01 nop - *|02 block block *|03 loop block *|04 if block *|05 else - *|0b end - *
08 throw tag *|0a throw_ref - *|1f try_table try_table *
0c br label *|0d br_if label *|0e br_table br_table *|0f return - *|10 call func *|11 call_indirect type_table *
12 return_call func *|13 return_call_indirect type_table *|1a drop - *|1b select - *|1c select_t types *
20 local.get local *|21 local.set local *|22 local.tee local *|23 global.get global *|24 global.set global *
25 table.get table *|26 table.set table *
28 i32.load memarg i:i|29 i64.load memarg i:I|2a f32.load memarg i:f|2b f64.load memarg i:F
2c i32.load8_s memarg i:i|2d i32.load8_u memarg i:i|2e i32.load16_s memarg i:i|2f i32.load16_u memarg i:i
30 i64.load8_s memarg i:I|31 i64.load8_u memarg i:I|32 i64.load16_s memarg i:I|33 i64.load16_u memarg i:I
34 i64.load32_s memarg i:I|35 i64.load32_u memarg i:I|36 i32.store memarg ii:|37 i64.store memarg iI:
38 f32.store memarg if:|39 f64.store memarg iF:|3a i32.store8 memarg ii:|3b i32.store16 memarg ii:
3c i64.store8 memarg iI:|3d i64.store16 memarg iI:|3e i64.store32 memarg iI:
3f memory.size mem :i|40 memory.grow mem i:i
41 i32.const i32 :i|42 i64.const i64 :I|43 f32.const f32 :f|44 f64.const f64 :F
d0 ref.null reftype *|d1 ref.is_null - *|d2 ref.func func *
"""

_PREFIXED: Final = """
fc:8 memory.init data_mem iii:|fc:9 data.drop data :|fc:10 memory.copy mem_mem iii:|fc:11 memory.fill mem iii:
fc:12 table.init elem_table iii:|fc:13 elem.drop elem :|fc:14 table.copy table_table iii:
fc:15 table.grow table *|fc:16 table.size table :i|fc:17 table.fill table *
fe:0 memory.atomic.notify memarg ii:i|fe:1 memory.atomic.wait32 memarg iiI:i|fe:2 memory.atomic.wait64 memarg iII:i
fe:3 atomic.fence zero :
"""


def _numeric() -> list[tuple[int, str, str]]:
    """The plain numeric instructions 0x45 to 0xc4, in the order of their codes."""
    rows: list[tuple[str, str]] = [("i32.eqz", "i:i")]
    compare = "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u".split()
    rows += [(f"i32.{n}", "ii:i") for n in compare] + [("i64.eqz", "I:i")] + [(f"i64.{n}", "II:i") for n in compare]
    rows += [(f"{t}.{n}", f"{c}{c}:i") for t, c in (("f32", "f"), ("f64", "F")) for n in "eq ne lt gt le ge".split()]
    binary = "add sub mul div_s div_u rem_s rem_u and or xor shl shr_s shr_u rotl rotr".split()
    for t, c in (("i32", "i"), ("i64", "I")):
        rows += [(f"{t}.{n}", f"{c}:{c}") for n in ("clz", "ctz", "popcnt")]
        rows += [(f"{t}.{n}", f"{c}{c}:{c}") for n in binary]
    for t, c in (("f32", "f"), ("f64", "F")):
        rows += [(f"{t}.{n}", f"{c}:{c}") for n in "abs neg ceil floor trunc nearest sqrt".split()]
        rows += [(f"{t}.{n}", f"{c}{c}:{c}") for n in "add sub mul div min max copysign".split()]
    rows += [("i32.wrap_i64", "I:i")]
    rows += [(f"i32.trunc_{s}", f"{c}:i") for s, c in (("f32_s", "f"), ("f32_u", "f"), ("f64_s", "F"), ("f64_u", "F"))]
    rows += [("i64.extend_i32_s", "i:I"), ("i64.extend_i32_u", "i:I")]
    rows += [(f"i64.trunc_{s}", f"{c}:I") for s, c in (("f32_s", "f"), ("f32_u", "f"), ("f64_s", "F"), ("f64_u", "F"))]
    convert = (("i32_s", "i"), ("i32_u", "i"), ("i64_s", "I"), ("i64_u", "I"))
    rows += [(f"f32.convert_{s}", f"{c}:f") for s, c in convert] + [("f32.demote_f64", "F:f")]
    rows += [(f"f64.convert_{s}", f"{c}:F") for s, c in convert] + [("f64.promote_f32", "f:F")]
    rows += [("i32.reinterpret_f32", "f:i"), ("i64.reinterpret_f64", "F:I"),
             ("f32.reinterpret_i32", "i:f"), ("f64.reinterpret_i64", "I:F")]
    rows += [("i32.extend8_s", "i:i"), ("i32.extend16_s", "i:i"),
             ("i64.extend8_s", "I:I"), ("i64.extend16_s", "I:I"), ("i64.extend32_s", "I:I")]
    return [(0x45 + i, name, sig) for i, (name, sig) in enumerate(rows)]


def _simd() -> list[tuple[int, str, str, str]]:
    """The 236 instructions behind 0xFD: (sub, name, immediates, signature)."""
    rows: list[tuple[int, str, str, str]] = []

    def add(first: int, names: str, sig: str, imm: str = "-", prefix: str = "") -> None:
        for i, name in enumerate(names.split()):
            if name != "_":
                rows.append((first + i, prefix + name, imm, sig))

    loads = "load load8x8_s load8x8_u load16x4_s load16x4_u load32x2_s load32x2_u load8_splat load16_splat load32_splat"
    add(0, loads + " load64_splat", "i:V", "memarg", "v128.")
    add(11, "v128.store", "iV:", "memarg")
    add(12, "v128.const", ":V", "v128")
    add(13, "i8x16.shuffle", "VV:V", "lanes16")
    add(14, "i8x16.swizzle", "VV:V")
    for i, (shape, c) in enumerate(zip("i8x16 i16x8 i32x4 i64x2 f32x4 f64x2".split(), "iiiIfF", strict=True)):
        add(15 + i, f"{shape}.splat", f"{c}:V")
    for first, name, c in ((21, "i8x16.extract_lane_s", "i"), (22, "i8x16.extract_lane_u", "i"),
                           (24, "i16x8.extract_lane_s", "i"), (25, "i16x8.extract_lane_u", "i"),
                           (27, "i32x4.extract_lane", "i"), (29, "i64x2.extract_lane", "I"),
                           (31, "f32x4.extract_lane", "f"), (33, "f64x2.extract_lane", "F")):
        add(first, name, f"V:{c}", "lane")
    for first, shape, c in ((23, "i8x16", "i"), (26, "i16x8", "i"), (28, "i32x4", "i"), (30, "i64x2", "I"),
                            (32, "f32x4", "f"), (34, "f64x2", "F")):
        add(first, f"{shape}.replace_lane", f"V{c}:V", "lane")
    for first, shape in ((35, "i8x16."), (45, "i16x8."), (55, "i32x4.")):
        add(first, "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u", "VV:V", prefix=shape)
    for first, shape in ((65, "f32x4."), (71, "f64x2.")):
        add(first, "eq ne lt gt le ge", "VV:V", prefix=shape)
    add(77, "v128.not", "V:V")
    add(78, "and andnot or xor", "VV:V", prefix="v128.")
    add(82, "v128.bitselect", "VVV:V")
    add(83, "v128.any_true", "V:i")
    add(84, "load8_lane load16_lane load32_lane load64_lane", "iV:V", "memarg_lane", "v128.")
    add(88, "store8_lane store16_lane store32_lane store64_lane", "iV:", "memarg_lane", "v128.")
    add(92, "load32_zero load64_zero", "i:V", "memarg", "v128.")
    add(94, "f32x4.demote_f64x2_zero f64x2.promote_low_f32x4", "V:V")
    for first, shape in ((96, "i8x16."), (128, "i16x8."), (160, "i32x4."), (192, "i64x2.")):
        add(first, "abs neg", "V:V", prefix=shape)
        add(first + 3, "all_true bitmask", "V:i", prefix=shape)
        add(first + 11, "shl shr_s shr_u", "Vi:V", prefix=shape)
    add(98, "i8x16.popcnt", "V:V")
    add(101, "i8x16.narrow_i16x8_s i8x16.narrow_i16x8_u", "VV:V")
    add(103, "ceil floor trunc nearest", "V:V", prefix="f32x4.")
    add(110, "add add_sat_s add_sat_u sub sub_sat_s sub_sat_u", "VV:V", prefix="i8x16.")
    add(116, "ceil floor", "V:V", prefix="f64x2.")
    add(118, "min_s min_u max_s max_u _ avgr_u", "VV:V", prefix="i8x16.")
    add(122, "f64x2.trunc", "V:V")
    add(124, "i16x8.extadd_pairwise_i8x16_s i16x8.extadd_pairwise_i8x16_u", "V:V")
    add(126, "i32x4.extadd_pairwise_i16x8_s i32x4.extadd_pairwise_i16x8_u", "V:V")
    add(130, "i16x8.q15mulr_sat_s", "VV:V")
    add(133, "i16x8.narrow_i32x4_s i16x8.narrow_i32x4_u", "VV:V")
    for first, to, of in ((135, "i16x8", "i8x16"), (167, "i32x4", "i16x8"), (199, "i64x2", "i32x4")):
        add(first, f"low_{of}_s high_{of}_s low_{of}_u high_{of}_u", "V:V", prefix=f"{to}.extend_")
    for first, to, of in ((156, "i16x8", "i8x16"), (188, "i32x4", "i16x8"), (220, "i64x2", "i32x4")):
        add(first, f"low_{of}_s high_{of}_s low_{of}_u high_{of}_u", "VV:V", prefix=f"{to}.extmul_")
    add(142, "add add_sat_s add_sat_u sub sub_sat_s sub_sat_u", "VV:V", prefix="i16x8.")
    add(148, "f64x2.nearest", "V:V")
    add(149, "mul min_s min_u max_s max_u _ avgr_u", "VV:V", prefix="i16x8.")
    add(174, "add _ _ sub _ _ _ mul min_s min_u max_s max_u dot_i16x8_s", "VV:V", prefix="i32x4.")
    add(206, "add _ _ sub _ _ _ mul eq ne lt_s gt_s le_s ge_s", "VV:V", prefix="i64x2.")
    for first, shape in ((224, "f32x4."), (236, "f64x2.")):
        add(first, "abs neg _ sqrt", "V:V", prefix=shape)
        add(first + 4, "add sub mul div min max pmin pmax", "VV:V", prefix=shape)
    add(248, "i32x4.trunc_sat_f32x4_s i32x4.trunc_sat_f32x4_u f32x4.convert_i32x4_s f32x4.convert_i32x4_u", "V:V")
    add(252, "i32x4.trunc_sat_f64x2_s_zero i32x4.trunc_sat_f64x2_u_zero", "V:V")
    add(254, "f64x2.convert_low_i32x4_s f64x2.convert_low_i32x4_u", "V:V")
    return rows


def _atomics() -> list[tuple[int, str, str]]:
    """The accesses behind 0xFE, from 16 on: (sub, name, signature)."""
    widths = (("i32", "", "i"), ("i64", "", "I"), ("i32", "8", "i"), ("i32", "16", "i"), ("i64", "8", "I"),
              ("i64", "16", "I"), ("i64", "32", "I"))
    rows = [(f"{t}.atomic.load{w}{'_u' if w else ''}", f"i:{c}") for t, w, c in widths]
    rows += [(f"{t}.atomic.store{w}", f"i{c}:") for t, w, c in widths]
    for name in "add sub and or xor xchg cmpxchg".split():
        rows += [(f"{t}.atomic.rmw{w}.{name}{'_u' if w else ''}", f"i{c * (2 if name == 'cmpxchg' else 1)}:{c}")
                 for t, w, c in widths]
    return [(16 + i, name, sig) for i, (name, sig) in enumerate(rows)]


def _feature(code: int) -> str:
    if code >= 0xFE0000:
        return "atomics"
    if code >= 0xFD0000:
        return "simd"
    if code >= 0xFC0000:
        sub = code & 0xFFFF
        return "saturating-conversions" if sub < 8 else "bulk-memory" if sub < 15 else "reference-types"
    if code in (0x08, 0x0A, 0x1F):
        return "exceptions"
    if code in (0x12, 0x13):
        return "tail-calls"
    if code in (0x1C, 0x25, 0x26, 0xD0, 0xD1, 0xD2):
        return "reference-types"
    return "sign-extension" if 0xC0 <= code <= 0xC4 else "mvp"


def _build() -> dict[int, Op]:
    table: dict[int, Op] = {}

    def put(code: int, name: str, imm: str, sig: str) -> None:
        pops = pushes = None
        if sig != "*":
            left, _, right = sig.partition(":")
            pops, pushes = tuple(_LETTER[c] for c in left), tuple(_LETTER[c] for c in right)
        table[code] = Op(code, name, imm, pops, pushes, _feature(code))

    for text in (_CORE, _PREFIXED):
        for row in text.replace("\n", "|").split("|"):
            if row.strip():
                code, name, imm, sig = row.split()
                prefix, _, sub = code.partition(":")
                put(int(prefix, 16) << 16 | int(sub) if sub else int(prefix, 16), name, imm, sig)
    for code_number, name, sig in _numeric():
        put(code_number, name, "-", sig)
    saturating = [("i32", "i"), ("i64", "I")]
    for i, (to, c) in enumerate(saturating):
        for j, (of, d) in enumerate((("f32_s", "f"), ("f32_u", "f"), ("f64_s", "F"), ("f64_u", "F"))):
            put(0xFC0000 | i * 4 + j, f"{to}.trunc_sat_{of}", "-", f"{d}:{c}")
    for sub_number, name, imm, sig in _simd():
        put(0xFD0000 | sub_number, name, imm, sig)
    for sub_number, name, sig in _atomics():
        put(0xFE0000 | sub_number, name, "memarg", sig)
    return table


BLOCKS: Final = frozenset({0x02, 0x03, 0x04, 0x1F})
"""block, loop, if, try_table: what an ``end`` closes."""

TABLE: Final[dict[int, Op]] = _build()
BY_NAME: Final[dict[str, Op]] = {op.name: op for op in TABLE.values()}
