"""docs/cli.md says what the code says: its tables are the tables of `COMMANDS` and of the error classes."""

from __future__ import annotations

import re
from pathlib import Path

from wasmckpt import errors
from wasmckpt.cli.main import COMMANDS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "cli.md").read_text()


def test_all_commands() -> None:
    assert re.findall(r"^\| `([a-z]+)` \| (.+) \|$", TEXT, re.MULTILINE) == list(COMMANDS.items())


def test_all_exit_codes() -> None:
    """Every class with its code and its first line; none of them is a code that the table gives another meaning."""
    documented = {
        name: (int(code), means)
        for code, name, means in re.findall(r"^\| (\d+) \| `(\w+)` \| (.+) \|$", TEXT, re.MULTILINE)
    }
    assert documented == {
        name: (getattr(errors, name).exit_code, (getattr(errors, name).__doc__ or "").splitlines()[0])
        for name in errors.__all__
    }
    assert not {code for code, _ in documented.values()} & {0, 1, 129, 130, 141, 143}
