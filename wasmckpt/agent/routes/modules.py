"""Programs: uploaded once, named by their SHA-256."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import FileResponse

from ...api import ModuleInfo, Page
from ...api.base import SHA256
from ..access import Here, Who
from ..problems import described
from ..reply import Cursor, IfNoneMatch, Limit, aside, matches, not_modified
from .uploads import binary_answer, binary_body, receive

router = APIRouter(prefix="/modules", tags=["modules"])
Digest = Annotated[str, Path(pattern=SHA256, description="SHA-256 of the module.", examples=["d3d1bc89" + "0" * 56])]
WASM: Final = "application/wasm"
_BODY: Final = binary_body(WASM, "The module's bytes.")
_EITHER: Final[dict[int | str, dict[str, Any]]] = {200: {"model": ModuleInfo, "description": "It was here already."}}


async def _add(request: Request, response: Response, agent: Here, expected: str | None) -> ModuleInfo:
    with await aside(agent.modules.upload) as upload:
        await receive(request, upload)
        info, new = await aside(agent.modules.add, upload, expected)
    response.status_code = 201 if new else 200
    response.headers.update({"ETag": f'"{info.sha256}"', "Location": f"/v1/modules/{info.sha256}"})
    return info


@router.put("/{sha256}", status_code=201, responses=_EITHER | described(413, 422), openapi_extra=_BODY,
            dependencies=[Who("modules:write")])
async def put_module(sha256: Digest, request: Request, response: Response, agent: Here) -> ModuleInfo:
    """Upload a module, whose digest is known. It is checked before it is kept; the same one again changes nothing."""
    return await _add(request, response, agent, sha256)


@router.post("", status_code=201, responses=_EITHER | described(413, 422), openapi_extra=_BODY,
             dependencies=[Who("modules:write")])
async def post_module(request: Request, response: Response, agent: Here) -> ModuleInfo:
    """Upload a module; the answer says its digest."""
    return await _add(request, response, agent, None)


@router.get("", responses=described(), dependencies=[Who("modules:read")])
def list_modules(agent: Here, limit: Limit = 100, cursor: Cursor = None) -> Page[ModuleInfo]:
    """Modules that are here, by digest."""
    return agent.modules.page(cursor, limit)


@router.get("/{sha256}", responses=described(404), dependencies=[Who("modules:read")])
def get_module(sha256: Digest, response: Response, agent: Here) -> ModuleInfo:
    """What is known of a module."""
    info = agent.modules.get(sha256)
    response.headers["ETag"] = f'"{info.sha256}:{info.jobs}:{len(info.avoided)}"'
    return info


@router.get("/{sha256}/content", response_class=FileResponse, dependencies=[Who("modules:read")],
            responses=binary_answer(WASM, "The module's bytes.") | described(404))
def get_module_content(sha256: Digest, agent: Here, if_none_match: IfNoneMatch = None) -> Response:
    """A module's bytes."""
    etag = f'"{sha256}"'
    path = agent.modules.path(sha256)
    if matches(if_none_match, etag):
        return not_modified(etag)
    return FileResponse(path, media_type=WASM, headers={"ETag": etag})


@router.delete("/{sha256}", status_code=204, responses=described(404, 409), dependencies=[Who("modules:write")])
def delete_module(sha256: Digest, agent: Here) -> None:
    """Forget a module of which there is no job."""
    agent.modules.delete(sha256)


@router.delete("/{sha256}/lessons", status_code=204, responses=described(404), dependencies=[Who("modules:write")])
def delete_lessons(sha256: Digest, agent: Here) -> None:
    """Forget which runtimes have crashed on a module: its new jobs begin where they are told to."""
    agent.jobs.healing.forget(agent.modules.get(sha256).sha256)
