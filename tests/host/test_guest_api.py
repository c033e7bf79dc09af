"""A C program that asks for checkpoints and says what need not be kept, built with the header as it is shipped."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from wasmckpt import Ended, Job, WasiConfig, header_path
from wasmckpt.errors import HostFunctionError, StorageError

from ..support.tiers import missing
from ..support.toolchain import Unavailable, build_c
from ..unit.host.engine import run_with_wasmtime

SOURCE = Path(__file__).with_name("cooperating.c")
ROUNDS = 4


def build(*flags: str) -> bytes:
    try:
        header = header_path() / "wasmckpt.h"
        return build_c(
            "cooperating", [SOURCE], ["-O1", "-I", str(header_path()), *flags], watched=[header]
        ).read_bytes()
    except Unavailable as error:
        missing(error.need, error.reason)


@pytest.fixture(scope="module", params=["", "-DWASMCKPT_OPTIONAL"], ids=["import", "optional"])
def program(request: pytest.FixtureRequest) -> bytes:
    """Both ways in which a program can reach us."""
    return build(*filter(None, [request.param]))


FIRST = "present 1, discard 0, 0, outside 21, keep 0"


def run(make: Callable[[WasiConfig], Job]) -> tuple[Ended, list[str]]:
    with tempfile.TemporaryFile() as output:
        with make(WasiConfig(args=["cooperating", str(ROUNDS)], stdout=output.fileno())) as job:
            ended = job.wait(60)
        output.seek(0)
        return ended, output.read().decode().splitlines()


@pytest.mark.slow
def test_checkpoints_that_the_program_asks_for(program: bytes, way: str) -> None:
    images: list[bytes] = []
    ended, lines = run(lambda config: Job.start(
        program, config=config, on_checkpoint_here=lambda job: images.append(job.checkpoint().data or b"")
    ))
    assert ended == Ended("done")
    assert lines == [FIRST, *(f"{i}: 0, lives 0, there, there" for i in range(ROUNDS))]
    assert len(images) == ROUNDS
    for number, image in enumerate(images):
        assert 50_000 < len(image) < 1 << 18, "what was kept is there, what was discarded is not"
        _, lines = run(lambda config: Job.restore(image, "wasm3", module=program, config=config))  # noqa: B023
        assert lines == [
            f"{number}: 1, lives 1, gone, there", *(f"{i}: 0, lives 1, there, there" for i in range(number + 1, ROUNDS))
        ]


@pytest.mark.slow
def test_moves_and_stops_that_the_program_asks_for(program: bytes, tmp_path: Path) -> None:
    targets = itertools.cycle(["wasm3", "wasmtime"])
    _, lines = run(lambda config: Job.start(
        program, config=config, on_checkpoint_here=lambda job: job.migrate(next(targets), patience=30)
    ))
    assert lines == [FIRST, *(f"{i}: 1, lives {i + 1}, gone, there" for i in range(ROUNDS))]
    image = tmp_path / "here.wck"
    ended, lines = run(lambda config: Job.start(
        program, config=config, on_checkpoint_here=lambda job: job.checkpoint(image, stop=True)
    ))
    assert (ended.how, lines) == ("stopped", [FIRST])
    _, lines = run(lambda config: Job.restore(image, module=program, config=config))
    assert lines[0] == "0: 1, lives 1, gone, there"


@pytest.mark.slow
def test_a_checkpoint_that_fails_is_told_to_the_program(program: bytes) -> None:
    def full(job: Job) -> None:
        raise StorageError("the disk is full")

    _, lines = run(lambda config: Job.start(program, config=config, on_checkpoint_here=full))
    assert lines == [FIRST, *(f"{i}: -1, lives 0, there, there" for i in range(ROUNDS))]
    with pytest.raises(HostFunctionError, match="ZeroDivisionError"):
        run(lambda config: Job.start(program, config=config, on_checkpoint_here=lambda job: 1 // 0))


@pytest.mark.slow
def test_nobody_takes_checkpoints(program: bytes) -> None:
    _, lines = run(lambda config: Job.start(program, "wasm3", config=config))
    assert lines == [FIRST, *(f"{i}: 0, lives 0, there, there" for i in range(ROUNDS))]


@pytest.mark.parametrize("flag", ["-DWASMCKPT_OPTIONAL", "-DWASMCKPT_NONE"])
def test_the_same_program_without_us(flag: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    program = build(flag)
    code = run_with_wasmtime(program, args=["cooperating", str(ROUNDS)], stdout=str(output))
    lines = output.read_text().splitlines()
    assert code == 0
    assert lines[0].startswith("present 0")
    assert lines[1:] == [f"{i}: 0, lives 0, there, there" for i in range(ROUNDS)]
