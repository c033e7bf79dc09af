"""What an agent may do, and where."""

from __future__ import annotations

import ipaddress
import os
import tomllib
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import StorageError, UsageError

__all__ = ["AgentConfig", "default_state", "read_config"]

DEFAULT_PORT: Final = 7420


def default_state() -> Path:
    """Where an agent keeps what it has if nobody says otherwise."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "wasmckpt" / "agent"


class PeerConfig(BaseModel):
    """Another agent: with what token, and by which certificates, it is asked."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token: str | None = None
    token_file: Path | None = None
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def secret(self) -> str | None:
        """The token. Raises `StorageError`: its file cannot be read."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as reason:
            raise StorageError(f"the token cannot be read: {reason}", path=str(self.token_file)) from reason


class LeaveConfig(BaseModel):
    """When jobs leave this machine by themselves (`wasmckpt.agent.pressure`); what is not set is no reason."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    battery_percent: float | None = Field(None, ge=0, le=100)
    """Less than that, and not plugged in."""
    temperature: float | None = None
    """Of the hottest sensor, in degrees Celsius."""
    load: float | None = Field(None, gt=0)
    """Of the last minute, for each processor."""
    memory_percent: float | None = Field(None, ge=0, le=100)
    """Available."""
    lasting: float = Field(30.0, ge=0)
    """Seconds that it has to be so."""
    pause: float = Field(60.0, ge=0)
    """Seconds between one job that leaves and the next one."""


class AgentConfig(BaseModel):
    """All settings. Sizes are in bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    state: Path = Field(default_factory=default_state)
    """Folder of all that the agent keeps; only its owner can look into it."""
    host: str = "127.0.0.1"
    port: int = Field(DEFAULT_PORT, ge=0, le=65535)
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_clients: Path | None = None
    """Certificates that sign those of clients: each client has to show one."""
    roots: tuple[Path, ...] = ()
    """Folders below which jobs may have folders."""

    peers: dict[str, PeerConfig] = {}
    """Other agents, by address, to which jobs may move without a token in the request."""
    drain_to: str | None = Field(None, pattern=r"^https?://[^/?#\s@]+/?$")
    """Address of another agent, to which the jobs of a drain go."""
    drain_token_file: Path | None = None
    """Of a token of that agent, for ``modules:write``, ``jobs:write`` and ``jobs:read``."""
    drain_ca: Path | None = None
    """Certificate that signs that agent's. This one shows its own, if it has one."""

    leave: LeaveConfig = LeaveConfig()

    advertise: str | None = Field(None, pattern=r"^https?://[^/?#\s@]+$")
    """Address at which the ``peers`` reach this agent; None: the one on which it listens."""
    lease: float = Field(10.0, ge=0.5, le=3600)
    """Of jobs with neighbours: seconds that pass before one of these takes a job over, at least."""
    replicas: Path | None = None
    """Folder for images of other agents' jobs; None: in memory."""
    most_replicas: int = Field(1 << 30, ge=0)
    """Bytes that those may take together, about."""
    standbys: int = Field(0, ge=0)
    """Other agents' jobs for which a worker stands by, with the program's memory in place."""

    most_jobs: int = Field(10_000, ge=1)
    most_live: int = Field(200, ge=1)
    """Jobs that have a process at a time; others wait."""
    warm: tuple[str, ...] = ()
    """Runtimes that processes stand by for from the beginning; for others from their first job on."""
    most_memory: int | None = None
    """Sum of the memory limits of the live jobs."""
    default_memory: int = Field(1 << 30, ge=128 << 20)
    """Of a job that names no limit."""
    sandbox: Literal["off", "available", "required"] = "available"
    """Of workers: "required" runs no program where one of its walls cannot be put up."""
    worker_user: str | None = None
    """Name of another user, who runs them; only root's agent can have one."""
    nice: int = Field(10, ge=0, le=19)
    """How far the programs' own threads step back behind the agent, which starts, freezes and lists them."""
    default_open_files: int = Field(1024, ge=64)
    most_module: int = 256 << 20
    most_image: int = 1 << 30
    most_body: int = 1 << 20
    """Of all other requests."""
    most_events: int = Field(100_000, ge=100)
    """That are kept."""
    requests_per_second: float = 100.0
    """Of one token, in the long run; `burst` at once."""
    burst: int = 200
    failures_per_second: float = 1.0
    """Requests of one address without a valid token."""
    most_followers: int = 200
    most_connections: int = 1000
    body_pause: float = 20.0
    """That a client may pause in the middle of a body."""
    head_time: float = 10.0
    """That a client may take for the head of a request, or for the TLS handshake."""
    starting_at_once: int = Field(4, ge=1)
    freezing_at_once: int = Field(4, ge=1)
    freeze_time: float = 30.0
    """That a program gets to reach a safepoint."""
    stop_time: float = 120.0
    """That freezing all jobs may take when the agent stops; what is left then goes on from its newest image."""
    tidy_every: float = 30.0


def read_config(path: Path | None, given: dict[str, Any]) -> AgentConfig:
    """Settings of a TOML file, if there is one, and those that are ``given``, which win.

    Raises:
        StorageError: it cannot be read. UsageError: it is not TOML, or a setting is wrong.
    """
    found: dict[str, Any] = {}
    if path is not None:
        try:
            found = tomllib.loads(path.read_text())
        except OSError as reason:
            raise StorageError(f"the settings cannot be read: {reason.strerror}", path=str(path)) from reason
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as reason:
            raise UsageError(f"the settings are not TOML: {reason}", path=str(path)) from reason
    try:
        config = AgentConfig(**(found | given))
    except ValidationError as problem:
        first = problem.errors()[0]
        raise UsageError(f"a setting is wrong: {first['msg']}", setting=".".join(map(str, first["loc"]))) from None
    _check_exposure(config)
    return config


def _check_exposure(config: AgentConfig) -> None:
    """Nothing but loopback without TLS; tokens are asked for everywhere."""
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise UsageError("TLS needs a certificate and its key", hint="--tls-certificate FILE --tls-key FILE")
    if config.tls_clients is not None and config.tls_certificate is None:
        raise UsageError("certificates of clients are a matter of TLS", hint="--tls-certificate FILE --tls-key FILE")
    if config.tls_certificate is None and not is_loopback(config.host):
        raise UsageError("an agent listens on another address than loopback with TLS only", host=config.host,
                         hint="--tls-certificate FILE --tls-key FILE, or --listen 127.0.0.1:7420")


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine's own. A name other than localhost is none: it may change."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
