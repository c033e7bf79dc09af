"""Module ``wasmckpt``: what a guest that knows of us may import. Cooperating is never needed."""

from __future__ import annotations

from collections.abc import Callable

from wasmckpt.wasm.values import I32

from .calls import HostFunction
from .memory import GuestMemory
from .signals import RepeatCall

__all__ = ["MODULE_NAME", "GuestApi"]

MODULE_NAME = "wasmckpt"


class GuestApi:
    """Functions of module ``wasmckpt``.

    ``checkpoint_here() -> i32``: this is a good moment for a checkpoint. Returns 0 when the program goes on in the same
    life, 1 when it goes on in a restored one.

    A checkpoint freezes the guest AT this call (it raises `RepeatCall`), so the call is made once more: at once if the
    source goes on, after the resume in a restored guest. That second time it returns.

    Args:
        request: called at the first time; asks for a checkpoint and says whether there will be one. It must not wait.
        resumed: whether this guest was restored from an image that was frozen at this call.

    Attributes:
        functions: as in `Wasi`.
    """

    def __init__(self, request: Callable[[], bool], *, resumed: bool = False) -> None:
        self._request = request
        self._resumed = resumed
        self._asked = False
        self.functions = {"checkpoint_here": HostFunction((), (I32,), self._checkpoint_here)}

    def _checkpoint_here(self, _memory: GuestMemory) -> int:
        if self._resumed:
            self._resumed = False
            return 1
        if self._asked:
            self._asked = False
            return 0
        if self._request():
            self._asked = True
            raise RepeatCall
        return 0

    def waiting(self) -> bool:
        """Whether the guest stands at ``checkpoint_here`` now; part of an image's state."""
        return self._asked
