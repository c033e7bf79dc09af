"""One guest's WASI preview 1: functions to import, the interrupt for checkpoints, state as plain data."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from .calls import HostFunction, table_of
from .clocks import GuestClocks
from .config import WasiConfig, encode
from .descriptors import DescriptorTable
from .files import FileCalls
from .grants import check_names, open_preopen
from .journal.surroundings import Surroundings
from .paths import PathCalls
from .polling import PollCalls
from .process import ProcessCalls
from .random import RandomSource
from .resume import restore_into
from .snapshot import Mark, take_mark
from .sockets import SocketCalls
from .streams import standard_stream
from .waiting import Waiter

if TYPE_CHECKING:
    from .journal.recorder import Journal  # most programs keep none

__all__ = ["Wasi"]


class Wasi:
    """WASI preview 1 for one guest.

    Args:
        config: what the guest gets.

    Raises:
        HostStateError: a preopened folder is missing, or is not a folder; with field ``path``.
        UsageError: two preopened folders have the same name in the guest.

    Attributes:
        functions: name -> (parameter types, result types, function) of module ``wasi_snapshot_preview1``; a function
            is called with the guest's memory and the arguments as unsigned bit patterns, by the guest's thread only.
            It raises `ProcExit` or `RepeatCall`, nothing else.
    """

    functions: Mapping[str, HostFunction]

    def __init__(self, config: WasiConfig) -> None:
        self._setup(config)
        try:
            for stream in self._standard.values():
                self._table.add(stream)
            for host_path, guest_path in config.preopens:
                self._table.add(open_preopen(config, host_path, encode(guest_path)))
        except BaseException:
            self.close()
            raise

    def _setup(self, config: WasiConfig) -> None:
        check_names(config)
        _ignore_broken_pipes()
        self._config = config
        # First of all: one that is closed must not come to mean the next descriptor that is opened here.
        self._standard = {name: standard_stream(name, getattr(config, name)) for name in ("stdin", "stdout", "stderr")}
        self._table = DescriptorTable()
        self._waiter = Waiter()
        self._clocks = GuestClocks(config.clocks)
        self._random = RandomSource(config.random_seed)
        self._process = ProcessCalls(config.encoded_args(), config.encoded_env(), self._clocks, self._random)
        self._poll = PollCalls(self._table, self._clocks, self._waiter)
        self._closed = False
        self.functions = table_of(
            self._process, FileCalls(self._table, self._waiter), PathCalls(self._table), self._poll,
            SocketCalls(self._table),
        )

    @property
    def exit_code(self) -> int | None:
        """What the guest gave to ``proc_exit``; None before."""
        return self._process.exit_code

    @property
    def waits(self) -> int:
        """From any thread: waits begun and ended so far; odd while the guest waits in a call."""
        return self._waiter.waits

    def interrupt(self) -> None:
        """From any thread: a call that is waiting, or would wait, raises `RepeatCall` if it has done nothing yet.

        What was read or written in part is finished as done, with the short count. Calls that need not wait just run.
        """
        self._waiter.interrupt()

    def clear_interrupt(self) -> None:
        """From any thread: calls may wait again."""
        self._waiter.clear()

    def moment(self) -> list[object]:
        """What changes without a call, as a journal has it: readings of the clocks (as named by ``CLOCKS``), a sleep
        under way, how often a seeded generator was asked."""
        pending = self._poll.pending
        return [
            self._clocks.readings(), None if pending is None else [pending.call, list(pending.deadlines)],
            self._random.drawn,
        ]

    def keep_journal(
        self, journal: Journal, api: Callable[[], Mapping[str, object]],
        call_export: Callable[[str, Sequence[int]], tuple[int, ...]],
    ) -> None:
        """Have a journal kept of what comes from outside and goes there, and show it the guest's host.

        Args:
            api: the guest API's part of the state. call_export: calls an export of the guest, in its thread.
        """
        self._table.set_tap(journal)
        self._waiter.before_wait = journal.before_wait
        journal.surround(Surroundings(self._table, self.moment, api, call_export))

    def mark(self) -> Mark:
        """The state of this moment, without any call of the system and without letting go of the GIL.

        For a snapshot whose source goes on: `state` completes it later. Until then, or until `Mark.release`, host
        descriptors that the guest closes stay open.
        """
        return take_mark(self._config, self._table, self._process, self._clocks, self._poll, self._random)

    def state(self, mark: Mark | None = None) -> dict[str, object]:
        """Everything that a restored guest needs, as plain data for msgpack (str keys, int, bytes, list, None, bool).

        Args:
            mark: the moment; now, if None: then no other thread may be in a call of this guest.
        """
        return (mark or self.mark()).complete()

    @classmethod
    def restore(cls, config: WasiConfig, state: Mapping[str, object], *, accept_changed: bool = False) -> Wasi:
        """A guest's host that goes on from a `state`.

        Grants nothing: files are opened again only below what ``config`` grants now, with at most its rights, never
        created nor truncated. Arguments and environment are the guest's own, those of ``config`` are ignored.

        Args:
            accept_changed: go on even if a file's contents are not what they were.

        Raises:
            HostStateError: a file is missing, changed or truncated, or a preopened folder is gone; fields ``path`` and
                ``difference``.
            ImageError: the state is damaged; field ``field``.
        """
        wasi = cls.__new__(cls)
        wasi._setup(config)
        try:
            restore_into(
                state, config, wasi._standard, wasi._table, wasi._process, wasi._clocks, wasi._poll, wasi._random,
                accept_changed=accept_changed,
            )
        except BaseException:
            wasi.close()
            raise
        return wasi

    def close(self) -> None:
        """Give back all host descriptors that were opened here; not the standard streams. Idempotent."""
        if not self._closed:
            self._closed = True
            self._table.close_all()
            self._waiter.close()


def _ignore_broken_pipes() -> None:
    """A write to a closed pipe is the guest's ``EPIPE``, not the worker's death (Python's default, made sure of)."""
    if signal.getsignal(signal.SIGPIPE) is signal.SIG_DFL:
        try:
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        except ValueError:
            # Not the main thread: the worker's main thread has to do it.
            pass
