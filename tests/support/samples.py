"""The sample modules: what each is, how it is run, and what must come out.

``sample("nbody")`` builds the module if it is not in the cache and returns a `Sample` for its default case,
``sample("nbody", "tiny")`` for another. ``sample_modules/manifest.toml`` is the table behind it (its head explains the
keys); ``kernel("fib")`` is the same for the modules without WASI in ``benchmarks/programs``.

As a program, ``python -m tests.support.samples [--into FOLDER] [NAME ...]`` builds and prints paths; with ``--rebuild``
it makes the named ones of `prebuilt` anew, in the source tree.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from wasmckpt.wasm.values import TYPE_NAMES, WIDTH, Value

from . import prebuilt
from .toolchain import Unavailable, build_c, build_go, build_wat, crate_sources

__all__ = [
    "KERNELS", "LOOPS", "SAMPLES", "SUFFIXES", "Call", "Sample", "build", "cases", "kernel", "manifest", "names",
    "prebuilt_path", "sample", "source_of",
]

TOP: Final = Path(__file__).resolve().parents[2]
SAMPLES: Final = TOP / "sample_modules"
KERNELS: Final = TOP / "benchmarks" / "programs"
LOOPS: Final = TOP / "benchmarks" / "loops"
KERNEL_FLAGS: Final = ("-nostdlib", "-ffreestanding", "-fno-builtin", "-Wl,--no-entry", "-Wl,--export=run")

SUFFIXES: Final = (".c", ".wat", ".go", *prebuilt.SUFFIXES)
TYPE_CODES: Final = {name: code for code, name in TYPE_NAMES.items()}
MODULE_KEYS: Final = frozenset({
    "holds", "kind", "size", "source", "features", "cflags", "crate", "crate_files", "slow_build", "host_imports",
    "also_needs",
})


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an export, and the results it must have."""

    export: str
    args: tuple[Value, ...]
    results: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """A built sample module in one of its cases. Paths of ``files`` and ``files_after`` are relative to the folder that
    is preopened for the guest as ``guest_dir``."""

    name: str
    case: str
    path: Path
    """The built module."""
    source: Path
    holds: str
    """The state it holds while it runs, one phrase."""
    kind: str
    """``command`` (WASI, runs ``_start``), ``reactor`` (``_initialize``, then `calls`), ``module`` (only `calls`)."""
    size: str
    """``small`` (below 100 functions), ``medium``, ``large`` (above 500)."""
    features: frozenset[str]
    """What it needs beyond WebAssembly 1.0, by the proposals' names: ``multi-value``, ``bulk-memory`` ..."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes = b""
    files: dict[str, bytes] = field(default_factory=dict)
    guest_dir: str = ""
    """Where the guest sees its folder; empty: it gets none."""
    stdout: bytes = b""
    stderr: bytes = b""
    files_after: dict[str, bytes] = field(default_factory=dict)
    exit_code: int = 0
    traps: bool = False
    """It ends in a trap, after having written `stdout`."""
    calls: tuple[Call, ...] = ()
    host_log: tuple[int, ...] = ()
    """What it must pass to the import ``env.log`` over its whole life, in order."""
    globals: dict[str, Value] = field(default_factory=dict)
    """Imported globals by ``module.name``."""
    host_imports: frozenset[str] = frozenset()
    """Functions of the embedder that it imports: ``env.log`` (i32) -> (), ``env.hook`` () -> ()."""
    stubs: dict[str, int] = field(default_factory=dict)
    """Further functions of the embedder by ``module.name``, which do nothing and return this number."""

    @property
    def wasm(self) -> bytes:
        """The module's bytes."""
        return self.path.read_bytes()

    @property
    def argv(self) -> tuple[str, ...]:
        """The guest's arguments with the program's name in front."""
        return (f"{self.name}.wasm", *self.args)


@functools.cache
def manifest(folder: Path = SAMPLES) -> dict[str, dict[str, Any]]:
    """The parsed table of a folder with sample modules; keys in the file's order."""
    with open(folder / "manifest.toml", "rb") as file:
        table: dict[str, dict[str, Any]] = tomllib.load(file)
    return table


def names(folder: Path = SAMPLES, *, kind: str | None = None, size: str | None = None,
          without: frozenset[str] | None = None) -> list[str]:
    """Names of the samples: of one kind, of one size class, needing none of the features ``without``."""
    return [
        name for name, entry in manifest(folder).items()
        if kind in (None, entry.get("kind", "command"))
        and size in (None, entry.get("size", "small"))
        and not (without and without.intersection(entry.get("features", ())))
    ]


def cases(name: str, folder: Path = SAMPLES) -> list[str]:
    """The names of a sample's cases; ``default`` is one of them."""
    return [key for key in manifest(folder)[name] if key not in MODULE_KEYS]


def build(name: str, folder: Path = SAMPLES, *, only_cached: bool = False, flags: Sequence[str] = ()) -> Path:
    """Builds a sample unless it is in the cache; returns the module's path there. ``flags``: further ones, for C.

    Raises:
        Unavailable: a tool that the build needs is not here, or ``only_cached`` and the build would take minutes.
        RuntimeError: the compiler's message, if it refuses the source.
    """
    entry = manifest(folder)[name]
    source = source_of(name, folder)
    if source.suffix == ".wat":
        return build_wat(name, source)
    if source.suffix == ".go":
        return build_go(name, source)
    if source.suffix in prebuilt.SUFFIXES:
        return prebuilt_path(name, folder)
    flags = [*entry.get("cflags", ()), "-I$SAMPLES", *flags]
    sources, places = [source], {"SAMPLES": folder}
    if folder in (KERNELS, LOOPS):
        flags += KERNEL_FLAGS
    only_cached = only_cached and entry.get("slow_build", False)
    if "crate" in entry:
        unpacked = crate_sources(entry["crate"])
        for pattern in entry["crate_files"]:
            found = sorted(unpacked.glob(pattern.removeprefix("!")))
            sources = [s for s in sources if s not in found] if pattern.startswith("!") else [*sources, *found]
        places["CRATE"] = unpacked
    return build_c(name, sources, flags, places=places, watched=sorted(folder.glob("*.h")), only_cached=only_cached)


def source_of(name: str, folder: Path = SAMPLES) -> Path:
    """The sample's own source file."""
    named = manifest(folder)[name].get("source")
    if named:
        return folder / str(named)
    return next(path for suffix in SUFFIXES if (path := folder / f"{name}{suffix}").exists())


def prebuilt_path(name: str, folder: Path = SAMPLES) -> Path:
    """Where a module lies that was built before, see `prebuilt`."""
    return folder / prebuilt.FOLDER / f"{name}.wasm"


def sample(name: str, case: str = "default", folder: Path = SAMPLES) -> Sample:
    """A built sample in one of its cases. In a test, what cannot be built here skips the test (or fails it, see
    ``tests.support.tiers.missing``); in tier ``check`` nothing is built that takes minutes."""
    from .tiers import TIER, missing  # needs pytest; building for the demo does not

    try:
        path = build(name, folder, only_cached=TIER == "check")
    except Unavailable as reason:
        missing(reason.need, reason.reason)
    return describe(name, case, path, folder)


def kernel(name: str, case: str = "default") -> Sample:
    """One of ``benchmarks/programs``: no WASI, exports ``run(i32) -> i32``."""
    return sample(name, case, KERNELS)


def describe(name: str, case: str, path: Path, folder: Path = SAMPLES) -> Sample:
    """The `Sample` for a module built at ``path``."""
    entry = manifest(folder)[name]
    row: dict[str, Any] = entry[case]
    return Sample(
        name=name, case=case, path=path, source=source_of(name, folder), holds=entry["holds"],
        kind=entry.get("kind", "command"), size=entry.get("size", "small"),
        features=frozenset(entry.get("features", ())),
        args=tuple(str(arg) for arg in row.get("args", ())),
        env=dict(row.get("env", {})),
        stdin=content(row.get("stdin", "")),
        files={file: content(text) for file, text in row.get("files", {}).items()},
        guest_dir=row.get("guest_dir", ""),
        stdout=row.get("stdout", "").encode(),
        stderr=row.get("stderr", "").encode(),
        files_after={file: text.encode() for file, text in row.get("files_after", {}).items()},
        exit_code=row.get("exit_code", 0),
        traps=row.get("traps", False),
        calls=tuple(
            Call(call["export"], tuple(map(value, call.get("args", ()))), tuple(map(value, call.get("results", ()))))
            for call in row.get("calls", ())
        ),
        host_log=tuple(row.get("host_log", ())),
        globals={key: value(text) for key, text in row.get("globals", {}).items()},
        host_imports=frozenset(entry.get("host_imports", ())),
    )


def content(entry: str | dict[str, Any]) -> bytes:
    """A text of the table: as it is, or ``{ text, repeat }``."""
    return entry.encode() if isinstance(entry, str) else entry["text"].encode() * int(entry["repeat"])


def value(text: str) -> Value:
    """A value written ``TYPE:NUMBER``: ``i32:-1``, ``f64:0x4000000000000000`` (floats by their bits)."""
    name, _, number = text.partition(":")
    code = TYPE_CODES[name]
    return Value(code, int(number, 0) & ((1 << 8 * WIDTH[code]) - 1))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.samples", description="Builds sample modules.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all, and the benchmarks' if not --into")
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="also copy each to FOLDER/NAME.wasm")
    parser.add_argument("--rebuild", action="store_true", help="make modules anew that the source tree holds built")
    options = parser.parse_args(argv)
    wanted = [(name, SAMPLES) for name in options.names or names()]
    if unknown := [name for name, _ in wanted if name not in manifest()]:
        parser.error(f"no such sample: {', '.join(unknown)}; there are {', '.join(names())}")
    if options.rebuild:
        for name, _ in wanted:
            if (source := source_of(name)).suffix in prebuilt.SUFFIXES:
                prebuilt_path(name).write_bytes(prebuilt.rebuild(source))
    if not options.names and options.into is None:  # in one folder their names, which samples have too, would clash
        wanted += [(name, KERNELS) for name in names(KERNELS)]
    if options.into:
        options.into.mkdir(parents=True, exist_ok=True)
    failed = 0
    with ThreadPoolExecutor(max_workers=2) as pool:
        built = [(name, pool.submit(build, name, folder)) for name, folder in wanted]
        for name, future in built:
            try:
                path = future.result()
            except (Unavailable, RuntimeError) as reason:
                print(f"{name}: {reason}", file=sys.stderr)
                # Asked for all, what cannot be built here is left to the tests: they know what they require.
                failed += bool(options.names) or isinstance(reason, RuntimeError)
                continue
            print(shutil.copyfile(path, options.into / f"{name}.wasm") if options.into else path)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
