"""Which runtimes a program can run on, and which ordered pairs of them a test takes.

The rule, since five runtimes make twenty-five pairs and `make test` has an end: `BASE`, a compiler and an interpreter,
in all four pairs always. Of the pairs with another runtime ``soak`` takes all, ``check`` none, and ``test`` some that
`SEED` draws: `ring`, the same for the whole run, has each runtime as a source and as a target; `drawn` takes a few for
each case, so that the cases of a run meet all of them. In ``test`` the seed comes of the sources (without the tests):
another one with each change of them, and a red run can be repeated; in ``soak`` of nothing. The header of the output
tells it, and ``WASMCKPT_SEED`` sets it.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from wasmckpt import runtimes

from .ledger import sources_digest
from .samples import manifest
from .tiers import TIER, by_tier

__all__ = ["BASE", "SEED", "circle", "drawn", "others", "ring", "runtimes_for", "runtimes_of"]

_SOURCES: Final = ("wasmckpt", "runtimes", "formats")
SEED: Final = int(os.environ.get("WASMCKPT_SEED") or by_tier(
    check=1, test=int(sources_digest(folders=_SOURCES), 16) % (1 << 32) + 1, soak=random.randrange(1, 1 << 32)))
BASE: Final = ("wasmtime", "wasm3")

_NEEDS: Final = {
    "simd": "simd", "multi-memory": "multi-memory", "bulk-memory": "bulk-memory", "reference-types": "reference-types",
    "extended-const": "extended-const", "exceptions": "exceptions", "tail-call": "tail-calls",
}
"""What not every runtime has: a sample's word for it -> the adapters' word."""

Pair = tuple[str, str]


def others() -> tuple[str, ...]:
    """The runtimes that are here beside `BASE`; one that takes long to compile what resumes only in ``soak``."""
    return tuple(name for name in runtimes.available() if name not in BASE
                 and (TIER == "soak" or not runtimes.load(name).capabilities.compiles_slowly))


def runtimes_for(features: Collection[str] = ()) -> tuple[str, ...]:
    """The runtimes that are here and have a sample's ``features``, `BASE` first."""
    wanted = {_NEEDS[feature] for feature in features if feature in _NEEDS}
    return tuple(name for name in (*BASE, *others())
                 if not wanted or wanted <= runtimes.load(name).capabilities.features)


def runtimes_of(sample: str) -> tuple[str, ...]:
    """The runtimes that are here and can run a sample, rewritten."""
    row = manifest()[sample]
    return runtimes_for({*row.get("features", ()), *row.get("also_needs", ())})


def with_others(names: Sequence[str]) -> list[Pair]:
    """The ordered pairs of ``names`` of which one at least is not of `BASE`."""
    return [pair for pair in itertools.product(names, names) if not set(pair) <= set(BASE)]


def drawn(names: Sequence[str], case: str, count: int) -> list[Pair]:
    """Pairs with runtimes beside `BASE` for one case: all of them in ``soak``, none in ``check``, else ``count``."""
    pairs = with_others(names)
    if TIER != "test":
        return pairs if TIER == "soak" else []
    different = [pair for pair in pairs if pair[0] != pair[1]]
    return sorted(random.Random(f"{SEED} {case}").sample(different, min(count, len(different))))


def ring(names: Sequence[str]) -> list[Pair]:
    """Pairs for all cases of a test: all in ``soak``, none in ``check``, else a way from `BASE` through the others and
    back, in an order that `SEED` draws."""
    if TIER != "test":
        return drawn(names, "", 0)
    draw = random.Random(SEED)
    middle = [name for name in names if name not in BASE]
    ends = [name for name in names if name in BASE]
    if not middle or not ends:
        return []
    return list(itertools.pairwise([draw.choice(ends), *draw.sample(middle, len(middle)), draw.choice(ends)]))


def circle(partners: Iterable[str]) -> tuple[str, ...]:
    """A circle through every ordered pair of different partners, each once: who comes after whom, from the first on."""
    names = list(partners)
    left = {name: [other for other in names if other != name] for name in names}
    path, walked = names[:1], []
    while path:
        if nexts := left[path[-1]]:
            path.append(nexts.pop())
        else:
            walked.append(path.pop())
    return tuple(walked[:0:-1])
