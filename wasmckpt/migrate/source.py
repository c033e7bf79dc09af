"""The side that gives a program away.

`send` does all of it: rounds, the stop, the hand-over. It raises if the program has stayed, and then the program goes
on as if nothing had been. If it returns, the program is the target's, even if the target has not said so yet: then
`Moved.settled` is false, and COMMIT has to be said again until it has (`Source` knows that from the `Standing`).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from io import BufferedReader
from typing import Any, Final, Protocol

from ..errors import CheckpointError, Conflict, JobEnded, RetryLater
from ..faults import point
from ..formats import PAGE_SIZE, encode
from ..formats.codec import ImageStream
from ..lazydata import dataclass
from ..snapshot.job import Job
from ..snapshot.moving import Departure, Look
from ..snapshot.wire import error_from_plain
from .handover import Do, Effect, Event, Kind, Message, Phase, Standing, step
from .pages import Outbox
from .precopy import Options, Progress, Rounds
from .wire import PROTOCOL, Frame, Lost, Wire, nonsense

__all__ = ["Moved", "Source", "send"]

_PIECE: Final = 1 << 20
_HELLO: Final = 30.0
_LAST_WORDS: Final = 2.0
_BLOCKS: Final = 16
"""Blocks, of a mebibyte at most, after which it is asked again what was written meanwhile."""
_SMALL: Final = 8 << 20
"""Bytes of an image that is not worth a look at each page."""
_ENOUGH: Final = 1 << 16
"""Bytes that say something about the wire's rate."""
_STAGING: Final = 300.0
"""Seconds that the target may take for its instance."""


class Source(Protocol):
    """What the owner of the program gives to a move."""

    def standing(self) -> Standing:
        """Of this site."""

    def persist(self, standing: Standing) -> None:
        """Write it down, so that it outlives a power cut. Raises `CheckpointError`: it is not written down."""

    def output(self, stream: str, offset: int) -> bytes:
        """Some of what the program has written, from ``offset`` on; empty: that is all."""

    def begins(self, stream: str) -> int:
        """The first byte of it that is there."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A program that was moved.

    Attributes:
        stopped: seconds from its last instruction here to when the target said that it runs there, or, if the target
            did not say so, to when it was told to run.
        token: of the hand-over. settled: the target has said that it runs.
        rounds, sent, pages, literal: rounds before the stop; bytes on the wire; pages told of, and sent in full.
        memory: bytes of the program's memories. last: bytes that were sent while it stood still.
        attempts: how often it was stopped. prepared: seconds before it was stopped. limit: of the stop, in the end.
    """

    stopped: float
    token: int
    settled: bool
    rounds: int
    sent: int
    pages: int
    literal: int
    memory: int
    last: int
    attempts: int
    prepared: float
    limit: float


def send(
    job: Job, wire: Wire, source: Source, *, module: bytes, runtime: str, about: Mapping[str, Any],
    options: Options | None = None, told: Callable[[Progress], object] = lambda progress: None,
    cancelled: threading.Event | None = None, streams: tuple[str, ...] = (),
) -> Moved:
    """Move a running program to whoever listens at the other end.

    Args:
        module: its original bytes. runtime: on which it is to go on. about: for the target's `Target`, as it is.
        told: how it stands. cancelled: set to call it off. streams: names of what it writes.

    Raises:
        The error of the target that refuses it; `Lost`: it is gone; `JobEnded`: the program ended before;
        `RetryLater`: it writes too fast; `Conflict`: it was called off.
    """
    return _Sending(job, wire, source, module, runtime, about, options or Options(), told,
                    cancelled or threading.Event(), streams).run()


class _Refused(Exception):
    """The target cannot go on from where the program stood, and makes itself ready for it."""


class _Sending:
    def __init__(
        self, job: Job, wire: Wire, source: Source, module: bytes, runtime: str, about: Mapping[str, Any],
        options: Options, told: Callable[[Progress], object], cancelled: threading.Event, streams: tuple[str, ...],
    ) -> None:
        self._job, self._wire, self._source, self._module = job, wire, source, module
        self._runtime, self._about, self._options, self._told = runtime, about, options, told
        self._cancelled, self._streams = cancelled, streams
        self._phase = Phase.IDLE
        self._outbox = Outbox(wire)
        self._rounds = Rounds(options)
        self._offsets: dict[str, int] = {}
        self._memory = self._last = 0
        self._untaken = False
        """Whether the target has still to say that it has the last round."""
        self._departure: Departure | None = None

    # The hand-over's machine

    def _act(self, event: Event | Message, do: Mapping[Do, Callable[[], object]] | None = None) -> None:
        self._phase, effects = step(self._source.standing(), self._phase, event)
        for effect in effects:
            self._do(effect, do or {})

    def _do(self, effect: Effect, do: Mapping[Do, Callable[[], object]]) -> None:
        if effect.do is Do.PERSIST:
            assert effect.standing is not None
            self._source.persist(effect.standing)
            point(f"migrate.source-{effect.standing.role.value}")
        elif effect.do is Do.SEND and effect.message is not None and effect.message.kind is not Kind.PREPARE:
            with contextlib.suppress(Lost):  # it is said again until it was heard
                self._wire.send(effect.message.kind.value, token=effect.message.token)
            point("migrate.source-told")
        elif effect.do is Do.RELEASE:
            if self._departure is not None:
                self._departure.release()
        elif effect.do in do:
            do[effect.do]()

    # All of it

    def run(self) -> Moved:
        began = time.monotonic()
        self._act(Event.BEGIN)
        token = self._source.standing().token
        try:
            self._greet(token)
            with Departure(self._job) as departure:
                self._departure = departure
                return self._move(departure, token, began)
        except BaseException as problem:
            # A target that refuses what it is being sent says why and closes.
            told = self._wire.last_word() if isinstance(problem, Lost) else None
            if self._phase is not Phase.IDLE:
                self._act(Event.CANCEL)
                self._settle(self._source.standing().token)
            if told is not None:
                raise told from None
            raise

    def _settle(self, token: int) -> None:
        """Hear that the target has heard that it is off, if it says so soon; else it is told again later."""
        end = time.monotonic() + _LAST_WORDS
        with contextlib.suppress(CheckpointError):
            while time.monotonic() < end:
                frame = self._wire.receive("done", "taken", "ready", "refused", "open", "learned", within=_LAST_WORDS)
                if frame.kind == "done" and frame.number("token") == token:
                    self._act(Message(Kind.DONE, token))
                    return

    def _greet(self, token: int) -> None:
        import hashlib

        digest = hashlib.sha256(self._module).digest()
        self._wire.send(
            "hello", protocol=PROTOCOL, module=digest, size=len(self._module), runtime=self._runtime, token=token,
            about=dict(self._about), streams={name: self._source.begins(name) for name in self._streams},
        )
        while (frame := self._wire.receive("welcome", "have", within=_HELLO)).kind == "have":
            self._outbox.has(frame)
        if frame.number("protocol") != PROTOCOL:
            raise nonsense("welcome", "protocol")
        if frame.fields.get("wants_module"):
            for start in range(0, len(self._module), _PIECE):
                self._wire.send("module", self._module[start:start + _PIECE])
        offsets = frame.fields.get("offsets", {})
        for name in self._streams:
            offset = offsets.get(name, 0) if isinstance(offsets, dict) else 0
            self._offsets[name] = max(offset if isinstance(offset, int) else 0, self._source.begins(name))
        self._wire.receive("open", within=_STAGING)
        point("migrate.source-connected")
        self._told(Progress("connected", limit=self._rounds.limit))

    def _move(self, departure: Departure, token: int, began: float) -> Moved:
        attempts, looked = 0, 0.0
        while True:
            looked = self._rounds_until_calm(departure, looked)
            attempts += 1
            prepared = time.monotonic() - began
            try:
                stopped, settled = self._stop(departure, token, insist=attempts >= self._options.attempts)
            except _Refused:
                token = self._source.standing().token
                self._tell("again")
                continue
            self._tell("moved")
            return Moved(
                stopped, token, settled, self._rounds.number, self._wire.sent, self._outbox.pages,
                self._outbox.literal, self._memory, self._last, attempts, prepared, self._rounds.limit,
            )

    def _tell(self, step: str, **more: Any) -> None:
        rounds = self._rounds
        self._told(Progress(step, rounds.number, sent=self._wire.sent, rate=self._outbox.squeeze.wire,
                            dirtied=rounds.dirtied, limit=rounds.limit, **more))

    # Rounds

    def _rounds_until_calm(self, departure: Departure, looked: float) -> float:
        """Send rounds until the program is to be stopped; gives when the last image was taken."""
        while True:
            self._go_on()
            before, began = looked, time.monotonic()
            look = departure.look()
            looked = began  # the moment of the image is near its beginning; reading it out takes longer
            self._rounds.looked(look.size, 0.0 if look.whole or not before else looked - before)
            sending = time.monotonic()
            count = self._send_image("round", look)
            self._untaken = self._rounds.stop_soon()
            if self._untaken:
                self._rounds.number += 1
            else:
                self._hear(look, count, sending)
            point("migrate.source-round")
            since = time.monotonic() - looked
            self._tell("round", pages=look.size // PAGE_SIZE, seconds=time.monotonic() - began,
                       expected=self._rounds.expected(since))
            if self._untaken or self._rounds.stop_now(since):
                return looked

    def _hear(self, look: Look, count: int, sending: float) -> None:
        """Wait until the target has a round: what is in the system's buffers is not there yet."""
        taken = self._answer("taken", within=_STAGING).fields
        seconds = max(time.monotonic() - sending - float(taken.get("staging", 0.0)), 1e-6)
        self._rounds.sent(look.size, seconds)
        if count > _ENOUGH:
            self._outbox.squeeze.wire = count / seconds

    def _go_on(self) -> None:
        if self._cancelled.is_set():
            raise Conflict("the move was called off")
        if self._job.ended:
            raise JobEnded("the program ended before it could be moved")

    def _send_image(self, kind: str, look: Look, **more: object) -> int:
        """An image and what belongs to it; gives how many bytes its pages took."""
        with open(look.descriptor, "rb") as file:
            file.seek(0)
            return self._send_open(kind, file, look, more)

    def _send_open(self, kind: str, file: BufferedReader, look: Look, more: Mapping[str, object]) -> int:
        stream = ImageStream(file)
        image = stream.image
        self._memory = sum(state.pages << 16 for state in image.memories)
        self._wire.send(kind, encode(image), **more)
        before = self._wire.sent
        departure = self._departure
        assert departure is not None
        small = look.size <= _SMALL and not look.whole
        for n, block in enumerate(stream.blocks()):
            if not departure.held:
                self._go_on()
                if look.whole and not n % _BLOCKS:
                    # What was written meanwhile comes with the next image; the target may run neither before that.
                    self._outbox.leave(departure.written())
            self._outbox.send(block, small=small)
        self._outbox.leave(())
        count = self._wire.sent - before
        self._send_output()
        self._wire.send("end")
        return count

    def _send_output(self) -> None:
        for name in self._streams:
            while data := self._source.output(name, self._offsets[name]):
                self._wire.send("output", data, stream=name, offset=self._offsets[name])
                self._offsets[name] += len(data)

    def _answer(self, *kinds: str, within: float) -> Frame:
        """The target's answer; the wait is over when the move is called off."""
        return self._wire.receive(*kinds, within=within)

    # The stop

    def _stop(self, departure: Departure, token: int, *, insist: bool) -> tuple[float, bool]:
        """Stop the program and hand it over; how long it stood still, and whether the target has said that it runs."""
        self._go_on()
        self._tell("stopping")
        held: list[Look] = []
        self._act(Event.COPIED, {Do.HOLD: lambda: held.append(departure.hold())})
        point("migrate.source-held")
        sent = self._wire.sent
        self._send_image("prepare", held[0], token=token, insist=insist)
        point("migrate.source-prepare-sent")
        if self._untaken:
            self._answer("taken", within=_STAGING)
            self._untaken = False
        answer = self._answer("ready", "refused", within=self._options.patience)
        self._last = self._wire.sent - sent
        if answer.number("token") != token:
            raise nonsense(answer.kind, "token")
        if self._cancelled.is_set():
            raise Conflict("the move was called off")
        if answer.kind == "refused":
            self._refused(answer)
        point("migrate.source-ready-heard")
        ended: list[Callable[[], object]] = []
        self._act(Message(Kind.READY, token), {Do.END: lambda: ended.append(departure.finish)})
        if self._phase is not Phase.IDLE or not ended:
            raise CheckpointError("the hand-over did not come to its decision", token=token)
        return self._after(departure, token, held[0].since)

    def _after(self, departure: Departure, token: int, since: float) -> tuple[float, bool]:
        """The decision has been written down: nothing that fails from here on brings the program back."""
        settled = False
        try:
            self._wire.receive("done", within=self._options.patience)
            stopped = time.monotonic() - since
            settled = True
        except CheckpointError:
            stopped = time.monotonic() - since
        departure.finish()
        if settled:
            with contextlib.suppress(CheckpointError):
                self._act(Message(Kind.DONE, token))
                settled = self._source.standing().settled
        return stopped, settled

    def _refused(self, answer: Frame) -> None:
        """Raises `_Refused` if another attempt may do better, else why the target does not take it."""
        again = bool(answer.fields.get("again"))
        self._act(Event.CANCEL)
        self._wire.receive("done", within=self._options.patience)
        if not again:
            raise error_from_plain(answer.fields["error"]) if isinstance(answer.fields.get("error"), dict) \
                else RetryLater("the target does not take the program")
        # The token is used up: another attempt has another one.
        self._act(Event.BEGIN)
        self._wire.send("token", token=self._source.standing().token)
        self._answer("learned", within=_STAGING)
        raise _Refused
