"""What the tiers promise to the tests that use them."""

from __future__ import annotations

import pytest

from ..support import tiers


@pytest.mark.parametrize(("tier", "step"), [("check", 7), ("test", 3), ("soak", 1)])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 22])
def test_every_nth_keeps_both_ends(monkeypatch: pytest.MonkeyPatch, tier: str, step: int, count: int) -> None:
    """The first and the last item are in every sample; nothing comes twice or out of order."""
    monkeypatch.setattr(tiers, "TIER", tier)
    items = list(range(count))
    chosen = tiers.every_nth(items, check=7, test=3)
    assert chosen == sorted(set(chosen))
    assert chosen[:1] == items[:1]
    assert chosen[-1:] == items[-1:]
    assert set(items[::step]) <= set(chosen)


def test_few_cases_of_each_test() -> None:
    """So many of each and not of all, spread over the cases, the same ones each time."""
    ids = ["a.py::one", *[f"a.py::many[{n}]" for n in range(100)], *[f"b.py::many[{n}[x]]" for n in range(3)]]
    taken = tiers.few_of_each(ids, 5)
    assert len(taken) == 1 + 5 + 3
    assert taken < set(ids)
    assert taken == tiers.few_of_each(ids, 5)
    assert sorted(name for name in taken if name.startswith("a.py::many")) != ids[1:6]


def test_something_missing_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is not required, a test is skipped with the reason."""
    monkeypatch.setattr(tiers, "REQUIRED", frozenset())
    with pytest.raises(pytest.skip.Exception, match="no unicorn here"):
        tiers.missing("unicorn", "no unicorn here")


def test_something_required_and_missing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the run requires it, the test fails: a green run has run."""
    monkeypatch.setattr(tiers, "REQUIRED", frozenset({"unicorn"}))
    with pytest.raises(pytest.fail.Exception, match="unicorn is required in this run: no unicorn here"):
        tiers.missing("unicorn", "no unicorn here")
