"""``wasmckpt doctor``: what works on this machine, and which runtimes can run a module."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .. import runtimes
from ..dirty import BACKENDS, probe
from ..errors import CheckpointError
from ..runtimes import Capabilities, Facts
from ..runtimes.apart import facts_apart
from ..snapshot.job import check
from ..snapshot.proc import become_copy, fork_here, seize, stand_still
from ..snapshot.sandbox import walls
from ..wasm import validate
from .output import console, print_json
from .params import FILE, read_module

__all__ = ["command"]


@click.command("doctor")
@click.argument("module", type=FILE, required=False)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(module: str | None, as_json: bool) -> int:
    """Show which runtimes are installed and what they can do, and what this kernel allows.

    With MODULE: which of the runtimes can run it so that it can be frozen, and why the others cannot. The exit code is
    1 if no runtime can (or, without MODULE, none is usable).
    """
    facts = facts_apart(runtimes.names())
    verdicts = {} if module is None else _verdicts(read_module(module), facts)
    system = _system()
    usable = any(not problem for problem in verdicts.values()) if verdicts else any(f.version for f in facts)
    if as_json:
        print_json({
            "runtimes": [_runtime(f) for f in facts], "system": system,
            **({} if module is None else {"module": {name: problem or "yes" for name, problem in verdicts.items()}}),
        })
    else:
        _show(facts, system, verdicts, module)
    return 0 if usable else 1


def _verdicts(wasm: bytes, facts: list[Facts]) -> dict[str, str]:
    """Runtime -> why it cannot run the module; empty: it can."""
    found = {}
    for fact in facts:
        try:
            check(wasm, fact.name)
            found[fact.name] = ""
        except CheckpointError as problem:
            problem.hint = ""  # this is the place where the others are shown
            found[fact.name] = str(problem).removeprefix(f"{fact.name} cannot run this module: ")
    return found


def _runtime(fact: Facts) -> dict[str, Any]:
    can = fact.capabilities
    if can is None:
        return {"name": fact.name, "version": None, "problem": fact.problem}
    return {
        "name": fact.name, "version": fact.version, "features": sorted(can.features), "poll": can.poll,
        "lowerings": sorted(can.lowerings), "max_memory_pages": can.max_memory_pages, "max_slots": can.max_slots,
        "full_validation": can.full_validation, "nan_f32_quieted": can.nan_f32_quieted,
    }


def _system() -> dict[str, str]:
    """What the kernel and libc offer; each answer begins with "yes" or "no"."""
    found = {"kernel": f"{platform.system()} {platform.release()} {platform.machine()}"}
    found["fork for snapshots"] = _fork()
    yama = _read("/proc/sys/kernel/yama/ptrace_scope")
    found["reading a copy's memory"] = "no (ptrace_scope 3)" if yama == "3" else "yes"
    found["children of a thread"] = (
        "yes" if Path(f"/proc/self/task/{os.getpid()}/children").exists() else "no (CONFIG_PROC_CHILDREN)"
    )
    found |= {f"sandbox: {name}": answer for name, answer in walls().items()}
    found["pidfd"] = "yes" if hasattr(os, "pidfd_open") and _pidfd() else "no"
    found["compiled rewriter"] = "no (pure Python)" if str(validate.__file__).endswith(".py") else "yes"
    found["files in memory"] = "yes" if hasattr(os, "memfd_create") else "no"
    verdicts = [probe(name) for name in BACKENDS]
    found["written pages"] = "yes, by " + ", ".join(verdict.name for verdict in verdicts if verdict.works)
    for verdict in verdicts:
        if not verdict.works:
            found[f"written pages by {verdict.name}"] = f"no ({verdict.why})"
    pages = _read("/sys/kernel/mm/transparent_hugepage/enabled")
    found["huge pages"] = pages[pages.index("[") + 1 : pages.index("]")] if "[" in pages and "]" in pages else "no"
    return found


def _fork() -> str:
    if not hasattr(ctypes.CDLL(None), "_Fork"):
        return "no (glibc before 2.34): programs are stopped for a snapshot and go on in place"
    if refused := _refused():
        return f"no ({os.strerror(refused)}): programs are stopped for a snapshot and go on in place"
    return "yes"


def _refused() -> int:
    """The errno with which the kernel, or what stands in for it, refuses a copy or that this process traces it; else 0.
    """
    parent = os.getpid()
    child, refused = fork_here()
    if not child:
        become_copy(parent)
        stand_still()
    if child < 0:
        return refused
    try:
        return seize(child)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _has(feature: str, can: Capabilities) -> str:
    return "yes" if feature in can.features else "no"


def _of(facts: list[Facts], answer: Callable[[Capabilities], str]) -> list[str]:
    return ["-" if fact.capabilities is None else answer(fact.capabilities) for fact in facts]


def _show(facts: list[Facts], system: dict[str, str], verdicts: dict[str, str], module: str | None) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for fact in facts:
        table.add_column(fact.name, overflow="fold")
    table.add_row("version", *(fact.version or "-" for fact in facts))
    table.add_row("largest memory", *_of(facts, lambda can: f"{can.max_memory_pages >> 14} GiB"))
    table.add_row("most locals", *_of(facts, lambda can: str(can.max_slots or "any")))
    table.add_row("finds a flag by", *_of(facts, lambda can: can.poll.removesuffix("-memory")))
    for feature in sorted({f for fact in facts if fact.capabilities for f in fact.capabilities.features}):
        table.add_row(feature, *_of(facts, functools.partial(_has, feature)))
    out.print(table)
    for fact in facts:
        if fact.problem:
            out.print(f"{fact.name}: {fact.problem}", markup=False)
    out.print()
    for key, value in system.items():
        out.print(f"{key:<{max(map(len, system))}} {value}", markup=False)
    if module is not None:
        out.print()
        for name, problem in verdicts.items():
            out.print(f"{name:<12} {'can run ' + module if not problem else 'cannot: ' + problem}", markup=False)
        able = [name for name, problem in verdicts.items() if not problem]
        if len(able) > 1:
            out.print(f"It moves between any two of {', '.join(able)}.", markup=False)
