"""Images are the same, byte for byte, whichever runtime made them: frames, values, globals, tables, pages, host state.

Each sample lives its whole life on one runtime, is frozen at every n-th safepoint, and goes on there from its image.
But for the line that names the producer, and for what the world outside says of its files (inodes, times), the images
of all runtimes are equal.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wasmckpt import formats
from wasmckpt.formats import Image, Producer
from wasmckpt.instrument.options import Options

from ..support.moving import COUNTING, EVERYWHERE, Trace, World, move
from ..support.pairs import BASE, SEED, runtimes_of
from ..support.partner import REFERENCE
from ..support.samples import Sample, cases, names, sample
from ..support.tiers import TIER, by_tier
from .check import closing_world
from .test_matrix import LARGE, QUICK, count_of

ANYBODY = Producer("", "", "", "")
OUTSIDE = ("seen", "listing", "start")
"""What a descriptor's record says of the world outside."""
SLEEPS = "sleepy"
"""How often it looks at a clock depends on the clock."""


def neutral(raw: bytes) -> Image:
    """An image without its producer's name and without what differs between two worlds."""
    image = formats.decode(raw)
    host: dict[str, Any] = dict(image.host)
    host["descriptors"] = [{key: value for key, value in record.items() if key not in OUTSIDE}
                           for record in host.get("descriptors", ())]
    return replace(image, producer=ANYBODY, host=host)


def life(
    program: Sample, engine: str, plan: Options, nth: int, most: int, folder: Path,
) -> tuple[list[Image], Trace]:
    """At every n-th safepoint of its life on one runtime; and what that leaves behind."""
    world = World(program, folder=Path(tempfile.mkdtemp(dir=folder)), repeatable=True)
    call = program.calls[0] if program.calls else None
    with closing_world(world):
        trace = move(program.wasm, [engine], nth, options=plan, world=world, invoke=call.export if call else None,
                     arguments=call.args if call else (), most_hops=most, keep_images=True)
    return [neutral(raw) for raw in trace.images], trace


def differences(one: Image, other: Image) -> list[str]:
    """Names of the parts that differ."""
    return [name for name in Image.__dataclass_fields__ if getattr(one, name) != getattr(other, name)]


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.soak] if name in LARGE else [pytest.mark.slow])
    for name in names() if name != SLEEPS
])
def test_images_are_the_same_whichever_runtime_made_them(name: str, tmp_path: Path) -> None:
    program = sample(name, "tiny" if "tiny" in cases(name) else "default")
    engines = [engine for engine in runtimes_of(name) if TIER != "check" or engine in BASE]
    most = by_tier(check=3, test=4, soak=40)
    call = program.calls[0] if program.calls else None
    plans = [COUNTING, EVERYWHERE]
    print(f"seed {SEED}")
    for plan in plans if TIER == "soak" else random.Random(f"{SEED} {name}").sample(plans, 1):
        count = count_of(program, plan, call, tmp_path)
        nth = max(1, count // (most + 1))
        # The interpreter counts as the plan "all" does, but at no entry of a function.
        polled = {"tail-call", "exceptions"} & set(program.features)
        alone = plan is COUNTING or program.kind == "command" or bool(polled)
        expected, end = life(program, engines[0], plan, nth, most, tmp_path)
        assert bool(expected) == bool(count)
        for engine in [*engines[1:], *([] if alone else [REFERENCE])]:
            got, left = life(program, engine, plan, nth, most, tmp_path)
            assert left == end, engine
            assert len(got) == len(expected), engine
            for number, (theirs, ours) in enumerate(zip(got, expected, strict=True), 1):
                assert not differences(theirs, ours), (plan.plan, engine, number * nth)
                assert formats.encode(theirs) == formats.encode(ours)
