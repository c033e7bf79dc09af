"""A program that is killed at random moments, image or no image since, goes on elsewhere: its output comes once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.pairs import BASE, SEED, others
from ..support.tiers import by_tier
from .harness import Story

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", range(by_tier(check=1, test=4, soak=60)))
def test_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: int) -> None:
    """Output on a pipe and in two files, input that arrives meanwhile, clocks, random numbers: byte for byte, once.
    Images are taken by fork, in every fourth case in place."""
    seed = SEED * 1000 + case
    print(f"seed {seed}")
    if case % 4 == 3:
        monkeypatch.setenv("WASMCKPT_SNAPSHOT", "in-place")
    story = Story(tmp_path, seed)
    runtimes = BASE if case % 2 else BASE[::-1]
    end = story.live(story.random.randrange(2, by_tier(check=4, test=5, soak=12)), runtimes)
    story.check(end)
    story.close()


@pytest.mark.parametrize("name", by_tier(check=(), test=others(), soak=others()))
def test_killed_on_the_other_runtimes(tmp_path: Path, name: str) -> None:
    """The host is the same, what runs on it is not: each goes on from a life on another one, and back."""
    story = Story(tmp_path, SEED)
    story.check(story.live(by_tier(check=2, test=3, soak=12), (name, BASE[SEED % 2])))
    story.close()
