"""Small modules that would make the rewriter work for hours or take gigabytes: refused by the limit's name, soon.

Each has a twin within the limit that is rewritten. Time is counted in processor time, memory by a limit of the address
space and by the peak of the process that does it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Final

import pytest

from wasmckpt.errors import NotSupported
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
from wasmckpt.wasm.encode import section, vector
from wasmckpt.wasm.leb128 import uleb

from ...support.tiers import by_tier

SECONDS: Final = 60
"""Of a slow machine's processor; the slowest takes a sixth of it here."""
MIB: Final = 1024
"""Growth of the peak."""
I32: Final = b"\x7f"
NOTHING: Final = b"\x60\0\0"
LOOP: Final = b"\x03\x40\x41\0\x0d\0\x0b"
"""loop  i32.const 0  br_if 0  end"""


def kind(params: int, results: int) -> bytes:
    """A function type of i32."""
    return b"\x60" + vector([I32] * params) + vector([I32] * results)


def module(
    bodies: Sequence[bytes], *, types: Sequence[bytes] = (NOTHING,), of: int = 0, middle: bytes = b"", locals_: int = 0,
) -> bytes:
    """Functions of type ``of`` without their ``end``; ``middle``: sections between those of functions and of code."""
    declared = b"\1" + uleb(locals_) + I32 if locals_ else b"\0"
    entries = [declared + body + b"\x0b" for body in bodies]
    return (
        b"\0asm\1\0\0\0" + section(1, vector(types)) + section(3, vector([uleb(of)] * len(bodies))) + middle
        + section(10, vector(uleb(len(entry)) + entry for entry in entries))
    )


def reads(count: int) -> bytes:
    return b"".join(b"\x20" + uleb(i) + b"\x1a" for i in range(count))


def exports(count: int) -> bytes:
    names = [str(i).encode() for i in range(count)]
    return section(7, vector(uleb(len(name)) + name + b"\0" + uleb(i) for i, name in enumerate(names)))


def calls_through(types: int, functions: int) -> bytes:
    """One function that calls through a table with each of many types, all of them the same."""
    first = b"".join(b"\x41\0\x11" + uleb(i) + b"\0" for i in range(types))
    return module([first] + [b""] * (functions - 1), types=[NOTHING] * types, middle=table_of(functions))


def table_of(functions: int) -> bytes:
    """A table with all functions."""
    items = vector(map(uleb, range(functions)))
    return section(4, b"\1\x70\0" + uleb(functions)) + section(9, b"\1\0\x41\0\x0b" + items)


def constants(count: int, *, doubled: bool) -> bytes:
    """Globals that are each made of the one before, and data at the last one's address."""
    own = [
        b"\x7f\0\x23" + uleb(i) + (b"\x23" + uleb(i) + b"\x6a" if doubled else b"") + b"\x0b" for i in range(count)
    ]
    return (
        b"\0asm\1\0\0\0" + section(1, vector([NOTHING])) + section(2, b"\1\1m\1m\2\0\1")
        + section(6, vector([b"\x7f\0\x41\0\x0b", *own])) + section(11, vector([b"\0\x23" + uleb(count) + b"\x0b\1a"]))
    )


REFUSED: Final[dict[str, tuple[Callable[[int], bytes], int, int, str]]] = {
    # name: (module of a size, a size beyond the limit, one within, what the error says)
    "parameters": (lambda n: module([b""], types=[kind(n, 0)]), 1001, 1000, "parameters: the limit is 1000"),
    "results": (lambda n: module([b"\x41\0" * n], types=[kind(0, n)]), 1001, 1000, "results: the limit is 1000"),
    "a body": (lambda n: module([b"\x01" * n]), 7_654_320, 10_000, "bytes of a function body: the limit is 7654321"),
    "types": (lambda n: module([b""], types=[NOTHING] * n), 1_000_001, 1000, "types: the limit is 1000000"),
    "tables": (
        lambda n: module([b""], middle=section(4, vector([b"\x70\0\1"] * n))), 101, 2, "tables: the limit is 100"),
    "locals of many functions": (
        lambda n: module([LOOP] * n, locals_=50_000), 20_000, 20, "locals of all functions: the limit is"),
    "loops": (lambda n: module([LOOP * n]), 100_001, 1000, "loops and calls of a function: the limit is 100000"),
    "calls": (lambda n: module([b"\x10\0" * n]), 200_000, 1000, "loops and calls of a function: the limit is 100000"),
    "live locals at many calls": (
        lambda n: module([b"\x10\0" * n + reads(50_000)], locals_=50_000), 1000, 20, "values that safepoints store"),
    "one high local at many calls": (
        lambda n: module([b"\x10\0" * n + b"\x20" + uleb(49_999) + b"\x1a"], locals_=50_000), 50_000, 500,
        "bits of sets of locals"),
    "one high local in many blocks": (
        lambda n: module([b"\x03\x40" + (b"\x20" + uleb(49_999) + b"\x1a\x02\x40\x0b") * n + b"\x0c\0\x0b"],
                         locals_=50_000),
        200_000, 500, "bits of sets of locals"),
    "operands that wait at calls": (
        lambda n: module([b"\x10\0" * n + b"\0"], types=[kind(0, 1)]), 50_000, 500, "pass on or keep waiting"),
    "blocks with wide results": (
        lambda n: module([b"\x41\0" * 1000 + b"\x02\0\x0b" * n + b"\0"], types=[kind(1000, 1000), NOTHING], of=1),
        100_000, 50, "pass on or keep waiting"),
    "branches to a wide label": (
        lambda n: module([b"\x02\0" + b"\x41\0" * 1000 + b"\x41\0\x0d\0" * n + b"\x0b\0"],
                         types=[kind(0, 1000), NOTHING], of=1),
        100_000, 50, "pass on or keep waiting"),
    "wide calls in dead code": (
        lambda n: module([b"\0" + b"\x10\0" * n], types=[kind(1000, 0)]), 100_000, 50, "pass on or keep waiting"),
    "wide exports": (
        lambda n: module([LOOP] * n, types=[kind(1000, 0)], middle=exports(n)), 20_000, 10, "wrappers of exports"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_the_name_of_the_limit(name: str) -> None:
    make, beyond, within, says = REFUSED[name]
    seconds, grown, said = rewritten_apart(make(beyond))
    assert says in said
    assert said.startswith("NotSupported: ")
    assert (seconds < SECONDS, grown < MIB) == (True, True), f"{seconds:.1f} s, {grown} MiB"
    assert instrument(make(within), Options()).wasm


LARGE: Final[dict[str, Callable[[], bytes]]] = {
    "deep blocks": lambda: module([b"\x02\x40" * 300_000 + b"\x0b" * 300_000]),
    "deep loops": lambda: module([b"\x03\x40" * 50_000 + b"\x0b" * 50_000]),
    "deep loops that are left from inside": lambda: module([
        b"\x03\x40" * 5000 + b"".join(b"\x41\0\x0d" + uleb(i) for i in range(5000)) + b"\x0b" * 5000]),
    "a table of a million branches": lambda: module([
        b"\x03\x40\x41\0\x0e" + uleb(1_000_000) + bytes(1_000_001) + b"\x0b"]),
    "tables of branches out of deep loops": lambda: module([
        b"\x03\x40" * 500 + (b"\x02\x40\x41\0\x0e" + uleb(400) + b"".join(map(uleb, range(401))) + b"\x0b") * 3000
        + b"\x0b" * 500]),
    "a table of many functions, called by many": lambda: module(
        [b"\x41\0\x11\0\0"] * 2000 + [b""] * 18_000, middle=table_of(20_000)),
    "a type written ten thousand times": lambda: calls_through(10_000, 10_000),
    "all functions call all later ones": lambda: module([
        b"".join(b"\x10" + uleb(j) for j in range(i + 1, 300)) for i in range(300)]),
    "many functions": lambda: module([b""] * 30_000),
    "constants made of constants": lambda: constants(100_000, doubled=False),
    "constants that double": lambda: constants(1000, doubled=True),
    "a long loop": lambda: module([b"\x03\x40" + b"\x41\0\x1a" * 500_000 + b"\x41\0\x0d\0\x0b"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_what_is_within_the_limits_takes_its_time_and_no_more(name: str) -> None:
    seconds, grown, said = rewritten_apart(LARGE[name]())
    assert said == "rewritten"
    assert (seconds < SECONDS, grown < MIB) == (True, True), f"{seconds:.1f} s, {grown} MiB"


_CHILD: Final = """
import json, re, resource, sys, time
from pathlib import Path
from wasmckpt.errors import CheckpointError
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
wasm = sys.stdin.buffer.read()
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before, began = peak(), time.process_time()
try:
    instrument(wasm, Options()).wasm
    said = "rewritten"
except CheckpointError as error:
    said = f"{type(error).__name__}: {error}"
print(json.dumps([time.process_time() - began, (peak() - before) >> 10, said]))
"""


def rewritten_apart(wasm: bytes) -> tuple[float, int, str]:
    """Seconds, growth of the peak in MiB, and what became of it. A process that takes far too much is ended."""
    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (3 * SECONDS, 3 * SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    done = subprocess.run(
        [sys.executable, "-c", _CHILD], input=wasm, capture_output=True, check=False, preexec_fn=bound,
    )
    assert done.returncode == 0, done.stderr.decode()[-500:]
    seconds, grown, said = json.loads(done.stdout)
    return float(seconds), int(grown), str(said)


@pytest.mark.parametrize("name", ["parameters", "results", "tables"])
def test_one_more_than_the_limit(name: str) -> None:
    make, beyond, within, says = REFUSED[name]
    assert beyond == within + 1 or name == "tables"
    with pytest.raises(NotSupported, match=says) as refused:
        instrument(make(beyond), Options())
    assert refused.value.fields["need"] == "a smaller module"


@pytest.mark.slow
def test_a_limit_names_the_function() -> None:
    calls = by_tier(check=100_001, test=100_001, soak=200_000)
    wasm = module([b"", b"\x10\1" * calls])
    with pytest.raises(NotSupported) as refused:
        instrument(wasm, Options())
    assert refused.value.fields["function"] == 1
