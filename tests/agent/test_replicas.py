"""What one agent keeps of a job of another one: votes over ends and restarts, images, output."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from wasmckpt import Job, WasiConfig
from wasmckpt.agent import replicas as module_of_replicas
from wasmckpt.agent.database import Database
from wasmckpt.agent.replicas import Replicas
from wasmckpt.api import Candidacy, Entrusted, JobSpec, Leases
from wasmckpt.errors import CheckpointError, Conflict, NotFound
from wasmckpt.store import Store

from ..migrate.programs import writes

JOB, A, B, C = "0" * 32, "http://a:1", "http://b:1", "http://c:1"
VOTERS = {A: "a", B: "b", C: "c"}
MODULE = writes(100_000)
DURATION = 10.0


class Clock:
    now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module_of_replicas, "now", lambda: clock.now)
    return clock


@pytest.fixture
def kept(tmp_path: Path, clock: Clock) -> Iterator[Replicas]:
    """B's, of a job that A owns for term 1."""
    database = Database(tmp_path / "agent.sqlite")
    found = opened(tmp_path, database)
    found.entrust(JOB, entrusted(A, 1))
    yield found
    database.close()


def opened(folder: Path, database: Database) -> Replicas:
    return Replicas(database, "b", Store(folder / "main", create=True), folder / "replicas", 1 << 30, 1 << 30)


def entrusted(site: str, term: int) -> Entrusted:
    return Entrusted(name="j", spec=JobSpec(module="0" * 64), runtime="wasmtime", site=site, term=term, voters=VOTERS,
                     duration=DURATION)


def leased(kept: Replicas, site: str, term: int) -> bool:
    return kept.leases(Leases(site=site, voter="b", terms={JOB: term})).promises[JOB].granted


def voted(kept: Replicas, site: str, term: int, *, trial: bool = False, newest: tuple[int, int] = (9, 9)) -> bool:
    return kept.vote(JOB, Candidacy(site=site, voter="b", term=term, newest=newest, trial=trial)).granted


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Of one program, one after the other; both say that it has written something."""
    folder = tmp_path_factory.mktemp("images")
    with (folder / "out").open("wb") as out, Job.start(MODULE, config=WasiConfig(stdout=out.fileno())) as job:
        found = []
        for n in range(2):
            while (folder / "out").stat().st_size < 10 * (n + 1):
                pass
            data = job.checkpoint().data
            assert data is not None
            found.append(data)
    return found


def bring(kept: Replicas, number: int, image: bytes, *, term: int = 1, site: str = A) -> int | None:
    with kept.upload() as upload:
        upload.write(image)
        return kept.keep(JOB, site, term, number, {"stdout": 0, "stderr": 0}, upload, MODULE).number


def test_a_candidate_in_vain_changes_nothing(kept: Replicas, clock: Clock) -> None:
    assert leased(kept, A, 1)
    assert not voted(kept, C, 2)
    clock.now += DURATION + 1
    assert voted(kept, C, 2, trial=True)
    assert leased(kept, A, 1), "that was only asked"
    clock.now += DURATION + 1
    assert voted(kept, C, 2)
    assert not leased(kept, A, 1)
    promise = kept.leases(Leases(site=A, voter="b", terms={JOB: 1})).promises[JOB]
    assert (promise.term, promise.site, promise.owned) == (2, C, False)
    assert leased(kept, C, 2)
    assert kept.leases(Leases(site=A, voter="b", terms={JOB: 1})).promises[JOB].owned


def test_after_a_restart_there_may_be_a_promise(tmp_path: Path, kept: Replicas, clock: Clock) -> None:
    clock.now += DURATION - 1
    assert leased(kept, A, 1)
    again = opened(tmp_path, kept._database)
    clock.now += DURATION - 1
    assert not voted(again, C, 2)
    clock.now += 2
    assert voted(again, C, 2)


def test_the_end_is_its_owners_to_say(kept: Replicas, clock: Clock) -> None:
    """One who owned it before cannot end it for those who own it now; one who was told of an end lets go."""
    lost: list[tuple[str, int, str]] = []
    kept.lost = lambda job, term, site: lost.append((job, term, site))
    clock.now += DURATION + 1
    assert voted(kept, B, 2)
    kept.elected(JOB, 2)
    with pytest.raises(Conflict):
        kept.over(JOB, 1, A)
    assert kept.get(JOB) in kept.owned()
    kept.over(JOB, 3, C)
    assert lost == [(JOB, 3, C)]
    kept.over("1" * 32, 1, A)  # of a job that is not known nothing is to be forgotten


def test_an_image_and_its_output(kept: Replicas, images: list[bytes]) -> None:
    """An image is not kept before what had been written; output that comes anew harms what belongs to the image that is
    kept only when the next one comes."""
    with pytest.raises(Conflict, match="not here"):
        bring(kept, 1, images[0])
    kept.append(JOB, A, 1, "stdout", 0, 0, b"x" * 1000)
    assert bring(kept, 1, images[0]) == 1
    assert bring(kept, 1, images[0]) == 1  # again, since the answer was lost
    with pytest.raises(Conflict):
        kept.append(JOB, A, 1, "stdout", 0, 2000, b"behind a gap")
    kept.append(JOB, A, 1, "stdout", 0, 0, b"y" * 5)
    assert kept.logs(JOB).size("stdout") == 1000
    kept.append(JOB, A, 1, "stdout", 0, 5, b"y" * 995)
    assert kept.logs(JOB).read("stdout", 0, 0, 9).data == b"x" * 9
    assert bring(kept, 2, images[1]) == 2
    assert kept.logs(JOB).read("stdout", 0, 0, 2000).data == b"y" * 1000
    with pytest.raises(Conflict):
        bring(kept, 3, images[1], term=0)
    with pytest.raises(Conflict):
        kept.append(JOB, C, 1, "stdout", 0, 1000, b"z")
    with pytest.raises(CheckpointError):
        bring(kept, 3, images[1][:-100])


def test_killed_before_the_row_was_written(kept: Replicas, images: list[bytes]) -> None:
    kept.append(JOB, A, 1, "stdout", 0, 0, b"x" * 1000)
    assert bring(kept, 1, images[0]) == 1
    with kept._database.transaction() as db:
        db.execute("UPDATE replica SET number = 0")
    assert bring(kept, 1, images[0]) == 1
    row = kept.get(JOB)
    assert row is not None
    assert kept.hand_out(row) is not None


def test_what_was_in_memory_and_what_was_its_own(kept: Replicas, images: list[bytes], tmp_path: Path) -> None:
    """An image that was lost is none; one that this agent took when the job was its own is in its own store."""
    kept.took(JOB, 1, 1)
    row = kept.get(JOB)
    assert row is not None
    with pytest.raises(NotFound):
        kept.hand_out(row)
    assert kept.due() == []
    (tmp_path / "image").write_bytes(images[0])
    assert kept._main.import_image(JOB, tmp_path / "image", module=MODULE).number == 1
    handed = kept.hand_out(row)
    assert handed is not None
    assert kept.is_main(handed[0])
    assert kept.leases(Leases(site=A, voter="b", terms={JOB: 1})).promises[JOB].number is None


def test_what_a_kill_left_is_swept(tmp_path: Path, kept: Replicas) -> None:
    upload = kept.upload()
    upload.write(b"half of it")
    assert upload.path.exists()
    upload._file.close()
    opened(tmp_path, kept._database)
    assert not upload.path.exists()
