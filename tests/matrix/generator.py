"""Random programs with much control flow: what compilers do not write, in shapes that validators accept.

A seed gives one module in the text format. It always ends (a fuel counter guards every way back and every call), makes
no NaN, and its function ``run`` returns a hash and leaves all its globals in memory. Operands wait under calls and
blocks, values are carried by branches into blocks, loops and ifs, locals are tested, set and dead in all orders.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

__all__ = ["Shape", "generate"]

NUMBERS = ("i32", "i64", "f32", "f64")
_BYTES = {"i32": 4, "i64": 8, "f32": 4, "f64": 8, "v128": 16}


@dataclass(frozen=True, slots=True)
class Shape:
    """What the programs are made of: ``size`` instructions a function, about; ``fuel`` turns and calls a run."""

    size: int = 60
    functions: int = 4
    fuel: int = 40
    vectors: bool = False
    memory: bool = True
    imports: bool = True
    tail_calls: bool = False

    @property
    def types(self) -> tuple[str, ...]:
        """The value types that occur."""
        return (*NUMBERS, "v128") if self.vectors else NUMBERS


@dataclass(slots=True)
class _Function:
    params: tuple[str, ...]
    results: tuple[str, ...]
    locals: list[str] = field(default_factory=list)


def generate(seed: int, shape: Shape = Shape()) -> str:
    """The module of a seed, as text; the same for ever for the same seed and shape."""
    return _Module(Random(seed), shape).text()


class _Module:
    def __init__(self, random: Random, shape: Shape) -> None:
        self.random, self.shape = random, shape
        self.functions = [
            _Function(self._types(4), self._types(3)) for _ in range(random.randint(2, shape.functions))
        ]

    def _types(self, most: int) -> tuple[str, ...]:
        count = self.random.choice((0, 1, 1, 2, most))
        return tuple(self.random.choice(self.shape.types) for _ in range(min(count, most)))

    def text(self) -> str:
        shape, random = self.shape, self.random
        parts = ["(module"]
        if shape.imports:
            parts.append('(import "env" "log" (func $log (param i32)))')
        if shape.memory:
            parts.append('(memory (export "memory") 1 3) (data (i32.const 4090) "a segment across pages")')
        parts.append(f"(global $fuel (mut i32) (i32.const {random.randint(shape.fuel // 3, shape.fuel)}))")
        parts += [f"(global $g{t} (mut {t}) ({constant(random, t)}))" for t in shape.types]
        for n, f in enumerate(self.functions):
            parts.append(f"(type $t{n} (func {signature(f.params, f.results)}))")
        count = len(self.functions)
        table = " ".join(f"$f{random.randrange(count)}" for _ in range(2 * count))
        every = " ".join(f"$f{n}" for n in range(count))
        parts.append(f"(table {3 * count} funcref) (elem (i32.const 0) {every} {table})")
        bodies = [_Body(self, n, f).text() for n, f in enumerate(self.functions)]
        parts += bodies
        parts.append(self._run())
        return "\n".join([*parts, ")"])

    def _run(self) -> str:
        """Calls the last function and mixes all that it returns and all globals."""
        last = self.functions[-1]
        lines = ['(func (export "run") (param i32) (result i64 i32) (local $h i64) (local $n i32)']
        lines += [f"(local ${t} {t})" for t in self.shape.types]
        lines.append("(local.set $n (i32.const 2)) (loop $again")
        lines += [constant(self.random, t) for t in last.params]
        lines.append(f"call $f{len(self.functions) - 1}")
        lines += [self._mix(t) for t in reversed(last.results)]
        lines.append("(br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))")
        for place, t in enumerate(self.shape.types):
            lines += [f"global.get $g{t}", self._mix(t)]
            if self.shape.memory:
                store = "v128.store" if t == "v128" else f"{t}.store"
                lines.append(f"({store} offset={65400 + 16 * place} (i32.const 0) (global.get $g{t}))")
        lines.append("local.get $h global.get $fuel)")
        return "\n".join(lines)

    @staticmethod
    def _mix(t: str) -> str:
        as_i64 = {
            "i32": "i64.extend_i32_u", "i64": "", "f32": "i32.reinterpret_f32 i64.extend_i32_u",
            "f64": "i64.reinterpret_f64", "v128": "local.tee $v128 i64x2.extract_lane 0",
        }[t]
        return f"{as_i64} local.get $h i64.const 31 i64.mul i64.add local.set $h"


def signature(params: tuple[str, ...], results: tuple[str, ...]) -> str:
    """``(param ..) (result ..)``, as far as there are any."""
    return " ".join(
        f"({word} {' '.join(types)})" for word, types in (("param", params), ("result", results)) if types
    )


def constant(random: Random, t: str) -> str:
    """An instruction that pushes a constant; floats are small, so that no sum of them becomes a NaN."""
    if t == "i32":
        return f"i32.const {random.choice((0, 1, -1, 7, random.randint(-(1 << 31), (1 << 31) - 1)))}"
    if t == "i64":
        return f"i64.const {random.choice((0, 1, -1, 9, random.randint(-(1 << 63), (1 << 63) - 1)))}"
    if t == "v128":
        return f"v128.const i64x2 {random.randint(0, 1 << 40)} {random.randint(0, 1 << 63)}"
    return f"{t}.const {random.choice(('-0', '0', '1.5', '-2.25', '1e10'))}"


_UNARY = {
    "i32": ["i32.eqz", "i32.clz", "i32.ctz", "i32.popcnt", "i32.extend8_s"],
    "i64": ["i64.clz", "i64.popcnt", "i64.extend32_s"],
    "f32": ["f32.neg", "f32.abs", "f32.floor", "f32.const 100 f32.min"],
    "f64": ["f64.neg", "f64.abs", "f64.ceil", "f64.const -100 f64.max"],
    "v128": ["v128.not", "i32x4.neg"],
}
_CONVERT = {
    ("i32", "i64"): "i64.extend_i32_s", ("i64", "i32"): "i32.wrap_i64", ("i32", "f32"): "f32.convert_i32_s",
    ("i32", "f64"): "f64.convert_i32_u", ("i64", "f64"): "f64.convert_i64_s", ("f64", "i32"): "i32.trunc_sat_f64_s",
    ("f32", "i64"): "i64.trunc_sat_f32_u", ("f32", "f64"): "f64.promote_f32", ("f64", "i64"): "i64.reinterpret_f64",
    ("f32", "i32"): "i32.reinterpret_f32", ("i32", "v128"): "i32x4.splat", ("v128", "i64"): "i64x2.extract_lane 1",
    ("v128", "i32"): "i32x4.extract_lane 2",
}
_BINARY = {
    "i32": ["i32.add", "i32.sub", "i32.mul", "i32.xor", "i32.and", "i32.rotl", "i32.lt_s", "i32.eq"],
    "i64": ["i64.add", "i64.sub", "i64.mul", "i64.xor", "i64.shr_u"],
    "f32": ["f32.min", "f32.max", "f32.copysign"],
    "f64": ["f64.min", "f64.max", "f64.copysign"],
    "v128": ["i32x4.add", "v128.xor", "i64x2.sub"],
}
SPEND = "global.get $fuel i32.const 1 i32.sub global.set $fuel global.get $fuel i32.const 0 i32.gt_s"
"""Leaves whether there is fuel."""


class _Body:
    """One function. ``stack`` holds the types of the operands of the innermost block."""

    def __init__(self, module: _Module, number: int, function: _Function) -> None:
        self.module, self.number, self.function = module, number, function
        self.random, self.shape = module.random, module.shape
        function.locals = [self.random.choice(self.shape.types) for _ in range(self.random.randint(1, 9))]
        self.variables = [*function.params, *function.locals]
        self.variables += [t for t in self.shape.types if t not in self.variables]
        self.out: list[str] = []
        self.left = self.random.randint(self.shape.size // 2, self.shape.size)
        self.labels: list[tuple[bool, tuple[str, ...]]] = [(False, function.results)]

    def text(self) -> str:
        f = self.function
        declared = " ".join(self.variables[len(f.params):])
        head = f"(func $f{self.number} (type $t{self.number}) (local {declared})"
        # No call without fuel: recursion ends.
        zero = " ".join(constant(self.random, t) for t in f.results)
        self.out.append(f"{SPEND} i32.eqz if {zero} return end")
        self.sequence((), f.results, 0)
        return "\n".join([head, *self.out, ")"])

    def pick(self, t: str) -> int | None:
        """A local of a type."""
        found = [i for i, kind in enumerate(self.variables) if kind == t]
        return self.random.choice(found) if found else None

    def push(self, stack: list[str], t: str) -> None:
        """An operand of a type: a constant, a local, a global, or something loaded."""
        stack.append(t)
        way = self.random.randrange(6)
        if way < 3:
            self.out.append(f"local.get {self.pick(t)}")
        elif way == 3:
            self.out.append(f"global.get $g{t}")
        elif way == 4 and self.shape.memory:
            load = "v128.load" if t == "v128" else f"{t}.load" if t[0] == "i" else f"{t}.convert_i32_s"
            address = self.random.choice((0, 8, 4090, 65000))
            self.out.append(f"i32.const {address} " + (f"i32.load {load}" if t[0] == "f" else load))
        else:
            self.out.append(constant(self.random, t))

    def want(self, stack: list[str], types: tuple[str, ...]) -> None:
        """Make ``types`` the topmost operands, with what is there already where it fits."""
        have = 0
        for n in range(len(types), 0, -1):
            if len(stack) >= n and tuple(stack[-n:]) == types[:n]:
                have = n
                break
        for t in types[have:]:
            self.push(stack, t)

    def sequence(self, start: tuple[str, ...], results: tuple[str, ...], depth: int) -> None:
        """Instructions that turn the operands ``start`` into ``results``."""
        stack = list(start)
        for _ in range(self.random.randint(1, 14 if depth < 2 else 7)):
            if self.left <= 0:
                break
            self.left -= 1
            if self.step(stack, depth):
                # Behind an unconditional branch: the rest is dead, and the operands are of any type.
                self.dead(results)
                return
        while stack and tuple(stack) != results:
            t = stack.pop()
            self.out.append(f"local.set {self.pick(t)}" if self.random.random() < 0.6 else "drop")
            if tuple(stack) == results[:len(stack)] and self.random.random() < 0.5:
                break
        if tuple(stack) != results[:len(stack)]:
            self.out += ["drop"] * len(stack)
            stack.clear()
        for t in results[len(stack):]:
            self.push(stack, t)

    def dead(self, results: tuple[str, ...]) -> None:
        way = self.random.randrange(4)
        if way == 0:
            self.out.append("select drop i32.const 1 if (result f64) f64.const 1 else f64.const 2 end drop")
        elif way == 1:
            self.out.append("loop (param i32) (result i32) br 0 end drop")
        elif way == 2:
            self.out.append(" ".join(constant(self.random, t) for t in results))

    def step(self, stack: list[str], depth: int) -> bool:
        """One instruction or construct; True where control does not come out of it."""
        random, out = self.random, self.out
        way = random.randrange(28)
        if way < 4:
            self.push(stack, random.choice(self.shape.types))
        elif way < 6 and stack:
            t = stack[-1]
            out.append(random.choice(_UNARY[t]))
        elif way < 8 and stack:
            t = stack[-1]
            self.push(stack, t)
            out.append(random.choice(_BINARY[t]))
            stack.pop()
        elif way == 8 and stack:
            ways = [(b, op) for (a, b), op in _CONVERT.items() if a == stack[-1] and b in self.shape.types]
            if ways:
                stack[-1], op = random.choice(ways)
                out.append(op)
        elif way < 11 and stack:
            out.append(f"local.tee {self.pick(stack[-1])}")
            if random.random() < 0.5:
                out[-1] = out[-1].replace("tee", "set")
                stack.pop()
        elif way == 11 and stack:
            out.append(f"global.set $g{stack.pop()}")
        elif way == 12 and self.shape.memory:
            t = random.choice(self.shape.types)
            out.append(f"i32.const {random.choice((0, 16, 4080, 8192, 65200))}")
            self.push(stack, t)
            stack.pop()
            out.append(f"{t}.store")
        elif way == 13 and self.shape.memory and random.random() < 0.3:
            out.append("i32.const 1 memory.grow")
            stack.append("i32")
        elif way == 14 and self.shape.imports:
            self.want(stack, ("i32",))
            out.append("call $log")
            stack.pop()
        elif way < 18:
            self.call(stack)
        elif way < 23 and depth < 5:
            self.construct(stack, depth)
        elif way < 26:
            self.branch(stack)
        elif way == 26 and depth and random.random() < 0.3:
            return self.leave(stack)
        elif way == 27 and stack:
            t = stack[-1]
            if t != "v128":
                self.push(stack, t)
                self.push(stack, "i32")
                out.append("select")
                del stack[-2:]
        return False

    def call(self, stack: list[str]) -> None:
        random = self.random
        n = random.randrange(len(self.module.functions))
        callee = self.module.functions[n]
        self.want(stack, callee.params)
        if random.random() < 0.4:
            # Slot n of the table holds function n; an index that is none traps in every run alike.
            self.out.append(f"i32.const {n} call_indirect (type $t{n})")
        else:
            self.out.append(f"call $f{n}")
        if callee.params:
            del stack[-len(callee.params):]
        stack += callee.results

    def construct(self, stack: list[str], depth: int) -> None:
        random = self.random
        word = random.choice(("block", "loop", "loop", "if", "if"))
        most = min(len(stack), 3)
        taken = random.choice((0, 0, 1, most)) if most else 0
        params = tuple(stack[len(stack) - taken:]) if taken else ()
        results = tuple(random.choice(self.shape.types) for _ in range(random.choice((0, 0, 0, 1, 1, 2))))
        bare = word == "if" and random.random() < 0.3
        if bare:
            results = params
        if word == "if":
            self.push(stack, "i32")
            stack.pop()
        if taken:
            del stack[-taken:]
        self.out.append(f"{word} {signature(params, results)}")
        self.labels.append((word == "loop", params if word == "loop" else results))
        self.sequence(params, results, depth + 1)
        if word == "if" and not bare:
            self.out.append("else")
            self.sequence(params, results, depth + 1)
        if word == "loop" and random.random() < 0.7:
            # A way back that is taken: the results go aside, the parameters are made again.
            inner: list[str] = list(results)
            self.want(inner, params)
            self.out.append(f"{SPEND} br_if 0" if random.random() < 0.7 else f"{SPEND} if (param {' '.join(params)}) "
                            f"(result {' '.join(params)}) br 1 end".replace("(param )", "").replace("(result )", ""))
            self.out += ["drop"] * len(params)
            inner = inner[:len(inner) - len(params)]
            if tuple(inner) != results:
                self.out += ["drop"] * len(inner)
                inner = []
                for t in results:
                    self.push(inner, t)
        self.labels.pop()
        self.out.append("end")
        stack += results

    def branch(self, stack: list[str]) -> None:
        """A branch that may be taken."""
        random = self.random
        target = random.randrange(len(self.labels))
        is_loop, types = self.labels[-1 - target]
        self.want(stack, types)
        if is_loop:
            self.out.append(f"{SPEND} br_if {target}")
        else:
            self.push(stack, "i32")
            stack.pop()
            self.out.append(f"br_if {target}")
        if random.random() < 0.5:
            for t in reversed(types):
                stack.pop()
                self.out.append(f"local.set {self.pick(t)}")

    def leave(self, stack: list[str]) -> bool:
        """An unconditional way out: br, br_table, return or a tail call."""
        random, out = self.random, self.out
        way = random.randrange(4)
        if way == 0:
            self.want(stack, self.function.results)
            out.append("return")
            return True
        if way == 1 and self.shape.tail_calls:
            n = random.choice([
                i for i, f in enumerate(self.module.functions) if f.results == self.function.results
            ])
            self.want(stack, self.module.functions[n].params)
            out.append(f"return_call $f{n}")
            return True
        if way < 3:
            forward = [d for d in range(len(self.labels)) if not self.labels[-1 - d][0]]
            target = random.choice(forward)
            self.want(stack, self.labels[-1 - target][1])
            out.append(f"br {target}")
            return True
        types = random.choice(self.labels)[1]
        alike = [d for d in range(len(self.labels)) if self.labels[-1 - d][1] == types]
        loops = any(self.labels[-1 - d][0] for d in alike)
        forward = [d for d in alike if not self.labels[-1 - d][0]]
        if not forward:
            return False
        self.want(stack, types)
        ways = [str(random.choice(alike)) for _ in range(random.randint(1, 5))]
        if loops:  # out of fuel: the last way, which goes forward
            self.push(stack, "i32")
            stack.pop()
            out.append(f"i32.const 7 i32.and i32.const 99 {SPEND} select br_table {' '.join(ways)} {forward[0]}")
        else:
            self.push(stack, "i32")
            stack.pop()
            out.append(f"i32.const 7 i32.and br_table {' '.join(ways)} {forward[0]}")
        return True
