"""The program's standard streams are the job's own: closed numbers of the caller's go to nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wasmckpt import Job, WasiConfig
from wasmckpt.errors import UsageError

from ...cli.programs import CAT, wat


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("by", ["end", "kill"])
def test_a_moved_program_has_the_pipes_that_the_caller_has_closed(tmp_path: Path, by: str) -> None:
    """As with subprocess: who reads meets the end when the program ends. Other files of these numbers get nothing."""
    before = descriptors()
    (input_, feeding), (reading, output) = os.pipe(), os.pipe()
    with Job.start(wat(CAT), config=WasiConfig(stdin=input_, stdout=output)) as job:
        os.close(input_)
        os.close(output)
        others = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("one", "two")]
        assert sorted(others) == sorted((input_, output)), "the numbers are in use again"
        job.migrate("wasmtime")
        os.write(feeding, b"a line\n")
        if by == "kill":
            assert os.read(reading, 100) == b"a line\n"
            job.kill()
        os.close(feeding)
        with open(reading, "rb") as pipe:
            assert pipe.read() == (b"a line\n" if by == "end" else b"")  # to its end, while the job is in use
        assert job.wait().how == ("killed" if by == "kill" else "done")
    for other in others:
        os.close(other)
    assert [(tmp_path / name).read_bytes() for name in ("one", "two")] == [b"", b""]
    assert descriptors() <= before  # what others left to be collected may have gone meanwhile


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_stream_that_is_not_open(stream: str) -> None:
    before = descriptors()
    with pytest.raises(UsageError, match="a standard stream cannot be given: Bad file descriptor"):
        Job.start(wat(CAT), config=WasiConfig(**{stream: 9999}))  # type: ignore[arg-type]
    assert descriptors() <= before  # what others left to be collected may have gone meanwhile
