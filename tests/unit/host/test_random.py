"""Random bytes: never the same twice by default, exactly reproducible on request."""

from __future__ import annotations

from typing import Any

from .conftest import Maker


def test_two_guests_restored_from_one_image_differ(make: Maker) -> None:
    guest = make()
    guest.random(16)
    state = guest.wasi.state()
    drawn = {make.restore(state).random(16)[1] for _ in range(20)}
    assert len(drawn) == 20
    assert state["random"] is None


def test_seeded_guests_draw_the_same_over_any_move(make: Maker) -> None:
    straight = make(random_seed=1)
    expected = [straight.random(length)[1] for length in (16, 1, 0, 1000, 16)]
    guest = make(random_seed=1)
    drawn = []
    for length in (16, 1, 0, 1000, 16):
        drawn.append(guest.random(length)[1])
        guest = make.move(guest)
    assert drawn == expected
    assert len(set(drawn)) == 5
    assert make(random_seed=2).random(16)[1] != expected[0]
    assert make().random(16)[1] != expected[0]


def test_an_image_made_with_a_seed_keeps_it_whatever_the_target_says(make: Maker) -> None:
    straight = make(random_seed=1)
    straight.random(8)
    expected = straight.random(8)
    guest = make(random_seed=1)
    guest.random(8)
    assert make.move(guest, random_seed=99).random(8) == expected


def test_large_requests(make: Maker) -> None:
    guest = make()
    guest.memory.buffer = bytearray(8 << 20)
    errno, data = guest.random(3 << 20)
    assert errno == 0
    assert all(data[start : start + 64].count(0) < 32 for start in range(0, len(data), 65536))


def test_the_state_says_how_far_the_generator_is(make: Maker) -> None:
    guest = make(random_seed=0)
    for _ in range(3):
        guest.random(5)
    state: Any = guest.wasi.state()
    assert state["random"]["calls"] == 3
