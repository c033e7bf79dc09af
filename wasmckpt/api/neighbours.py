"""Agents that look after a job of another one: what they and its owner say to each other, and what people see of it."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from .base import Document, Name
from .jobs import JobSpec

__all__ = [
    "Address", "Candidacy", "Entrusted", "Inquiry", "Leases", "Neighbour", "Over", "Promise", "Promises", "Replica",
    "Vote", "Willing",
]

_URL: Final = r"^https?://[^/?#\s@]+$"
_MOST: Final = 10_000
Address = Annotated[str, Field(max_length=2000, pattern=_URL, examples=["https://b.example:7420"])]
AgentId = Annotated[str, Field(max_length=64, examples=["0" * 32], description="Of an agent.")]
JobKey = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Term = Annotated[int, Field(ge=0, lt=1 << 62, examples=[7], description="Fencing token of the job's owner: its epoch.")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Voters = Annotated[dict[Address, AgentId], Field(
    min_length=1, max_length=16, description="Address and id of each agent that has a vote, the owner's own too.",
    examples=[{"https://b.example:7420": "0" * 32}])]


class Inquiry(Document):
    """A job that a neighbour is to look after, before it is made."""

    spec: JobSpec
    you: Address = Field(description="The neighbour that is asked.")
    others: list[Address] = Field(max_length=16, description="All who will have a vote beside it: it has to know them.")


class Willing(Document):
    """It would, or does."""

    id: AgentId


class Over(Document):
    """A job is over."""

    site: Address = Field(description="At which it has ended.")
    term: Term


class Entrusted(Document):
    """A job that its owner entrusts to a neighbour, before it keeps anything of it."""

    name: Name
    spec: JobSpec
    runtime: str = Field(max_length=64)
    site: Address = Field(description="The owner.")
    term: Term
    voters: Voters
    duration: float = Field(ge=0.5, le=3600, description="Seconds that each promise lasts.")


class Leases(Document):
    """An owner asks a neighbour for its promises not to vote for anybody else for a while."""

    site: Address = Field(description="The owner.")
    voter: AgentId
    terms: dict[JobKey, Term] = Field(max_length=_MOST)


class Promise(Document):
    """What a neighbour has of a job, and whether it has promised.

    ``number`` of the image that it keeps is 0 for a job's beginning; null: it keeps none.
    """

    granted: bool
    term: Term = Field(description="The highest that it knows.")
    site: str = Field(description="For whom it has voted in that.")
    owned: bool = Field(description="Whether that one is known to have been elected.")
    version: Count | None = Field(description="Term of the owner who took the image that it keeps.")
    number: Count | None
    sha256: str = Field("", max_length=64, description="Of that image, as it is kept there.")
    position: Count = Field(0, description="How many images that one rests on.")
    stdout: Count = 0
    stderr: Count = 0


class Promises(Document):
    """One for each job that it knows."""

    promises: dict[JobKey, Promise]


class Candidacy(Document):
    """A neighbour asks another one for its vote."""

    site: Address = Field(description="Who wants to take the job over.")
    voter: AgentId
    term: Term
    trial: bool = Field(False, description="Say only whether it would vote so.")
    newest: tuple[Count, Count] = Field(description="Term and number of the image from which it would go on.",
                                        examples=[[7, 12]])


class Vote(Document):
    """Given or not."""

    granted: bool
    term: Term


class Neighbour(Document):
    """An agent that looks after a job, as the job's owner sees it."""

    url: Address
    id: AgentId
    number: int | None = Field(description="Of the newest image that it keeps; 0: it would begin anew; null: none.")
    heard: float | None = Field(description="Seconds since it last answered.")
    problem: str = Field(description="Why it does not keep what it should; empty: it does.")


class Replica(Document):
    """A job of another agent that this one looks after."""

    job: str
    name: str
    site: str = Field(description="Its owner, as far as is known.")
    term: Term
    number: int | None = Field(description="Of the image that is kept here; 0: none yet; null: it was lost.")
    voters: dict[str, str]
    standby: bool = Field(description="Whether a worker stands by with it.")
    promised: float = Field(description="Seconds for which this one has promised not to take it over; may be negative.")
