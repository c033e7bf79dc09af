"""The helper functions inside the rewritten module: polls, spilling, what ends an unwinding, wrappers of exports.

The window is a stretch of memory that records are appended to, innermost frame first. In a control memory it starts at
`CONTROL_BASE`; where a runtime has one memory only, the first spill grows the guest's memory and spills into the new
pages. ``memory.size`` is then wrong for the guest, which does not run any more: the image takes the size from before
(global ``base``), and the instance is thrown away.

Control words (i32). In a control memory at these offsets; on the other runtimes exported globals of the same name:

    0 flag      the host raises it; polls read it
    4 done      1 after the last store of an unwinding
    8 frames    end of the frames' records, beginning of the globals'
   12 sp        end of the window's content
   16 state     resume: 1 the frames are rebuilt, waiting; 2 the window is used up, waiting for more; 0 go on

The marker ``done`` is the module's last store, so that who reads the memory of a forked copy knows that all is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..wasm.leb128 import uleb
from ..wasm.limits import most_stored, within
from ..wasm.module import ExternKind, FuncType
from ..wasm.values import F32, F64, I32, I64, V128, WIDTH
from . import emit
from .depth import DEPTH_AT_FIRST
from .linker import CONTROL_PAGES, PREFIX, WINDOW_PAGES, Linker

__all__ = ["RECORD_ORDER", "WORDS", "Helpers"]

WORDS: Final = {"flag": 0, "done": 4, "frames": 8, "sp": 12, "state": 16}
RECORD_ORDER: Final = (I32, I64, F32, F64, V128)
_ARGUMENTS: Final = 8
"""Values a spill helper takes: more would not fit registers (measured: 16 cost 1.16, 8 cost 1.11)."""

_PAGE_SHIFT: Final = 16


_KEPT: Final = ("sp", "limit", "base", "frames", "done", "flag", "state", "rp", "rend", "count", "depth", "more",
                "grow", "poll", "finish")


class Helpers:
    """Adds the fixed helpers to a linker and makes spill helpers on demand.

    Args:
        kept: what another object's `kept` gave, whose linker had the same in it as ``linker`` has: nothing is added.
    """

    def __init__(self, linker: Linker, kept: Mapping[str, Any] | None = None) -> None:
        self.linker = linker
        self.dropped: dict[tuple[str, int], int] = {}
        self._stored = 0
        self._spillers: dict[tuple[int, ...], int] = {}
        if kept is None:
            self._add()
        else:
            for name in _KEPT:
                setattr(self, name, kept[name])

    def _add(self) -> None:
        linker = self.linker
        options = linker.options
        base = linker.window_base
        limit = CONTROL_PAGES << _PAGE_SHIFT if linker.own_memory else 0
        add = linker.add_global
        self.sp = add("sp", I32, base)
        self.limit = add("limit", I32, limit)
        self.base = add("base", I32, base)
        self.frames = add("frames", I32, 0)
        self.done = add("done", I32, 0)
        self.flag = add("flag", I32, 0)
        self.state = add("state", I32, 0)
        self.rp = add("rp", I32, base)
        self.rend = add("rend", I32, 0)
        self.count = add("count", I64, (1 << 62)) if options.count else -1
        self.depth = add("depth", I32, DEPTH_AT_FIRST) if options.depth_counter else -1
        if linker.control:
            linker.exports.append((PREFIX + "control", ExternKind.MEMORY, linker.memory))
        elif linker.own_memory:
            linker.exports.append((PREFIX + "window", ExternKind.MEMORY, linker.memory))
        for i in range(len(linker.module.memories)):
            linker.exports.append((f"{PREFIX}memory{i}", ExternKind.MEMORY, i))
        for i, kind in enumerate(linker.module.globals):
            if kind.mutable and kind.type == V128:  # not every runtime hands one over, as a global or otherwise
                self._halves(i)
            elif kind.mutable:
                linker.exports.append((f"{PREFIX}global{i}", ExternKind.GLOBAL, i))
        self.more = self._more()
        self.grow = self._grow() if linker.module.memories else -1
        self.poll = self._poll()
        self.finish = -1

    def kept(self) -> dict[str, Any]:
        """Plain data: numbers of globals and functions, and the code of a poll."""
        return {name: getattr(self, name) for name in _KEPT}

    def _halves(self, index: int) -> None:
        """Functions that read and write a global of type v128 as two i64, the lower half first."""
        get, halves = emit.global_get(index), (I64, I64)
        read = get + b"\xfd\x1d\x00" + get + b"\xfd\x1d\x01"  # i64x2.extract_lane
        write = (
            emit.local_get(0) + b"\xfd\x12" + emit.local_get(1) + b"\xfd\x1e\x01"  # i64x2.splat, replace_lane
            + emit.global_set(index)
        )
        for name, kind, code in (("get", FuncType((), halves), read), ("set", FuncType(halves, ()), write)):
            func = self.linker.add_function(f"{name}_global{index}", kind, [], code)
            self.linker.exports.append((f"{PREFIX}{name}_global{index}", ExternKind.FUNC, func))

    def _more(self) -> int:
        """Make room for ``size`` bytes: grow the window's memory; on failure trap (the copy is thrown away)."""
        memory = self.linker.memory
        pages, old = 1, 2  # locals
        code = (
            emit.local_get(0) + emit.i32_const(_PAGE_SHIFT) + b"\x76" + emit.i32_const(CONTROL_PAGES) + b"\x6a"
            + emit.memory_grow(memory) + emit.local_tee(old) + emit.i32_const(0xFFFFFFFF) + b"\x46"
            + emit.IF + emit.UNREACHABLE + emit.END
            + emit.global_get(self.sp) + b"\x45" + emit.IF  # the first spill into the guest's memory
            + emit.local_get(old) + emit.i32_const(_PAGE_SHIFT) + b"\x74" + emit.local_tee(pages)
            + emit.global_set(self.sp) + emit.local_get(pages) + emit.global_set(self.base) + emit.END
            + emit.memory_size(memory) + emit.i32_const(_PAGE_SHIFT) + b"\x74" + emit.global_set(self.limit)
        )
        return self.linker.add_function("more", FuncType((I32,), ()), [I32, I32], code)

    def _grow(self) -> int:
        """``memory.grow`` of the guest's first memory, with the maximum it had before we raised it."""
        linker = self.linker
        if linker.own_memory:
            return linker.add_function("grow", FuncType((I32,), (I32,)), [], emit.local_get(0) + emit.memory_grow(0))
        declared = linker.module.memories[0].maximum
        top = min(65536 if declared is None else declared, linker.options.max_memory_pages - WINDOW_PAGES)
        refuse = emit.i32_const(0xFFFFFFFF) + emit.RETURN
        code = (
            # size + delta > top, without overflow: delta > top - size (and size may already be above top)
            emit.memory_size(0) + emit.i32_const(top) + b"\x4b" + emit.IF + emit.local_get(0)
            + emit.IF + refuse + emit.END + emit.memory_size(0) + emit.RETURN + emit.END
            + emit.local_get(0) + emit.i32_const(top) + emit.memory_size(0) + b"\x6b" + b"\x4b"
            + emit.IF + refuse + emit.END
            + emit.local_get(0) + emit.memory_grow(0)
        )
        return linker.add_function("grow", FuncType((I32,), (I32,)), [], code)

    def _poll(self) -> bytes:
        """The code of a poll: leaves an i32, not zero when the program is to be frozen."""
        if not self.linker.options.count:
            if self.linker.control:
                return emit.i32_const(WORDS["flag"]) + emit.atomic_load(self.linker.memory)
            return emit.global_get(self.flag)
        # The n-th safepoint brings the counter to zero, where it stays: unwinding does not count.
        less = emit.global_get(self.count) + b"\x42\x01\x7d" + emit.global_set(self.count)
        code = (
            emit.global_get(self.count) + b"\x50" + emit.IF + emit.i32_const(1) + emit.RETURN + emit.END
            + less + emit.global_get(self.count) + b"\x50"
        )
        return emit.call(self.linker.add_function("poll", FuncType((), (I32,)), [], code))

    def spill(self, sources: Sequence[tuple[int, bytes]]) -> bytes:
        """Code that appends values to the window; ``sources``: (type, code that pushes it), sorted by type.

        Each call takes values of one type, of the rarer types 1, 2, 4 or 8: a helper for every mixture costs more than
        the calls that it saves (in small modules a third of the compiled code, since each type of a function brings
        code of its own).
        """
        self._count(len(sources))
        out = []
        start = 0
        while start < len(sources):
            kind = sources[start][0]
            size = 1
            while size < _ARGUMENTS and start + size < len(sources) and sources[start + size][0] == kind:
                size += 1
            if kind != I32:
                size = 1 << (size.bit_length() - 1)
            out += [code for _, code in sources[start : start + size]]
            out.append(emit.call(self._spiller((kind,) * size)))
            start += size
        return b"".join(out)

    def _count(self, values: int) -> None:
        """Note what is stored or passed on by code of ours."""
        self._stored += values
        within(self._stored, most_stored(len(self.linker.module.data)),
               "values that safepoints store and wrappers of exports pass on")

    def _spiller(self, types: tuple[int, ...]) -> int:
        known = self._spillers.get(types)
        if known is None:
            name = "spill " + "".join(f"{t:x}" for t in types)
            known = self.linker.functions[name] if name in self.linker.functions else self._add_spiller(name, types)
            self._spillers[types] = known
        return known

    def _add_spiller(self, name: str, types: tuple[int, ...]) -> int:
        size = sum(WIDTH[t] for t in types)
        at = len(types)
        code = [
            emit.global_get(self.sp), emit.i32_const(size), b"\x6a", emit.global_get(self.limit), b"\x4b",
            emit.IF, emit.i32_const(size), emit.call(self.more), emit.END,
            emit.global_get(self.sp), emit.local_set(at),
        ]
        offset = 0
        for i, kind in enumerate(types):
            code += [emit.local_get(at), emit.local_get(i), emit.store(kind, self.linker.memory, offset)]
            offset += WIDTH[kind]
        code += [emit.local_get(at), emit.i32_const(size), b"\x6a", emit.global_set(self.sp)]
        return self.linker.add_function(name, FuncType(types, ()), [I32], b"".join(code))

    def store_in_place(self, sources: Sequence[tuple[int, bytes]]) -> bytes:
        """As `spill`, without a call: for functions that call nothing, whose record is always the window's first."""
        self._count(len(sources))
        out = []
        at = self.linker.window_base
        for kind, code in sources:
            out += [emit.i32_const(0), code, emit.store(kind, self.linker.memory, at)]
            at += WIDTH[kind]
        return b"".join(out) + emit.i32_const(at) + emit.global_set(self.sp)

    def drop_flag(self, what: str, segment: int) -> int:
        """The global that says that a segment was dropped (``what``: "data" or "elem")."""
        key = (what, segment)
        if key not in self.dropped:
            self.dropped[key] = self.linker.add_global(f"dropped_{what}{segment}", I32, 0)
        return self.dropped[key]

    def add_finish(self) -> None:
        """The function that ends an unwinding: globals and dropped segments into the window, then the marker."""
        linker = self.linker
        code = [emit.global_get(self.sp), emit.global_set(self.frames)]
        for i, kind in enumerate(linker.module.globals):
            if kind.mutable:
                code.append(self.spill([(kind.type, emit.global_get(i))]))
        for index in self.dropped.values():
            code.append(self.spill([(I32, emit.global_get(index))]))
        if linker.control:
            for name, index in (("frames", self.frames), ("sp", self.sp)):
                code += [emit.i32_const(WORDS[name]), emit.global_get(index), emit.store(I32, linker.memory)]
            code += [emit.i32_const(WORDS["done"]), emit.i32_const(1), emit.store(I32, linker.memory)]
        else:
            code += [emit.i32_const(1), emit.global_set(self.done)]
        self.finish = linker.add_function("finish", FuncType((), ()), [], b"".join(code))
        self._add_restorers()

    def _add_restorers(self) -> None:
        """What the host calls to set up a restored instance: grow memories, drop segments, make room for records."""
        linker = self.linker
        for i in range(len(linker.module.memories)):
            grow = self.grow if i == 0 else linker.add_function(
                f"grow{i}", FuncType((I32,), (I32,)), [], emit.local_get(0) + emit.memory_grow(i)
            )
            linker.exports.append((f"{PREFIX}grow{i}", ExternKind.FUNC, grow))
        if self.dropped:
            code = b"".join(
                emit.global_get(index) + emit.IF + (b"\xfc\x09" if what == "data" else b"\xfc\x0d") + uleb(segment)
                + emit.END
                for (what, segment), index in self.dropped.items()
            )
            linker.exports.append(
                (PREFIX + "drop", ExternKind.FUNC, linker.add_function("drop", FuncType((), ()), [], code))
            )
        if linker.own_memory:
            linker.exports.append((PREFIX + "more", ExternKind.FUNC, self.more))

    def wrap(self, name: str, kind: FuncType, target: int) -> int:
        """A function of type ``kind`` that calls ``target`` and, if it came back unwinding, finishes."""
        count = len(kind.params)
        self._count(count + 2 * len(kind.results))
        code = [emit.local_get(i) for i in range(count)] + [emit.call(target)]
        code += [emit.local_set(count + i) for i in reversed(range(len(kind.results)))]
        code += [emit.global_get(self.sp), emit.i32_const(self.linker.window_base), b"\x47",
                 emit.IF, emit.call(self.finish), emit.END]
        code += [emit.local_get(count + i) for i in range(len(kind.results))]
        return self.linker.add_function(name, kind, kind.results, b"".join(code))
