"""Errors, grouped by what the reader of the message can do about them.

One root, `CheckpointError`; each class below it names a remedy and carries a stable exit code (those of BSD's
``sysexits.h``, so that a guest's own exit code is not mistaken for ours) and an HTTP status. Fields say where; the
message is built from them, so that a program need not parse prose. Libraries raise, only the CLI exits.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "CheckpointError", "Conflict", "GuestTrap", "HostFunctionError", "HostStateError", "ImageError", "InvalidModule",
    "JobEnded", "NotAuthenticated", "NotFound", "NotPermitted", "NotSupported", "PreconditionFailed", "RetryLater",
    "RuntimeMissing", "StorageError", "TooLarge", "TooManyRequests", "UsageError", "WorkerDied",
]


class CheckpointError(Exception):
    """Root of all errors of this package.

    Args:
        what: what went wrong, one sentence without a full stop.
        hint: what to do about it.
        fields: where: ``offset`` (bytes), ``function`` (index), ``field``, ``runtime``, ``need``, ``path`` ...
    """

    exit_code: ClassVar[int] = 70
    http_status: ClassVar[int] = 500

    def __init__(self, what: str, *, hint: str = "", **fields: object) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.fields: dict[str, object] = {k: v for k, v in fields.items() if v is not None}

    def __str__(self) -> str:
        where = ", ".join(f"{name} {_show(name, value)}" for name, value in self.fields.items())
        text = f"{self.what} ({where})" if where else self.what
        return f"{text}; {self.hint}" if self.hint else text

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.what, self.hint, self.fields)


def _rebuild(cls: type[CheckpointError], what: str, hint: str, fields: dict[str, object]) -> CheckpointError:
    return cls(what, hint=hint, **fields)


def _show(name: str, value: object) -> str:
    return hex(value) if name == "offset" and isinstance(value, int) else str(value)


class UsageError(CheckpointError):
    """The command or call was wrong: change it."""

    exit_code = 64
    http_status = 400


class NotFound(UsageError):
    """An agent has nothing of that name: look what there is."""

    http_status = 404


class Conflict(UsageError):
    """An agent cannot do that in the state that the thing is in: bring it into another one first."""

    http_status = 409


class PreconditionFailed(Conflict):
    """It has changed since it was looked at: look again."""

    http_status = 412


class TooLarge(UsageError):
    """More bytes than an agent takes: send less, or have its limit raised."""

    http_status = 413


class NotAuthenticated(UsageError):
    """An agent does not know who asks: give a token that is valid."""

    exit_code = 77
    http_status = 401


class NotPermitted(UsageError):
    """The token is not for that: use another one."""

    exit_code = 77
    http_status = 403


class InvalidModule(CheckpointError):
    """The bytes are not a valid WebAssembly module: use another module."""

    exit_code = 65
    http_status = 422


class ImageError(CheckpointError):
    """The image is damaged, foreign, hostile or of another module: use another image."""

    exit_code = 65
    http_status = 422


class HostStateError(CheckpointError):
    """The world outside differs from what the image recorded (a file, a preopened folder): mend it or say so."""

    exit_code = 66
    http_status = 409


class HostFunctionError(CheckpointError):
    """A function that the library's user gave to the program raised, or broke its signature: mend the function."""

    exit_code = 70
    http_status = 500


class NotSupported(CheckpointError):
    """The module needs what the tool or the runtime cannot do: change the runtime or the module."""

    exit_code = 69
    http_status = 422


class RuntimeMissing(CheckpointError):
    """The runtime is not installed here: install it."""

    exit_code = 69
    http_status = 501


class WorkerDied(CheckpointError):
    """The worker process ended without a result (a crash of the runtime, a kill): restart from an image."""

    exit_code = 70
    http_status = 502


class StorageError(CheckpointError):
    """An image could not be written or read: free space, change the folder."""

    exit_code = 73
    http_status = 507


class RetryLater(CheckpointError):
    """Not now (a freeze is under way, the guest is in a host call): try again."""

    exit_code = 75
    http_status = 503


class TooManyRequests(RetryLater):
    """More than an agent takes at a time, or in a time: wait a little."""

    http_status = 429


class JobEnded(CheckpointError):
    """The program has already ended, there is nothing to freeze."""

    exit_code = 75
    http_status = 409


class GuestTrap(CheckpointError):
    """The guest program trapped; its own fault, the same as without us.

    ``callers`` are the functions that called the one that trapped, innermost first, as far as the runtime tells.
    """

    exit_code = 134
    http_status = 200
    callers: tuple[int, ...] = ()
