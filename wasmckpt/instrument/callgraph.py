"""Which functions may suspend, and which calls must be tested after they return.

"Cannot suspend" is a proof, not a guess: no loop, no call-graph cycle, no import below it, and a bound on what its call
tree costs (a chain of forty functions that each call the next one twice makes 2^40 calls without any loop). Indirect
calls count by the contents of their table where the table is closed: neither imported nor exported nor changed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..lazydata import dataclass, field
from ..wasm.module import ExternKind, Module
from ..wasm.validate import Code
from .trips import constant_trips

__all__ = ["CallGraph", "build_call_graph"]

BUDGET = 200_000
"""Instructions that may pass between two safepoints without a loop: well below 5 ms on an interpreter."""

_TABLE_CHANGES = {0x26, 0xFC000C, 0xFC000E, 0xFC000F, 0xFC0011}


@dataclass(slots=True)
class CallGraph:
    """``suspends``: functions that may suspend, with the reason; ``indirect``: type and table -> possible callees.

    ``over_budget``: functions whose call tree costs too much: each of their calls is tested.
    """

    suspends: dict[int, str] = field(default_factory=dict)
    indirect: dict[tuple[int, int], tuple[int, ...] | None] = field(default_factory=dict)
    over_budget: set[int] = field(default_factory=set)
    entries: set[int] = field(default_factory=set)
    """Functions that need a poll at their entry: those on a cycle through a tail call; and those that catch exceptions
    and can go on so for long though no call ever returns, being on a cycle or over budget."""
    cyclic: set[int] = field(default_factory=set)
    """Functions on any cycle: those that can recurse."""

    def call_suspends(self, caller: int, op: int, target: object) -> bool:
        """Whether a call instruction in ``caller`` must be tested after it returns."""
        if op == 0x10:
            return target in self.suspends or caller in self.over_budget
        callees = self.indirect[target]  # type: ignore[index]
        return callees is None or caller in self.over_budget or any(f in self.suspends for f in callees)


def build_call_graph(module: Module, codes: Mapping[int, Code]) -> CallGraph:
    """Analyze all functions' calls. ``codes`` holds the validated body of every defined function."""
    graph = CallGraph()
    closed = _closed_tables(module, codes)
    by_type: dict[tuple[int, int], tuple[int, ...] | None] = graph.indirect
    edges: dict[int, set[int]] = {}
    tails: dict[int, set[int]] = {}
    cost: dict[int, int] = {}
    for i in range(module.imported_funcs):
        graph.suspends[i] = "imported function"
    for func, code in codes.items():
        callees: set[int] = set()
        tail: set[int] = set()
        for index in [*code.calls, *code.tail_calls]:
            op, imm = code.ops[index], code.imms[index]
            found: tuple[int, ...] | None
            if op in (0x10, 0x12):
                found = (imm,)  # type: ignore[assignment]
            else:
                key: tuple[int, int] = imm  # type: ignore[assignment]
                if key not in by_type:
                    by_type[key] = _targets(module, closed, *key)
                found = by_type[key]
                if found is None:
                    graph.suspends.setdefault(func, "indirect call through an open table")
                    found = _any_of_type(module, key[0])
            callees.update(found or ())
            if op in (0x12, 0x13):
                tail.update(found or ())
        edges[func], tails[func] = callees, tail
        trips = constant_trips(module, code) if code.loops else {}
        cost[func] = len(code.ops) + sum(n * (code.match[loop] - loop) for loop, n in trips.items())
        if len(trips) < len(code.loops):
            graph.suspends.setdefault(func, "loop")
    order = _components(edges)
    total: dict[int, int] = {}
    for component in order:  # callees first
        cycle = len(component) > 1 or component[0] in edges.get(component[0], ())
        if cycle:
            graph.cyclic.update(component)
        for func in component:
            if cycle:
                graph.suspends.setdefault(func, "recursion")
                if any(t in component for t in tails.get(func, ())):
                    graph.entries.update(t for t in tails[func] if t in component)
        for func in component:
            if func not in edges:
                continue
            if func not in graph.suspends:
                caller = next((g for g in edges[func] if g in graph.suspends), None)
                if caller is not None:
                    graph.suspends[func] = f"calls f{caller}"
            total[func] = cost[func] + sum(
                min(total.get(g, 0), BUDGET) * _count(codes[func], g) for g in edges[func] if g not in graph.suspends
            )
            if total[func] > BUDGET:
                graph.over_budget.add(func)
                graph.suspends.setdefault(func, "long call tree")
            if codes[func].catches and (cycle or func in graph.over_budget):
                graph.entries.add(func)
    return graph


def _count(code: Code, callee: int) -> int:
    """How often ``callee`` is called at most by one pass over the code (indirect calls count for each target)."""
    return sum(1 for i in [*code.calls, *code.tail_calls] if code.ops[i] in (0x11, 0x13) or code.imms[i] == callee)


def _closed_tables(module: Module, codes: Mapping[int, Code]) -> set[int]:
    closed = set(range(len(module.tables)))
    closed -= set(range(sum(1 for _ in module.imported(ExternKind.TABLE))))
    closed -= {e.index for e in module.exports if e.kind == ExternKind.TABLE}
    if closed:
        for code in codes.values():
            for i in code.special:
                op, imm = code.ops[i], code.imms[i]
                if op in _TABLE_CHANGES:
                    # the table that is written: table.set has it alone, table.init second, the others first
                    closed.discard(imm if isinstance(imm, int) else imm[1 if op == 0xFC000C else 0])  # type: ignore[index]
    return closed


def _targets(module: Module, closed: set[int], type_index: int, table: int) -> tuple[int, ...] | None:
    if table not in closed:
        return None
    wanted = module.types[type_index]
    found: set[int] = set()
    for elem in module.elems:
        if elem.mode == "active" and elem.table == table:
            for f in elem.items:
                if f is not None and f < 0:
                    return None
                if f is not None and module.signature(f) == wanted:
                    found.add(f)
    return tuple(sorted(found))


def _any_of_type(module: Module, type_index: int) -> tuple[int, ...]:
    wanted = module.types[type_index]
    return tuple(f for f in sorted(module.declared_funcs) if module.signature(f) == wanted)


def _components(edges: Mapping[int, set[int]]) -> list[list[int]]:
    """Strongly connected components, callees before callers (Tarjan 1972, iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    out: list[list[int]] = []
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, children = work[-1]
            for child in children:
                if child not in index:
                    index[child] = low[child] = len(index)
                    stack.append(child)
                    on_stack.add(child)
                    work.append((child, iter(edges.get(child, ()))))
                    break
                if child in on_stack:
                    low[node] = min(low[node], index[child])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    out.append(component)
    return out
