"""Which checkpoints a rule keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wasmckpt.store import Entry, Retention

HOUR, DAY = 3600.0, 86400.0


def _entries(*times: float) -> list[Entry]:
    return [Entry("j", n + 1, taken, b"", 0, 0, None, b"", 0, "") for n, taken in enumerate(times)]


@pytest.mark.parametrize(("rule", "kept"), [
    (Retention(), {1, 2, 3, 4, 5, 6}), (Retention(last=2), {5, 6}), (Retention(last=0), {6}),
    (Retention(hourly=2), {5, 6}), (Retention(hourly=3), {4, 5, 6}), (Retention(daily=2), {4, 6}),
    (Retention(last=1, daily=3), {2, 4, 6}), (Retention(hourly=99), {1, 2, 4, 5, 6}),
])
def test_rules(rule: Retention, kept: set[int]) -> None:
    """Two on the first day, two in one hour of the second, two on the third."""
    times = (0.0, HOUR, DAY + 10, DAY + 20, 2 * DAY, 2 * DAY + 3 * HOUR)
    assert rule.keeps(_entries(*times)) == kept


@given(st.lists(st.floats(0, 1e7), max_size=40), st.none() | st.integers(0, 5), st.none() | st.integers(0, 5),
       st.none() | st.integers(0, 5))
def test_the_newest_always_stays_and_asking_again_keeps_the_same(
    times: list[float], last: int | None, hourly: int | None, daily: int | None
) -> None:
    rule, entries = Retention(last, hourly, daily), _entries(*times)
    kept = rule.keeps(entries)
    assert not entries or entries[-1].number in kept
    assert rule.keeps([entry for entry in entries if entry.number in kept]) == kept
