"""A soak that was stopped goes on where it was: what has passed is on record, and not run again.

`LEDGER` (build/soak-passed.txt) has a line for each test that passed: the digest of all sources it passed with, and
its name. Only lines of the present sources count; with ``WASMCKPT_SOAK_KEEP=1`` all do, and the summary says how many
passed with which: for the one who mends what a soak has found and wants to see the rest before beginning anew.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

__all__ = ["LEDGER", "Ledger", "sources_digest"]

ROOT: Final = Path(__file__).parents[2]
LEDGER: Final = ROOT / "build" / "soak-passed.txt"
FOLDERS: Final = ("wasmckpt", "runtimes", "formats", "tests", "sample_modules")


@functools.cache
def sources_digest(root: Path = ROOT, folders: tuple[str, ...] = FOLDERS) -> str:
    """One for all files below ``folders`` but what is made of them."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so") and ".egg-info" not in str(path):
                digest.update(f"{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


class Ledger:
    """A pytest plugin; of the processes that share the tests only the one that deals them out writes."""

    def __init__(self, path: Path, digest: str, *, keep: bool) -> None:
        self.path = path
        self.digest = digest
        self._writes = False
        self.before: dict[str, str] = {}
        """Test to sources, of earlier runs."""
        if path.exists():
            for line in path.read_text().splitlines():
                sources, _, name = line.partition(" ")
                if keep or sources == digest:
                    self.before[name] = sources

    def pytest_configure(self, config: pytest.Config) -> None:
        self._writes = not hasattr(config, "workerinput")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        passed = [item for item in items if item.nodeid in self.before]
        if passed:
            config.hook.pytest_deselected(items=passed)
            items[:] = [item for item in items if item.nodeid not in self.before]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and self._writes:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(f"{self.digest} {report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("soak")
        for sources, count in Counter(self.before.values()).items():
            with_what = "these sources" if sources == self.digest else f"other sources ({sources})"
            terminalreporter.write_line(f"{count:7,} passed in earlier runs with {with_what}, not run again")
        terminalreporter.write_line(f"on record in {self.path}; delete it to begin anew")
