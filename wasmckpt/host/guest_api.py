"""Module ``wasmckpt``: what a guest that knows of us may import; ``wasmckpt.h`` beside this file is its C side.

``checkpoint_here() -> i32``            a good moment for a checkpoint: waits for it if somebody wants one. 0: goes on
                                        in the same life; 1: in a restored one; -1: it failed, the program goes on.
``lives() -> i32``                      how often the program was restored from an image so far.
``discard(start: i32, length: i32)``    the whole 4 KiB pages inside are not worth keeping: images leave them out, and a
                                        restored program reads them as zero. Nothing changes in the present life.
``keep(start: i32, length: i32)``       takes that back for all pages that the range touches.

The last two return an i32: 0, or 21 (``EFAULT``) for a range outside the memory.

Cooperating is never needed, and it need not be known at build time whether we are there: a WebAssembly import cannot be
weak, but WASI's ``fd_advise`` of a descriptor that cannot exist is everywhere the errno ``EBADF`` (8), and here one of
the functions above, chosen by ``advice`` (`BY_ADVICE`), with start and length as its two numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from wasmckpt.wasm.values import I32

from .abi import Errno
from .calls import HostFunction
from .memory import GuestMemory
from .page_set import PageSet
from .plain import Fields

__all__ = ["BY_ADVICE", "DOOR", "MODULE_NAME", "GuestApi", "header_path"]

MODULE_NAME: Final = "wasmckpt"
DOOR: Final = 0x77634B50
"""The descriptor number that stands for us: no runtime hands out two thousand million descriptors."""
BY_ADVICE: Final = ("checkpoint_here", "lives", "discard", "keep")
_FAULT: Final = int(Errno.FAULT)
_FAILED: Final = 0xFFFF_FFFF


def header_path() -> Path:
    """The folder of ``wasmckpt.h``: give it to the C compiler with ``-I``."""
    return Path(__file__).parent


class GuestApi:
    """The functions for one guest.

    Args:
        ask: waits until whoever looks after the program has taken a checkpoint, and says whether he could; raises
            `RepeatCall` if it is interrupted. None: nobody wants any.
        state: of the image that the guest was restored from.

    Raises:
        ImageError: the state is damaged.

    Attributes:
        functions: name -> function, as in `Wasi`.
        discarded: pages that images leave out.
    """

    def __init__(
        self, ask: Callable[[GuestMemory], bool] | None, state: Mapping[str, object] | None = None
    ) -> None:
        self._ask = ask
        self._waiting = False
        self._resumed = False
        self._lives = 0
        self.discarded = PageSet()
        if state is not None:
            fields = Fields(state, "host.guest_api")
            self._resumed = fields.boolean("waiting")
            self._lives = fields.integer("lives", 0x7FFF_FFFE) + 1
            try:
                self.discarded = PageSet.from_plain(fields.items("discarded"))
            except ValueError:
                raise fields.bad("discarded", "not a list of pages") from None
        self.functions: dict[str, HostFunction] = {
            "checkpoint_here": HostFunction((), (I32,), self._checkpoint_here),
            "lives": HostFunction((), (I32,), lambda _memory: self._lives),
            "discard": HostFunction((I32, I32), (I32,), self._discard),
            "keep": HostFunction((I32, I32), (I32,), self._keep),
        }

    def _checkpoint_here(self, memory: GuestMemory) -> int:
        if self._resumed:
            self._resumed = False
            return 1
        if self._ask is None:
            return 0
        self._waiting = True  # still true in every image that is taken until there is an answer
        good = self._ask(memory)
        self._waiting = False
        return 0 if good else _FAILED

    def _discard(self, memory: GuestMemory, start: int, length: int) -> int:
        if start + length > memory.size:
            return _FAULT
        self.discarded = self.discarded.with_pages(-(-start // 4096), (start + length) // 4096)
        return 0

    def _keep(self, memory: GuestMemory, start: int, length: int) -> int:
        if start + length > memory.size:
            return _FAULT
        if length:
            self.discarded = self.discarded.without_pages(start // 4096, -(-(start + length) // 4096))
        return 0

    def through_the_door(self, fd_advise: HostFunction) -> HostFunction:
        """WASI's ``fd_advise``, which also leads here."""
        theirs = fd_advise.call

        def call(memory: GuestMemory, fd: int, start: int, length: int, advice: int) -> int:
            if fd != DOOR or advice >= len(BY_ADVICE):
                return theirs(memory, fd, start, length, advice)  # type: ignore[no-any-return]
            function = self.functions[BY_ADVICE[advice]]
            return function.call(memory, *(start, length)[: len(function.params)])  # type: ignore[no-any-return]

        return fd_advise._replace(call=call)

    def state(self) -> dict[str, object]:
        """Plain data; makes no call of the system."""
        return {"waiting": self._waiting, "lives": self._lives, "discarded": self.discarded.to_plain()}
