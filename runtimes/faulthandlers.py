"""Python's faulthandler and runtimes whose traps are signals: whoever is enabled last gets SIGSEGV."""

from __future__ import annotations

import faulthandler

from wasmckpt.errors import UsageError

__all__ = ["SignalOwner"]


class SignalOwner:
    """A runtime that takes SIGSEGV for itself; make this object when it does so. A faulthandler that is enabled later
    takes the signal away, and the next trap kills the process."""

    def __init__(self, runtime: str) -> None:
        self._runtime = runtime
        self._enabled_before = faulthandler.is_enabled()

    def check(self) -> None:
        """Raises `UsageError` if a faulthandler was enabled since."""
        if faulthandler.is_enabled() and not self._enabled_before:
            raise UsageError("faulthandler was enabled after the runtime was loaded: it takes the signal of traps away",
                             hint="enable it first, or not at all", runtime=self._runtime)
