"""What differs between two images: in frames, globals, tables, pages, the host's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..formats import PAGE_SIZE, Image, MemoryState, to_json
from ..lazydata import dataclass

__all__ = ["PARTS", "Difference", "differences"]

PARTS: Final = ("module", "entry", "frames", "globals", "tables", "segments", "memory", "host", "clocks")
"""Parts of an image that are compared. The producer is none: the same state may be frozen by several runtimes."""
_ZERO: Final = memoryview(bytes(PAGE_SIZE))


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference.

    Attributes:
        part: one of `PARTS`. where: in it, as names joined by dots: frames by number, the outermost is 0; locals,
            globals, tables, memories by index; descriptors by number.
        before, after: what stands there, in the form of `wasmckpt.formats.to_json`; None: nothing.
        pages: of a memory, runs of 4 KiB pages that differ: (first, count).
    """

    part: str
    where: str
    before: Any
    after: Any
    pages: tuple[tuple[int, int], ...] = ()


def differences(before: Image, after: Image) -> Iterator[Difference]:
    """All that differs, in the order of `PARTS`. Images of different modules have nothing else to be compared."""
    a, b = _parts(before), _parts(after)
    for part in PARTS:
        if part == "memory":
            yield from _memories(before.memories, after.memories)
            continue
        found = list(_compare(part, "", a[part], b[part]))
        yield from found
        if part == "module" and found:
            return


def _parts(image: Image) -> dict[str, Any]:
    """An image's parts as nested maps."""
    data: dict[str, Any] = to_json(image)
    host = data["host"]
    return {
        "module": {"sha256": data["module"]["sha256"]},
        "entry": {**data["entry"], "canonical_nans": data["canonical_nans"]},
        "frames": _by("", data["frames"]),
        "globals": _by("index", data["globals"]),
        "tables": {
            index: {"size": table["size"], **{f"slot {slot}": func for slot, func in table["changed"]}}
            for index, table in _by("index", data["tables"]).items()
        },
        "segments": {"data": data["dropped_data"], "elem": data["dropped_elem"]},
        "host": {
            key: _by("number", value) if key == "descriptors" and isinstance(value, list) else value
            for key, value in host.items() if key != "clocks"
        },
        "clocks": host.get("clocks"),
    }


def _by(key: str, items: list[Any]) -> dict[str, Any]:
    """A list as a map: by a field of its items, else by position."""
    return {
        str(item[key] if isinstance(item, Mapping) and key in item else i): item for i, item in enumerate(items)
    }


def _compare(part: str, where: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if not isinstance(before, Mapping) or not isinstance(after, Mapping) or _is_one_thing(before, after):
        yield Difference(part, where, before, after)
        return
    for key in dict.fromkeys([*before, *after]):
        yield from _compare(part, f"{where}.{key}" if where else key, before.get(key), after.get(key))


def _is_one_thing(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """A value, bytes, or frames that stand in different places."""
    return "bits" in before or "$hex" in before or (
        "offset" in before and "func" in before
        and any(before[key] != after.get(key) for key in ("func", "offset", "kind"))
    )


def _memories(before: tuple[MemoryState, ...], after: tuple[MemoryState, ...]) -> Iterator[Difference]:
    for a, b in zip(before, after, strict=True):
        pages = _pages_that_differ(a, b)
        if pages or a.pages != b.pages:
            yield Difference("memory", str(a.index), {"pages": a.pages}, {"pages": b.pages}, pages)


def _pages_that_differ(before: MemoryState, after: MemoryState) -> tuple[tuple[int, int], ...]:
    a, b = _pages(before), _pages(after)
    runs: list[tuple[int, int]] = []
    for page in sorted(a.keys() | b.keys()):
        # A page that one of them lacks is the module's own there, and the other's is not.
        if page in a and page in b and a[page] == b[page]:
            continue
        if runs and sum(runs[-1]) == page:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((page, 1))
    return tuple(runs)


def _pages(state: MemoryState) -> dict[int, memoryview]:
    pages = {
        first + i: memoryview(raw)[i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
        for first, raw in state.data for i in range(len(raw) // PAGE_SIZE)
    }
    return pages | {first + i: _ZERO for first, count in state.zero for i in range(count)}
