"""Moves of jobs from one agent to another."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, JsonValue

from .base import Document
from .problem import Problem

__all__ = ["ArrivalOutcome", "Migrate", "MigrationInfo"]


class Migrate(Document):
    """Where a running job is to go on."""

    to: str = Field(max_length=2000, pattern=r"^https?://[^/?#\s@]+/?$", examples=["https://b.example:7420"],
                    description="The other agent's address.")
    runtime: str = Field(max_length=64, examples=["wamr"], description="Which runtime runs it there.")
    token: str | None = Field(
        None, max_length=200, description="Of the other agent, for `jobs:write` and `modules:write`; absent: the one "
        "in this agent's settings (`peers`). Not shown again.")
    downtime: float = Field(0.05, gt=0, le=3600, description="Seconds that it may stand still, if that can be had.")
    most_downtime: float = Field(2.0, gt=0, le=3600, description="If it cannot; beyond that it stays.")
    force: bool = Field(False, description="Move it even if it has to stand still for longer.")


class MigrationInfo(Document):
    """A move, as this agent sees it."""

    id: str
    job: str = Field(description="Id of the job.")
    direction: Literal["out", "in"]
    peer: str = Field(description="Address of the other agent; of an arrival, its id.")
    runtime: str
    token: int = Field(description="The fencing token of the hand-over: the job's epoch.")
    state: str = Field(description="`moving`; `telling` (it has gone, and the other agent has not yet said that "
                       "it knows), `moved`; `calling-off`, `kept`; of an arrival `prepared`, `here`, `off`.")
    progress: dict[str, JsonValue] = Field(description="How far it is: step, round, pages, bytes, rates, downtime.")
    problem: Problem | None = Field(description="Why it was called off.")
    started: float = Field(description="Seconds since 1970.")
    changed: float = Field(description="Seconds since 1970.")


class ArrivalOutcome(Document):
    """What the owner of a job has decided about a move of it."""

    token: int = Field(ge=1, lt=1 << 62, examples=[7], description="Of the hand-over.")
    outcome: Literal["commit", "abort"]
