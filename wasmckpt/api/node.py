"""The machine that an agent is on."""

from __future__ import annotations

from pydantic import Field

from .base import Document

__all__ = ["Battery", "Health", "NodeInfo", "Readiness", "RuntimeInfo", "Temperature"]


class Battery(Document):
    """Its charge."""

    percent: float
    plugged_in: bool | None
    seconds_left: int | None = Field(description="null: not known, or without end.")


class Temperature(Document):
    """Of one sensor, in degrees Celsius."""

    sensor: str
    celsius: float
    high: float | None
    critical: float | None


class RuntimeInfo(Document):
    """A runtime, and what it can do here."""

    name: str = Field(examples=["wasmtime"])
    version: str | None = Field(description="null: not usable here.")
    problem: str = Field(description="Why not, and what to do.")
    features: list[str] = Field(description="Parts of WebAssembly beyond the first version.")
    max_memory_bytes: int | None = Field(description="Of one program.")


class NodeInfo(Document):
    """A node as it is now."""

    id: str = Field(description="Of this agent and no other.")
    name: str = Field(description="The machine's.")
    version: str = Field(description="Of wasmckpt.")
    machine: str = Field(examples=["x86_64"])
    system: str = Field(examples=["Linux 6.1"])
    cpus: int
    cpu_percent: float = Field(description="Since the last time that somebody asked, of all processors.")
    load: list[float] = Field(description="Of the last 1, 5 and 15 minutes.")
    memory_total: int
    memory_available: int
    disk_total: int = Field(description="Of the file system that the agent's state is on.")
    disk_free: int
    battery: Battery | None = Field(description="null: it has none.")
    temperatures: list[Temperature]
    boot: float = Field(description="Seconds since 1970.")
    started: float = Field(description="The agent; seconds since 1970.")
    draining: bool = Field(description="Whether no job is started here.")
    jobs: dict[str, int] = Field(description="How many are in each state.")
    most_live: int = Field(description="Jobs that have a process at a time, at most.")
    peers: list[str] = Field(description="Addresses of other agents that it knows.")
    warm: list[str] = Field(description="Runtimes whose workers are forked from a process that stands by.")
    sandbox: dict[str, str] = Field(
        description="What stands between programs and the machine; each begins with yes or no.",
        examples=[{"sandbox": "yes, what is available", "landlock": "yes, version 7", "seccomp": "yes"}])
    runtimes: list[RuntimeInfo]


class Health(Document):
    """That the agent answers at all."""

    status: str = Field(examples=["ok"])


class Readiness(Document):
    """Whether the agent takes jobs, and if not, why."""

    ready: bool
    why: list[str] = Field(examples=[[]])
