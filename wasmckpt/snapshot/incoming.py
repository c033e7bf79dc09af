"""A program that is on its way: built at the target while it still runs at the source, so that little is left to be
done when it has stopped there.

An image taken of the running program says where its frames stand and how large its memories are. So the worker makes an
instance with code to go on from there, and its pages are put into that very instance as they come, round after round.
When the last image comes its frames most likely stand at one of the places that were seen before; then only the last
pages, the globals and the frames' values are left to be set. Where they stand elsewhere another instance is needed, of
a module with code for that as well: the program goes on at the source meanwhile, if there is time for another attempt.

The pages come through a file in memory, the *mirror*, which the worker shares with the process that looks after it:
there memory ``n`` begins at ``n * SPAN``. A new instance is filled from it again.

All of it is done in the guest's thread, where some runtimes want their instances to be made; the worker's other threads
ask and wait.
"""

from __future__ import annotations

import ctypes
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from ..dirty import Runs, merge
from ..errors import CheckpointError, RetryLater
from ..formats import PAGE_SIZE, Image
from ..instrument.options import Options
from ..lazydata import replace
from ..runtimes import Engine, HostFunction
from ..wasm.module import Import
from .assignment import Assignment
from .guest_host import GuestHost
from .program import Host, Program
from .stack import guest_stack

__all__ = ["SPAN", "Incoming"]

SPAN: Final = 1 << 33
"""Bytes from one memory to the next in the mirror; a memory has half of it at most."""
Part = tuple[int, int, Runs]
"""Of a memory: its index, its size in pages of 64 KiB, and runs of its pages of 4 KiB that are to be filled."""


class _Late:
    """The functions of a host that is another one each time the program has been seen."""

    def __init__(self, first: Host) -> None:
        self._calls = {name: function.call for name, function in first.functions.items()}
        self.host = replace(first, functions={
            name: HostFunction(function.params, function.results, self._late(name))
            for name, function in first.functions.items()
        })

    def _late(self, name: tuple[str, str]) -> Callable[..., Any]:
        calls = self._calls

        def call(*args: Any) -> Any:
            return calls[name](*args)

        return call

    def become(self, host: Host) -> Host:
        """Call those of this one from now on; gives it as the program's."""
        for name, function in host.functions.items():
            self._calls[name] = function.call
        return replace(host, functions=self.host.functions)


class Incoming:
    """One program on its way. ``image``: what is known of it first, without its pages; ``mirror``: descriptor of the
    file that has them, closed in the end."""

    def __init__(self, image: Image, mirror: int) -> None:
        self._image, self._mirror = image, mirror
        self._asked: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._staged: Future[None] = Future()
        self._filled: dict[int, Runs] = {}
        self._sizes: dict[int, int] = {}
        self._program: Program | None = None
        self._host: GuestHost | None = None
        self._late: _Late | None = None
        self._arrived: Image | None = None
        self._make: Callable[[Image], GuestHost]
        self._stage: Callable[[Image, Program | None], Program]
        self._fits: Callable[[Image], bool]

    # Asked by other threads

    def wait_until_staged(self) -> None:
        """Until there is an instance. Raises what making it raised."""
        self._staged.result()

    def learn(self, image: Image) -> bool:
        """Be ready for a later image as well; gives whether another instance had to be made for it. Raises what
        restoring it would."""
        return bool(self._ask(lambda: self._learn(image)))

    def fill(self, parts: Sequence[Part]) -> None:
        """Take pages from the mirror."""
        self._ask(lambda: self._fill(parts))

    def arrive(self, image: Image, parts: Sequence[Part], insist: bool) -> bool:
        """The program has stopped as ``image`` says, with these last pages. False: it cannot be gone on with from there
        at once; with ``insist`` it is made possible, however long that takes. Raises what restoring it would."""
        return bool(self._ask(lambda: self._arrive(image, parts, insist)))

    def _ask(self, do: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._asked.put((do, future))
        return future.result()

    # In the guest's thread

    def build(
        self, engine: Engine, wasm: bytes, task: Assignment, options: Options, stack_bytes: int,
        on_call: Callable[[Mapping[str, object]], None], imports: Sequence[Import],
    ) -> tuple[GuestHost, Program, Image]:
        """Until it has arrived: its host, the program, and the image it is restored from."""
        self._make = lambda image: GuestHost(task, image, on_call, imports=imports, moves=True)
        self._fits = lambda image: guest_stack(engine, wasm, image, task.stack_bytes) <= stack_bytes

        def stage(image: Image, before: Program | None) -> Program:
            assert self._late is not None
            return Program.staged(
                engine, wasm, self._late.host, image, options=options, stack_bytes=stack_bytes,
                huge_pages=task.huge_pages, also=None if before is None or not before.out.numbers else
                before.out.resumes,
            )

        self._stage = stage
        try:
            self._learn(self._image)
            self._staged.set_result(None)
        except BaseException as problem:
            self._close()
            self._staged.set_exception(problem)
            raise
        while self._arrived is None:
            do, future = self._asked.get()
            try:
                future.set_result(do())
            except BaseException as problem:
                future.set_exception(problem)
        os.close(self._mirror)
        assert self._host is not None
        assert self._program is not None
        return self._host, self._program, self._arrived

    def _close(self) -> None:
        if self._host is not None:
            self._host.close()
        if self._program is not None:
            self._program.close()

    def _learn(self, image: Image) -> bool:
        if not self._fits(image):
            raise RetryLater("the program's stack has become too deep for what was made ready", hint="try again")
        host = self._make(image)  # says now what is wrong with its files here
        before, self._host = self._host, host
        if before is not None:
            before.close()
        if self._late is None:
            self._late = _Late(host.host())
        else:
            self._late.become(host.host())
        if self._program is not None and self._program.covers(image):
            return False
        old, self._program = self._program, None
        if old is not None:
            old.close()  # first: there may not be memory for two
        self._program = self._stage(image, old)
        self._grow(image)
        for index, runs in self._filled.items():
            self._copy(index, runs)
        return old is not None

    def _grow(self, image: Image) -> None:
        assert self._program is not None
        for state in image.memories:
            self._sizes[state.index] = max(state.pages, self._sizes.get(state.index, 0))
        for index, pages in self._sizes.items():
            self._program.grown(index, pages)

    def _fill(self, parts: Sequence[Part]) -> None:
        assert self._program is not None
        for index, pages, runs in parts:
            self._sizes[index] = max(pages, self._sizes.get(index, 0))
            self._program.grown(index, pages)
            self._copy(index, runs)
            self._filled[index] = merge([*self._filled.get(index, ()), *((first, count) for first, count in runs)])

    def _copy(self, index: int, runs: Runs) -> None:
        """From the mirror to where the program has its memory, without any other copy between."""
        assert self._program is not None
        memory = self._program.grown(index, 0)
        base, size = memory.extent()
        for first, count in runs:
            start, length = first * PAGE_SIZE, count * PAGE_SIZE
            if start + length > size:
                raise CheckpointError("a page lies behind the end of its memory", memory=index, page=first)
            while length:
                part = (ctypes.c_char * length).from_address(base + start)
                got = os.preadv(self._mirror, [part], index * SPAN + start)
                if not got:
                    raise CheckpointError("the mirror has no such page", memory=index, page=first)
                start, length = start + got, length - got

    def _arrive(self, image: Image, parts: Sequence[Part], insist: bool) -> bool:
        assert self._program is not None
        assert self._late is not None
        self._fill(parts)
        if not self._program.arrive(image):
            if not insist:
                return False
            self._learn(image)
            self._program.arrive(image)
        host = self._make(image)
        if self._host is not None:
            self._host.close()
        self._host = host
        self._program.host = self._late.become(host.host())
        self._arrived = image
        return True
