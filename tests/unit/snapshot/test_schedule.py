"""`Job.checkpoints` and its twin for asyncio: images at a pace, until the program ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from wasmckpt import AsyncJob, Job, Pace
from wasmckpt.errors import CheckpointError, StorageError
from wasmckpt.wasm.values import I32, Value

from ...cli.programs import COUNT, FOREVER, TRAPS, count_result, wat

TURNS = 12_000_000


@pytest.mark.slow
def test_each_image_goes_on_to_the_same_end(tmp_path: Path) -> None:
    """A number of seconds between them; the iteration ends with the program, and says nothing of how."""
    path = tmp_path / "i.wckpt"
    result = count_result(TURNS) & 0xFFFFFFFF
    with Job.start(wat(COUNT), "wasm3", invoke="run", arguments=(Value(I32, TURNS),)) as job:
        began = time.monotonic()
        images = list(job.checkpoints(0.005, path))
        assert job.wait().results[0].bits == result
        assert 0 < len(images) <= (time.monotonic() - began) / 0.005
    with Job.restore(path, module=wat(COUNT)) as again:
        assert again.wait(60).results[0].bits == result
    with Job.start(wat(TRAPS)) as job:
        assert list(job.checkpoints(30.0)) == []


def test_the_pace_learns_what_images_cost() -> None:
    """Each is charged what it cost, and the next is as far away as that is worth."""
    pace = Pace(0.2, shortest=0.01)
    with Job.start(wat(FOREVER)) as job:
        total, spent = 0.0, []
        for image in itertools.islice(job.checkpoints(pace), 4):
            total += image.cost
            spent.append(pace.spent)
        overhead = pace.overhead(time.monotonic())
        job.kill()
    assert pace.taken == 4
    assert total <= pace.spent
    assert overhead * spent[-2] / spent[-1] <= 0.2, "the last one is to be paid for, whatever it cost"


def test_an_image_that_fails(tmp_path: Path) -> None:
    """It is raised, or told, and the next one comes in its time."""
    missing = tmp_path / "absent" / "i.wckpt"
    problems: list[CheckpointError] = []

    def mend(problem: CheckpointError) -> None:
        problems.append(problem)
        if len(problems) == 2:
            missing.parent.mkdir()

    with Job.start(wat(FOREVER)) as job:
        with pytest.raises(StorageError):
            next(job.checkpoints(0.01, missing))
        for pace in (Pace(0.5, shortest=0.01), 0.01):
            problems.clear()
            image = next(job.checkpoints(pace, missing, on_error=mend))
            assert image.path == str(missing)
            assert [type(problem) for problem in problems] == [StorageError, StorageError]
            missing.unlink()
            missing.parent.rmdir()


def test_with_asyncio() -> None:
    """The loop stays free, the iteration may be left, and ends with the program."""
    async def main() -> None:
        async with await AsyncJob.start(wat(FOREVER)) as job:
            taken = 0
            async for image in job.checkpoints(Pace(0.5, shortest=0.01)):
                assert image.data
                taken += 1
                if taken == 3:
                    break
            waiting = asyncio.create_task(anext(aiter(job.checkpoints(3600.0)), None))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await job.kill()
            assert await asyncio.wait_for(waiting, 30) is None
        async with await AsyncJob.start(wat(TRAPS)) as job:
            assert [image async for image in job.checkpoints(30.0)] == []

    asyncio.run(main())
