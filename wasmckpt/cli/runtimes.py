"""``wasmckpt runtimes``: which runtimes are here, where they come from, and how to get the others."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from .. import runtimes
from ..errors import RuntimeMissing
from ..runtimes import Facts, provided
from ..runtimes.apart import facts_apart
from ..runtimes.provided import installing, wasm3
from .output import console, print_json, say

__all__ = ["command"]

_INSTALLED: Final = ("wasm3", *provided.NAMES)
_EVERY: Final = 10.0
"""Seconds between two notes that differ by a number only."""


@click.group("runtimes", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> int:
    """List all runtimes: version, where from, what they cannot do, and what to type for those that are not here.

    A library of your own goes before the one that `install` makes: name it in --library NAME=PATH (before the command),
    in WASMCKPT_NAME_LIBRARY, or in ~/.config/wasmckpt/config.toml (library = "PATH" below [NAME]).
    """
    if ctx.invoked_subcommand is None:
        facts = facts_apart(runtimes.names())
        if as_json:
            print_json([_row(fact, facts) for fact in facts])
        else:
            _show(facts)
    return 0


@command.command("install")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=click.Choice(_INSTALLED))
def install(names: tuple[str, ...]) -> int:
    """Build or fetch runtimes, into the cache folder; Wasm3 as a package of this Python.

    A try that fails or is interrupted leaves no runtime behind; the next one goes on with what has been fetched.
    """
    for name in dict.fromkeys(names):
        with _progress(name) as progress:
            if name == "wasm3":
                wasm3.install(progress)
            elif installing.install(name, progress) != provided.library(name):
                say(f"{name}: installed, but a library of your own goes first: {provided.library(name)}")
                continue
        (fact,) = facts_apart([name])
        if fact.version is None:
            _uninstall(name)
            raise RuntimeMissing(f"{name} was built, and does not work: {fact.problem}", runtime=name)
        say(f"{name} {fact.version} is installed")
    return 0


@command.command("remove")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", type=click.Choice(_INSTALLED))
def remove(names: tuple[str, ...]) -> int:
    """Remove what `install` made, and what it kept of an interrupted try."""
    for name in dict.fromkeys(names):
        say(f"{name}: removed" if _uninstall(name) else f"{name}: there was nothing to remove")
    return 0


def _uninstall(name: str) -> bool:
    return wasm3.uninstall() if name == "wasm3" else installing.uninstall(name)


def _source(name: str) -> str:
    """Where a runtime that is here comes from."""
    whose = name.partition("-")[0]  # "wasmedge-aot" is a way to use that of wasmedge
    return str(provided.library(whose)) if whose in provided.NAMES else "Python package"


def _lacks(fact: Facts, facts: list[Facts]) -> list[str]:
    """Features that another runtime has and this one has not."""
    known = {feature for other in facts if other.capabilities for feature in other.capabilities.features}
    return sorted(known - fact.capabilities.features) if fact.capabilities else []


def _row(fact: Facts, facts: list[Facts]) -> dict[str, Any]:
    can = fact.capabilities
    if can is None:
        return {"name": fact.name, "version": None, "problem": fact.problem}
    return {
        "name": fact.name, "version": fact.version, "source": _source(fact.name), "features": sorted(can.features),
        "lacks": _lacks(fact, facts), "max_memory_pages": can.max_memory_pages, "compiled_form": can.serializes,
    }


def _show(facts: list[Facts]) -> None:
    from rich.table import Table

    out = console()
    table = Table(box=None, pad_edge=False)
    for heading in ("runtime", "version", "from", "has not"):
        table.add_column(heading, overflow="fold")
    for fact in facts:
        if fact.version is not None:
            table.add_row(fact.name, fact.version, _source(fact.name), ", ".join(_lacks(fact, facts)) or "-")
    out.print(table)
    for fact in facts:
        if fact.version is None:
            out.print(fact.problem, markup=False)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[str], None]]:
    """What shows the lines of a recipe: in one place on a terminal, else as notes, but not a note for each percent."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(name) as status:
            yield lambda line: status.update(escape(f"{name}: {line}"))
        return
    last, at = "", 0.0

    def note(line: str) -> None:
        nonlocal last, at
        what, now = re.sub(r"\d+", "", line), time.monotonic()
        if what != last or now - at >= _EVERY:
            last, at = what, now
            say(f"{name}: {line}")

    yield note
