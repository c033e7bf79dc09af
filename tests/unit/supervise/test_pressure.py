"""When a machine is no good place for programs: over a limit for long enough, until there is some distance again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from wasmckpt.supervise import Facts, Kind, Limits, Pressure

FINE = Facts(battery=80.0, temperature=50.0, load=0.5, memory=40.0)
LIMITS = Limits(battery=20.0, temperature=90.0, load=4.0, memory=10.0, lasting=30.0)


@pytest.mark.parametrize(("kind", "wrong", "nearly", "fine"), [
    (Kind.BATTERY, 19.0, 24.0, 26.0), (Kind.TEMPERATURE, 91.0, 86.0, 84.0), (Kind.LOAD, 4.5, 3.5, 3.0),
    (Kind.MEMORY, 9.0, 14.0, 16.0),
])
def test_begins_lasts_and_ends(kind: Kind, wrong: float, nearly: float, fine: float) -> None:
    pressure = Pressure(LIMITS)
    now, nothing, this = 0.0, frozenset[Kind](), frozenset({kind})
    for found, later, expected in (
        (wrong, 29, nothing),
        (fine, 1, nothing),  # it did not last
        (nearly, 100, nothing),
        (wrong, 0, nothing), (wrong, 29, nothing), (wrong, 2, this),
        (nearly, 1000, this),  # no distance to the limit yet
        (fine, 1, nothing), (nearly, 100, nothing),
        (wrong, 0, nothing), (wrong, 31, this),
    ):
        now += later
        assert pressure.look(now, replace(FINE, **{kind.value: found})) == expected, (now, found)
    assert pressure.look(now, replace(FINE, **{kind.value: None})) == nothing, "the sensor is gone: plugged in, say"


def test_what_has_no_limit_is_no_reason() -> None:
    worst = Facts(battery=0.0, temperature=200.0, load=1000.0, memory=0.0)
    assert Pressure(Limits(lasting=0.0)).look(0.0, worst) == frozenset()
    assert Pressure(replace(LIMITS, lasting=0.0)).look(0.0, worst) == frozenset(Kind)
