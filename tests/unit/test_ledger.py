"""A soak goes on where it was stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.ledger import ROOT, sources_digest

pytest_plugins = ["pytester"]

CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from tests.support.ledger import Ledger

def pytest_configure(config):
    config.pluginmanager.register(Ledger(Path("ledger.txt"), {{digest!r}}, keep={{keep}}))
"""
TESTS = "import os\n\ndef test_one(): pass\n\ndef test_two(): assert os.path.exists('mended')\n"


@pytest.mark.slow
def test_what_passed_is_not_run_again(pytester: pytest.Pytester) -> None:
    def run(digest: str, *, keep: bool = False) -> dict[str, int]:
        pytester.makeconftest(CONFTEST.format(digest=digest, keep=keep))
        return pytester.runpytest_subprocess("-p", "no:cacheprovider").parseoutcomes()

    pytester.makepyfile(test_file=TESTS)
    assert run("a") == {"passed": 1, "failed": 1}
    assert run("a") == {"failed": 1, "deselected": 1}
    assert run("b") == {"passed": 1, "failed": 1}, "other sources: all again"
    Path("mended").touch()
    assert run("c", keep=True) == {"passed": 1, "deselected": 1}
    assert run("c") == {"passed": 1, "deselected": 1}
    assert run("c") == {"deselected": 2}


def test_the_digest_is_of_all_sources(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    before = sources_digest(tmp_path)
    (tmp_path / "tests" / "new.py").write_text("x = 1\n")
    sources_digest.cache_clear()
    after = sources_digest(tmp_path)
    sources_digest.cache_clear()
    (tmp_path / "tests" / "new.pyc").write_text("made")
    assert before != after == sources_digest(tmp_path)
