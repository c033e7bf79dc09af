"""What is asked for over HTTP, of an agent in a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from wasmckpt import Job, load_image
from wasmckpt.api import ENDED, Event, JobInfo, JobSpec, State
from wasmckpt.client import AgentClient, AsyncAgentClient
from wasmckpt.client.where import local
from wasmckpt.errors import (
    CheckpointError,
    Conflict,
    NotFound,
    PreconditionFailed,
    RetryLater,
    UsageError,
)

from ..cli.programs import FOREVER, exits, talk, wat
from .conftest import PATIENCE, Served
from .guests import LONG, LONG_OUTPUT, TALK, TALK_OUTPUT

pytestmark = pytest.mark.slow


@pytest.fixture
def agent(served: Served) -> AgentClient:
    """A client of the module's agent."""
    return served.client()


@pytest.fixture
def raw(served: Served) -> Any:
    """Without our client between."""
    with httpx.Client(base_url=served.url, headers={"Authorization": f"Bearer {served.token}"}, timeout=PATIENCE,
                      trust_env=False) as client:
        yield client


def runs(job: JobInfo) -> bool:
    return job.state is State.RUNNING or job.state in ENDED


def test_modules(agent: AgentClient, raw: httpx.Client) -> None:
    """Uploaded as a stream, once; the wrong digest, what is none, and what is not there are refused by problems."""
    module, digest = wat(exits(3)), hashlib.sha256(wat(exits(3))).hexdigest()
    for status in (201, 200):
        answer = raw.put(f"/v1/modules/{digest}", content=iter([module[:5], module[5:]]))
        assert answer.status_code == status
        assert answer.headers["ETag"] == f'"{digest}"'
        assert answer.json()["size"] == len(module)
    assert raw.post("/v1/modules", content=module).status_code == 200
    content = raw.get(f"/v1/modules/{digest}/content")
    assert content.content == module
    same = raw.get(f"/v1/modules/{digest}/content", headers={"If-None-Match": content.headers["ETag"]})
    assert same.status_code == 304
    wrong = raw.put(f"/v1/modules/{'0' * 64}", content=module)
    assert (wrong.status_code, wrong.headers["content-type"]) == (400, "application/problem+json")
    assert wrong.json()["fields"] == {"expected": "0" * 64, "found": digest}
    invalid = raw.post("/v1/modules", content=module[:-1])
    assert (invalid.status_code, invalid.json()["type"]) == (422, "urn:wasmckpt:error:InvalidModule")
    assert isinstance(invalid.json()["fields"]["offset"], int)
    listed: list[str] = []
    cursor = None
    for number in range(4, 8):
        agent.upload(wat(exits(number)))
    while True:
        page = agent.modules(cursor, 2)
        listed += [one.sha256 for one in page.items]
        if (cursor := page.next) is None:
            break
    assert listed == sorted(set(listed))
    assert digest in listed
    agent.forget_lessons(digest)
    assert agent.module(digest).avoided == []
    agent.delete_module(digest)
    with pytest.raises(NotFound):
        agent.module(digest)


def test_a_job_from_its_beginning_to_its_end(agent: AgentClient) -> None:
    """Its output comes while it runs, and is whole."""
    module = agent.upload(TALK)
    job = agent.create(JobSpec(module=module.sha256, labels={"of": "life"}))
    assert job.state in (State.PENDING, State.STARTING)
    pieces = list(agent.follow_log(job.name))
    assert b"".join(piece.data for piece in pieces) == TALK_OUTPUT
    assert [piece.offset for piece in pieces] == [
        sum(len(one.data) for one in pieces[:number]) for number in range(len(pieces))]
    found = agent.wait(job.name, timeout=PATIENCE)
    assert (found.state, found.exit_code, found.runs) == (State.EXITED, 0, 1)
    assert agent.output(job.name) == TALK_OUTPUT
    assert agent.log(job.name, offset=7, limit=14) == (7, TALK_OUTPUT[7:21])
    assert next(iter(agent.follow_log(job.id, offset=14))).data == TALK_OUTPUT[14:]
    told = [event.data["state"] for event in agent.events(job=job.name) if event.kind == "state"]
    assert told == ["starting", "running", "exited"]
    agent.delete(job.name)
    with pytest.raises(NotFound):
        agent.job(job.name)


def test_output_that_is_no_text(agent: AgentClient) -> None:
    text = talk(3, 1).replace("\\10\\00\\00\\00\\07", "\\0e\\00\\00\\00\\09").replace(
        '(i32.store8 (i32.const 22)', '(i32.store8 (i32.const 14) (i32.const 255)) (i32.store8 (i32.const 22)')
    job = agent.create(JobSpec(module=agent.upload(wat(text)).sha256))
    data = b"".join(piece.data for piece in agent.follow_log(job.name))
    assert data == agent.output(job.name)
    assert data.count(b"\xff") == 3


def test_lists(agent: AgentClient, raw: httpx.Client) -> None:
    """Newest first, page after page, by labels and states; the ETag says whether anything has changed."""
    module = agent.upload(TALK).sha256
    names = [agent.create(JobSpec(module=module, start=False, name=f"l{n}", labels={"n": str(n % 2), "list": "y"})).name
             for n in range(5)]
    assert [job.name for job in agent.all_jobs(labels=["list"], limit=2)] == names[::-1]
    assert [job.name for job in agent.all_jobs(labels={"n": "1", "list": "y"})] == ["l3", "l1"]
    assert [job.name for job in agent.all_jobs(labels={"n": "1"}, states=[State.RUNNING])] == []
    assert agent.jobs(labels=["list", "absent"]).items == []
    while True:  # others of this agent may still be ending
        first = raw.get("/v1/jobs")
        same = raw.get("/v1/jobs", headers={"If-None-Match": first.headers["ETag"]})
        if same.status_code == 304:
            break
    agent.delete("l0")
    assert raw.get("/v1/jobs", headers={"If-None-Match": first.headers["ETag"]}).status_code == 200
    assert raw.get("/v1/jobs?cursor=x").status_code == 400
    assert raw.get("/v1/jobs?limit=0").status_code == 422
    for name in names[1:]:
        agent.delete(name)


def test_wishes_that_come_twice(agent: AgentClient, raw: httpx.Client) -> None:
    """With a key a job is made once, also if they come at the same time; the key is no good for another wish."""
    module = agent.upload(wat(exits(0))).sha256
    wish = {"module": module, "labels": {"twice": "y"}}
    answers: list[httpx.Response] = []

    def ask() -> None:
        answers.append(raw.post("/v1/jobs", json=wish, headers={"Idempotency-Key": "k1"}))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 201}) == 1
    assert len(agent.jobs(labels=["twice"]).items) == 1
    again = raw.post("/v1/jobs", json=wish, headers={"Idempotency-Key": "k1"})
    assert again.headers["Idempotency-Replayed"] == "true"
    other = raw.post("/v1/jobs", json=wish | {"name": "other"}, headers={"Idempotency-Key": "k1"})
    assert other.status_code == 400
    job = agent.create(JobSpec(module=agent.upload(wat(FOREVER)).sha256))
    agent.wait(job.name, until=runs, timeout=PATIENCE)
    first, second = (agent.checkpoint(job.name, key="c1") for _ in range(2))
    assert first == second
    assert agent.checkpoint(job.name, key="c2").number == first.number + 1
    agent.stop(job.name)
    with pytest.raises(Conflict):
        agent.checkpoint(job.name, key="c3")
    with pytest.raises(Conflict, match="not running"):
        agent.checkpoint(job.name, key="c3")  # a wish that was not fulfilled may be made again


def test_etags_keep_others_changes(agent: AgentClient, raw: httpx.Client) -> None:
    job = agent.create(JobSpec(module=agent.upload(TALK).sha256, start=False))
    _, etag = agent.job_unless(job.name, None, 0)
    assert etag is not None
    assert agent.job_unless(job.name, etag, 0)[0] is None
    with pytest.raises(PreconditionFailed):
        agent.delete(job.name, etag='"1"')
    agent.start(job.name, etag=etag)
    with pytest.raises(PreconditionFailed):
        agent.stop(job.name, etag=etag)
    agent.delete(job.name, force=True)


def test_waiting_for_a_change(agent: AgentClient) -> None:
    """The answer comes with the change, not after the time."""
    job = agent.create(JobSpec(module=agent.upload(TALK).sha256, start=False))
    _, etag = agent.job_unless(job.name, None, 0)
    timer = threading.Timer(0.3, agent.start, [job.name])
    since = time.monotonic()
    timer.start()
    found, _ = agent.job_unless(job.name, etag, 60)
    assert found is not None
    assert found.state is not State.STOPPED
    assert 0.25 < time.monotonic() - since < 50
    with pytest.raises(RetryLater):
        agent.wait(job.name, until=lambda job: False, timeout=0.2)
    timer.join()
    agent.delete(job.name, force=True)


def test_images_go_out_and_come_back(agent: AgentClient, tmp_path: Path) -> None:
    """What is downloaded is an image like any other: it goes on here without an agent, and in another job there."""
    job = agent.create(JobSpec(module=agent.upload(LONG).sha256, checkpoint={"keep": 2}))
    agent.wait(job.name, until=runs, timeout=PATIENCE)
    numbers = [agent.checkpoint(job.name).number for _ in range(3)]
    assert [one.number for one in agent.checkpoints(job.name).items] == numbers[1:], "two are kept"
    taken = agent.stop(job.name, checkpoint=True)
    assert (taken.state, taken.checkpoint) == (State.STOPPED, numbers[-1] + 1)
    assert taken.checkpoint is not None
    image = tmp_path / "i.wckpt"
    agent.download(job.name, taken.checkpoint, image, carry_module=True)
    assert len(load_image(image).frames) >= 2
    with open(tmp_path / "out", "wb") as out:
        from wasmckpt import WasiConfig

        with Job.restore(image, "wasmtime", config=WasiConfig(stdout=out.fileno())) as here:
            here.wait()
    written = agent.output(job.name)
    assert written + (tmp_path / "out").read_bytes() == LONG_OUTPUT
    other = agent.create(JobSpec(module=job.spec.module, start=False))
    assert agent.upload_checkpoint(other.name, image).number == 1
    agent.restore(other.name)
    assert agent.wait(other.name, timeout=PATIENCE).exit_code == 0
    assert written + agent.output(other.name) == LONG_OUTPUT
    agent.restore(job.name)
    agent.wait(job.name, timeout=PATIENCE)
    assert agent.output(job.name) == LONG_OUTPUT
    with pytest.raises(NotFound):
        agent.download(job.name, 99, tmp_path / "none")
    assert not (tmp_path / "none").exists()
    foreign = agent.create(JobSpec(module=agent.upload(wat(FOREVER)).sha256, start=False)).name
    with pytest.raises(CheckpointError, match="module"):
        agent.upload_checkpoint(foreign, image)


def test_signals_and_drain(agent: AgentClient) -> None:
    job = agent.create(JobSpec(module=agent.upload(wat(FOREVER)).sha256))
    agent.wait(job.name, until=runs, timeout=PATIENCE)
    agent.signal(job.name, "checkpoint")
    agent.wait(job.name, until=lambda job: job.checkpoint == 1, timeout=PATIENCE)
    agent.signal(job.name, "hibernate")
    agent.wait(job.name, until=lambda job: job.state is State.HIBERNATED, timeout=PATIENCE)
    with pytest.raises(Conflict):
        agent.signal(job.name, "checkpoint")
    agent.wake(job.name)
    agent.wait(job.name, until=runs, timeout=PATIENCE)
    frozen = agent.drain()["frozen"]
    assert job.name in frozen
    assert not agent.ready().ready
    with pytest.raises(RetryLater):
        agent.create(JobSpec(module=job.spec.module))
    assert agent.undrain() == len(frozen)
    assert agent.ready().ready
    agent.delete(job.name, force=True)


def test_the_node(agent: AgentClient, raw: httpx.Client) -> None:
    node = agent.node()
    assert node.memory_total > node.memory_available > 0
    assert sum(node.jobs.values()) == len(list(agent.all_jobs()))
    assert next(one for one in node.runtimes if one.name == "wasmtime").version
    metrics = agent.metrics()
    assert 'wasmckpt_jobs{state="running"} ' in metrics
    assert "wasmckpt_checkpoints_total" in metrics
    raw.headers.pop("Authorization")
    assert raw.get("/v1/health").json() == {"status": "ok"}
    assert raw.get("/v1/ready").json() == {"ready": True, "why": []}


def test_events_as_they_happen(agent: AgentClient) -> None:
    """A follower misses none between two looks."""
    job = agent.create(JobSpec(module=agent.upload(wat(exits(0))).sha256, start=False))
    found: list[Event] = []
    follower = threading.Thread(target=lambda: found.extend(
        event for event in _until(agent.follow_events(0, job.name), "exited")))
    follower.start()
    agent.start(job.name)
    follower.join(PATIENCE)
    assert [event.data.get("state", event.kind) for event in found] == [
        "created", "pending", "starting", "running", "exited"]
    assert [event.number for event in found] == sorted(event.number for event in found)


def _until(events: Any, state: str) -> Any:
    for event in events:
        yield event
        if event.data.get("state") == state:
            return


def test_problems(agent: AgentClient, raw: httpx.Client) -> None:
    """Everything that is wrong is told in the same form, and raised as what it is."""
    for answer, status, type_ in (
        (raw.get("/v1/jobs/absent"), 404, "NotFound"), (raw.get("/nothing"), 404, "NotFound"),
        (raw.put("/v1/jobs"), 405, "UsageError"), (raw.post("/v1/jobs", content=b"{"), 422, "UsageError"),
        (raw.post("/v1/jobs", json={"module": "x"}), 422, "UsageError"),
        (raw.post("/v1/jobs", json={"module": "0" * 64, "more": 1}), 422, "UsageError"),
        (raw.get("/v1/jobs/absent/logs/other"), 422, "UsageError"),
        (raw.get("/v1/jobs/..%2f..%2fetc"), 404, "NotFound"), (raw.get("/v1/modules/..%2f..%2ftoken/content"), 404, ""),
    ):
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        found = answer.json()
        assert found["status"] == status
        assert found["type"].startswith("urn:wasmckpt:error:" + type_)
        assert found["detail"]
    with pytest.raises(NotFound, match="no such job") as problem:
        agent.job("absent")
    assert problem.value.fields == {"job": "absent"}
    assert problem.value.exit_code == 64
    with pytest.raises(UsageError):
        agent.log("absent", "other")


def test_for_asyncio(served: Served, tmp_path: Path) -> None:
    """The same methods, awaited."""
    async def life() -> None:
        async with AsyncAgentClient(local(served.state, PATIENCE)) as agent:
            module = await agent.upload(LONG)
            job = await agent.create(JobSpec(module=module.sha256, labels={"async": "y"}))
            await agent.wait(job.name, until=runs, timeout=PATIENCE)
            taken = await agent.checkpoint(job.name)
            await agent.download(job.name, taken.number, tmp_path / "i", carry_module=True)
            pieces = [piece.data async for piece in agent.follow_log(job.name)]
            assert b"".join(pieces) == LONG_OUTPUT
            assert [one.name async for one in agent.all_jobs(labels=["async"])] == [job.name]
            assert (await agent.upload_checkpoint(job.name, tmp_path / "i")).number == taken.number + 1
            async for event in agent.follow_events(0, job.name):
                if event.data.get("state") == "exited":
                    break
            with pytest.raises(NotFound):
                await agent.job("absent")
            await agent.delete(job.name)

    asyncio.run(life())


def test_an_agent_that_is_not_there(tmp_path: Path) -> None:
    with AgentClient("http://127.0.0.1:9") as nobody, pytest.raises(RetryLater, match="cannot be reached"):
        nobody.node()
    with pytest.raises(RetryLater, match="no agent runs here"):
        AgentClient.local(tmp_path)
    with pytest.raises(UsageError):
        AgentClient("ftp://x")


def test_openapi(raw: httpx.Client) -> None:
    """Complete: each operation has a text, each answer a schema or a media type, errors are problems, and what is sent
    has an example."""
    document = raw.get("/v1/openapi.json").json()
    text = json.dumps(document)
    assert "HTTPValidationError" not in text
    names = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method} {path}"
            assert operation["description"], where
            assert operation["tags"], where
            names.append(operation["operationId"])
            for status, answer in operation["responses"].items():
                assert answer["description"], where
                if status >= "400" and path != "/v1/ready":
                    assert list(answer["content"]) == ["application/problem+json"], where
            if not path.endswith(("/health", "/ready")):
                assert operation["security"], where
                assert "401" in operation["responses"], where
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is not None:
                assert "example" in json.dumps(_resolved(document, body["schema"])), where
    assert len(names) == len(set(names))


def _resolved(document: Any, schema: Any) -> Any:
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _resolved(document, document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])
        return {key: _resolved(document, value) for key, value in schema.items()}
    return [_resolved(document, one) for one in schema] if isinstance(schema, list) else schema
