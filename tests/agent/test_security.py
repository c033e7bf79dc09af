"""Who may do what; what nobody may; and that nothing secret is told."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from wasmckpt.agent.config import read_config
from wasmckpt.agent.database import Database
from wasmckpt.agent.roots import Roots
from wasmckpt.agent.tokens import SCOPES, Tokens
from wasmckpt.api import JobSpec, State
from wasmckpt.client import AgentClient, Where
from wasmckpt.errors import (
    CheckpointError,
    Conflict,
    HostStateError,
    NotAuthenticated,
    NotFound,
    NotPermitted,
    RetryLater,
    TooManyRequests,
    UsageError,
)

from ..cli.programs import exits, wat
from .conftest import PATIENCE, Agents, Serve, Served, ended, new_job, output
from .guests import TALK

NEEDS = {
    ("get", "/v1/modules"): "modules:read", ("post", "/v1/modules"): "modules:write",
    ("put", "/v1/modules/{sha256}"): "modules:write", ("get", "/v1/modules/{sha256}"): "modules:read",
    ("get", "/v1/modules/{sha256}/content"): "modules:read", ("delete", "/v1/modules/{sha256}"): "modules:write",
    ("delete", "/v1/modules/{sha256}/lessons"): "modules:write",
    ("get", "/v1/jobs"): "jobs:read", ("post", "/v1/jobs"): "jobs:write", ("get", "/v1/jobs/{job}"): "jobs:read",
    ("delete", "/v1/jobs/{job}"): "jobs:write", ("post", "/v1/jobs/{job}/stop"): "jobs:write",
    ("post", "/v1/jobs/{job}/start"): "jobs:write", ("post", "/v1/jobs/{job}/restore"): "jobs:write",
    ("post", "/v1/jobs/{job}/hibernate"): "jobs:write", ("post", "/v1/jobs/{job}/wake"): "jobs:write",
    ("post", "/v1/jobs/{job}/signal"): "jobs:write", ("get", "/v1/jobs/{job}/logs/{stream}"): "jobs:read",
    ("post", "/v1/jobs/{job}/checkpoints"): "jobs:write", ("get", "/v1/jobs/{job}/checkpoints"): "jobs:read",
    ("post", "/v1/jobs/{job}/checkpoints/upload"): "jobs:write",
    ("get", "/v1/jobs/{job}/checkpoints/{number}"): "jobs:read",
    ("get", "/v1/jobs/{job}/checkpoints/{number}/image"): "jobs:read",
    ("get", "/v1/jobs/{job}/checkpoints/{number}/map"): "jobs:read", ("get", "/v1/events"): "jobs:read",
    ("get", "/v1/node"): "node:read", ("get", "/v1/metrics"): "node:read", ("post", "/v1/node/drain"): "node:admin",
    ("post", "/v1/node/undrain"): "node:admin",
    ("post", "/v1/jobs/{job}/migrations"): "jobs:write", ("get", "/v1/jobs/{job}/migrations"): "jobs:read",
    ("get", "/v1/jobs/{job}/migrations/{migration}"): "jobs:read",
    ("get", "/v1/jobs/{job}/migrations/{migration}/events"): "jobs:read",
    ("post", "/v1/jobs/{job}/migrations/{migration}/cancel"): "jobs:write",
    ("post", "/v1/arrivals"): "jobs:write modules:write",
    ("post", "/v1/neighbours/{replica}/take-over"): "jobs:write",
    ("get", "/v1/jobs/{job}/neighbours"): "jobs:read", ("get", "/v1/neighbours"): "jobs:read",
    **{("post", f"/v1/neighbours/{path}"): "jobs:write modules:write" for path in (
        "ask", "leases", "{job}", "{job}/vote", "{job}/over", "{job}/output", "{job}/image")},
    ("post", "/v1/arrivals/{job}/outcome"): "jobs:write modules:write",
}
"""Every operation, and the scopes that it needs."""
OPEN = {("get", "/v1/health"), ("get", "/v1/ready")}
BODIES: dict[str, Any] = {"/v1/jobs": {"module": "0" * 64}, "/v1/jobs/{job}/signal": {"signal": "wake"},
                          "/v1/jobs/{job}/migrations": {"to": "http://127.0.0.1:1", "runtime": "wasm3"},
                          "/v1/arrivals/{job}/outcome": {"token": 1, "outcome": "abort"},
                          "/v1/neighbours/ask": {"spec": {"module": "0" * 64}, "you": "http://a", "others": []},
                          "/v1/neighbours/leases": {"site": "http://a", "voter": "x", "terms": {}},
                          "/v1/neighbours/{job}/over": {"term": 1}}


@contextlib.contextmanager
def _tokens(served: Served) -> Iterator[Tokens]:
    """Those of an agent, as the command line has them, which is another process than the agent too."""
    database = Database(served.state / "agent.sqlite")
    try:
        yield Tokens(database)
    finally:
        database.close()


@pytest.mark.slow
def test_every_operation_asks_for_its_scope(serve: Serve, tmp_path: Path) -> None:
    """Without a token, with a wrong one, with one for everything else: refused. With one for that alone: not."""
    settings = tmp_path / "agent.toml"
    settings.write_text("requests_per_second = 10000\nburst = 10000\nfailures_per_second = 10000\n")
    served = serve("--config", str(settings))
    with _tokens(served) as made:
        without = {scope: made.create("not-" + scope.replace(":", "-"), set(SCOPES) - {scope}) for scope in SCOPES}
        tokens = {need: made.create(re.sub("[: ]", "-", need), need.split()) for need in {*NEEDS.values()}}
    with httpx.Client(base_url=served.url, trust_env=False, timeout=PATIENCE) as client:
        document = client.get("/v1/openapi.json").json()
        found = {(method, path) for path, methods in document["paths"].items() for method in methods}
        assert found == set(NEEDS) | OPEN
        for (method, path), need in NEEDS.items():
            url = path.format(job="0" * 32, stream="stdout", number=1, sha256="0" * 64, migration="1", replica="j1")
            body = {"json": BODIES[path]} if path in BODIES else {}

            def ask(token: str | None, method: str = method, url: str = url, body: Any = body) -> int:
                headers = {} if token is None else {"Authorization": f"Bearer {token}"}
                return client.request(method, url, headers=headers, **body).status_code

            assert ask(None) == 401, url
            assert ask(tokens[need][:-1] + ("A" if tokens[need][-1] != "A" else "B")) == 401, url
            assert ask("nonsense") == 401, url
            for scope in need.split():
                assert ask(without[scope]) == 403, url
            assert ask(tokens[need]) not in (401, 403), url
        answer = client.get("/v1/jobs", headers={"Authorization": "Basic abc"})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="wasmckpt"')


@pytest.mark.slow
def test_tokens_end(served: Served) -> None:
    """By time, and when they are revoked; a name is used once; scopes that there are not are refused."""
    with _tokens(served) as tokens:
        short, gone = tokens.create("short", ["jobs:read"], 0.3), tokens.create("gone", ["jobs:read"])
        with AgentClient(Where(served.url, gone)) as agent:
            agent.jobs()
            tokens.revoke("gone")
            with pytest.raises(NotAuthenticated):
                agent.jobs()
        time.sleep(0.3)
        with AgentClient(Where(served.url, short)) as agent, pytest.raises(NotAuthenticated):
            agent.jobs()
        with pytest.raises(Conflict):
            tokens.create("short", ["jobs:read"])
        for name, scopes in (("other", ["everything"]), ("other", []), ("", ["jobs:read"]), ("a b", ["jobs:read"])):
            with pytest.raises(UsageError):
                tokens.create(name, scopes)
        with pytest.raises(NotFound):
            tokens.revoke("gone")


@pytest.mark.slow
def test_too_many_requests(serve: Serve, tmp_path: Path) -> None:
    """Of one token; and of guesses, from one address. Both are told when to come again, and may then."""
    settings = tmp_path / "agent.toml"
    settings.write_text("requests_per_second = 2\nburst = 3\nfailures_per_second = 2\n")
    served = serve("--config", str(settings))
    agent = served.client()
    _asked_often(agent, TooManyRequests)
    time.sleep(1)
    agent.jobs()
    with AgentClient(Where(served.url, "wck_0000000000000000_" + "A" * 43)) as guesser:
        _asked_often(guesser, TooManyRequests)
    time.sleep(1)
    agent.jobs()


def _asked_often(agent: AgentClient, error: type[CheckpointError]) -> None:
    """Until that is the answer; fails if it never is."""
    for _ in range(200):
        try:
            agent.jobs()
        except error:
            return
        except NotAuthenticated:
            pass
    pytest.fail("nobody is told to wait")


@pytest.mark.parametrize(("listen", "fine"), [
    ({}, True), ({"host": "::1"}, True), ({"host": "localhost"}, True), ({"host": "127.8.8.8"}, True),
    ({"host": "0.0.0.0"}, False), ({"host": "::"}, False), ({"host": "192.0.2.1"}, False), ({"host": "example"}, False),
    ({"host": "0.0.0.0", "tls_certificate": "c", "tls_key": "k"}, True), ({"tls_certificate": "c"}, False),
    ({"tls_clients": "c"}, False),
])
def test_nothing_but_loopback_without_tls(listen: dict[str, Any], fine: bool) -> None:
    if fine:
        read_config(None, listen)
    else:
        with pytest.raises(UsageError):
            read_config(None, listen)


def test_settings_that_are_wrong(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    for text in ("most_live = 0", "most_live = 'x'", "unknown = 1", "= 3", "\0"):
        path.write_text(text)
        with pytest.raises(UsageError):
            read_config(path, {})
    path.write_text("most_live = 3\nport = 1")
    assert read_config(path, {"port": 2}).model_dump(include={"most_live", "port"}) == {"most_live": 3, "port": 2}
    with pytest.raises(CheckpointError):
        read_config(tmp_path / "absent", {})


@pytest.mark.slow
def test_tls_and_certificates_of_clients(serve: Serve, tmp_path: Path) -> None:
    """Its certificate is checked; who has to show one and has none is not heard."""
    ours, key = _certificate(tmp_path, "agent")
    theirs, their_key = _certificate(tmp_path, "client")
    served = serve("--tls-certificate", str(ours), "--tls-key", str(key), "--tls-clients", str(theirs))
    assert served.url.startswith("https://")
    with AgentClient(Where(served.url, served.token, ours, theirs, their_key)) as agent:
        assert agent.ready().ready
        assert agent.jobs().items == []
    for where in (Where(served.url, served.token, ours), Where(served.url, served.token, theirs, theirs, their_key),
                  Where(served.url.replace("https", "http"), served.token)):
        with AgentClient(where) as agent, pytest.raises(RetryLater):
            agent.jobs()
    with pytest.raises(AssertionError, match="certificate cannot be used"):
        serve("--tls-certificate", str(key), "--tls-key", str(ours))


def _certificate(folder: Path, name: str, address: str = "127.0.0.1") -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True).sign(key, hashes.SHA256())
    )
    certificate, private = folder / f"{name}.pem", folder / f"{name}.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                          serialization.NoEncryption()))
    return certificate, private


def test_folders_only_below_roots(tmp_path: Path) -> None:
    """Whatever the path says, and whoever swaps a symlink in; each refusal has a twin that is granted."""
    root, outside = tmp_path / "root", tmp_path / "rootless"
    (root / "a" / "b").mkdir(parents=True)
    outside.mkdir()
    (root / "inside").symlink_to(root / "a")
    (root / "escape").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "file").write_text("")
    roots = Roots([root])
    for path in (root, root / "a", root / "a" / "b", root / "inside" / "b", root / "a" / ".." / "a"):
        descriptor = roots.open(str(path))
        assert os.path.realpath(f"/proc/self/fd/{descriptor}") == os.path.realpath(path)
        os.close(descriptor)
    for refused in (outside, root / "escape", root / "up", root / "..", root / "a" / ".." / ".." / "rootless", "/", "a",
                    "/proc/self/root", root / "up" / "rootless"):
        with pytest.raises(NotPermitted):
            roots.open(str(refused))
    for absent in (root / "absent", root / "file", root / "file" / "x"):
        with pytest.raises(HostStateError):
            roots.open(str(absent))
    with pytest.raises(NotPermitted):
        Roots([]).open(str(root))


def test_a_folder_that_is_swapped_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between resolving and opening somebody puts a symlink in its place: it is not gone through."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "a").mkdir(parents=True)
    outside.mkdir()
    roots, real = Roots([root]), os.path.realpath

    def swap(path: Any) -> str:
        found: str = real(path)
        if str(path).endswith("/a") and not (root / "a").is_symlink():
            (root / "a").rmdir()
            (root / "a").symlink_to(outside)
        return found

    monkeypatch.setattr("os.path.realpath", swap)
    with pytest.raises(HostStateError):
        roots.open(str(root / "a"))


@pytest.mark.slow
def test_a_program_has_its_folders_and_no_others(agents: Agents, tmp_path: Path) -> None:
    """It gets what was granted when it started, also if another folder has the name now."""
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    text = """(module
      (import "wasi_snapshot_preview1" "path_create_directory" (func $mkdir (param i32 i32 i32) (result i32)))
      (memory (export "memory") 1) (data (i32.const 0) "made../x")
      (func (export "run") (param i32 i32) (result i32)
        (call $mkdir (i32.const 3) (local.get 0) (local.get 1))))"""
    agent = agents(roots=(root,))
    for at, length, result in ((0, 4, 0), (4, 4, 63), (0, 4, 20)):
        job = new_job(agent, wat(text), invoke="run", arguments=[str(at), str(length)],
                      preopens=[{"host": str(root / "a"), "guest": "/"}])
        assert ended(agent, job).results == [str(result)]
    assert [path.name for path in (root / "a").iterdir()] == ["made"]
    with pytest.raises(NotPermitted):
        new_job(agent, wat(text), preopens=[{"host": str(tmp_path), "guest": "/"}])
    kept = new_job(agent, wat(text), start=False, invoke="run", arguments=["0", "4"],
                   preopens=[{"host": str(root / "a"), "guest": "/"}])
    (root / "a" / "made").rmdir()
    (root / "a").rmdir()
    (root / "a").symlink_to(tmp_path)
    agent.jobs.begin_again(kept)
    found = ended(agent, kept)
    assert found.state is State.FAILED
    assert found.problem is not None
    assert found.problem.type.endswith(":NotPermitted")
    assert not (tmp_path / "made").exists()


@pytest.mark.slow
def test_no_secrets_are_told(serve: Serve) -> None:
    """Neither in what the agent says, nor in its log, nor in its database: of tokens a digest is kept."""
    served = serve()
    agent = served.client()
    job = agent.create(JobSpec(module=agent.upload(wat(exits(0))).sha256, env={"PASSWORD": "hunter2-7f3a"}))
    agent.wait(job.name, timeout=PATIENCE)
    assert job.spec.env_names == ["PASSWORD"]
    told = agent.job(job.name).model_dump_json() + "".join(
        event.model_dump_json() for event in agent.events(limit=1000)) + agent.metrics() + served.log()
    wrong = Where(served.url, served.token[:-2] + "xx")
    with AgentClient(wrong) as guesser, pytest.raises(NotAuthenticated) as refused:
        guesser.jobs()
    told += str(refused.value) + repr(Where(served.url, served.token))
    secret = served.token.rpartition("_")[2]
    assert "hunter2" not in told
    assert secret not in told
    assert served.stop() == 0
    stored = b"".join(path.read_bytes() for path in served.state.glob("agent.sqlite*"))
    assert secret.encode() not in stored
    modes = {path.name: path.stat().st_mode & 0o777 for path in served.state.iterdir() if path.is_file()}
    assert all(mode & 0o077 == 0 for name, mode in modes.items() if name != "agent.json"), modes


@pytest.mark.slow
def test_output_is_not_for_others_of_the_machine(agents: Agents) -> None:
    agent = agents()
    job = new_job(agent, TALK)
    record = ended(agent, job)
    assert output(agent, job)
    folder = agent.config.state / "logs" / record.id
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "stdout").stat().st_mode & 0o777 == 0o600
