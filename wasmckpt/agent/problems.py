"""Whatever goes wrong is answered as problem details (RFC 9457), by the one table of errors."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from .. import errors
from ..api import Problem, problem_of
from ..errors import CheckpointError, NotAuthenticated, RetryLater, UsageError

__all__ = ["MEDIA_TYPE", "add_problems", "described", "response_of"]

MEDIA_TYPE: Final = "application/problem+json"
_MOST_SHOWN: Final = 5
_WORDS: Final[Mapping[int, type[CheckpointError]]] = {
    404: errors.NotFound, 401: errors.NotAuthenticated, 403: errors.NotPermitted, 413: errors.TooLarge,
    429: errors.TooManyRequests, 409: errors.Conflict, 412: errors.PreconditionFailed, 503: errors.RetryLater,
    422: errors.UsageError, 400: errors.UsageError, 500: errors.CheckpointError, 502: errors.WorkerDied,
    501: errors.RuntimeMissing, 507: errors.StorageError,
}


def response_of(problem: Problem) -> JSONResponse:
    """An answer that says it."""
    headers = {}
    if problem.status == NotAuthenticated.http_status:
        headers["WWW-Authenticate"] = 'Bearer realm="wasmckpt"'
    if problem.status in (429, RetryLater.http_status):
        headers["Retry-After"] = "1"
    return JSONResponse(problem.model_dump(), status_code=problem.status, headers=headers, media_type=MEDIA_TYPE)


def described(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For OpenAPI: these answers, beside those that everything has."""
    found: dict[int | str, dict[str, Any]] = {}
    for status in sorted({*statuses, 400, 401, 403, 422, 429, 500, 503, 507}):
        cls = _WORDS[status]
        means = (cls.__doc__ or "").splitlines()[0]
        example = problem_of(cls("what went wrong", hint="what to do about it")).model_dump() | {"status": status}
        found[status] = {
            "description": means, "content": {MEDIA_TYPE: {
                "schema": {"$ref": "#/components/schemas/Problem"}, "example": example,
            }},
        }
    return found


def add_problems(app: FastAPI) -> None:
    """Answer all errors so."""

    @app.exception_handler(CheckpointError)
    async def ours(request: Request, error: CheckpointError) -> JSONResponse:
        problem = problem_of(error)
        # The status of a trap is for a program's own end, which no request is.
        return response_of(problem if problem.status >= 400 else problem.model_copy(update={"status": 500}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        found = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()[:_MOST_SHOWN]]
        problem = problem_of(UsageError("the request is not as it should be: " + "; ".join(found),
                                        hint="GET /v1/openapi.json describes all requests"))
        return response_of(problem.model_copy(update={"status": 422}))

    @app.exception_handler(HTTPException)
    async def of_the_framework(request: Request, error: HTTPException) -> JSONResponse:
        cls = _WORDS.get(error.status_code, UsageError if error.status_code < 500 else CheckpointError)
        what = {404: "there is nothing at that address", 405: "that address has no such method"}.get(
            error.status_code, str(error.detail) or HTTPStatus(error.status_code).phrase)
        problem = problem_of(cls(what, hint="GET /v1/openapi.json describes all requests"))
        answer = response_of(problem.model_copy(update={"status": error.status_code}))
        answer.headers.update(error.headers or {})
        return answer

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return response_of(problem_of(CheckpointError(
            f"internal error: {type(error).__name__}", hint="the agent's own log has the details")))
