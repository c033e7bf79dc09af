"""The agent as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from fastapi import FastAPI
from starlette.types import ASGIApp

from ..api import Problem
from ..version import __version__
from .access import Buckets
from .following import Followers
from .guard import Guard
from .problems import add_problems
from .reply import Keys, aside
from .routes import arrivals, checkpoints, events, jobs, logs, migrations, modules, neighbours, node, page
from .service import Agent

__all__ = ["app_of", "guarded"]

_TEXT: Final = """Runs WebAssembly programs that can be frozen at any moment and go on elsewhere.

Every request but `health`, `ready` and this document needs a token, `Authorization: Bearer TOKEN`. Errors are problem
details (RFC 9457), their `type` names a class of `wasmckpt.errors`."""
_TAGS: Final = [
    {"name": "modules", "description": "Programs, named by the SHA-256 of their bytes."},
    {"name": "jobs", "description": "Programs that run, ran, or are put away."},
    {"name": "logs", "description": "What they write."},
    {"name": "checkpoints", "description": "Their images."},
    {"name": "migrations", "description": "Moves between agents."},
    {"name": "neighbours", "description": "Agents that look after each other's jobs."},
    {"name": "events", "description": "What happens to them."},
    {"name": "node", "description": "The machine."},
]


def app_of(agent: Agent) -> FastAPI:
    """The application of an open agent, which is closed when the application ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        app.state.followers.over.set()
        await aside(agent.close)

    app = FastAPI(
        title="wasmckpt agent", version=__version__, description=_TEXT, openapi_tags=_TAGS, lifespan=lifespan,
        openapi_url="/v1/openapi.json", docs_url=None, redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.agent, app.state.keys = agent, Keys(agent.database)
    app.state.followers = Followers(agent.config.most_followers)
    app.state.requests = Buckets(agent.config.requests_per_second, agent.config.burst)
    app.state.failures = Buckets(agent.config.failures_per_second, 10.0)
    add_problems(app)
    for routes in (modules, jobs, logs, checkpoints, migrations, arrivals, neighbours, events, node):
        app.include_router(routes.router, prefix="/v1")
    app.include_router(page.router)
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schemas = document.setdefault("components", {}).setdefault("schemas", {})
        schemas.setdefault("Problem", Problem.model_json_schema(ref_template="#/components/schemas/{model}"))
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def guarded(app: FastAPI, agent: Agent) -> ASGIApp:
    """With the limits of bodies and time around it."""
    return Guard(app, agent.config)
