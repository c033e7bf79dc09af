"""How fast modules are rewritten, and how much memory that takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ..programs import programs
from ..report import Goal, Report, Table
from ..settings import Settings
from .overhead_programs import code_bytes

_CHILD = r"""
import json, re, sys, time
from pathlib import Path
from wasmckpt.instrument.instrument import instrument
from wasmckpt.instrument.options import Options
wasm = Path(sys.argv[1]).read_bytes()
def peak():  # of this process alone; getrusage would count what the parent was before the exec
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])
before = peak()
best = 1e9
for _ in range(int(sys.argv[2])):
    out = None
    began = time.process_time()
    out = instrument(wasm, Options())
    best = min(best, time.process_time() - began)
print(json.dumps([best, (peak() - before) * 1024, len(out.sites), len(out.module.bodies)]))
"""


def run(settings: Settings, report: Report) -> None:
    """CPU time and growth of the peak resident size, in a process of its own for each module."""
    table = Table(
        "Rewriting, pure Python", [("module", ""), ("code, KB", ".0f"), ("functions", "d"), ("safepoints", "d"),
                                   ("s", ".2f"), ("MB of code a second", ".2f"), ("peak memory / module", ".0f")],
    )
    rates = []
    for sample in programs(report, quick=settings.quick):
        with report.kept(f"rewriting of {sample.name}"):
            seconds, peak, sites, functions = measure(sample.path, settings.few(3))
            code = code_bytes(sample.wasm)
            rates.append(code / seconds / 1e6)
            table.rows.append([
                sample.name, code / 1e3, functions, sites, seconds, rates[-1], peak / len(sample.wasm)
            ])
            settings.progress(table.rows[-1])
    report.tables.append(table)
    if rates:
        report.goals.append(Goal("rewriting, slowest module", min(rates), 0.6, "MB of code a second", least=True))


def measure(path: Path, rounds: int) -> tuple[float, int, int, int]:
    """Seconds, bytes of memory, safepoints, functions."""
    done = subprocess.run([sys.executable, "-c", _CHILD, str(path), str(rounds)], capture_output=True, text=True,
                          check=False, timeout=600)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-300:])
    seconds, peak, sites, functions = json.loads(done.stdout)
    return float(seconds), int(peak), int(sites), int(functions)
