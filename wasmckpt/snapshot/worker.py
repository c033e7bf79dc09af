"""The process that runs one program on one runtime, started by `launch`.

A runtime is native code that may crash, and it has its own ideas about signals and stacks; so each program gets a
process of its own, and whatever happens there is an answer in the parent. The main thread serves requests that come
over an inherited socket; the guest has its own thread; what takes long (a checkpoint) gets a thread as well.
Standard input, output and error are the guest's: nothing else is ever written there.

The worker never outlives its parent: it dies with the thread that started it (``PR_SET_PDEATHSIG``), and when the
socket ends.

Requests (``do``), each answered by ``ok`` or ``error`` under its ``id``:

| request | meaning |
| --- | --- |
| load | load a runtime; answers its version |
| confine | give up all rights but those that the program needs, before anything of it is told |
| prepare | instrument, compile and instantiate a module, and throw the instance away: all refusals come here |
| start | run a program from its beginning |
| restore | run on from an image (a descriptor; parents lie beside ``path``); ``hold``: but only after commit |
| commit | a held program goes on |
| deadline | end at that time, whatever happens, unless it is told otherwise before (`deadline`) |
| cut | an image is where it belongs: the journal need not go back further |
| checkpoint | write an image to a path or an anonymous file; ``stop``: and end here; ``track``: one of a series |
| written | which pages were written since an image of a series, as far as can be told without stopping the program |
| hold | stop, keeping all frames if possible; answers the image's descriptor; then release (go on) or finish (end) |
| stage | build a program that still runs elsewhere, as far as an image of it allows (`incoming`) |
| learn, fill | the same program, with later frames; pages of its memory |
| arrive | the last image of it: rebuild the frames and wait for commit, unless that would take too long |
| status | what the program is doing |
| idle | wait until the program waits in a call, in another state than one that was seen before |
| returned | a user's function has returned: its results and what it stores, or its error |
| peek, errand | a user's function reads the guest's memory, or calls an export |

The environment variable ``WASMCKPT_SNAPSHOT`` (``fork`` or ``in-place``) forces how images of a program that goes on
are taken, ``WASMCKPT_DIRTY`` (a backend of `wasmckpt.dirty`) how it is found out what was written between them.

Events: ``frozen`` (a counted safepoint was reached), ``call`` (the guest calls a user's function), ``ended``.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from io import BufferedReader
from typing import TYPE_CHECKING, Any, Final, NoReturn

from .. import runtimes
from ..errors import RetryLater, StorageError, UsageError
from ..formats import Entry, Image, ParentRef, read_chain, read_image, save, write_image
from ..formats.chain import beside
from ..formats.files import unsealed, write_sealed
from ..formats.meter import metered
from ..host import WasiConfig
from ..instrument.options import Options
from ..lazydata import replace
from ..runtimes import Engine
from .assignment import Assignment
from .changes import Wanted
from .deadline import Deadline
from .explain import explaining
from .guest_host import GuestHost
from .program import Program
from .sandbox import Sandbox
from .stack import guest_stack
from .wire import Channel, Closed, error_from_plain, error_to_plain, memory_file, use_image_settings
from .worker_guest import End, Guest

if TYPE_CHECKING:
    from .incoming import Incoming

__all__ = ["Worker", "keep_memories_mapped", "main"]

IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals of a terminal or service manager that reach the whole group: the parent decides what they mean."""
LOOK: Final = 2.0
"""Seconds that a program which waits gets to be looked at."""
_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_FROM: Final = 2 << 20
"""Bytes; more than the buffers through which images pass, which had better be used again."""


class Worker:
    """Serves one parent over ``channel``."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: Engine | None = None
        self._guest: Guest | None = None
        self._incoming: Incoming | None = None
        self._seated = threading.Event()
        """Set when there is one: a short program may end before, and one that goes on may begin with a call."""
        self._busy = threading.Lock()
        """Held by the one checkpoint, hold or hand-over that is under way."""
        self._held = False
        self._deadline = Deadline()
        self._folders: list[int] = []
        """Descriptors of the program's folders, opened while that was allowed."""

    def serve(self) -> None:
        """Until the parent is gone."""
        inline: dict[str, Callable[[Mapping[str, Any], list[int]], Mapping[str, object]]] = {
            "load": self._load, "confine": self._confine, "status": self._status, "commit": self._commit,
            "returned": self._returned, "cut": self._cut, "deadline": self._end_at,
        }
        aside: dict[str, Callable[[Mapping[str, Any], list[int]], Mapping[str, object]]] = {
            "prepare": self._prepare, "start": self._start, "restore": self._restore, "checkpoint": self._checkpoint,
            "hold": self._hold, "release": self._release, "finish": self._finish, "trial": self._trial,
            "written": self._written, "fits": self._fits, "peek": self._peek, "errand": self._errand,
            "idle": self._idle, "stage": self._stage, "learn": self._learn, "fill": self._fill, "arrive": self._arrive,
        }
        while True:
            try:
                message, descriptors = self._channel.receive()
            except Closed:
                return
            do = message["do"]
            if do in inline:
                self._answer(inline[do], message, descriptors)
            else:
                self._answer_aside(aside[do], message, descriptors)

    def _answer_aside(
        self, handler: Callable[[Mapping[str, Any], list[int]], Mapping[str, object]], message: Mapping[str, Any],
        descriptors: list[int],
    ) -> None:
        try:
            threading.Thread(target=self._answer, args=(handler, message, descriptors), name=message["do"],
                             daemon=True).start()
        except RuntimeError as problem:  # no room for one

            def refuse(message: Mapping[str, Any], descriptors: list[int], why: RuntimeError = problem) -> NoReturn:
                raise why

            self._answer(refuse, message, descriptors)

    def _answer(
        self, handler: Callable[[Mapping[str, Any], list[int]], Mapping[str, object]], message: Mapping[str, Any],
        descriptors: list[int],
    ) -> None:
        given: list[int] = []
        try:
            answer = dict(handler(message, descriptors))
            if "descriptor" in answer:
                given.append(answer.pop("descriptor"))  # type: ignore[arg-type]
            reply: dict[str, object] = {"id": message["id"], "ok": answer}
        except BaseException as problem:
            reply = {"id": message["id"], "error": error_to_plain(problem)}
        try:
            self._send(reply, given)
        except Closed:
            pass  # the main thread has seen it too and ends the process
        finally:
            for fd in [*given, *descriptors]:
                os.close(fd)

    def _send(self, reply: Mapping[str, object], given: list[int]) -> None:
        """At the limit of its memory the process still has to answer, or to end: others wait for it."""
        for _ in range(100):
            try:
                return self._channel.send(reply, given)
            except MemoryError:  # before a byte was sent; it may be another thread's, and soon be over
                time.sleep(0.01)
        os._exit(71)

    # Requests

    def _load(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        use_image_settings(message["images"])
        self._engine = runtimes.load(message["runtime"])
        return {"version": self._engine.version}

    def _confine(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        if message["sandbox"][0] is not None:  # as another user it may not be able to read its own sources
            import traceback  # noqa: F401

            from . import nursery_process  # noqa: F401
        folders: list[tuple[str | int, bool]] = []
        for path, writable in message["folders"]:
            try:
                self._folders.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                folders.append((self._folders[-1], writable))
            except OSError:
                self._folders.append(-1)  # whoever opens it again tells why not
        if message["journal"] is not None:
            folders.append((os.fsdecode(message["journal"]), True))
        return Sandbox(*message["sandbox"]).enter(folders, message["search"])

    def _given(self, message: Mapping[str, Any]) -> Assignment:
        """What is to be run, in a process that has its limits from here on."""
        task = Assignment.from_plain(message)
        if task.limits is not None:
            task.limits.apply()
        if not self._folders:
            return task
        preopens = [(host if fd < 0 else f"/proc/self/fd/{fd}", guest)
                    for fd, (host, guest) in zip(self._folders, task.config.preopens, strict=True)]
        return replace(task, config=replace(task.config, preopens=preopens))

    def _prepare(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        task = self._given(message)
        assert task.module is not None
        sys.path += (folder for folder in task.search if folder not in sys.path)
        host = GuestHost(replace(task, config=WasiConfig(), before_calls=()), None, lambda call: None)
        try:
            with explaining(self._loaded()):
                Program.fresh(
                    self._loaded(), task.module, host.host(), Entry((), 0), stack_bytes=task.stack_bytes,
                    options=Options(canonical_nans=task.canonical_nans),
                ).close()
        finally:
            host.close()
        return {}

    def _start(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._run(self._given(message), None, hold=message["hold"])
        return {}

    def _restore(self, message: Mapping[str, Any], descriptors: list[int]) -> Mapping[str, object]:
        if not descriptors:
            raise UsageError("a restore without an image")
        task = self._given(message)
        with open(os.dup(descriptors[0]), "rb") as file:
            file.seek(0)
            path = message["path"]
            opened = file if message["hold"] or message.get("checked") else unsealed(file)
            image = read_chain(opened, None if path is None else beside(os.fsdecode(path)))
            self._run(task, image, hold=message["hold"], digest=lambda: _digest(file))
        replayed = self._running().replayed
        return {
            "module": self._running().wasm if message["module"] is None else None,
            "journal": None if replayed is None else [replayed.calls, replayed.suppressed],
            "continuations": self._running().continuations,
        }

    def _stage(self, message: Mapping[str, Any], descriptors: list[int]) -> Mapping[str, object]:
        from .incoming import Incoming  # few programs come so

        task = self._given(message)
        image = _header(descriptors[0])
        self._incoming = Incoming(image, os.dup(descriptors[1]))
        self._run(task, image, hold=True, incoming=self._incoming)
        return {}

    def _learn(self, message: Mapping[str, Any], descriptors: list[int]) -> Mapping[str, object]:
        image = _header(descriptors[0])
        return {"built": self._coming().learn(image)}

    def _fill(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._coming().fill(message["memories"])
        return {}

    def _arrive(self, message: Mapping[str, Any], descriptors: list[int]) -> Mapping[str, object]:
        image = _header(descriptors[0])
        if not self._coming().arrive(image, message["memories"], message["insist"]):
            return {"arrived": False}
        self._running().wait_until_ready()
        return {"arrived": True, "continuations": self._running().continuations}

    def _coming(self) -> Incoming:
        if self._incoming is None:
            raise UsageError("no program is expected here")
        return self._incoming

    def _run(
        self, task: Assignment, image: Image | None, *, hold: bool, digest: Callable[[], bytes] = bytes,
        incoming: Incoming | None = None,
    ) -> None:
        if self._guest is not None:
            raise UsageError("a worker runs one program")
        sys.path += (folder for folder in task.search if folder not in sys.path)
        self._guest = Guest(
            self._loaded(), task, image, hold=hold, on_frozen=lambda: self._tell({"event": "frozen"}),
            on_end=self._ended, on_call=lambda call: self._tell({"event": "call", **call}), digest=digest,
            incoming=incoming,
        )
        self._seated.set()
        if incoming is not None:
            incoming.wait_until_staged()
        else:
            self._guest.wait_until_ready()

    def _commit(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        return {"resumed_ns": self._running().commit()}

    def _end_at(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._deadline.set(message["until"])
        return {}

    def _cut(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._running().cut_journal(message["calls"], message["image"])
        return {}

    def _checkpoint(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._only_one()
        try:
            return self._take(message)
        finally:
            give_memory_back()
            self._busy.release()

    def _take(self, message: Mapping[str, Any]) -> Mapping[str, object]:
        guest = self._running()
        if message["path"] is not None:
            _check_folder(message["path"])
        if not message["stop"]:
            guest.meter.begin()
            if guest.at_its_beginning:
                message = {**message, "track": False}
            taken = guest.snapshot(message["timeout"], _way(), **_series(guest, message))
            answer = self._write(taken.image, message) | {
                "stopped_ns": taken.stopped_ns, "way": taken.way, "copying": taken.copying_ns / 1e9,
            }
            spent = guest.meter.end(taken.stopped_ns)
            return answer | {"slowed_ns": spent.slowed, "work_ns": spent.work}
        held = self._write_held(guest, message)
        guest.end()
        return held | {"stopped_ns": time.monotonic_ns() - held["since_ns"], "way": "stop"}

    def _write_held(self, guest: Guest, message: Mapping[str, Any]) -> dict[str, Any]:
        """Hold the program and write its image; if that fails it goes on."""
        taken = guest.hold(message["timeout"], _way(), **_series(guest, message))
        since = time.monotonic_ns() - taken.stopped_ns
        answer: dict[str, Any] = {}
        try:
            answer = self._write(taken.image, message)
            guest.keep()
        except BaseException:
            if "descriptor" in answer:
                os.close(answer["descriptor"])
            guest.resume()
            raise
        return answer | {"since_ns": since}

    def _write(self, image: Image, message: Mapping[str, Any]) -> dict[str, object]:
        """The image to its file, or to an anonymous one whose descriptor goes with the answer."""
        guest = self._running()
        image = guest.portable(image)
        if message.get("carry") and image.parent is None:
            image = replace(image, module=replace(image.module, content=guest.wasm))
        path = message.get("path")
        answer: dict[str, object] = {"frames": len(image.frames), "whole": image.parent is None,
                                     "journal": image.host.get("journal")}
        with metered() as spent:
            if path is not None:
                digest = save(image, os.fsdecode(path))
                answer |= {"sha256": digest, "size": os.stat(path).st_size}
            else:
                packed, sealed = message.get("packed", True), bool(message.get("sealed"))
                answer |= _write_anonymous(image, packed=packed, sealed=sealed)
        answer |= {"packing": spent.packing, "writing": spent.writing}
        if message.get("track"):
            guest.written(bytes(answer["sha256"]), image)  # type: ignore[call-overload]
        return answer

    def _trial(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._only_one()
        try:
            return self._write(self._running().trial(message["timeout"]), {})
        finally:
            self._busy.release()

    def _fits(self, message: Mapping[str, Any], descriptors: list[int]) -> Mapping[str, object]:
        """Whether this runtime can hold the frames of a trial: refuses before the source is stopped."""
        task = self._given(message)
        with open(os.dup(descriptors[0]), "rb") as file:
            file.seek(0)
            image = read_image(file)
        assert task.module is not None
        guest_stack(self._loaded(), task.module, image, task.stack_bytes)
        return {}

    def _written(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        return {"memories": self._running().written_since(message["since"])}

    def _hold(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        guest = self._running()
        self._only_one()  # until the move is over
        try:
            answer = self._write_held(guest, message)
        except BaseException:
            self._busy.release()
            raise
        self._held = True
        return answer

    def _release(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._end_hold()
        return {"stopped_ns": self._running().resume()}

    def _finish(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        self._end_hold()
        self._running().end()
        return {}

    def _end_hold(self) -> None:
        if not self._held:
            raise UsageError("the program is not held for a move")
        self._held = False
        self._busy.release()

    def _status(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        guest = self._guest
        return {"state": "idle" if guest is None else guest.state}

    def _idle(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        from .idle import wait_until_idle  # not for programs without it

        guest = self._running()
        return {"state": wait_until_idle(
            guest, self._busy, lambda: guest.snapshot(LOOK, _way()), settle=message["settle"],
            unlike=message["unlike"], timeout=message["timeout"],
        )}

    def _returned(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        error = None if message["error"] is None else error_from_plain(message["error"])
        self._running().calls.answer(message["number"], message["results"], message["writes"], error)
        return {}

    def _peek(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        return {"data": self._running().calls.peek(message["number"], message["address"], message["length"])}

    def _errand(self, message: Mapping[str, Any], _: list[int]) -> Mapping[str, object]:
        results, size = self._running().calls.errand(
            message["number"], message["export"], message["arguments"], message["writes"]
        )
        return {"results": results, "size": size}

    # Helpers

    def _loaded(self) -> Engine:
        if self._engine is None:
            raise UsageError("no runtime is loaded")
        return self._engine

    def _running(self) -> Guest:
        if self._guest is None:
            raise UsageError("no program runs here")
        return self._guest

    def _only_one(self) -> None:
        """Take `_busy`."""
        if not self._busy.acquire(blocking=False):
            raise RetryLater("a checkpoint or move of this program is under way", hint="try again when it is done")

    def _tell(self, event: Mapping[str, object]) -> None:
        """What the program does; whoever hears of it may ask for the program at once."""
        self._seated.wait()
        self._event(event)

    def _ended(self, end: End) -> None:
        self._seated.wait()
        event: dict[str, object] = {"event": "ended", "how": end.how}
        if end.outcome is not None:
            types = self._running().result_types if end.how == "done" else ()
            event["results"] = [
                [type_, bits.to_bytes(16, "little")] for type_, bits in zip(types, end.outcome.results, strict=True)
            ] if types else []
            event["exit_code"] = end.outcome.exit_code
        if end.error is not None:
            event["error"] = error_to_plain(end.error)
        self._event(event)

    def _event(self, message: Mapping[str, object]) -> None:
        try:
            self._channel.send(message)
        except Closed:
            pass


def _way() -> str:
    return os.environ.get("WASMCKPT_SNAPSHOT", "auto")


def _series(guest: Guest, message: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a snapshot that is followed, or preceded, by others."""
    if not message.get("track"):
        return {}
    parent = message["parent"]
    return {
        "changes": guest.track(),
        "wanted": None if parent is None else Wanted(message["since"], ParentRef(*parent)),
    }


def _digest(file: BufferedReader) -> bytes:
    file.seek(0)
    return hashlib.file_digest(file, "sha256").digest()


def _header(descriptor: int) -> Image:
    """The image in a file, whose memories come by another way."""
    with open(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return replace(read_image(file), parent=None)


def _write_anonymous(image: Image, *, packed: bool = True, sealed: bool = False) -> dict[str, object]:
    """``sealed``: it will be a file, with the seals that those have."""
    fd = memory_file("wasmckpt-image")
    try:
        with open(fd, "wb", buffering=1 << 16, closefd=False) as file:
            digest = write_sealed(image, file) if sealed else write_image(image, file, packed=packed)
        return {"sha256": digest, "size": os.fstat(fd).st_size, "descriptor": fd}
    except BaseException:
        os.close(fd)
        raise


def _check_folder(path: bytes) -> None:
    """Find out before the program is stopped what can be known before."""
    folder = os.path.dirname(path) or b"."
    if not os.path.isdir(folder):
        raise StorageError("the image cannot be written: no such folder", path=os.fsdecode(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError("the image cannot be written: the folder is not writable", path=os.fsdecode(folder))


def keep_memories_mapped() -> None:
    """Have malloc map each large piece by itself. Wasm3's memory is such a piece; a forked copy makes room behind it
    for its frames, and where that copies the piece instead of moving its pages, all of it looks written."""
    try:
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM)
    except AttributeError:
        pass  # another libc


def give_memory_back() -> None:
    """What malloc keeps of a written image would be copied, page by page, with the page tables of the next fork."""
    with contextlib.suppress(AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)


def main(fd: int, parent: int) -> int:
    """Serve over the inherited socket ``fd`` until the process ``parent`` is gone."""
    os.closerange(fd + 1, 1 << 20)  # what the parent itself had inherited
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # whatever takes this process over gets no more rights
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    keep_memories_mapped()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a closed pipe is an errno for the guest
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    if os.getppid() != parent:
        return 1  # it died before we could ask to be told
    os.set_inheritable(fd, False)
    status = 70
    try:
        Worker(Channel(socket.socket(fileno=fd))).serve()
        status = 0
    except Exception:
        if os.environ.get("WASMCKPT_DEBUG"):
            import traceback

            traceback.print_exc()
    finally:
        # Not through the interpreter's end: a guest may be running in native code, and it has no say any more.
        os._exit(status)
