"""Images of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from ...api import CheckpointInfo, MemoryMap, Page
from ..access import Here, Who
from ..modules import Upload
from ..problems import described
from ..records import cursor_of
from ..reply import Cursor, Key, Keys, Limit, aside
from .jobs import JobName, Write
from .uploads import OCTETS, binary_answer, binary_body, receive

router = APIRouter(prefix="/jobs/{job}/checkpoints", tags=["checkpoints"])
Number = Annotated[int, Path(ge=1, lt=1 << 62, description="Of the image.", examples=[3])]
_READ: Final = [Who("jobs:read")]
_PIECE: Final = 1 << 18


@router.post("", status_code=201, responses=described(404, 409))
async def take_checkpoint(job: JobName, request: Request, agent: Here, who: Write, key: Key = None) -> Any:
    """Take an image of a job, which goes on. Of a hibernated one it is there already."""
    keys: Keys = request.app.state.keys
    fingerprint = keys.fingerprint(request, None)

    def take() -> Any:
        if (before := keys.answered(key, who, fingerprint)) is not None:
            return before
        keys.begin(key, who, fingerprint)
        try:
            taken = agent.take(job)
        except BaseException:
            keys.failed(key, who)
            raise
        keys.done(key, who, 201, taken.model_dump_json())
        return taken

    return await aside(take)


take_checkpoint.__annotations__["return"] = CheckpointInfo  # what OpenAPI shows


@router.get("", responses=described(404), dependencies=_READ)
def list_checkpoints(job: JobName, agent: Here, limit: Limit = 100, cursor: Cursor = None) -> Page[CheckpointInfo]:
    """Images of a job, oldest first."""
    behind = cursor_of(cursor)
    found = [info for info in agent.checkpoints(job) if info.number > behind]
    return Page[CheckpointInfo](items=found[:limit], next=str(found[limit - 1].number) if len(found) > limit else None)


@router.post("/upload", status_code=201, responses=described(404, 413),
             openapi_extra=binary_body(OCTETS, "The image's file, as `wasmckpt` writes it."),
             dependencies=[Who("jobs:write")])
async def upload_checkpoint(job: JobName, request: Request, agent: Here) -> CheckpointInfo:
    """Add an image that was taken elsewhere, of the same module, to those of a job; `restore` lets it go on from
    there."""
    await aside(agent.records.get, job)
    upload = await aside(lambda: Upload(agent.config.state / "incoming", agent.config.most_image))
    with upload:
        await receive(request, upload)
        await aside(upload.finish)
        return await aside(agent.add_image, job, upload.path)


@router.get("/{number}", responses=described(404), dependencies=_READ)
def get_checkpoint(job: JobName, number: Number, agent: Here) -> CheckpointInfo:
    """What is known of an image."""
    return agent.checkpoint(job, number)


@router.get("/{number}/map", responses=described(404), dependencies=_READ)
def get_map(job: JobName, number: Number, agent: Here) -> list[MemoryMap]:
    """What an image holds of the program's memories, small enough to be drawn."""
    return agent.memory_map(job, number)


@router.get("/{number}/image", response_class=StreamingResponse, dependencies=_READ,
            responses=binary_answer(OCTETS, "The image, as a file that rests on no other.") | described(404))
async def download_checkpoint(
    job: JobName, number: Number, agent: Here,
    carry_module: Annotated[bool, Query(description="Put the module inside: the file alone is enough.")] = False,
) -> Response:
    """An image as a file: `wasmckpt restore` and `wasmckpt inspect` take it."""
    info, descriptor = await aside(lambda: agent.export(job, number, carry_module=carry_module))
    return StreamingResponse(_pieces(descriptor), media_type=OCTETS, headers={
        "Content-Length": str(os.fstat(descriptor).st_size),
        "Content-Disposition": f'attachment; filename="{info.job}-{info.number}.wckpt"',
    })


def _pieces(descriptor: int) -> Iterator[bytes]:
    with open(descriptor, "rb", buffering=0) as file:
        while piece := file.read(_PIECE):
            yield piece
