"""Programs that nobody here wrote: the same under our host layer as under the runtime's own WASI, and the same when
frozen at many points and moved between all runtimes that can hold them.

``make test`` takes the quick ones, on two runtimes and a drawn one; ``make soak`` all, on all.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from wasmckpt import runtimes
from wasmckpt.formats import Image
from wasmckpt.lazydata import replace

from ..matrix.check import positions
from ..support.pairs import BASE, SEED, circle
from ..support.tiers import TIER, by_tier, missing
from ..support.toolchain import Unavailable
from . import figures
from .programs import PROGRAMS, RealProgram
from .running import Subject, as_trace, refused

CASES = [pytest.param(one, id=one.name, marks=[pytest.mark.slow] if one.quick else [pytest.mark.soak])
         for one in PROGRAMS]


@pytest.fixture(params=CASES)
def program(request: pytest.FixtureRequest) -> RealProgram:
    assert isinstance(request.param, RealProgram)
    return request.param


def subject_of(program: RealProgram, scratch: Path) -> Subject:
    try:
        return Subject(program.sample(), scratch, time_goes_on=program.time_goes_on)
    except Unavailable as reason:
        missing(reason.need, reason.reason)


ENGINES = [name for name in runtimes.available() if not runtimes.load(name).capabilities.compiles_slowly]
"""WasmEdge is among them; what it compiles ahead of time is not: that takes minutes, once more at each resume."""


def holders(program: RealProgram) -> list[str]:
    """The runtimes that are here and hold it; in ``test`` those of `BASE`, or two others, and a drawn one."""
    able = [name for name in ENGINES if name not in program.refused and name not in program.left_out]
    base = [name for name in able if name in BASE]
    rest = [name for name in able if name not in BASE]
    if TIER == "soak":
        return able
    return base + random.Random(f"{SEED} {program.name}").sample(rest, min(len(rest), 3 - len(base)))


@pytest.mark.timeout(1500)  # what is not in the cache yet is fetched, and built, in here
def test_as_with_the_runtimes_own_wasi_and_moved(program: RealProgram, tmp_path: Path) -> None:
    """Output, exit code and files on each runtime; then a life through every ordered pair of runtimes, and lives that
    are frozen once: memory, globals, descriptors as well."""
    subject = subject_of(program, tmp_path)
    engines = holders(program)
    plain = as_trace(subject.plain())
    shown = plain[2][program.shows_in] if program.shows_in else plain[0]
    assert program.shows in shown, shown[-2000:]
    assert plain[1] == program.exit_code
    for engine in engines:
        got = subject.undisturbed(engine)
        assert not got.trap
        assert (got.stdout, got.exit_code, dict(got.files)) == plain, engine
    count = subject.safepoints(engines[0])
    order = circle(engines)
    hops = by_tier(check=2, test=min(3, len(order)), soak=len(order))
    assert not (wrong := subject.moved(order, max(1, count // (hops + 1)), hops)), (SEED, order, wrong)
    draw = random.Random(f"{SEED} {program.name}")
    for n in positions(count, by_tier(check=1, test=1, soak=8), SEED):
        pair = draw.sample(engines, 2) if len(engines) > 1 else engines
        assert not (wrong := subject.moved(pair, n, 1)), (SEED, pair, n, wrong)


@pytest.mark.parametrize("program", [case for case in CASES if case.values[0].refused], indirect=True)  # type: ignore[union-attr]
def test_who_refuses_it(program: RealProgram, tmp_path: Path) -> None:
    """By the name of what is missing, before it runs."""
    sample = subject_of(program, tmp_path).sample
    for name in ENGINES:
        if name in program.refused:
            assert refused(sample, name) == program.refused[name], name


def test_the_page_has_a_row_for_each_program() -> None:
    """``docs/compatibility.md`` shows what ``figures.json`` holds, of every program."""
    rows = figures.load()
    page = figures.PAGE.read_text()
    assert page == figures.with_table(page, rows)
    assert rows.keys() <= {one.name for one in PROGRAMS}
    for one in PROGRAMS:
        row = rows.get(one.name)
        if row is None:  # a dash in the table
            continue
        assert row["moves"] > 0
        assert not set(row["runtimes"]) & {*one.refused, *one.left_out}


def test_a_program_that_ends_otherwise_is_seen(tmp_path: Path) -> None:
    """The comparison can fail: a page of memory that is changed on the way shows in what is left behind."""
    program = next(one for one in PROGRAMS if one.name == "resvg")
    subject = subject_of(program, tmp_path)

    def damage(image: Image) -> Image:
        first = image.memories[0]
        page, data = first.data[0]
        changed = data[:-8] + bytes(byte ^ 1 for byte in data[-8:])
        return replace(image, memories=(replace(first, data=((page, changed), *first.data[1:])), *image.memories[1:]))

    count = subject.safepoints("wasmtime")
    assert not subject.moved(["wasmtime", "wasmtime"], count // 2, 1)
    assert subject.moved(["wasmtime", "wasmtime"], count // 2, 1, damage)
    assert subject.moved(["wasmtime", "wasmtime"], count + 1, 1) == "it was never frozen"
