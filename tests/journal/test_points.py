"""Killed at each step of the journal, in its first life and in a later one: whatever was under way happened once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from wasmckpt import Job, JournalOptions
from wasmckpt.errors import CheckpointError, StorageError, WorkerDied
from wasmckpt.host.journal.file import read_journal

from ..support.pairs import BASE
from ..support.tiers import TIER, every_nth
from .harness import Story

pytestmark = pytest.mark.slow

CASES = [
    *((step, number) for step in ("appending", "sending", "sent") for number in (2, 3, 9, 13)),
    *((step, number) for step in ("taking", "taken") for number in (1, 2, 3)),
    *((step, number) for step in ("doing", "done") for number in range(1, 62, 2)),
]


def died(story: Story, live: Callable[[], Job]) -> bool:
    """Whether the life ended by being killed."""
    try:
        story.check(story.finish(live()))
    except WorkerDied:
        story.drain()
        return True
    return False


@pytest.mark.parametrize(("step", "number"), every_nth(CASES, check=40, test=10))
def test_killed_at_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    story = Story(tmp_path, 0, turns=12)
    monkeypatch.setenv("WASMCKPT_FAULT", f"journal.{step}:kill:{number}")
    assert died(story, lambda: story.start(BASE[0]))
    again = died(story, lambda: story.restore(BASE[1]))  # counts anew: once more, unless its end comes first
    monkeypatch.delenv("WASMCKPT_FAULT")
    if again:
        assert not died(story, lambda: story.restore(BASE[0]))
    story.close()


@pytest.mark.parametrize("step", ["written", "renamed", "cut"])
@pytest.mark.parametrize("number", [1, 2])
def test_killed_while_the_journal_is_begun_or_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    """At no moment is there an image without its journal, or the other way round."""
    story = Story(tmp_path, 0, turns=1000, ahead=4096)  # more than we read, so it does not end
    story.all.set()
    path = JournalOptions.beside(story.image).path
    monkeypatch.setenv("WASMCKPT_FAULT", f"journal.{step}:kill:{number}")
    try:
        job = story.start(BASE[0])
    except WorkerDied:
        assert number == 1
        assert step != "cut"
        assert not story.image.exists()
        story.close()
        return  # nothing has happened: to be started again
    for turn in range(4):
        story.read(len(story.out) + 100, job)
        with contextlib.suppress(CheckpointError):
            calls = job.checkpoint(story.image).calls
            while not job.ended and read_journal(path)[0].base != calls:  # when the program makes its next call
                story.read(len(story.out) + 1, job)
        assert story.image.exists(), turn
    assert died(story, lambda: job)
    monkeypatch.delenv("WASMCKPT_FAULT")
    end = story.finish(story.restore(BASE[1]))
    story.check(end)
    story.close()


@pytest.mark.parametrize("number", [3, 40] if TIER != "check" else [3])
def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The program is stopped before it does what could not be written down; with space again it goes on."""
    story = Story(tmp_path, 0, turns=30)
    monkeypatch.setenv("WASMCKPT_FAULT", f"journal.appending:ENOSPC:{number}")
    with pytest.raises(StorageError, match=r"journal cannot be written: No space left .* was stopped before") as told:
        story.finish(story.start(BASE[0]))
    assert told.value.exit_code == 73
    story.drain()
    monkeypatch.delenv("WASMCKPT_FAULT")
    end = story.finish(story.restore(BASE[1]))
    story.check(end)
    story.close()


@pytest.mark.skipif(TIER == "check", reason="takes a second")
def test_power_cut_mode(tmp_path: Path) -> None:
    """Written through before each effect: the same, slower."""
    story = Story(tmp_path, 5, turns=20)
    story.options["sync"] = "always"
    story.check(story.live(2, BASE))
    story.close()
