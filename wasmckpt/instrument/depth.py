"""Lowering "depth-counter": functions that can recurse count the stack that is left.

WasmEdge's interpreter keeps frames on the heap and sets no limit, so a recursion without end takes the machine's
memory; code that it compiles runs into the end of the thread's stack. A global holds how many bytes are left, which the
host sets before it calls.

    global.get $depth  local.tee $before  i32.const COST  i32.lt_u
    if  i32.const -1  global.set $depth  unreachable  end       ;; the host calls this trap by its right name
    local.get $before  i32.const COST  i32.sub  global.set $depth
    ...
    local.get $before  global.set $depth                        ;; wherever the function is left

An exception leaves functions elsewhere: so whoever catches one, though he does not recurse, sets the global as at his
beginning, wherever that may have been.

Counted are the functions on a cycle of the call graph: the others nest no deeper than their number. A frame's cost is
what it takes on a compiler: its locals, those for spilling included, and a return address. A tail call gives back its
function's stack first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..wasm.values import V128
from . import emit

__all__ = ["DEPTH_AT_FIRST", "DepthCounter"]

DEPTH_AT_FIRST = 512 * 1024
"""Bytes that are left until the host says otherwise."""
_FRAME = 16
"""Bytes of a frame beside its locals."""


class DepthCounter:
    """The code for one function; ``local``: number of a local of its own, an i32; ``inside``: of another, where `again`
    is needed."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.local = self.inside = -1

    def again(self) -> bytes:
        """Where an exception may have been caught: what functions that it left had taken is free again."""
        return emit.local_get(self.inside) + emit.global_set(self._depth)

    def enter(self, types: Sequence[int]) -> bytes:
        """At the beginning, in a function with locals of these types."""
        cost = emit.i32_const(_FRAME + sum(16 if kind == V128 else 8 for kind in types))
        keep = emit.local_tee(self.inside) if self.inside >= 0 else b""
        return (
            emit.global_get(self._depth) + emit.local_tee(self.local) + cost + b"\x49" + emit.IF
            + emit.i32_const(-1) + emit.global_set(self._depth) + emit.UNREACHABLE + emit.END
            + emit.local_get(self.local) + cost + b"\x6b" + keep + emit.global_set(self._depth)
        )

    def leave(self) -> bytes:
        """Before each way out; values on the stack stay."""
        return emit.local_get(self.local) + emit.global_set(self._depth)
