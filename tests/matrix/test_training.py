"""A neural network in training is moved in the middle of an epoch: what it has learnt at the end is the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from wasmckpt.formats import Image

from ..support.moving import Trace, World, move
from ..support.partner import REFERENCE
from ..support.samples import Sample, sample
from .check import ENGINES, closing_world, safepoints

WEIGHTS = "weights.txt"


def train(program: Sample, engines: tuple[str, ...], nth: int, folder: Path, moved: list[str]) -> Trace:
    """One training; ``moved`` gets what had been printed at each move."""
    world = World(program, folder=Path(tempfile.mkdtemp(dir=folder)))

    def look(image: Image) -> Image:
        assert image.frames
        moved.append(world.output().decode())
        return image

    with closing_world(world):
        return move(program.wasm, engines, nth, world=world, touch=look)


@pytest.mark.parametrize(("engines", "case"), [
    pytest.param(("wasmtime", "wasm3"), "default", id="wasmtime-wasm3"),
    pytest.param(("wasm3", "wasmtime"), "default", id="wasm3-wasmtime", marks=pytest.mark.slow),
    pytest.param(("wasmtime", REFERENCE, "wasm3"), "tiny", id="through-the-interpreter"),
])
def test_the_final_weights_are_those_of_one_never_moved(engines: tuple[str, ...], case: str, tmp_path: Path) -> None:
    """The loss curve, the digest and each weight; at every move some epochs were over and the present one was not."""
    program = sample("train", case)
    whole = train(program, ENGINES[:1], 0, tmp_path, [])
    assert whole.stdout == program.stdout
    count = safepoints(program.wasm, "wasmtime", sample=program,
                       world=lambda: World(program, folder=Path(tempfile.mkdtemp(dir=tmp_path))))
    moved: list[str] = []
    got = train(program, engines, 3 * count // 8, tmp_path, moved)
    assert got == whole
    assert len(moved) >= 2
    if case == "default":  # a loss is printed when its epoch is over: here the 12th and the 23rd of 30 were under way
        assert [text.count("epoch") for text in moved] == [11, 22]
    weights = [float.fromhex(line) for line in dict(got.files)[WEIGHTS].decode().split()]
    assert len(weights) == len(set(weights)) == int(whole.stdout.split()[-3])
