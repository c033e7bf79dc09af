"""Threads with a stack of known size: a guest that recurses must meet its own limit before the thread's end.

The pages of a thread's stack are lazy, so a generous size costs address space only.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from wasmckpt.errors import RetryLater, UsageError

__all__ = ["GuestThread", "current_stack_bytes", "require_threads", "run_in_guest_thread", "run_with_stack"]

T = TypeVar("T")
_PAGE = 4096
_stack_size_lock = threading.Lock()
_known = threading.local()


class GuestThread(Generic[T]):
    """A started thread with ``stack_bytes`` of native stack that runs ``call``.

    Attributes:
        native_id: the kernel's thread id, for signals and ``/proc``.
    """

    def __init__(self, call: Callable[[], T], *, stack_bytes: int) -> None:
        """Starts it. Raises `UsageError` if the system gives no thread with such a stack."""
        self._call = call
        self._outcome: tuple[T] | None = None
        self._failure: BaseException | None = None
        self._begun, self._over = threading.Event(), threading.Event()
        self.native_id = 0
        size = -(-max(stack_bytes, 64 * 1024) // _PAGE) * _PAGE
        # The size is a setting of the whole process: every thread that anybody starts meanwhile gets it, and with a
        # limit of memory there may be room for one such stack only. `threading.Thread.start` returns when the new
        # thread runs; this returns when it is made, without letting others run in between.
        with _stack_size_lock:
            before = threading.stack_size(size)
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError as problem:
                raise UsageError("no thread with a stack of that size", hint="ask for a smaller guest stack",
                                 stack_bytes=size) from problem
            finally:
                threading.stack_size(before)
        self._begun.wait()

    def _run(self) -> None:
        self.native_id = threading.get_native_id()
        self._begun.set()
        try:
            self._outcome = (self._call(),)
        except BaseException as problem:  # handed to whoever asks for the result
            self._failure = problem
        finally:
            del self._call
            self._over.set()

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return not self._over.is_set()

    def join(self, timeout: float | None = None) -> bool:
        """Waits ``timeout`` seconds (None: for ever); True when it has ended."""
        return self._over.wait(timeout)

    def result(self) -> T:
        """Waits for the end; gives what ``call`` gave or raises what it raised, the same object."""
        self.join()
        failure, self._failure = self._failure, None
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else the frame and the exception keep each other alive
        assert self._outcome is not None
        return self._outcome[0]


def run_in_guest_thread(call: Callable[[], T], *, stack_bytes: int) -> T:
    """Runs ``call`` in a thread with ``stack_bytes`` of native stack and waits for it.

    Gives its result or raises its exception. A `KeyboardInterrupt` of the waiting thread leaves the guest running.
    """
    return GuestThread(call, stack_bytes=stack_bytes).result()


def run_with_stack(call: Callable[[], T], *, stack_bytes: int) -> T:
    """Runs ``call`` here, or, where the calling thread's stack is smaller than ``stack_bytes``, in a thread of its own.
    Gives its result or raises its exception."""
    if current_stack_bytes() < stack_bytes:
        return run_in_guest_thread(call, stack_bytes=stack_bytes)
    return call()


def current_stack_bytes() -> int:
    """Size in bytes of the calling thread's native stack (not: what is left of it)."""
    size: int | None = getattr(_known, "size", None)
    if size is None:
        _known.size = size = _ask_pthread()
    return size


def _ask_pthread() -> int:
    libc = ctypes.CDLL(None)
    libc.pthread_self.restype = ctypes.c_void_p
    attributes = ctypes.create_string_buffer(128)  # pthread_attr_t is 56 to 64 bytes in glibc and musl
    low, size = ctypes.c_void_p(), ctypes.c_size_t()
    if libc.pthread_getattr_np(ctypes.c_void_p(libc.pthread_self()), attributes):
        return 0
    libc.pthread_attr_getstack(attributes, ctypes.byref(low), ctypes.byref(size))
    libc.pthread_attr_destroy(attributes)
    return size.value


def require_threads(runtime: str) -> None:
    """For a runtime that compiles in threads of its own, one a processor, and ends the process where it gets none.

    Raises `RetryLater`: the system gives none now.
    """
    gate = threading.Event()
    started: list[threading.Thread] = []
    try:
        for _ in os.sched_getaffinity(0):
            thread = threading.Thread(target=gate.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as problem:
        raise RetryLater(f"no thread can be started, and {runtime} compiles in threads", runtime=runtime,
                         hint="end processes of this user, or raise the limit") from problem
    finally:
        gate.set()
        for thread in started:
            thread.join()
