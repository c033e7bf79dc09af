"""A side of a move that makes no sense: one frame of an honest conversation is another one. The honest side raises an
error of ours, soon; the program runs at one side at most, and at the source unless that has given it away."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from wasmckpt.errors import CheckpointError
from wasmckpt.migrate.handover import Role

from ..support.pairs import SEED
from ..support.tiers import TIER, by_tier
from .ends import Here, There, move
from .programs import writes
from .relays import Frame, misspoken
from .test_moves import EASY, ROUNDS, here, says, started, stdin, there

__all__ = ["here", "stdin", "there"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
KINDS = ("hello", "welcome", "have", "module", "open", "round", "pages", "output", "end", "taken", "prepare", "ready",
         "refused", "token", "learned", "commit", "abort", "done", "error", "nothing")
VALUES: tuple[object, ...] = (
    None, True, -1, 0, 1 << 40, (1 << 64) - 1, 0.5, "", "text", b"", b"\0" * 40, [], [[]], [0, -1], [1 << 30, 9],
    [0] * 9, {}, {"a": 1})


def changed(draw: random.Random, frame: Frame) -> list[Frame]:
    """One or two frames instead of an honest one."""
    fields, body = frame
    name = draw.choice(sorted(fields))
    match draw.randrange(8):
        case 0:
            return [({key: value for key, value in fields.items() if key != name}, body)]
        case 1 | 2:
            return [({**fields, name: draw.choice(VALUES)}, body)]
        case 3:
            return [({**fields, "is": draw.choice(KINDS)}, body)]
        case 4:
            return [(fields, body[:len(body) // 2])]
        case 5:
            return [(fields, body + draw.randbytes(draw.choice([1, 4096])))]
        case 6:
            return [frame, frame]
        case _:
            return [(fields, bytes(byte ^ 0xFF if n == len(body) // 2 else byte for n, byte in enumerate(body)))]


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("seed", range(by_tier(check=2, test=4, soak=150)))
def test_one_frame_is_another_one(here: Here, there: There, side: str, seed: int) -> None:
    draw = random.Random(f"{seed if TIER == 'soak' else SEED + seed} {side}")
    module = writes(ROUNDS, waits=True)
    number = draw.randrange(30) if side == "source" else draw.randrange(6)
    with started(here, module) as job:
        says(here.folder, 2)
        with suppress(CheckpointError):
            move(job, here, there, module=module, runtime="wasm3", options=EASY, silence=3.0,
                 between=misspoken(side, number, lambda frame: changed(draw, frame)))
        if here.standing().role is Role.OWNER:
            assert not job.ended
            assert there.standing().role is not Role.OWNER or side == "source"
            says(here.folder, (here.folder / "stdout").read_bytes().count(b"\n") + 2)
        else:
            assert here.standing().role is Role.GONE
        if there.job is not None:
            there.job.close()
