"""The side that takes a program.

`receive` serves one move, from the first frame to the hand-over, and returns when it is over one way or the other.
What it needs of whoever is to own the program is a `Target`; an error of that is told to the source, where the program
then stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol

from ..errors import CheckpointError, ImageError, NotSupported, RetryLater, UsageError
from ..faults import point
from ..formats import Image, MemoryState, decode
from ..lazydata import dataclass, replace
from ..snapshot.job import Job
from ..snapshot.moving import Arrival, Part
from ..snapshot.wire import error_to_plain
from .handover import Do, Kind, Message, Phase, Role, Standing, step
from .pages import Mirror
from .wire import PROTOCOL, Frame, Lost, Wire, nonsense

__all__ = ["Offer", "Target", "receive"]

_MOST_MODULE: Final = 1 << 30
_UNDECIDED: Final = 60.0
"""Seconds that the source may take to decide, before its connection is given up. (The decision can come later.)"""


@dataclass(frozen=True, slots=True)
class Offer:
    """What the source wants to give.

    Attributes:
        module: SHA-256. size: of the module in bytes. token: of the hand-over.
        about: for whoever is to own it. streams: what it writes, and the first byte of each that is there.
    """

    module: bytes
    size: int
    runtime: str
    token: int
    about: Mapping[str, Any]
    streams: Mapping[str, int]


class Target(Protocol):
    """What whoever is to own the program gives to a move. Each method may raise `CheckpointError`: then the program
    stays at the source, which is told why."""

    def standing(self) -> Standing:
        """Of this site."""

    def accept(self, offer: Offer) -> None:
        """Whether it may come at all; what is known to be wrong with it already is told here."""

    def module(self, sha256: bytes) -> bytes | None:
        """A module's bytes; None: they are to be sent."""

    def add_module(self, content: bytes) -> None:
        """They have come."""

    def base(self) -> Image | None:
        """An image of the program of which pages may be used."""

    def begin(self, module: bytes) -> Arrival:
        """A worker for it, with its grants."""

    def room(self, memory: int) -> None:
        """Whether there is room for so many bytes of the program's memories, and a copy of them."""

    def offset(self, stream: str) -> int:
        """How much of the output is here already."""

    def output(self, stream: str, offset: int, data: bytes) -> None:
        """More of it."""

    def keep(self, image: Image, last: bool) -> None:
        """Write an image down, so that it outlives a power cut: the first one is whole, each later one a difference to
        the one before. Called by another thread, in order."""

    def persist(self, standing: Standing) -> None:
        """Write down what this site is to the program; as PREPARED together with the image that was kept last."""

    def runs(self, job: Job) -> None:
        """The program runs, and is the caller's to look after."""

    def drop(self) -> None:
        """It does not come: nothing is left of it."""


def receive(wire: Wire, target: Target) -> bool:
    """Take a program; gives whether it runs here now.

    Raises:
        Lost: the source is gone; what is then known is in the `Standing`: a program that is PREPARED waits.
        CheckpointError: the move failed, and both sides know that.
    """
    receiving = _Receiving(wire, target)
    try:
        return receiving.run()
    except _CalledOff:
        return False
    except Lost:
        raise
    except CheckpointError as problem:
        wire.fail(problem)
        raise
    except (OSError, MemoryError) as problem:
        error = RetryLater(f"the target has not got what it takes: {problem}")
        wire.fail(error)
        raise error from problem
    finally:
        receiving.close()


class _CalledOff(Exception):
    """By the source, in the middle of something."""


class _Receiving:
    def __init__(self, wire: Wire, target: Target) -> None:
        self._wire, self._target = wire, target
        self._arrival: Arrival | None = None
        self._mirror: Mirror | None = None
        self._sizes: dict[int, int] = {}
        self._memory = 0
        self._staged = False
        self._keeping = ThreadPoolExecutor(1, "keep")
        self._kept: Future[None] | None = None
        self._token = 0
        self._streams: tuple[str, ...] = ()
        self._again: tuple[Image, list[Part]] | None = None
        """What the target has yet to be made ready for, after a stop that was for nothing."""

    def close(self) -> None:
        self._keeping.shutdown(wait=True, cancel_futures=True)
        if self._arrival is not None:
            self._arrival.close()
        if self._target.standing().role is Role.ABSENT:
            with contextlib.suppress(CheckpointError):
                self._target.drop()

    def run(self) -> bool:
        offer = self._greet()
        self._token = offer.token
        while True:
            frame = self._wire.receive("round", "prepare", "abort", "token", within=_UNDECIDED)
            if frame.kind == "round":
                self._round(frame)
            elif frame.kind == "abort":
                self._act(Message(Kind.ABORT, frame.number("token")))
                if self._again is None:
                    return False
            elif frame.kind == "token":
                self._learn(frame)
            elif (over := self._prepare(frame)) is not None:
                return over

    # Before the stop

    def _greet(self) -> Offer:
        wire, target = self._wire, self._target
        hello = wire.receive("hello")
        if hello.fields.get("protocol") != PROTOCOL:
            raise NotSupported("the source speaks another version of this protocol",
                               need=f"version {PROTOCOL}", found=hello.fields.get("protocol"),
                               hint="use the same wasmckpt on both sides")
        offer = _offer(hello)
        self._streams = tuple(offer.streams)
        target.accept(offer)
        module = target.module(offer.module)
        arrival = None
        if module is not None:
            arrival = self._begin(module)
        if (base := target.base()) is not None and arrival is not None:
            assert self._mirror is not None
            self._size(base)
            self._mirror.load(base, wire)
        wire.send("welcome", protocol=PROTOCOL, wants_module=module is None,
                  offsets={name: target.offset(name) for name in offer.streams})
        if module is None:
            module = self._module(offer)
            target.add_module(module)
            self._begin(module)
        wire.send("open")
        point("migrate.target-open")
        return offer

    def _begin(self, module: bytes) -> Arrival:
        self._arrival = self._target.begin(module)
        self._mirror = Mirror(self._arrival.mirror)
        return self._arrival

    def _module(self, offer: Offer) -> bytes:
        content = bytearray()
        while len(content) < offer.size:
            content += self._wire.receive("module").body
            if len(content) > offer.size:
                raise nonsense("module", "size")
        if hashlib.sha256(content).digest() != offer.module:
            raise ImageError("the module that came is another one than was announced", module=offer.module.hex())
        return bytes(content)

    def _size(self, image: Image) -> None:
        assert self._arrival is not None
        for state in image.memories:
            self._sizes[state.index] = max(state.pages, self._sizes.get(state.index, 0))
        if (memory := sum(self._sizes.values()) << 16) > self._memory:
            self._target.room(memory)
            self._memory = memory
        self._arrival.make_room(image)

    def _image(self, frame: Frame) -> Image:
        """An image without its pages."""
        image = decode(frame.body)
        if any(state.data or state.zero for state in image.memories):
            raise nonsense(frame.kind, "pages")
        self._size(image)
        return image

    def _pages(self) -> None:
        """Pages and output, until all that belongs to an image has come."""
        assert self._mirror is not None
        while (frame := self._wire.receive("pages", "output", "end", "abort")).kind != "end":
            if frame.kind == "abort":
                self._act(Message(Kind.ABORT, frame.number("token")))
                raise _CalledOff
            if frame.kind == "pages":
                self._mirror.take(frame, self._sizes)
            else:
                stream = frame.text("stream")
                if stream not in self._streams:
                    raise nonsense("output", "stream")
                self._target.output(stream, frame.number("offset"), frame.body)

    def _round(self, frame: Frame) -> None:
        assert self._arrival is not None
        assert self._mirror is not None
        image = self._image(frame)
        began = time.monotonic()
        staging: Future[None] | None = None
        whole = image.parent is None
        if not self._staged:
            # The instance is made while the pages come.
            staging = self._keeping.submit(self._arrival.stage, replace(image, parent=None))
        self._pages()
        came = time.monotonic()
        if staging is not None:
            staging.result()
            self._staged = True
        else:
            self._arrival.learn(replace(image, parent=None))
        sizes = {state.index: state.pages for state in image.memories}
        parts = self._mirror.parts(sizes)
        self._arrival.fill(parts)
        if self._kept is not None:
            self._kept.result()  # what is left to be written down at the stop is this image, not all before it
        self._keep(image, parts, whole, last=False)
        point("migrate.target-round")
        self._wire.send("taken", staging=time.monotonic() - came, receiving=came - began)

    def _keep(self, image: Image, parts: Sequence[Part], whole: bool, *, last: bool) -> None:
        """Have it written down, behind what is being written."""
        assert self._mirror is not None
        data = {part[0]: tuple(self._mirror.runs(part)) for part in parts}
        full = replace(image, memories=tuple(
            MemoryState(state.index, state.pages, data.get(state.index, ())) for state in image.memories
        ), parent=None if whole else image.parent)
        before = self._kept

        def keep() -> None:
            if before is not None:
                before.result()
            self._target.keep(full, last)

        self._kept = self._keeping.submit(keep)

    # The stop

    def _prepare(self, frame: Frame) -> bool | None:
        """None: the source tries again."""
        assert self._arrival is not None
        assert self._mirror is not None
        token, insist = frame.number("token"), bool(frame.fields.get("insist"))
        if token != self._token:
            raise nonsense("prepare", "token")
        image = self._image(frame)
        if not self._staged:
            raise nonsense("prepare", "before a round")
        self._pages()
        point("migrate.target-prepare-heard")
        parts = self._mirror.parts({state.index: state.pages for state in image.memories})
        whole, bare = image.parent is None, replace(image, parent=None)
        self._keep(image, parts, whole, last=True)
        try:
            arrived = self._arrival.arrive(bare, parts, insist=insist)
        except CheckpointError as problem:
            self._wire.send("refused", token=token, again=False, error=error_to_plain(problem))
            self._wire.receive("abort", within=_UNDECIDED)
            self._act(Message(Kind.ABORT, token))
            return False
        if not arrived:
            self._again = bare, parts
            self._wire.send("refused", token=token, again=True)
            return None
        point("migrate.target-rebuilt")
        self._act(Message(Kind.PREPARE, token))
        point("migrate.target-ready")
        return self._decision(token)

    def _learn(self, frame: Frame) -> None:
        """The program goes on at the source: be ready for where it stood."""
        assert self._arrival is not None
        if self._again is None:
            raise nonsense("token", "unasked")
        self._token = frame.number("token")
        image, parts = self._again
        self._again = None
        self._arrival.fill(parts)
        self._arrival.learn(image)
        self._wire.send("learned")

    def _decision(self, token: int) -> bool:
        frame = self._wire.receive("commit", "abort", within=_UNDECIDED)
        if frame.number("token") != token:
            raise nonsense(frame.kind, "token")
        self._act(Message(Kind(frame.kind), token))
        point("migrate.target-done")
        return frame.kind == "commit"

    def _act(self, message: Message) -> None:
        _, effects = step(self._target.standing(), Phase.IDLE, message)
        for effect in effects:
            if effect.do is Do.PERSIST:
                assert effect.standing is not None
                if effect.standing.role is Role.PREPARED and self._kept is not None:
                    self._kept.result()
                self._target.persist(effect.standing)
                point(f"migrate.target-{effect.standing.role.value}")
            elif effect.do is Do.RUN:
                assert self._arrival is not None
                self._target.runs(self._arrival.commit())
                point("migrate.target-running")
            elif effect.do is Do.DROP:
                if self._arrival is not None:
                    self._arrival.close()
                self._target.drop()
            elif effect.message is not None:
                self._wire.send(effect.message.kind.value, token=effect.message.token)


def _offer(hello: Frame) -> Offer:
    module, about, streams = (hello.fields.get(name) for name in ("module", "about", "streams"))
    if not isinstance(module, bytes) or len(module) != 32 or not isinstance(about, dict):
        raise nonsense("hello", "module")
    if not isinstance(streams, dict) or not all(
        isinstance(name, str) and isinstance(begin, int) and begin >= 0 for name, begin in streams.items()
    ):
        raise nonsense("hello", "streams")
    token = hello.number("token")
    if not token:
        raise UsageError("a hand-over has a token")
    return Offer(module, hello.number("size", _MOST_MODULE), hello.text("runtime"), token, about, streams)
