"""Programs begin on x86-64, are frozen in the middle of their frames, go on on arm64, and come back, several times."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wasmckpt import formats
from wasmckpt.formats import Image, Producer
from wasmckpt.instrument.options import Options

from ..matrix.test_identical import SLEEPS, neutral
from ..matrix.test_matrix import CHANGING, LARGE, check_table, count_of
from ..support.arm64 import NAMES
from ..support.moving import COUNTING, EVERYWHERE, Trace
from ..support.pairs import SEED, runtimes_of
from ..support.samples import Sample, cases, names, sample
from ..support.tiers import by_tier
from .far import Far, FarError
from .legs import Life, Where, begin, images_of, run_leg

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # emulated, on a core that is shared

BOTH = "wasmtime"
"""Is on both sides, and runs every sample."""


def far_runtimes(name: str) -> list[str]:
    """Those of the other side that can run a sample: they are the same programs as here."""
    return [engine for engine in runtimes_of(name) if engine in NAMES]


def rows(*, most: int) -> Iterator[object]:
    """All samples; the large ones, and those beyond ``most`` that the seed draws, only in soak."""
    small = sorted({*names()} - {*LARGE})
    chosen = set(random.Random(SEED).sample(small, min(most, len(small))))
    for name in names():
        yield pytest.param(name, marks=[] if name in chosen else [pytest.mark.soak])


def comparable(trace: Trace, name: str) -> Trace:
    """Without what is another at each run."""
    return replace(trace, memory="", globals=()) if name in CHANGING else trace


def start(program: Sample, folder: Path, options: Options = COUNTING) -> Life:
    folder.mkdir()
    return begin(program, program.calls[0] if program.calls else None, folder, options)


def test_it_is_another_processor(far: Far) -> None:
    """Else all of this would show nothing."""
    assert far("legs", "machine") == "aarch64"


def test_what_fails_there_is_told_here(far: Far, tmp_path: Path) -> None:
    life = start(sample("fib", "tiny"), tmp_path / "life")
    with pytest.raises(FarError, match="ImageError"):
        far("legs", "run_leg", life, Where(image=b"no image"), BOTH, 0)
    frozen = run_leg(life, Where(), BOTH, 3)
    other = start(sample("deep", "tiny"), tmp_path / "other")
    with pytest.raises(FarError, match="another module"):
        far("legs", "run_leg", other, frozen, BOTH, 0)


@pytest.mark.parametrize("name", list(rows(most=1_000)))
def test_there_and_back(name: str, far: Far, tmp_path: Path) -> None:
    """One life goes between the processors at safepoints drawn from the seed, to its end: all that it leaves behind is
    what it leaves behind where it was never stopped."""
    program = sample(name, "tiny" if "tiny" in cases(name) else "default")
    rng = random.Random(f"{SEED} {name}")
    print(f"seed {SEED}")
    options = COUNTING if name in LARGE else rng.choice((COUNTING, EVERYWHERE))
    undisturbed = run_leg(start(program, tmp_path / "undisturbed", options), Where(), BOTH, 0).trace
    assert undisturbed
    check_table(program, undisturbed, program.calls[0] if program.calls else None)
    count = count_of(program, options, program.calls[0] if program.calls else None, tmp_path)
    engines = far_runtimes(name)
    for turn, first in enumerate(by_tier(check=[BOTH], test=[rng.choice(engines)], soak=engines)):
        hops = by_tier(check=2, test=4, soak=4 if name in LARGE else 8)
        cuts = sorted(rng.sample(range(1, count + 1), min(hops, count)))
        life = start(program, tmp_path / f"life{turn}", options)
        where, before, way = Where(), 0, []
        for hop, cut in enumerate(cuts):
            there = bool(hop % 2)
            engine = (first if hop == 1 else rng.choice(engines)) if there else rng.choice((BOTH, *engines))
            way.append((engine, "arm64" if there else "x86-64", cut))
            where = (far("legs", "run_leg", life, where, engine, cut - before) if there
                     else run_leg(life, where, engine, cut - before))
            if where.trace:
                break
            before = cut
        if where.trace is None:  # odd: it is here, and comes to its end there
            there = bool(len(cuts) % 2)
            way.append((BOTH, "arm64" if there else "x86-64", 0))
            where = far("legs", "run_leg", life, where, first, 0) if there else run_leg(life, where, BOTH, 0)
        assert where.trace
        assert comparable(where.trace, name) == comparable(undisturbed, name), way


@pytest.mark.parametrize("name", list(rows(most=14)))
def test_images_are_the_same_whichever_processor_made_them(name: str, far: Far, tmp_path: Path) -> None:
    """The same freezes at the same safepoints, on both: the same bytes, but for the producer's name and what the world
    outside says of its files."""
    if name == SLEEPS:
        pytest.skip("how often it looks at a clock depends on the clock")
    program = sample(name, "tiny" if "tiny" in cases(name) else "default")
    rng = random.Random(f"{SEED} {name}")
    most = by_tier(check=2, test=2, soak=4 if name in LARGE else 10)
    engines = far_runtimes(name)
    plan = rng.choice((COUNTING, EVERYWHERE)) if name not in LARGE else COUNTING
    count = count_of(program, plan, program.calls[0] if program.calls else None, tmp_path)
    nth = max(1, count // (most + 1))
    for engine in by_tier(check=[BOTH], test=[rng.choice(engines)], soak=engines):
        got, left = far("legs", "images_of", start(program, tmp_path / f"{engine}-far", plan), engine, nth, most)
        expected, end = images_of(start(program, tmp_path / f"{engine}-near", plan), engine, nth, most)
        assert left == end
        assert len(got) == len(expected)
        assert bool(expected) == bool(count)
        for one, other in zip(got, expected, strict=True):
            assert formats.decode(one).producer.machine == "aarch64"
            assert formats.decode(other).producer.machine == "x86_64"
            assert formats.encode(neutral(one)) == formats.encode(neutral(other))


def test_one_bit_of_an_image_makes_another_end(far: Far, tmp_path: Path) -> None:
    """These tests can fail: a program whose end depends on all of its state, with one bit of it changed on the way."""
    program = sample("nbody", "tiny")
    ends = []
    for flipped in (False, True):
        life = start(program, tmp_path / f"life{flipped}")
        where = run_leg(life, Where(), BOTH, 40)
        if flipped:
            where = replace(where, image=formats.encode(with_a_bit_changed(formats.decode(where.image))))
        ends.append(far("legs", "run_leg", life, where, "wasm3", 0).trace.stdout)
    assert ends[0] == program.stdout
    assert ends[1] != program.stdout


def with_a_bit_changed(image: Image) -> Image:
    """The lowest bit of the double that the page with most to lose begins its data with is another."""
    memory = image.memories[0]
    first, data = max(memory.data, key=lambda run: len(run[1]) - run[1].count(0))
    changed = bytearray(data)
    at = next(n for n in range(7, len(data), 8) if data[n] in (0x3F, 0xBF, 0x40, 0xC0))
    changed[at - 1] ^= 8
    runs = tuple((page, bytes(changed) if page == first else content) for page, content in memory.data)
    return replace(image, memories=(replace(memory, data=runs), *image.memories[1:]), producer=Producer("", "", "", ""))
