"""Errors on the wire: problem details (RFC 9457), made of our error classes and turned into them again.

``type`` names the class, ``status`` is the class's; so a client raises what the agent's code raised, with the same
message, hint and exit code. There is one table, `wasmckpt.errors`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field, JsonValue

from .. import errors
from ..errors import CheckpointError
from .base import Document

__all__ = ["Problem", "problem_of", "raised_by"]

_URN: Final = "urn:wasmckpt:error:"


class Problem(Document):
    """What went wrong, where, and what to do about it."""

    type: str = Field(description="Names the kind of error.", examples=[_URN + "NotFound"])
    title: str = Field(description="Of all errors of that kind.", examples=["Not found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What went wrong.", examples=["there is no such job"])
    hint: str = Field("", description="What to do about it.", examples=["GET /v1/jobs lists them"])
    fields: dict[str, JsonValue] = Field({}, description="Where.", examples=[{"job": "j7"}])
    exit_code: int = Field(70, description="Of the command line for this error.", examples=[64])


def problem_of(error: CheckpointError) -> Problem:
    """An error as a document."""
    name = next((cls.__name__ for cls in type(error).__mro__ if cls.__name__ in (*errors.__all__,)), "CheckpointError")
    cls: type[CheckpointError] = getattr(errors, name)
    return Problem(
        type=_URN + name, title=_title(name), status=cls.http_status, detail=error.what, hint=error.hint,
        fields={key: _plain(value) for key, value in error.fields.items()}, exit_code=cls.exit_code,
    )


def raised_by(status: int, document: object) -> CheckpointError:
    """The error that a document stands for. Never raises: what is no such document becomes one by its status."""
    if isinstance(document, Mapping):
        found: Mapping[str, Any] = document
        name = str(found.get("type", "")).removeprefix(_URN)
        cls = getattr(errors, name, None) if name in errors.__all__ else None
        fields = found.get("fields", {})
        if cls is not None and isinstance(fields, Mapping):
            error: CheckpointError = cls(str(found.get("detail", "")), hint=str(found.get("hint", "")))
            error.fields = {str(key): value for key, value in fields.items()}
            return error
    what = f"the agent answered with status {status}"
    return errors.RetryLater(what) if status in (429, 502, 503, 504) else CheckpointError(what)


def _title(name: str) -> str:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    return words[:1].upper() + words[1:]


def _plain(value: object) -> JsonValue:
    return value if isinstance(value, (bool, int, str)) else str(value)
