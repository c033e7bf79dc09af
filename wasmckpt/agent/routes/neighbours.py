"""Jobs of other agents that this one looks after: between agents, but for the list."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Path, Query, Request

from ...api import (
    Candidacy,
    Entrusted,
    Inquiry,
    JobInfo,
    Leases,
    Neighbour,
    Over,
    Promise,
    Promises,
    Replica,
    Vote,
    Willing,
)
from ...errors import NotFound
from ..access import Here, Who
from ..problems import described
from ..reply import aside
from .jobs import JobName
from .uploads import OCTETS, binary_body, receive

router = APIRouter(tags=["neighbours"])
_BETWEEN: Final = [Who("jobs:write", "modules:write")]
JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of the job.", examples=["0" * 32])]
Site = Annotated[str, Query(max_length=2000, description="Address of the job's owner.")]
Count = Annotated[int, Query(ge=0, lt=1 << 62)]


@router.get("/jobs/{job}/neighbours", responses=described(404), dependencies=[Who("jobs:read")])
async def list_neighbours(job: JobName, agent: Here) -> list[Neighbour]:
    """Agents that look after a job, and how far they are behind it."""
    return await aside(lambda: agent.neighbours.infos(agent.records.get(job)))


@router.get("/neighbours", responses=described(), dependencies=[Who("jobs:read")])
async def list_replicas(agent: Here) -> list[Replica]:
    """Jobs of other agents that this one looks after."""
    return await aside(agent.neighbours.replicas)


@router.post("/neighbours/{replica}/take-over", responses=described(404, 409), dependencies=[Who("jobs:write")])
async def take_over(
    replica: Annotated[str, Path(max_length=64, description="Id or name of the job.", examples=["j1"])], agent: Here,
) -> JobInfo:
    """Let a job of another agent go on here although nobody has voted for that: a person knows that the other one is
    gone. If it is not, both run until they hear of each other; then the other one lets go."""
    return await aside(lambda: agent.info(agent.neighbours.force(replica)))


@router.post("/neighbours/ask", responses=described(404, 409, 413, 503), dependencies=_BETWEEN)
async def ask_neighbour(asked: Inquiry, agent: Here) -> Willing:
    """Whether this agent would look after a job; refused with why not."""
    await aside(agent.neighbours.would, asked)
    return Willing(id=agent.node.id)


@router.post("/neighbours/leases", responses=described(409, 413), dependencies=_BETWEEN)
async def renew_leases(asked: Leases, agent: Here) -> Promises:
    """Promise a job's owner not to vote for anybody else for a while. Jobs that are not known here are left out."""
    return await aside(agent.replicas.leases, asked)


@router.post("/neighbours/{job}", status_code=200, responses=described(404, 409, 413), dependencies=_BETWEEN)
async def entrust_job(job: JobId, given: Entrusted, agent: Here) -> Willing:
    """Look after a job from now on. Its module has to be here."""
    await aside(agent.modules.get, given.spec.module)
    await aside(agent.replicas.entrust, job, given)
    return Willing(id=agent.node.id)


@router.post("/neighbours/{job}/vote", responses=described(404, 409, 413), dependencies=_BETWEEN)
async def vote_for(job: JobId, asked: Candidacy, agent: Here) -> Vote:
    """Vote for a new owner of a job, or not."""
    return await aside(agent.replicas.vote, job, asked)


@router.post("/neighbours/{job}/over", responses=described(409, 413), dependencies=_BETWEEN)
async def end_replica(job: JobId, told: Over, agent: Here) -> Over:
    """A job has ended, or is deleted: nothing but the vote is kept of it."""
    await aside(agent.replicas.over, job, told.term, told.site)
    return told


@router.post("/neighbours/{job}/output", responses=described(404, 409, 413),
             openapi_extra=binary_body(OCTETS, "What the job has written."), dependencies=_BETWEEN)
async def keep_output(
    job: JobId, request: Request, agent: Here, site: Site, term: Count, offset: Count, begin: Count,
    stream: Annotated[str, Query(pattern="^(stdout|stderr)$")],
) -> dict[str, int]:
    """More of what a job has written, up to an image that follows."""
    data = await request.body()
    return {"end": await aside(agent.replicas.append, job, site, term, stream, begin, offset, data)}


@router.post("/neighbours/{job}/image", responses=described(404, 409, 413),
             openapi_extra=binary_body(OCTETS, "The image's file, or its difference to the one that is here."),
             dependencies=_BETWEEN)
async def keep_image(
    job: JobId, request: Request, agent: Here, site: Site, term: Count, number: Annotated[int, Query(ge=1, lt=1 << 62)],
    stdout_from: Count = 0, stderr_from: Count = 0,
) -> Promise:
    """A newer image of a job."""
    kept = await aside(agent.replicas.get, job)
    if kept is None:
        raise NotFound("this agent does not look after that job", job=job)
    module = await aside(agent.modules.read, kept.spec.module)
    upload = await aside(agent.replicas.upload)
    with upload:
        await receive(request, upload)
        return await aside(agent.replicas.keep, job, site, term, number,
                           {"stdout": stdout_from, "stderr": stderr_from}, upload, module)
