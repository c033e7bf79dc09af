"""How a host call leaves the guest other than by returning."""

from __future__ import annotations

__all__ = ["ProcExit", "RepeatCall"]


class ProcExit(Exception):
    """The guest called ``proc_exit``.

    Attributes:
        code: exit code, 0 to 2**32 - 1.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class RepeatCall(Exception):
    """A call that may block was interrupted for a checkpoint before any effect: nothing consumed, nothing done.

    The guest is frozen AT this call and repeats it with the same arguments after resume (or at once, in place).
    """
