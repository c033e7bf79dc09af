"""Everything that a program imports in a worker, as one `Host`: WASI, the user's functions, the guest API."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..formats import Image, MemoryState
from ..formats.pages import runs_of_pages
from ..host import GUEST_API, MODULE_NAME, GuestApi, GuestMemory, Mark, PageSet, UserCalls, Wasi
from ..lazydata import dataclass, replace
from ..runtimes import HostFunction
from ..wasm.module import Import
from .assignment import BEFORE, Assignment
from .before_calls import BeforeCalls, named
from .program import Host, Program

if TYPE_CHECKING:  # most programs do not ask for them
    from ..host.journal.recorder import Journal
    from ..wasm.shadow_stack import ShadowStack

__all__ = ["GuestHost"]

_STATE = "guest_api"
"""Key of the guest API's part in an image's host state; absent where the module cannot use it."""


@dataclass(slots=True)
class _Mark:
    wasi: Mark
    api: dict[str, object]
    journal: dict[str, object] | None

    def release(self) -> None:
        self.wasi.release()


class GuestHost:
    """The host of one program.

    Args:
        task: grants and functions. image: what the program is restored from; ``moves``: only for a move.
        send: gives a call of a user's function to the user's process. imports: the module's functions.
        journal: of the calls.

    Raises:
        HostStateError, ImageError: see `Wasi.restore`. UsageError: a named function cannot be imported, or a function's
            place is taken, or there is to be a checkpoint before calls of what is no import.

    Attributes:
        calls: calls of users' functions that are under way.
        stack: whose dead part images leave out; None: they keep it.
    """

    def __init__(
        self, task: Assignment, image: Image | None, send: Callable[[Mapping[str, object]], None], *,
        imports: Sequence[Import] = (), moves: bool = False, journal: Journal | None = None,
    ) -> None:
        for module, name in task.functions:
            if module in (MODULE_NAME, GUEST_API):
                raise UsageError("this import is answered by wasmckpt itself", function=f"{module}.{name}")
        self.stack: ShadowStack | None = None
        self.calls = UserCalls(task.functions, send, self._call_export)
        self.journal = journal
        state = None if image is None else image.host
        if journal is not None and journal.state is not None:
            state = journal.state
        api_state = state and state.get(_STATE)
        ask = (GUEST_API, "checkpoint_here")
        self._api = GuestApi(
            (lambda memory: self.calls.ask(ask, memory) == 1) if task.checkpoint_here else None,
            api_state,  # type: ignore[arg-type]  # it checks what it gets
        )
        self._before = BeforeCalls(
            named(task.before_calls, imports), self._ask_before, None if moves else image,
        )
        self._wasi = (
            Wasi.restore(task.config, state, accept_changed=task.accept_changed) if state else Wasi(task.config)
        )
        if journal is not None:
            try:
                self._wasi.keep_journal(journal, self._api.state, self._export_again)
            except BaseException:
                self._wasi.close()
                raise

    def _ask_before(self, memory: GuestMemory, number: int) -> None:
        if self.journal is None or not self.journal.replaying:  # else the call is not made
            self.calls.ask(BEFORE, memory, number)

    @property
    def program(self) -> Program | None:
        """The present program; set it before it runs, and again when another takes its place."""
        return self._before.program

    @program.setter
    def program(self, program: Program) -> None:
        self._before.program = program

    @property
    def waits(self) -> int:
        """See `Wasi.waits`."""
        return self._wasi.waits

    def host(self) -> Host:
        """As a program imports it."""
        wasi = dict(self._wasi.functions)
        wasi["fd_advise"] = self._api.through_the_door(wasi["fd_advise"])
        functions = {(MODULE_NAME, name): function for name, function in wasi.items()}
        functions |= {(GUEST_API, name): function for name, function in self._api.functions.items()}
        functions |= self.calls.functions
        if self.journal is not None:
            functions = self.journal.wrap(functions)
        functions = self._before.wrap(functions)
        return Host(
            functions={name: HostFunction(f.params, f.results, f.call) for name, f in functions.items()},
            wants_memory=frozenset(functions), mark=self._mark, state=self._state, interrupt=self._interrupt,
            resume_calls=self._resume_calls,
        )

    def portable(self, image: Image) -> Image:
        """The image as it leaves this process: without the pages that the guest discarded, or the dead stack."""
        pages = self.left_out(image)
        if not pages or not image.memories or image.memories[0].index != 0:
            return image
        assert self.program is not None
        known = None if image.parent is not None else self.program.initial_pages(0)
        return replace(image, memories=(_without(image.memories[0], pages, known), *image.memories[1:]))

    def left_out(self, image: Image) -> PageSet:
        """Pages of the first memory that the guest had discarded at that moment, or that were dead stack.

        With a journal the discarded ones stay: it answers ``lives()`` as before, so the guest is not told of the loss.
        """
        state: Any = None if self.journal is not None else image.host.get(_STATE)
        pages = PageSet.from_plain(state["discarded"]) if state else PageSet()
        if self.stack is not None:
            pointer = next(value.bits for value in image.globals if value.index == self.stack.pointer)
            end = self.stack.dead_until(pointer, {frame.point.func for frame in image.frames})
            pages = pages.with_pages(-(-self.stack.low // 4096), end // 4096)
        return pages

    def close(self) -> None:
        """The program has left or ended. Idempotent."""
        self.calls.close()
        if self.journal is not None:
            self.journal.close()
        self._wasi.close()

    def _call_export(self, export: str, arguments: Sequence[int]) -> tuple[int, ...]:
        assert self.program is not None
        if self.journal is None:
            return self.program.call_export(export, arguments)
        return self.journal.call_export(self.program.call_export, export, arguments)

    def _export_again(self, export: str, arguments: Sequence[int]) -> tuple[int, ...]:
        assert self.program is not None
        return self.program.call_export(export, arguments)

    def _mark(self) -> _Mark:
        journal = None if self.journal is None else self.journal.position()
        return _Mark(self._wasi.mark(), self._api.state(), journal)

    def _state(self, mark: _Mark | None = None) -> dict[str, object]:
        mark = mark or self._mark()
        state = self._wasi.state(mark.wasi)
        if self.program is not None and any(_leads_to_us(item) for item in self.program.module.imports):
            state[_STATE] = mark.api
        if mark.journal is not None:
            state["journal"] = mark.journal
        return state

    def _interrupt(self) -> None:
        self._wasi.interrupt()
        self.calls.interrupt()

    def _resume_calls(self) -> None:
        self.calls.clear_interrupt()
        self._wasi.clear_interrupt()


def _leads_to_us(item: Import) -> bool:
    return item.module == GUEST_API or (item.module, item.name) == (MODULE_NAME, "fd_advise")


def _without(memory: MemoryState, pages: PageSet, initial: Mapping[int, bytes] | None) -> MemoryState:
    """Zero for all ``pages``; ``initial``: pages that would not be zero by themselves (None: any may be)."""
    data: list[tuple[int, bytes]] = []
    for first, content in memory.data:
        since = None
        end = first + len(content) // 4096
        for page in range(first, end + 1):
            kept = page < end and page not in pages
            if kept and since is None:
                since = page
            elif not kept and since is not None:
                data.append((since, content[(since - first) * 4096 : (page - first) * 4096]))
                since = None
    most = memory.pages * 16
    zero = {page for page in (pages if initial is None else initial) if page in pages and page < most}
    zero.update(page for first, count in memory.zero for page in range(first, first + count))
    return replace(memory, data=tuple(data), zero=runs_of_pages(sorted(zero)))
