"""Checkpoints before calls: the guest stands at a call of the host, and nothing of it is done until an image is taken.

The call's function is wrapped. It first asks the process that looks after the program, by a call of our own that may be
repeated (`UserCalls.ask`), and waits; the checkpoint interrupts that wait as it interrupts any, so what the image holds
is this call, to be made again. Whoever goes on from the image begins with it.

Each call is asked for once, however often it is begun:

- it is begun again in this life when a later checkpoint interrupts it (a read that waits): what was asked stays asked
  until the call is over;
- it is begun again in the next life, from an image that holds it: that image *is* the one before the call, so the
  first call of a life that begins with a repeated one is not asked for. (Else ``--stop`` would never get past it.)
  After a move there is no such image, and it is asked for again; whoever has answered already says so (`callbacks`).

A function of the user's that calls an export cannot be frozen before it has returned, so calls that are made meanwhile
are not asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from ..errors import UsageError
from ..formats import Image, StopKind
from ..host import GuestMemory, HostFunction, RepeatCall
from ..wasm.module import Import
from .program import Program

__all__ = ["BeforeCalls", "named"]

Name = tuple[str, str]
_SHOWN: Final = 12


class _Stage(Enum):
    """Of the call that the guest stands in."""

    NONE = "none"
    ASKING = "asking"
    ASKED = "asked"


def named(names: Sequence[str], imports: Sequence[Import]) -> dict[Name, int]:
    """The imported functions that ``names`` mean, each ``name`` or ``module.name``, with the index of the first name
    that means it. Raises `UsageError` for one that means none."""
    found: dict[Name, int] = {}
    for index, text in enumerate(names):
        meant = [(i.module, i.name) for i in imports if text in (i.name, f"{i.module}.{i.name}")]
        if not meant:
            known = sorted(f"{i.module}.{i.name}" for i in imports)
            more = ", ..." if len(known) > _SHOWN else ""
            raise UsageError(f"the module imports no function {text!r} that could be called",
                             hint=f"its imports: {', '.join(known[:_SHOWN]) or 'none'}{more}")
        for name in meant:
            found.setdefault(name, index)
    return found


class BeforeCalls:
    """Of one program.

    Args:
        functions: by import, the number that ``ask`` is given.
        ask: waits until somebody has taken a checkpoint, or could not; raises `RepeatCall`.
        image: that the program begins with, unless it only moves.

    Attributes:
        program: the present one.
    """

    def __init__(
        self, functions: Mapping[Name, int], ask: Callable[[GuestMemory, int], object], image: Image | None,
    ) -> None:
        self._functions, self._ask = functions, ask
        self._stage = _Stage.NONE
        self._begins_with_a_call = image is not None and any(f.point.kind is StopKind.REPEAT for f in image.frames)
        self._program: Program | None = None

    @property
    def program(self) -> Program | None:
        """The present one."""
        return self._program

    @program.setter
    def program(self, program: Program | None) -> None:
        if self._program is not None:
            self._begins_with_a_call = False  # it was frozen in place: what it has asked for is known here
        self._program = program

    def wrap(self, functions: Mapping[Name, HostFunction]) -> dict[Name, HostFunction]:
        """The same functions, asking first where that is wanted."""
        return {
            name: function._replace(call=self._asking(function.call, self._functions[name]))
            if name in self._functions else function for name, function in functions.items()
        }

    def _asking(self, call: Callable[..., Any], number: int) -> Callable[..., Any]:
        def asking(memory: GuestMemory, *arguments: int) -> Any:
            program = self._program
            assert program is not None
            if program.in_host > 1:
                return call(memory, *arguments)
            if self._stage is _Stage.NONE:
                again = self._begins_with_a_call and program.host_calls == 1
                self._stage = _Stage.ASKED if again else _Stage.ASKING
            if self._stage is _Stage.ASKING:
                self._ask(memory, number)
                self._stage = _Stage.ASKED
            try:
                result = call(memory, *arguments)
            except RepeatCall:
                raise
            except BaseException:
                self._stage = _Stage.NONE
                raise
            self._stage = _Stage.NONE
            return result

        return asking
