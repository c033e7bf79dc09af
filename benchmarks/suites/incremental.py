"""Checkpoints of a program that writes 1 % of its 64 MiB between two of them: whole images, and differences.

Random bytes that do not compress, through the whole product: a worker, as users have one. *stop*: how long the program
stood still, by fork or frozen in place (once it has been at the same place before); *request*: from asking until the
image was written and synced. Between two checkpoints the program touches the same 164 pages, all over its memory,
again and again. (Wasm3's memory does not begin where a page of the machine does: each touches two of the image's.)"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from wasmckpt.dirty import BACKENDS, probe
from wasmckpt.snapshot.job import Job
from wasmckpt.store import Series, Store
from wasmckpt.wasm.values import I32, Value

from ..guests import wat
from ..measure import percentile
from ..report import Goal, Report, Table
from ..settings import Settings, environment

MIB = 1 << 20
STRIDE = 100 * 4096

WRITING = """(module (memory (export "memory") {pages})
  (func (export "run") (param $size i32) (param $stride i32) (result i32) (local $p i32) (local $x i64)
    (local.set $x (i64.const 0x9e3779b97f4a7c15))
    (loop $fill
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 13))))
      (local.set $x (i64.xor (local.get $x) (i64.shr_u (local.get $x) (i64.const 7))))
      (local.set $x (i64.xor (local.get $x) (i64.shl (local.get $x) (i64.const 17))))
      (i64.store (local.get $p) (local.get $x))
      (br_if $fill (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 8))) (local.get $size))))
    (local.set $p (i32.const 0))
    (loop $write
      (local.set $x (i64.add (local.get $x) (i64.const 1)))
      (i64.store (local.get $p) (local.get $x))
      (local.set $p (i32.add (local.get $p) (local.get $stride)))
      (local.set $p (select (local.get $p) (i32.const 0) (i32.lt_u (local.get $p) (local.get $size))))
      (br $write))
    (i32.const 0)))"""


def run(settings: Settings, report: Report) -> None:
    """One row for each runtime and way."""
    mib = 1 if settings.quick else 64
    verdicts = [probe(name) for name in BACKENDS]
    table = Table(
        f"{mib} MiB, 1 % written between two checkpoints",
        [("runtime", ""), ("image", ""), ("way", ""), ("taken", ",d"), ("stop least, ms", ".1f"),
         ("stop median, ms", ".1f"), ("stop worst, ms", ".1f"), ("request median, ms", ".1f"),
         ("size median, bytes", ",d"), ("restore, ms", ".0f")],
        note="; ".join(f"{v.name}: {v.why}" for v in verdicts if not v.works),
    )
    for name in settings.names:
        for backend in ("", *(v.name for v in verdicts if v.works)):
            for way in ("fork", "in-place") if backend != "compare" else ("fork",):
                with report.kept(f"{name}, {backend or 'whole'}, {way}"), environment("WASMCKPT_SNAPSHOT", way):
                    _checkpoints(settings, report, name, backend, way, mib, table)
    report.tables.append(table)


def _checkpoints(
    settings: Settings, report: Report, name: str, backend: str, way: str, mib: int, table: Table
) -> None:
    before = os.environ.get("WASMCKPT_DIRTY")
    os.environ["WASMCKPT_DIRTY"] = backend or "auto"
    wasm = wat(WRITING.format(pages=mib * 16))
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder, create=True)
            series = Series(store, "bench", wasm)
            stops, requests, sizes = [], [], []
            with Job.start(wasm, name, invoke="run", arguments=(Value(I32, mib * MIB), Value(I32, STRIDE))) as job:
                time.sleep(0.1 if settings.quick else 4.0)  # it has filled its memory
                for _ in range(3):  # the second is the first difference, and a place is new the first time
                    if backend:
                        series.take(job.checkpoint)
                    else:
                        job.checkpoint(Path(folder, "image"))
                for _ in range(settings.few(15)):
                    time.sleep(0.1)
                    began = time.perf_counter()
                    taken = series.take(job.checkpoint)[1] if backend else job.checkpoint(Path(folder, "image"))
                    requests.append((time.perf_counter() - began) * 1e3)
                    stops.append(taken.stopped * 1e3)
                    sizes.append(taken.size)
            began = time.perf_counter()
            if backend:
                with store.reading("bench") as (path, _):
                    Job.restore(path, name, module=wasm).close()
            else:
                Job.restore(Path(folder, "image"), name, module=wasm).close()
            restored = (time.perf_counter() - began) * 1e3
    finally:
        os.environ.pop("WASMCKPT_DIRTY")
        if before is not None:
            os.environ["WASMCKPT_DIRTY"] = before
    size = int(percentile(sizes, 0.5))
    table.rows.append([
        name, f"difference, by {backend}" if backend else "whole", way, len(stops), min(stops),
        percentile(stops, 0.5), max(stops), percentile(requests, 0.5), size, restored,
    ])
    settings.progress(table.rows[-1])
    if backend == "uffd" and not settings.quick:
        report.goals.append(Goal(f"the source's stop, 1 % of 64 MiB, {way}, {name}", percentile(stops, 0.5), 10, "ms"))
        if way == "fork":
            report.goals.append(Goal(f"the image, 1 % of 64 MiB, {name}", size / MIB, 0.7, "MiB"))
