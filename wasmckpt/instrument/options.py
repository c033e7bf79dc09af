"""Everything that can be chosen about a rewriting, in one frozen record: it is also the cache's key."""

from __future__ import annotations

from typing import Literal

from ..lazydata import dataclass

__all__ = ["Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """How a module is rewritten.

    Attributes:
        poll: what a poll reads. "atomic-memory": an atomic load of a word of a control memory (compilers lift any other
            load out of loops). "global": a mutable global (interpreters, which have one memory only).
        count: deterministic mode: polls count down and freeze at the n-th safepoint passed, instead of testing a flag.
        plan: "shipped", or "all": every loop header and every call of every function, no thinning (tests, oracle).
        all_locals: spill dead locals too (for inspection; costs 1.3 on real programs).
        unroll: copies of a small innermost loop for one poll; 1 turns thinning off.
        unroll_limit: largest body to unroll, in instructions; for loops that are not nested in a loop half of it.
        out_of_line: up to so many sites a function leaves by a branch to an exit at its end; above, in place.
        share_exits: sites that store the same values leave by one exit (on compilers: an interpreter would pay for the
            number of the site, which waits in a local then).
        minimal_leb: rewrite over-long table and memory indices (Wasm3 stops at them).
        label_values: carry values of branches and block results in locals (Wasm3 loses some).
        label_vectors: do so where there are several values with a vector among them (WAMR loses half of it).
        canonical_nans: make the NaNs of float arithmetic canonical (see `nans`): the same bits on all processors.
        lower_atomics: write plain instructions for atomic ones (see `atomics`), for runtimes that have none.
        tail_calls: the runtime has them; continuations use them.
        depth_counter: functions that recurse count the stack that is left, and trap where there is none (WasmEdge has
            no limit).
        own_table_items: a function of the host comes into a table by one of the module's that calls it (code that
            WasmEdge compiles loses stack at other calls through tables).
        strip_names: drop the name section (Wasm3 finds exports by it, and then the wrong ones).
        side_modules: what a resume adds can go into a module beside this one (see `side`).
        leave_out: for measuring what each part costs, and for nothing else, since such a module cannot be frozen:
            "loops" (no polls at loops), "calls" (no tests after calls), "values" (what leaves stores nothing, so no
            value is kept for it).
        max_memory_pages: pages that the runtime can give a memory; where the window lies in the guest's memory,
            the guest gets `WINDOW_PAGES` less.
    """

    poll: Literal["atomic-memory", "global"] = "atomic-memory"
    count: bool = False
    plan: Literal["shipped", "all"] = "shipped"
    all_locals: bool = False
    unroll: int = 4
    unroll_limit: int = 60
    out_of_line: int = 300
    share_exits: bool = True
    minimal_leb: bool = False
    label_values: bool = False
    label_vectors: bool = False
    canonical_nans: bool = False
    lower_atomics: bool = False
    tail_calls: bool = False
    depth_counter: bool = False
    own_table_items: bool = False
    strip_names: bool = False
    side_modules: bool = False
    leave_out: tuple[str, ...] = ()
    max_memory_pages: int = 65536
