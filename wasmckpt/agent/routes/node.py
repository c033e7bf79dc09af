"""The node, and whether it is well."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from ...api import Health, NodeInfo, Problem, Readiness, problem_of
from ...api.base import Document
from ..access import Here, Who
from ..metrics import CONTENT_TYPE, metrics
from ..problems import described
from ..reply import aside

router = APIRouter(tags=["node"])


class DrainOrder(Document):
    """Where the jobs of a drain are to go."""

    to: str | None = Field(None, max_length=2000, pattern=r"^https?://[^/?#\s@]+/?$", examples=["https://b.example:7420"],
                           description="Address of another agent; absent: as this one's settings say (`drain_to`); if "
                                       "they do not, the jobs stay here, as images.")
    token: str | None = Field(None, max_length=200, description="Of that agent; absent: as the settings say.")


class DrainInfo(Document):
    """What became of a drain, by names of jobs."""

    frozen: list[str] = Field(description="Are images here now.")
    failed: dict[str, Problem] = Field(description="Could not be frozen, and why.")
    moved: dict[str, str] = Field(description="Go on at another agent, and its address.")
    stayed: dict[str, Problem] = Field(description="Of those frozen: why they could not move.")


class UndrainInfo(Document):
    """What became of the end of a drain."""

    woken: int


_NOT_READY: Final[dict[int | str, dict[str, Any]]] = {503: {"model": Readiness, "description": "It takes no jobs."}}


@router.get("/health")
async def health() -> Health:
    """Whether the agent answers at all. Needs no token."""
    return Health(status="ok")


@router.get("/ready", responses=_NOT_READY)
def ready(agent: Here) -> Any:
    """Whether the agent takes jobs. Needs no token."""
    why = agent.ready()
    return JSONResponse(Readiness(ready=not why, why=why).model_dump(), 503 if why else 200)


ready.__annotations__["return"] = Readiness


@router.get("/node", responses=described(), dependencies=[Who("node:read")])
def get_node(agent: Here) -> NodeInfo:
    """The machine as it is now, and the runtimes that it has."""
    return agent.node.info(agent.jobs)


@router.post("/node/drain", responses=described(), dependencies=[Who("node:admin")])
async def drain(agent: Here, order: DrainOrder | None = None) -> DrainInfo:
    """Start nothing more, freeze all jobs to the store, and let them go on at another agent if there is one to go to.
    What stays goes on after `undrain`, or when this agent starts again."""
    order = order or DrainOrder()
    done = await aside(agent.drain, order.to, order.token)
    return DrainInfo(
        frozen=done.frozen, failed={name: problem_of(error) for name, error in done.failed.items()}, moved=done.moved,
        stayed={name: problem_of(error) for name, error in done.stayed.items()},
    )


@router.post("/node/undrain", responses=described(), dependencies=[Who("node:admin")])
async def undrain(agent: Here) -> UndrainInfo:
    """Take jobs again, and let those go on that were frozen."""
    return UndrainInfo(woken=await aside(agent.jobs.undrain))


@router.get("/metrics", response_class=Response, dependencies=[Who("node:read")], responses={
    200: {"description": "In Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}},
    **described()})
def get_metrics(agent: Here) -> Response:
    """For Prometheus."""
    return Response(metrics(agent), media_type=CONTENT_TYPE)
