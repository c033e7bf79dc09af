"""Which functions may suspend, and which calls must be tested after they return.

"Cannot suspend" is a proof, not a guess: no loop, no call-graph cycle, no import below it, and a bound on what its call
tree costs (a chain of forty functions that each call the next one twice makes 2^40 calls without any loop). Indirect
calls count by the contents of their table where the table is closed: neither imported nor exported nor changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from ..lazydata import dataclass, field
from ..wasm.codes import Codes
from ..wasm.module import ExternKind, FuncType, Module
from .trips import constant_trips

__all__ = ["CallGraph", "build_call_graph"]

BUDGET = 200_000
"""Instructions that may pass between two safepoints without a loop: well below 5 ms on an interpreter."""

_TABLE_CHANGES = {0x26, 0xFC000C, 0xFC000E, 0xFC000F, 0xFC0011}


@dataclass(slots=True)
class CallGraph:
    """``suspends``: functions that may suspend, with the reason; ``indirect``: type and table -> whether a call through
    them may.

    ``over_budget``: functions whose call tree costs too much: each of their calls is tested.
    """

    suspends: dict[int, str] = field(default_factory=dict)
    indirect: dict[tuple[int, int], bool] = field(default_factory=dict)
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
        return self.indirect[target] or caller in self.over_budget  # type: ignore[index]


@dataclass(slots=True)
class _Calls:
    """What one function calls.

    Attributes:
        direct: functions -> how often they are called. indirect: (type, table) of calls through tables, in the same
            way. tails: those of either that are tail calls. cost: instructions of one pass, without what is called.
        catches: it has a try_table.
    """

    direct: Counter[int]
    indirect: Counter[tuple[int, int]]
    tails: set[int | tuple[int, int]]
    cost: int
    catches: bool


def build_call_graph(module: Module, codes: Codes) -> CallGraph:
    """Analyze all functions' calls. ``codes`` holds the validated body of every defined function."""
    return _Builder(module, codes).run()


class _Builder:
    """Functions that one call through a table can reach are many, and the calls too: so a (type, table) is a node of
    the graph of its own, between who calls through it and who can be reached. Such nodes have numbers below zero."""

    def __init__(self, module: Module, codes: Codes) -> None:
        self.module, self.codes = module, codes
        self.graph = CallGraph()
        self.declared = _ByType(module, module.declared_funcs)
        self.contents: dict[int, _ByType | None] = {}
        """Of closed tables."""
        self.calls: dict[int, _Calls] = {}
        self.called_through: dict[tuple[int, int], tuple[int, int]] = {}
        """(type, table) of calls as the code has them -> their node's."""
        self.reached: dict[tuple[int, int], tuple[int, ...]] = {}
        """What calls through a table can reach, open ones included."""
        self.nodes: dict[tuple[int, int], int] = {}
        self.keys: list[tuple[int, int]] = []
        """(type, table) of each node; types that are the same have one."""
        self.first_type: dict[FuncType, int] = {}
        for index, kind in enumerate(module.types):
            self.first_type.setdefault(kind, index)
        self.open: set[tuple[int, int]] = set()
        """Those through tables whose contents are not known."""
        self.total: dict[int, int] = {}
        """What a pass over a function costs with all that it calls; of a table: over all that can be reached."""
        self.suspending: dict[int, int] = {}
        """For a table: a function that can be reached through it and may suspend."""

    def run(self) -> CallGraph:
        graph, module = self.graph, self.module
        self.contents = {table: _contents(module, table) for table in _closed_tables(module, self.codes)}
        for i in range(module.imported_funcs):
            graph.suspends[i] = "imported function"
        for func in self.codes:
            self._look(func)
        for nodes in _components(self.calls, self._following):  # callees first
            component = [func for func in nodes if func in self.calls]
            cycle = len(nodes) > 1 or any(func in self.calls[func].direct for func in component)
            if cycle:
                self._note_cycle(component)
            for node in nodes:
                if node < 0:
                    self._reach(node)
            for func in component:
                self._decide(func, cycle)
        suspending = {key for key, node in self.nodes.items() if key in self.open or node in self.suspending}
        graph.indirect = {called: key in suspending for called, key in self.called_through.items()}
        return graph

    def _look(self, func: int) -> None:
        """Note the calls of a function."""
        graph, module, code = self.graph, self.module, self.codes[func]
        direct: Counter[int] = Counter()
        indirect: Counter[tuple[int, int]] = Counter()
        tails: set[int | tuple[int, int]] = set()
        for index in [*code.calls, *code.tail_calls]:
            op = code.ops[index]
            imm: Any = code.imms[index]
            if op in (0x10, 0x12):
                direct[imm] += 1
            else:
                imm = self._through(*imm)
                indirect[imm] += 1
                if imm in self.open:
                    graph.suspends.setdefault(func, "indirect call through an open table")
            if op in (0x12, 0x13):
                tails.add(imm)
        trips = constant_trips(module, code) if code.loops else {}
        cost = len(code.ops) + sum(n * (code.match[loop] - loop) for loop, n in trips.items())
        self.calls[func] = _Calls(direct, indirect, tails, cost, bool(code.catches))
        if len(trips) < len(code.loops):
            graph.suspends.setdefault(func, "loop")

    def _through(self, type_index: int, table: int) -> tuple[int, int]:
        """Note a call through a table; what names its node."""
        key = (self.first_type[self.module.types[type_index]], table)
        if key not in self.nodes:
            self.nodes[key] = -1 - len(self.keys)
            self.keys.append(key)
            known = self.contents.get(table)
            self.reached[key] = (known or self.declared).of(type_index)
            if known is None:
                self.open.add(key)
        self.called_through[type_index, table] = key
        return key

    def _following(self, node: int) -> Iterable[int]:
        """The nodes behind a node."""
        if node < 0:
            return self.reached[self.keys[-1 - node]]
        if node not in self.calls:
            return ()
        calls = self.calls[node]
        return [*calls.direct, *(self.nodes[key] for key in calls.indirect)]

    def _note_cycle(self, component: list[int]) -> None:
        graph, among = self.graph, set(component)
        graph.cyclic.update(component)
        for func in component:
            graph.suspends.setdefault(func, "recursion")
            for target in self.calls[func].tails:
                graph.entries.update(among.intersection(
                    (target,) if isinstance(target, int) else self.reached[target]))

    def _reach(self, node: int) -> None:
        """Sum up what can be reached through a table."""
        suspends = self.graph.suspends
        reached = self.reached[self.keys[-1 - node]]
        self.total[node] = sum(min(self.total.get(g, 0), BUDGET) for g in reached if g not in suspends)
        first = next((g for g in reached if g in suspends), None)
        if first is not None:
            self.suspending[node] = first

    def _decide(self, func: int, cycle: bool) -> None:
        """Decide about a function, all that it calls being decided."""
        graph, calls, total = self.graph, self.calls[func], self.total
        nodes = {self.nodes[key]: count for key, count in calls.indirect.items()}
        if func not in graph.suspends:
            callers = [g for g in calls.direct if g in graph.suspends]
            callers += [self.suspending[node] for node in nodes if node in self.suspending]
            if callers:
                graph.suspends[func] = f"calls f{min(callers)}"
        total[func] = (
            calls.cost + sum(total[node] * count for node, count in nodes.items())
            + sum(min(total.get(g, 0), BUDGET) * count for g, count in calls.direct.items() if g not in graph.suspends)
        )
        if total[func] > BUDGET:
            graph.over_budget.add(func)
            graph.suspends.setdefault(func, "long call tree")
        if calls.catches and (cycle or func in graph.over_budget):
            graph.entries.add(func)


def _closed_tables(module: Module, codes: Codes) -> set[int]:
    closed = set(range(len(module.tables)))
    closed -= set(range(sum(1 for _ in module.imported(ExternKind.TABLE))))
    closed -= {e.index for e in module.exports if e.kind == ExternKind.TABLE}
    if closed:
        for _, code in codes.using({0x26, 0xFC}):
            for i in code.special:
                op, imm = code.ops[i], code.imms[i]
                if op in _TABLE_CHANGES:
                    # the table that is written: table.set has it alone, table.init second, the others first
                    closed.discard(imm if isinstance(imm, int) else imm[1 if op == 0xFC000C else 0])  # type: ignore[index]
    return closed


class _ByType:
    """Functions by their type."""

    def __init__(self, module: Module, functions: Iterable[int | None]) -> None:
        self._module = module
        found: dict[FuncType, set[int]] = {}
        for func in functions:
            if func is not None:
                found.setdefault(module.signature(func), set()).add(func)
        self._found = {kind: tuple(sorted(funcs)) for kind, funcs in found.items()}

    def of(self, type_index: int) -> tuple[int, ...]:
        """Those of a type, ascending."""
        return self._found.get(self._module.types[type_index], ())


def _contents(module: Module, table: int) -> _ByType | None:
    """What stands in a table that nothing changes; None: that is not known."""
    items = [f for elem in module.elems if elem.mode == "active" and elem.table == table for f in elem.items]
    return None if any(f is not None and f < 0 for f in items) else _ByType(module, items)


def _components(roots: Iterable[int], following: Callable[[int], Iterable[int]]) -> list[list[int]]:
    """Strongly connected components, callees before callers (Tarjan 1972, iterative)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    on_stack: set[int] = set()
    stack: list[int] = []
    out: list[list[int]] = []
    for root in roots:
        if root in index:
            continue
        work = [(root, iter(following(root)))]
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
                    work.append((child, iter(following(child))))
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
