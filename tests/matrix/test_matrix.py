"""Every sample, each ordered pair of partners (the runtimes, the reference interpreter): frozen at a safepoint of one,
it goes on on the other.

Positions are drawn from a seed (`SEED`, printed) and the pair's name: in ``soak`` each of the nine pairs of `BASE` and
the interpreter takes a hundred of its own, in both plans, so that together they stand at all safepoints of the small
samples. (A thousand for each pair, all of them for most samples, took seven hours of two cores.) The others take a few,
for pairs of runtimes (which ones: `tests.support.pairs`), and one life through all ordered pairs.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wasmckpt.errors import NotSupported
from wasmckpt.instrument.options import Options

from ..support.moving import COUNTING, EVERYWHERE, Trace, World
from ..support.pairs import BASE, SEED, circle, drawn, runtimes_for, runtimes_of
from ..support.partner import REFERENCE
from ..support.samples import Call, Sample, cases, names, sample
from ..support.tiers import TIER, by_tier
from .check import Run, difference, positions, runner, safepoints

LARGE = ("sqlite", "lua", "primes")
CHANGING = ("time", "sleepy", "lua", "primes")
"""What time it is, or what was drawn, lies in their memory: only what they write is compared."""
QUICK = ("multi", "start", "depth", "ifparams", "qsort")
MORE = 2
"""Drawn pairs with other runtimes, for each case."""


def rows() -> Iterator[object]:
    for name in names():
        for case in (["tiny"] if "tiny" in cases(name) else [c for c in cases(name) if c != "large"]):
            engines = runtimes_of(name)
            base = [engine for engine in engines if engine in BASE]
            partners = base if name in LARGE else [*base, REFERENCE]
            chosen = drawn(engines, f"{name} {case}", MORE)
            for pair in [*itertools.product(partners, partners), *chosen]:
                soak = REFERENCE in pair or (pair[0] == pair[1] and len(base) > 1) or (
                    name in LARGE and pair[0] == "wasm3")
                marks = [pytest.mark.soak] if soak else [] if name in QUICK else [pytest.mark.slow]
                yield pytest.param(name, case, pair, id=f"{name}-{case}-{'-'.join(pair)}", marks=marks)


def runs(program: Sample, plan: Options, folder: Path, *, most_hops: int) -> Iterator[tuple[Run, Call | None]]:
    """A run for each of the sample's calls, or of the whole command. Each has files of its own."""

    def world() -> World:
        return World(program, folder=Path(tempfile.mkdtemp(dir=folder)))

    calls: list[Call | None] = list(program.calls[:1] if program.kind == "reactor" else program.calls) or [None]
    for call in calls:
        yield runner(program.wasm, plan, sample=program, call=call, most_hops=most_hops, world=world), call


def comparable(run: Run, name: str) -> Run:
    """A run of which only that is kept which is the same each time."""
    if name not in CHANGING:
        return run
    return lambda engines, nth: replace(run(engines, nth), memory="", globals=())


def count_of(program: Sample, plan: Options, call: Call | None, folder: Path) -> int:
    return safepoints(
        program.wasm, "wasmtime", plan, invoke=call.export if call else None, arguments=call.args if call else (),
        world=lambda: World(program, folder=Path(tempfile.mkdtemp(dir=folder))),
    )


@pytest.mark.parametrize(("name", "case", "pair"), list(rows()))
def test_frozen_on_one_runtime_it_goes_on_on_another(
    name: str, case: str, pair: tuple[str, str], tmp_path: Path,
) -> None:
    """Once at each chosen safepoint, and again and again: results, output, exit code, host calls, memory, globals."""
    program = sample(name, case)
    print(f"seed {SEED}")
    shipped = name in LARGE or pair[0] == "wasmtime"
    usual = set(pair) <= {*BASE, REFERENCE}
    quick = (COUNTING,) if shipped else (EVERYWHERE,)
    for plan in by_tier(check=quick, test=quick, soak=(COUNTING,) if name in LARGE else (COUNTING, EVERYWHERE)):
        once = by_tier(check=1, test=0 if name in LARGE else 1 if program.kind == "command" else 3,
                       soak=6 if name in LARGE else 100 if usual else 5)
        hops = by_tier(check=3, test=2 if name in LARGE else 5, soak=10 if name in LARGE else 100 if usual else 15)
        for (single, call), (chain, _) in zip(
            runs(program, plan, tmp_path, most_hops=1), runs(program, plan, tmp_path, most_hops=hops), strict=True,
        ):
            single, chain = comparable(single, name), comparable(chain, name)
            expected = single(["wasmtime"], 0)
            check_table(program, expected, call)
            count = count_of(program, plan, call, tmp_path)
            for n in positions(count, once, f"{SEED} {pair}") if count else []:
                assert not (wrong := difference(single, pair, n, expected)), (plan.plan, n, SEED, wrong)
            if count > 1:
                for n in {max(2, count // (hops + 1))}:
                    assert not (wrong := difference(chain, pair, n, expected)), (plan.plan, "chain", n, wrong)


def check_table(program: Sample, got: Trace, call: Call | None) -> None:
    """The undisturbed run is right at all."""
    if call:
        assert got.results == tuple(value.bits for value in call.results)
        assert got.log == program.host_log or len(program.calls) > 1
    else:
        assert got.stdout == program.stdout + program.stderr
        assert got.exit_code == program.exit_code
    assert bool(got.trap) == program.traps


def around() -> Iterator[object]:
    for name in names():
        marks = [] if name in QUICK else [pytest.mark.soak] if name in LARGE else [pytest.mark.slow]
        yield pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", list(around()))
def test_around_through_every_ordered_pair(name: str, tmp_path: Path) -> None:
    """One life goes from each partner to each other, the reference interpreter among them: first at one safepoint after
    another, then from the beginning of the run to its end. Files and descriptors are compared, too."""
    program = sample(name, "tiny" if "tiny" in cases(name) else "default")
    engines = runtimes_of(name)
    order = circle([*(engines if TIER != "check" else [e for e in engines if e in BASE]), REFERENCE])
    most_hops = by_tier(check=len(order), test=len(order), soak=60)
    for run, call in runs(program, COUNTING, tmp_path, most_hops=most_hops):
        run = comparable(run, name)
        expected = run([BASE[0]], 0)
        check_table(program, expected, call)
        count = count_of(program, COUNTING, call, tmp_path)
        for n in sorted({1, max(1, count // (most_hops + 1))}) if count else []:
            assert not (wrong := difference(run, order, n, expected)), (n, wrong)


@pytest.mark.parametrize("name", [
    "train", *(pytest.param(name, marks=pytest.mark.soak) for name in ("vm", "strhash", "qsort")),
])
def test_a_life_of_many_moves(name: str, tmp_path: Path) -> None:
    """Moved a thousand times (a hundred here), there and back and through the interpreter."""
    program = sample(name, "tiny")
    hops = by_tier(check=10, test=100, soak=1000)
    count = count_of(program, COUNTING, None, tmp_path)
    (run, _), = runs(program, COUNTING, tmp_path, most_hops=hops)
    expected = run([BASE[0]], 0)
    trace = run(circle([*runtimes_for(), REFERENCE]), count // (hops + 1))
    assert trace == expected
    assert trace.hops == hops


@pytest.mark.parametrize(("name", "engine"), [
    (name, engine) for name in names() if name not in LARGE
    for engine in runtimes_for() if engine not in runtimes_of(name)
])
def test_other_runtimes_than_those_of_a_sample_refuse_it_by_name(name: str, engine: str) -> None:
    program = sample(name)
    run = runner(program.wasm, COUNTING, sample=program, call=program.calls[0] if program.calls else None)
    with pytest.raises(NotSupported) as caught:
        run([engine], 0)
    assert caught.value.fields["need"]
    assert caught.value.fields["runtime"] == engine


@pytest.mark.parametrize("count", range(2, 7))
def test_a_circle_goes_through_every_ordered_pair_once(count: int) -> None:
    names = [str(i) for i in range(count)]
    way = circle(names)
    assert way[0] == "0"
    assert sorted(itertools.pairwise([*way, way[0]])) == sorted(itertools.permutations(names, 2))
