"""The benchmarks work: what they compute from times is right, and reports survive their file. Nothing is timed here."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("benchmarks", reason="the benchmarks are in the repository, not in the wheel")

from benchmarks import docs
from benchmarks.__main__ import SUITES, main
from benchmarks.asyncify import with_polls
from benchmarks.facts import facts
from benchmarks.measure import Start, Times, geo_mean, interleaved, percentile
from benchmarks.report import Goal, Report, Table


def test_ratio_is_of_minima_and_range_of_instances() -> None:
    """One slow round or one badly placed instance does not change the ratio, and the range shows it."""
    plain = Times([[2.0, 9.0], [1.0, 1.5]])
    ours = Times([[2.2, 2.3], [1.5, 1.2]])
    assert ours.ratio(plain) == pytest.approx(1.2)
    assert ours.ratios(plain) == pytest.approx((1.1, 1.2))


def test_variants_take_turns_and_instances_are_freed() -> None:
    """Each round begins with another variant, and each fresh instance is freed once."""
    order: list[str] = []
    freed: list[str] = []

    def start(name: str) -> Start:
        def go() -> float:
            order.append(name)
            return 1.0

        return lambda: (go, lambda: freed.append(name))

    times = interleaved({"a": start("a"), "b": start("b")}, fresh=2, rounds=2)
    assert order == ["a", "b", "b", "a", "b", "a", "a", "b"]
    assert sorted(freed) == ["a", "a", "b", "b"]
    assert [len(rounds) for rounds in times["a"].instances] == [2, 2]


def test_means_and_ranks() -> None:
    """Geometric mean, and percentiles by nearest rank."""
    assert geo_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geo_mean([]))
    assert [percentile([4.0, 1.0, 3.0, 2.0], part) for part in (0.5, 0.95, 1.0)] == [2.0, 4.0, 4.0]


def test_goals_have_a_direction() -> None:
    """A cost must be below its goal, a rate above."""
    assert Goal("cost", 1.04, 1.05).met
    assert not Goal("cost", 1.06, 1.05).met
    assert Goal("rate", 0.7, 0.6, least=True).met
    assert not Goal("rate", 0.5, 0.6, least=True).met
    assert Goal("cost", 1.06, 1.05).row()[-1] == "**missed**"


def _fail() -> None:
    raise RuntimeError("did not work")


def test_report_survives_its_file(tmp_path: Path) -> None:
    """What is kept is what is read back, and what failed is in it."""
    report = Report("latency", False, facts())
    report.tables.append(Table("t", [("a", ""), ("b", ".2f")], [["x", 1.25], ["y", None]], note="n"))
    report.goals.append(Goal("g", 1.0, 2.0, "ms"))
    with report.kept("something"):
        _fail()
    assert len(report.failures) == 1
    assert "something: RuntimeError: did not work" in report.failures[0]
    again = Report.load(report.save(tmp_path))
    assert again == report
    assert "| x | 1.25 |\n| y | - |" in again.markdown()


def test_a_poll_is_put_at_each_loop() -> None:
    """The text gets the import behind the others, the flag behind the imports, and a poll first in each loop."""
    text = (
        '(module\n (type $0 (func))\n (import "a" "b" (func $b))\n (memory $0 1)\n (func $f\n  (loop $label\n   (nop)\n'
        "  )\n  (loop $x (result i32)\n   (i32.const 1)\n  )\n )\n)\n"
    )
    lines = with_polls(text).splitlines()
    assert sum("(call $__poll)" in line and line.lstrip().startswith("(loop") for line in lines) == 2
    imports = [n for n, line in enumerate(lines) if "(import" in line]
    flag = next(n for n, line in enumerate(lines) if "(global $__poll_flag" in line)
    assert len(imports) == 2
    assert max(imports) < flag < lines.index(" (memory $0 1)")
    with pytest.raises(RuntimeError, match="0 of 1"):
        with_polls("(module\n (func (loop nop))\n)\n")


def test_every_suite_is_there_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    """``--list`` names each suite with its first line."""
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(SUITES)
    assert all(len(line.split()) > 4 for line in lines)


def test_page_is_made_of_the_kept_results() -> None:
    """docs/benchmarks.md is what ``--write-docs`` makes of benchmarks/results."""
    kept = Report.all_kept(SUITES)
    assert docs.PAGE.read_text() == docs.page(kept)
    assert not any(report.quick for report in kept)
