"""Rewritten modules on disk, by module digest, tool version and options; damaged or foreign entries are ignored.

An entry holds what `instrument` made, not only the bytes, since a resume adds continuations to it. Sites stay packed
until they are asked for: a freeze reads a few of thousands. Where there can be side modules the sites and the rewritten
bodies lie in files of their own: a resume needs neither, since such a runtime keeps its compiled form of the module.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack  # type: ignore[import-untyped]

from ..cachefolder import cache_folder, keep_newest, put
from ..version import __version__
from ..wasm.decode import decode
from ..wasm.features import Use
from ..wasm.module import ExternKind, FuncType, GlobalType, Module
from .callgraph import CallGraph
from .instrument import Instrumented, instrument
from .linker import Linker
from .neutral.build import Neutral
from .options import Options
from .sites import Sites
from .spill import Helpers

if TYPE_CHECKING:
    from ..wasm.shadow_stack import ShadowStack

__all__ = [
    "MOST_BYTES", "USELESS", "cached_instrument", "cached_stack", "default_folder", "read_entry", "trim",
    "write_entry",
]

_FORMAT = 2
USELESS = (OSError, ValueError, KeyError, TypeError, msgpack.UnpackException)
"""What reading an entry raises that is not there, damaged, or foreign."""
MOST_BYTES = 512 << 20
"""What the cache may hold; the entries that were used longest ago go first."""


def default_folder() -> Path:
    """Where rewritten modules are kept."""
    return cache_folder() / "rewritten"


@functools.cache
def _made_by() -> bytes:
    """Version and sources of the rewriter: an entry made before a change to it must not be taken for its work."""
    digest = hashlib.sha256(__version__.encode())
    top = Path(__file__).parents[1]
    for path in sorted([*(top / "instrument").rglob("*.py"), *(top / "wasm").glob("*.py")]):
        digest.update(path.read_bytes())
    return digest.digest()


def cached_instrument(
    source: bytes | Module, options: Options, folder: Path | None = None, *, imported: Mapping[int, int] | None = None,
) -> Instrumented:
    """As `instrument`, kept in ``folder`` (default: `default_folder`). A cache that cannot be used costs only time."""
    module = source if isinstance(source, Module) else decode(source)
    key = hashlib.sha256(
        b"\0".join([
            module.sha256(), _made_by(), str(_FORMAT).encode(), repr(options).encode(),
            repr(sorted((imported or {}).items())).encode(),
        ])
    ).hexdigest()
    path = (folder or default_folder()) / key[:2] / key
    try:
        out = _unpack(module, options, _unpacked(path))
        out.key = key
        if options.side_modules:
            linker, count = out.linker, len(out.sites)
            linker.bodies_from(lambda: dict(_part(path, "bodies", module, options, imported)))
            linker.sites = Sites(later=lambda: _part(path, "sites", module, options, imported), count=count)
        return out
    except USELESS:
        pass
    out = instrument(module, options, imported)
    out.key = key
    with contextlib.suppress(OSError):
        if options.side_modules:
            _write_parts(path, _aside(out))
        write_entry(path, msgpack.packb(_pack(out)))
        if key[-1] == "0":  # one in sixteen looks: with 10,000 entries that takes 50 ms
            trim(path.parents[1])
    return out


def _unpacked(path: Path) -> Any:
    return msgpack.unpackb(read_entry(path), use_list=False, strict_map_key=False)


def _aside(out: Instrumented) -> dict[str, Any]:
    """What lies in files of its own where there can be side modules."""
    return {"bodies": out.linker.bodies, "sites": out.sites.packed()}


def _part(
    path: Path, name: str, module: Module, options: Options, imported: Mapping[int, int] | None,
) -> Any:
    """One of these files' contents; all is made again if it is lost."""
    try:
        return _unpacked(path.with_name(f"{path.name}.{name}"))
    except USELESS:
        parts = _aside(instrument(module, options, imported))
        with contextlib.suppress(OSError):
            _write_parts(path, parts)
        return parts[name]


def _write_parts(path: Path, parts: Mapping[str, Any]) -> None:
    for name, content in parts.items():
        write_entry(path.with_name(f"{path.name}.{name}"), msgpack.packb(content))


def cached_stack(module: Module, folder: Path | None = None) -> ShadowStack:
    """As `prove`, kept beside rewritten modules: for thousands of functions it takes seconds. Raises as that does."""
    from ..wasm.shadow_stack import ShadowStack, prove  # few ask for it

    key = hashlib.sha256(b"\0".join([b"stack", module.sha256(), _made_by(), str(_FORMAT).encode()])).hexdigest()
    path = (folder or default_folder()) / key[:2] / key
    try:
        pointer, low, high, below = msgpack.unpackb(read_entry(path), strict_map_key=False)
        return ShadowStack(pointer, low, high, dict(below))
    except (OSError, ValueError, TypeError, msgpack.UnpackException):
        pass
    stack = prove(module)
    with contextlib.suppress(OSError):
        write_entry(path, msgpack.packb([stack.pointer, stack.low, stack.high, stack.below]))
    return stack


def trim(folder: Path) -> None:
    """Delete the entries that were used longest ago, where there is too much; others may be doing the same."""
    entries: list[os.DirEntry[str]] = []
    for group in os.scandir(folder):
        if group.is_dir():
            entries += os.scandir(group.path)
    keep_newest(entries, MOST_BYTES)


def read_entry(path: Path) -> bytes:
    """An entry. Raises OSError, and ValueError: it is damaged."""
    content = path.read_bytes()
    if hashlib.sha256(content[32:]).digest() != content[:32]:
        raise ValueError("a damaged entry")
    with contextlib.suppress(OSError):
        os.utime(path)  # used now
    return content[32:]


def write_entry(path: Path, content: bytes) -> None:
    """Write an entry, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    put(path, hashlib.sha256(content).digest() + content)


def _pack(out: Instrumented) -> dict[str, Any]:
    linker, helpers, graph = out.linker, out.helpers, out.graph
    return {
        "sites": len(out.sites) if out.options.side_modules else out.sites.packed(),
        "reachable": linker.reachable,
        "bodies": {} if out.options.side_modules else linker.bodies,
        "types": linker.types[len(out.module.types):],
        "added": linker.added,
        "functions": linker.functions,
        "globals": linker.globals,
        "new_globals": [((kind.type, kind.mutable), init) for kind, init in linker.new_globals],
        "exports": [(name, int(kind), index) for name, kind, index in linker.exports],
        "wrapped": linker.wrapped,
        "helpers": helpers.kept(),
        "dropped": [(what, n, index) for (what, n), index in helpers.dropped.items()],
        "suspends": graph.suspends,
        "indirect": [(*key, suspends) for key, suspends in graph.indirect.items()],
        "over_budget": list(graph.over_budget),
        "cyclic": list(graph.cyclic),
        "features": {name: tuple(use) for name, use in out.features.items()},
        "neutral": out.neutral and out.neutral.pack(),
    }


def _unpack(module: Module, options: Options, kept: dict[str, Any]) -> Instrumented:
    neutral = kept["neutral"] and Neutral.unpack(module, kept["neutral"])
    if neutral:
        module = neutral.module
    linker = Linker(module, options)
    for kind in kept["types"]:
        linker.type_index(FuncType(*kind))
    linker.reachable = kept["reachable"]
    linker.bodies.update(kept["bodies"])
    linker.added = list(kept["added"])
    linker.functions = dict(kept["functions"])
    linker.globals = dict(kept["globals"])
    linker.new_globals = [(GlobalType(*kind), init) for kind, init in kept["new_globals"]]
    linker.exports = [(name, ExternKind(kind), index) for name, kind, index in kept["exports"]]
    linker.wrapped = dict(kept["wrapped"])
    linker.sites = Sites(count=kept["sites"]) if options.side_modules else Sites(kept["sites"])
    helpers = Helpers(linker, kept["helpers"])
    helpers.dropped = {(what, n): index for what, n, index in kept["dropped"]}
    graph = CallGraph(
        dict(kept["suspends"]), {(t, table): suspends for t, table, suspends in kept["indirect"]},
        set(kept["over_budget"]), cyclic=set(kept["cyclic"]),
    )
    out = Instrumented(module, options, linker, helpers, graph)
    out.neutral = neutral
    out.features = {name: Use(*use) for name, use in kept["features"].items()}
    return out
