"""Beginning a loop's turn in its middle: for places in large functions, one copy of the function instead of several.

Aim: a resume rewrites and compiles what it needs. `continuations` finishes the present turn of each loop around the
place in a copy of its own, and then goes on with the whole loop: full speed, for (1 + loop nesting) times the code.
In a function of 9 KB, two loops deep (printf), that was 64 KB to rewrite and to compile, four fifths of the time of a
resume; in functions of half a megabyte it was seconds. From `LEAST_BYTES` of such copies on the loops stay whole, and
what stands before the place is passed by once:

    loop                            loop
      B                               block  local.get $skip  br_if 0  B  end
      block                           block
        C  *  D                         block  local.get $skip  br_if 0  C  end  (i32.const 0, local.set $skip)  *  D
      end                             end
      E                               E
    end                             end

The condition of an if on the way is kept in a local, which is as the arm needs it while ``$skip`` is set. A call in
which the frame waits stands twice: as it was, and as the call of the next frame's continuation.

What is the price: a test at each loop's header on the way, and registers, since a compiler thinks that all that lives
at the place lives at the header too. Small kernels paid 1.1 for the like; Lua, SQLite and QuickJS, resumed in the
loops of their interpreters, run 0.91 to 1.09 times as long as with copies, 1.01 on average (before a hundred blocks
in each other, the cases of a switch, stopped having a test each it was 1.3 to 3.9). And functions that are whole are
larger ones, which take compilers longer than two halves: with one loop around the place (SQLite) nothing is won, and
where one copy of a loop serves several places in it (QuickJS) something is lost. So it is done where it `pays`.

To the rewriter the branch is as if it were not there (`skips_of`): what lives where, which loops are polled, which
end by themselves is as in the original, whose safepoints these are. A poll at a header stands behind the branch: a
program that stopped before it would be at another place than the header. Operands that wait between the outermost
loop and the place, parameters of blocks and try blocks on the way would need more than this: then it is done with
copies.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..wasm.validate import Code
from .rest import rest_of

__all__ = ["LEAST_BYTES", "MORE_THAN", "MOST_LOCALS", "first_whole", "pays", "skips_of"]

LEAST_BYTES = 4096
"""What must be saved for loops to stay whole."""
MORE_THAN = 1.5
"""And so many times as much must the copies be."""
MOST_LOCALS = 1000
"""Of a function: some more are needed, and it may have as many as the runtime holds (Wasm3 has about 1,900 slots)."""


def pays(code: Code, places: Iterable[tuple[int, Sequence[int]]], *, shared: bool) -> bool:
    """Whether less code is needed if loops stay whole, for all ``places`` (instruction, constructs around it) of a
    function. ``shared``: a copy of a loop is there for all places in it, and for all loops around it."""
    pos, match = code.pos, code.match
    whole = copies = 0
    copied: list[int] = []
    for at, path in places:
        loops = [opener for opener in path if code.ops[opener] == 0x03]
        if loops:
            whole += pos[match[loops[0]]] - pos[loops[0]]
            rest = rest_of(code, at, path)
            copies += rest.size(code)
            copied += [path[n] for n in rest.again]
    copies += sum(pos[match[loop]] - pos[loop] for loop in (set(copied) if shared else copied))
    return copies > whole * MORE_THAN and copies - whole >= LEAST_BYTES


def skips_of(code: Code, skip: int) -> dict[int, int]:
    """The branches that pass by what stands before the place, and what encloses each: the loop, if nothing but blocks
    of ours lies between, else -1. ``skip``: the local that they test, or -1: there are none."""
    found: dict[int, int] = {}
    ops, imms = code.ops, code.imms
    for i, op in enumerate(ops if skip >= 0 else ()):
        if op == 0x20 and imms[i] == skip and ops[i + 1] == 0x0D:
            before = i - 1
            while ops[before] == 0x02:
                before -= 1
            found[i + 1] = before if ops[before] == 0x03 else -1
    return found


def first_whole(code: Code, path: Sequence[int], openers: Sequence[int], heights: Sequence[int]) -> int:
    """From which construct on the way to a place on they stay whole: the outermost loop, or none (the length).

    Args:
        path: the constructs around the place, outermost first (of an if with the place in its other arm, the else).
        openers: what opens them. heights: operands that wait under each.
    """
    ops, match = code.ops, code.match
    loops = [n for n, opener in enumerate(path) if ops[opener] == 0x03]
    if not loops:
        return len(path)
    first = loops[0]
    for n in range(first, len(path)):
        opener = openers[n]
        if ops[opener] == 0x1F or code.imms[opener].params or heights[n] != heights[first]:  # type: ignore[attr-defined]
            return len(path)
    for n in loops:  # a loop without loops and calls may be one that is unrolled, or one that ends by itself
        inside = range(path[n] + 1, match[path[n]])
        if not any(ops[i] == 0x03 or 0x10 <= ops[i] <= 0x13 for i in inside):
            return len(path)
    return first
