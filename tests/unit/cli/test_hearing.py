"""Signals are heard also while the main thread waits and does not notice them itself."""

from __future__ import annotations

import os
import queue
import signal
import threading

from wasmckpt.cli.hearing import hearing


def test_the_main_thread_need_not_notice() -> None:
    """Another thread is interrupted, as if it had come just before the main one began to wait."""
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    with hearing([signal.SIGUSR2], heard.put):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        try:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert heard.get(timeout=60) == signal.SIGUSR2
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_those_that_were_asked_for_in_their_order() -> None:
    heard: queue.SimpleQueue[int] = queue.SimpleQueue()
    with hearing([signal.SIGUSR2, signal.SIGHUP], heard.put):
        for number in (signal.SIGHUP, signal.SIGUSR2, signal.SIGHUP):
            signal.raise_signal(number)
        assert [heard.get(timeout=60) for _ in range(3)] == [signal.SIGHUP, signal.SIGUSR2, signal.SIGHUP]
        assert heard.empty()


def test_afterwards_all_is_as_before() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, _: came.append(number))
    threads, descriptors = set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    try:
        with hearing([signal.SIGUSR2], lambda _: None):
            pass
        signal.raise_signal(signal.SIGUSR2)
        assert came == [signal.SIGUSR2]
        assert signal.set_wakeup_fd(-1) == -1
        assert set(threading.enumerate()) <= threads  # others may have ended
        assert len(os.listdir("/proc/self/fd")) <= descriptors
    finally:
        signal.signal(signal.SIGUSR2, before)
