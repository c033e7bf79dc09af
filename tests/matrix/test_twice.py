"""One image, two processes at once: each finishes as the undisturbed program does, and neither knows of the other."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from wasmckpt.snapshot.job import Job

from ..support.moving import World, move
from ..support.samples import sample
from .check import closing_world, safepoints
from .test_source_goes_on import RUNTIMES, Life, run_to_end


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "json"])
def test_two_processes_go_on_from_one_image(name: str, tmp_path: Path) -> None:
    """Restored side by side, before either is waited for: both runtimes, and one of them twice."""
    program = sample(name)

    def world() -> World:
        return World(program, folder=Path(tempfile.mkdtemp(dir=tmp_path)))

    place = world()
    with closing_world(place):
        trace = move(program.wasm, RUNTIMES, safepoints(program.wasm, RUNTIMES[0], sample=program, world=world) // 2,
                     world=place, most_hops=1, keep_images=True)
    assert trace.stdout == program.stdout
    image, = trace.images
    for pair in (RUNTIMES, RUNTIMES[:1] * 2):
        lives = [Life(program, Path(tempfile.mkdtemp(dir=tmp_path))) for _ in pair]
        jobs: list[Job] = []
        try:
            for life, runtime in zip(lives, pair, strict=True):
                jobs.append(Job.restore(image, runtime, module=program.wasm, config=life.config()))
            assert len({job.pid for job in jobs}) == 2
            assert [run_to_end(job) for job in jobs] == ["0", "0"]
            rest = [life.output() for life in lives]
            assert rest[0] == rest[1]
            assert rest[0]
            assert program.stdout.endswith(rest[0])
            written = [sorted((path.name, path.read_bytes()) for path in life.guest.rglob("*")) for life in lives]
            assert written[0] == written[1] == [(name, content) for name, content in trace.files]
        finally:
            for job in jobs:
                job.close()
            for life in lives:
                life.close()
