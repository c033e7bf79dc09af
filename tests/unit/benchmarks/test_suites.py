"""A suite really runs: tiny inputs, results checked, no figure looked at."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are in the repository, not in the wheel")

from benchmarks.report import Report
from benchmarks.settings import Settings
from benchmarks.suites import overhead_kernels, storage

from ...support.buckets import bucket_server
from ...support.samples import KERNELS, names, sample

__all__ = ["bucket_server"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wasmtime", "wasm3"])
def test_kernels_run_in_each_variant(name: str) -> None:
    """All kernels give their results plain and rewritten in each way, and land in the table."""
    sample("fib", folder=KERNELS)  # skips where nothing can be built
    pytest.importorskip(name)
    report = Report("overhead-kernels", True, {})
    overhead_kernels.run(Settings(quick=True, names=(name,), quiet=True), report)
    assert report.failures == []
    assert [row[0] for row in report.tables[0].rows] == [*names(KERNELS), "geo mean"]


def test_a_wrong_result_is_a_failure() -> None:
    """A kernel that computes something else is kept as a failure, not as a figure."""
    from dataclasses import replace

    from benchmarks.guests import WrongResult, kernel_start
    from wasmckpt import runtimes

    good = sample("fib", "tiny", KERNELS)
    call = good.calls[0]
    wrong = replace(good, calls=(replace(call, results=(call.results[0]._replace(bits=1),)),))
    engine = runtimes.load("wasmtime")
    run, free = kernel_start(engine, engine.compile(good.wasm), wrong)()
    with pytest.raises(WrongResult):
        run()
    free()


@pytest.mark.slow
def test_pages_are_copied_before_they_are_written() -> None:
    """The prototype that is measured does what it is measured for, or says why it cannot."""
    from benchmarks.suites import copy_before_write

    report = Report("copy-before-write", True, {})
    copy_before_write.run(Settings(quick=True, quiet=True), report)
    if any("PermissionError" in text or "Operation not permitted" in text for text in report.failures):
        pytest.skip("userfaultfd is not allowed here")
    assert report.failures == []
    protect, copy, _, first_write, beside_a_copy, undisturbed = report.tables[0].rows[0][1:]
    assert protect
    assert copy
    assert isinstance(first_write, float)
    assert isinstance(beside_a_copy, float)
    assert isinstance(undisturbed, float)
    assert first_write > undisturbed
    assert beside_a_copy > undisturbed


def test_what_criu_tells_of_a_dump() -> None:
    """Its statistics, as a dump wrote them: 6,641 us of freezing, 100,278 us frozen."""
    from benchmarks.criu import _stats

    told = bytes.fromhex("40591055 06330957 29000000 0a27 08f133 10b68f06 18ddb904 20eecb02 28b89601 3000")
    assert _stats(told) == (100_278, 6_641)


@pytest.mark.slow
@pytest.mark.usefixtures("bucket_server")  # or the reason why there is none
def test_seals_and_buckets_are_measured() -> None:
    report = Report("storage", True, {})
    storage.run(Settings(quick=True, quiet=True), report)
    assert report.failures == []
    assert [len(table.rows) for table in report.tables] == [4, 4, 5]


@pytest.mark.slow
def test_resumes_of_large_programs_are_measured() -> None:
    from benchmarks.suites import resume_large

    report = Report("resume-large", True, {})
    resume_large.run(Settings(quick=True, quiet=True), report)
    assert report.failures == []
    rows = [row[:1] + row[3:4] for row in report.tables[0].rows]
    assert rows == [["lua", "side, first"], ["lua", "side, again"], ["lua", "whole"]]


@pytest.mark.slow
def test_parts_are_left_out_and_the_program_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way of the ablation gives a program that computes what it must, and a row in both tables."""
    from benchmarks.suites import ablation

    sample("regexp")  # skips where nothing can be built
    pytest.importorskip("wasmtime")
    monkeypatch.setattr(ablation, "PROGRAMS", ("regexp",))
    report = Report("ablation", True, {})
    ablation.run(Settings(quick=True, names=("wasmtime",), quiet=True), report)
    assert report.failures == []
    assert [[row[0] for row in table.rows] for table in report.tables] == [list(ablation.WAYS)] * 2
    code = {str(row[0]): float(row[-1] or 0) for row in report.tables[1].rows}
    assert code["nothing stored"] < code["ours"] < code["exits not shared"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chess", "llama"])
def test_our_own_programs_compute_what_they_must(name: str) -> None:
    from benchmarks.guests import run_command
    from benchmarks.programs import real_program
    from wasmckpt import runtimes

    sample("regexp")
    pytest.importorskip("wasmtime")
    engine, program = runtimes.load("wasmtime"), real_program(name, "tiny")
    assert run_command(engine, engine.compile(program.wasm), program) >= 0


@pytest.mark.slow
def test_the_same_figures_make_the_same_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plots import costs, frontier

    for n in range(2):
        costs({"a": [("x", 1.1, 1.5), ("y", 1.0, None)], "b": [("x", 1.2, 1.6)]}, tmp_path / f"costs{n}.svg")
        frontier({"a": {"ours": (1.5, 1.1), "other": (1.4, 1.2)}}, tmp_path / f"frontier{n}.svg")
    for name in ("costs", "frontier"):
        first, second = ((tmp_path / f"{name}{n}.svg").read_bytes() for n in range(2))
        assert first == second
        assert b"<svg" in first
