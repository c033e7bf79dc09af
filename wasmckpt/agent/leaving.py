"""Jobs of a drain go to another agent: as an image, which it is given, and goes on from.

A job has been frozen to the store when this begins, and goes on here after the drain if it does not get away. The
other agent is given its module, asked to make the job (stopped; by a key, so that it is one job however often it is
asked), and given its image. Up to here nothing has happened that counts. Then this agent writes down that the job is
not to be woken here any more, and only then the other one is told to let it go on: so there are never two. If it cannot
be known whether it was told, the other one is asked; and if that cannot be done either, the job stays frozen here, and
says so: a person decides. Its output up to here stays here; there it begins where it ended.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import httpx

from ..api import State, raised_by
from ..errors import CheckpointError, Conflict, RetryLater, StorageError, UsageError
from ..faults import point
from .config import AgentConfig, is_loopback
from .records import Record

if TYPE_CHECKING:
    from .service import Agent

__all__ = ["Leaving"]

_TIMEOUT: Final = httpx.Timeout(30.0, read=300.0)
_PIECE: Final = 1 << 18
_LEFT: Final = frozenset({State.PENDING, State.STARTING, State.RUNNING, State.FREEZING, State.HIBERNATED, State.EXITED})
"""States there that a job comes to by being let go on."""


class Leaving:
    """A way to another agent. A context manager.

    Raises:
        UsageError, StorageError: there is none: no token, files that cannot be read, or not by TLS.
    """

    def __init__(self, agent: Agent, to: str, token: str | None) -> None:
        self._agent, self.to = agent, to.rstrip("/")
        secret = token or _token(agent.config)
        if not secret.isascii() or not secret.isprintable():
            raise UsageError("that is no token", url=self.to)
        secure = self.to.startswith("https:")
        if not secure and not is_loopback(httpx.URL(self.to).host):
            raise UsageError("jobs go to another machine by https only", url=self.to)
        self._client = httpx.Client(
            base_url=self.to, headers={"Authorization": f"Bearer {secret}"}, timeout=_TIMEOUT, trust_env=False,
            verify=_context(agent.config) if secure else True,
        )

    def __enter__(self) -> Leaving:
        return self

    def __exit__(self, *raised: object) -> None:
        self._client.close()

    def take(self, name: str) -> None:
        """A job that has been frozen goes on there.

        Raises:
            RetryLater: the other one does not answer. Conflict: the job has changed meanwhile. Else what that one says;
            then it is still frozen here.
        """
        agent = self._agent
        with agent.jobs.changing(name) as record:
            if record.state is not State.HIBERNATED or not record.wakes:
                raise Conflict("the job is not frozen for the drain", job=record.name, state=record.state.value)
            there = self._prepare(record)
            leaving = f"leaving to {self.to}"
            agent.records.update(record.id, ("leaving", f"it is to go on at {self.to}", {"to": self.to}),
                                 wakes=0, wake_at=None, why=leaving)
            point("agent.leaving")
            try:
                self._ask("POST", f"/v1/jobs/{there}/restore", json={})
            except RetryLater:
                if not self._has_left(there, record):
                    raise
            except CheckpointError:
                agent.records.update(record.id, wakes=1, why="drain")  # it has said no
                raise
            point("agent.left")
            agent.records.move(record.id, State.STOPPED, "moved", text=f"it goes on at {self.to}",
                               data={"to": self.to, "job": there})

    def _prepare(self, record: Record) -> str:
        """Gives the id of the job there, which has all that it takes, and is stopped."""
        agent = self._agent
        if not self._has_module(record.module):
            with open(agent.modules.path(record.module), "rb") as file:
                self._ask("PUT", f"/v1/modules/{record.module}", content=iter(lambda: file.read(_PIECE), b""))
        spec = record.spec.model_copy(update={"name": record.name, "runtime": record.runtime, "start": False})
        made = self._ask("POST", "/v1/jobs", json=spec.model_dump(mode="json"),
                         headers={"Idempotency-Key": f"drain-{record.id}-{record.revision}"})
        there = str(made.json()["id"])
        try:
            _, descriptor = agent.export(record.id, None, carry_module=False)
            size = os.fstat(descriptor).st_size
            self._ask("POST", f"/v1/jobs/{there}/checkpoints/upload", content=_pieces(descriptor),
                      headers={"Content-Length": str(size)})
        except CheckpointError:
            self._forget(there)
            raise
        return there

    def _has_module(self, sha256: str) -> bool:
        return self._send("GET", f"/v1/modules/{sha256}").status_code == 200

    def _has_left(self, there: str, record: Record) -> bool:
        """Whether it goes on there, although the answer was lost. Raises `RetryLater`: nor does it answer now."""
        try:
            state = State(self._ask("GET", f"/v1/jobs/{there}").json()["state"])
        except RetryLater as problem:
            problem.hint = f"look whether {record.name} goes on at {self.to}; if not, wake it here"
            raise
        if state not in _LEFT:
            self._agent.records.update(record.id, wakes=1, why="drain")
        return state in _LEFT

    def _forget(self, there: str) -> None:
        try:
            self._send("DELETE", f"/v1/jobs/{there}", params={"force": "true"})
        except RetryLater:
            pass  # it is stopped there, and harms nobody

    def _ask(self, method: str, path: str, **given: Any) -> httpx.Response:
        answer = self._send(method, path, **given)
        if answer.is_success:
            return answer
        try:
            document: object = json.loads(answer.content)
        except ValueError:
            document = None
        raise raised_by(answer.status_code, document)

    def _send(self, method: str, path: str, **given: Any) -> httpx.Response:
        try:
            return self._client.request(method, path, **given)
        except httpx.HTTPError as reason:
            raise RetryLater(f"the other agent does not answer: {str(reason) or type(reason).__name__}",
                             url=self.to) from None


def _token(config: AgentConfig) -> str:
    if config.drain_token_file is None:
        raise UsageError("a drain to another agent needs a token of that one", setting="drain_token_file")
    try:
        return config.drain_token_file.read_text().strip()
    except (OSError, UnicodeDecodeError) as reason:
        raise StorageError(f"the token cannot be read: {reason}", path=str(config.drain_token_file)) from None


def _context(config: AgentConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=None if config.drain_ca is None else str(config.drain_ca))
        if config.tls_certificate is not None:
            context.load_cert_chain(config.tls_certificate, config.tls_key)
    except (OSError, ssl.SSLError) as reason:
        raise StorageError(f"a certificate cannot be used: {reason}", path=str(config.drain_ca or "")) from None
    return context


def _pieces(descriptor: int) -> Iterator[bytes]:
    with open(descriptor, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece
