"""Continuations on disk: for programs that are resumed where one of the same module was resumed before.

A program that sleeps, waits for input or is moved every minute stands at the same few places each time, and many
programs of one module stand at the same ones. What is made for a set of stacks is the same whatever the values in the
frames, so it is kept like the rewritten module, beside it. Not kept is what a stop in place makes: it is for the
program that stopped, which has it in memory (`resumes`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from ..wasm.module import ExternKind, FuncType
from ..wasm.validate import Code
from .cache import USELESS, default_folder, read_entry, write_entry
from .continuations import extend
from .instrument import Instrumented
from .records import Place
from .resumes import Resumes
from .side import Side
from .sites import Sites

__all__ = ["cached_extend"]

_FORMAT = 5


def cached_extend(
    out: Instrumented, frames: Sequence[Place], codes: Mapping[int, Code] | None = None, also: Resumes | None = None,
    folder: Path | None = None,
) -> list[int]:
    """As `extend`, kept in ``folder`` (default: `default_folder`) if ``out`` came from there and ``also`` is None.

    Then ``out.resumed_before`` says whether it was there already. Raises as `extend`.
    """
    if not out.key or also is not None:
        return extend(out, frames, codes, also)
    resumes = Resumes()
    resumes.add(frames)
    places = list(resumes.places)
    shape = [_FORMAT, out.key, places, _following(resumes), [places.index(place) for place in resumes.entries],
             places.index(frames[-1])]
    key = hashlib.sha256(msgpack.packb(shape)).hexdigest()
    path = (folder or default_folder()) / key[:2] / key
    out.resume_key = key
    try:
        _add(out, resumes, msgpack.unpackb(read_entry(path), use_list=False))
        out.resumed_before = True
    except USELESS:
        before = _counts(out)
        numbers = extend(out, frames, codes)
        if _counts(out)[-1] == before[-1]:  # globals are not kept, and none is added
            with contextlib.suppress(OSError):
                write_entry(path, msgpack.packb(_added(out, before)))
        return numbers
    return [out.numbers[frame] for frame in frames]


def _following(resumes: Resumes) -> list[list[int]]:
    numbers = {place: n for n, place in enumerate(resumes.places)}
    return [[numbers[place] for place in resumes.following[outer]] for outer in resumes.places]


def _counts(out: Instrumented) -> tuple[int, ...]:
    """How far each list is filled to which continuations are added."""
    linker = out.linker
    return (len(linker.types), len(linker.added), len(linker.sites), len(linker.functions), len(linker.exports),
            len(linker.new_globals))


def _added(out: Instrumented, before: tuple[int, ...]) -> dict[str, Any]:
    linker, side = out.linker, out.side
    types, added, sites, functions, exports, _ = before
    new = linker.added[added:]
    return {
        "before": before,
        "types": linker.types[types:],
        # Of a side module's functions nobody asks for the bodies again: they are in its binary.
        "added": [(kind, b"") for kind, _ in new] if side else new,
        "sites": Sites.pack(linker.sites[sites:]),
        "functions": list(linker.functions.items())[functions:],
        "exports": [(name, int(kind), index) for name, kind, index in linker.exports[exports:]],
        "continuations": list(out.continuations.items()),
        "numbers": [out.numbers[place] for place in out.resumes.places],
        "side": side and (side.wasm, side.functions, side.first),
        "not_moved": out.not_moved,
        "polls_at_once": out.polls_at_once,
    }


def _add(out: Instrumented, resumes: Resumes, kept: dict[str, Any]) -> None:
    """Nothing is added if this raises one of `USELESS`."""
    linker = out.linker
    if kept["before"] != _counts(out):
        raise ValueError("an entry of another rewriting")
    types = [FuncType(*kind) for kind in kept["types"]]
    added = [(kind, body) for kind, body in kept["added"]]
    sites = list(Sites(kept["sites"]))
    exports = [(name, ExternKind(kind), index) for name, kind, index in kept["exports"]]
    functions, continuations = dict(kept["functions"]), dict(kept["continuations"])
    numbers = dict(zip(resumes.places, kept["numbers"], strict=True))
    side = kept["side"] and Side(*kept["side"])
    not_moved, polls_at_once = kept["not_moved"], kept["polls_at_once"]
    for kind in types:
        linker.type_index(kind)
    linker.added += added
    for site in sites:
        linker.sites.append(site)
    linker.functions |= functions
    linker.exports += exports
    out.continuations, out.resumes, out.numbers = continuations, resumes, numbers
    out.side, out.not_moved, out.polls_at_once, out.assembled = side, not_moved, polls_at_once, b""
