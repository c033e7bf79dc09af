"""What a suite hands back: tables of numbers, goals, failures; kept as small JSON files that the docs are made from."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

__all__ = ["RESULTS", "Cell", "Goal", "Report", "Table"]

RESULTS: Final = Path(__file__).parent / "results"

Cell = str | float | int | None


@dataclass(slots=True)
class Table:
    """``columns``: (heading, format for numbers)."""

    title: str
    columns: list[tuple[str, str]]
    rows: list[list[Cell]] = field(default_factory=list)
    note: str = ""

    def markdown(self) -> str:
        """The table as Markdown."""
        lines = [f"**{self.title}**", ""] if self.title else []
        lines.append("| " + " | ".join(name for name, _ in self.columns) + " |")
        lines.append("|" + "---|" * len(self.columns))
        for row in self.rows:
            cells = [
                "-" if cell is None else cell if isinstance(cell, str) else format(cell, spec)
                for cell, (_, spec) in zip(row, self.columns, strict=True)
            ]
            lines.append("| " + " | ".join(cells) + " |")
        if self.note:
            lines += ["", self.note]
        return "\n".join(lines)


@dataclass(slots=True)
class Goal:
    """A figure beside the goal it is held to; ``least``: it must be at least that, not at most."""

    what: str
    figure: float
    goal: float
    unit: str = ""
    least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure keeps to the goal."""
        return self.figure >= self.goal if self.least else self.figure <= self.goal

    def row(self) -> list[str]:
        """Cells: what, goal, figure, met or missed."""
        unit = f" {self.unit}" if self.unit else ""
        figure = f"{self.figure:.2f}" if abs(self.figure) < 10 else f"{self.figure:.0f}"
        sign = ">=" if self.least else "<="
        return [self.what, f"{sign} {self.goal:g}{unit}", figure + unit, "met" if self.met else "**missed**"]


@dataclass(slots=True)
class Report:
    """One suite's outcome. ``facts``: versions and the machine's kind, see `facts`. ``names``: of runtimes that were
    asked for, none for the usual ones."""

    suite: str
    quick: bool
    facts: dict[str, Any]
    names: tuple[str, ...] = ()
    tables: list[Table] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The suite's name, and whether it is about runtimes that were asked for."""
        return f"{self.suite}-others" if self.names else self.suite

    @property
    def command(self) -> str:
        """What makes it again."""
        return f"python -m benchmarks {self.suite}" + (f" --runtimes {','.join(self.names)}" if self.names else "")

    @contextmanager
    def kept(self, what: str) -> Iterator[None]:
        """Whatever fails inside is kept as a failure, and the suite goes on."""
        try:
            yield
        except Exception as problem:
            where = traceback.extract_tb(problem.__traceback__)[-1]
            text = " ".join(str(problem).split())[:300] or "no message"
            place = f"{Path(where.filename).name}:{where.lineno}"
            self.failures.append(f"{what}: {type(problem).__name__}: {text} ({place})")

    def markdown(self) -> str:
        """Tables, goals, failures."""
        parts = [table.markdown() for table in self.tables]
        if self.goals and not self.quick:
            parts.append(goal_table(self.goals))
        if self.failures:
            parts.append("Failures:\n\n" + "\n".join(f"- {text}" for text in self.failures))
        return "\n\n".join(parts)

    def save(self, folder: Path = RESULTS) -> Path:
        """Write it as ``SUITE.json``, or ``SUITE-others.json``: a line a row, so that a rerun gives a readable
        difference."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(_layout(asdict(self)) + "\n")
        return path

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read what `save` wrote."""
        raw = json.loads(path.read_text())
        tables = [
            Table(t["title"], [(name, spec) for name, spec in t["columns"]], t["rows"], t["note"])
            for t in raw["tables"]
        ]
        return cls(raw["suite"], raw["quick"], raw["facts"], tuple(raw.get("names", ())), tables,
                   [Goal(**g) for g in raw["goals"]], raw["failures"])

    @classmethod
    def all_kept(cls, suites: Sequence[str], folder: Path = RESULTS) -> list[Report]:
        """What is kept of these suites, in their order."""
        paths = (folder / f"{suite}{rest}.json" for suite in suites for rest in ("", "-others"))
        return [cls.load(path) for path in paths if path.exists()]


def goal_table(goals: Sequence[Goal]) -> str:
    """Goals beside figures, as Markdown."""
    table = Table("", [(name, "") for name in ("figure", "goal", "measured", "")])
    table.rows = [list(goal.row()) for goal in goals]
    return table.markdown()


def _layout(value: Any, indent: int = 0) -> str:
    """JSON with short things on one line."""
    if isinstance(value, float):
        value = round(value, 6)
    flat = json.dumps(_rounded(value))
    if len(flat) + indent <= 118 or not isinstance(value, dict | list | tuple):
        return flat
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        inner = [f"{pad}{json.dumps(k)}: {_layout(v, indent + 1)}" for k, v in value.items()]
        return "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(pad + _layout(v, indent + 1) for v in value) + "\n" + " " * indent + "]"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(v) for v in value]
    return value
