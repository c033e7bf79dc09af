"""How a suite is run: in full, or quickly to see that it works."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from wasmckpt import runtimes
from wasmckpt.runtimes import Engine

from .report import Cell, Report

__all__ = ["Settings", "environment"]


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """An environment variable that workers started inside see."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


@dataclass(frozen=True, slots=True)
class Settings:
    """``quick``: tiny inputs and two rounds; the figures mean nothing. ``names``: runtimes to measure."""

    quick: bool = False
    names: tuple[str, ...] = ("wasmtime", "wasm3")
    quiet: bool = False

    @property
    def case(self) -> str:
        """The kernels' case."""
        return "tiny" if self.quick else "default"

    def few(self, rounds: int) -> int:
        """So many rounds, or two."""
        return min(2, rounds) if self.quick else rounds

    def engines(self, report: Report) -> Iterator[Engine]:
        """The runtimes; one that is missing is a failure in the report."""
        for name in self.names:
            with report.kept(name):
                engine = runtimes.load(name)
                yield engine

    def progress(self, row: Sequence[Cell]) -> None:
        """Says on stderr that a row is there."""
        if not self.quiet:
            cells = ["-" if c is None else f"{c:.3f}" if isinstance(c, float) else str(c) for c in row]
            print("  " + "  ".join(cells), file=sys.stderr, flush=True)
