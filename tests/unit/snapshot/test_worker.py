"""The worker's side of the socket, with a program made up for the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from wasmckpt.host import WasiConfig
from wasmckpt.snapshot import worker
from wasmckpt.snapshot.assignment import Assignment
from wasmckpt.snapshot.wire import Channel
from wasmckpt.snapshot.worker_guest import End


@pytest.mark.parametrize("event", ["call", "frozen", "ended"])
def test_a_program_is_there_when_one_hears_of_it(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    """Its thread is quicker than the one that started it: the answer to a call found no program, and was lost."""
    ours, theirs = socket.socketpair()
    ours.settimeout(30)

    class Quick:
        result_types = ()

        def __init__(
            self, *_: object, on_call: Callable[[Mapping[str, object]], None], on_frozen: Callable[[], None],
            on_end: Callable[[End], None], **__: object,
        ) -> None:
            acts: dict[str, Callable[[], None]] = {
                "call": lambda: on_call({"number": 1}), "frozen": on_frozen, "ended": lambda: on_end(End("killed"))}
            self.thread = threading.Thread(target=acts[event])
            self.thread.start()
            self.thread.join(0.3)
            assert self.thread.is_alive(), "it has told already"

        def wait_until_ready(self) -> None:
            self.thread.join(30)

    made: Any = worker.Worker(Channel(theirs))
    monkeypatch.setattr(worker, "Guest", Quick)
    monkeypatch.setattr(made, "_loaded", lambda: None)
    made._run(Assignment(b"", WasiConfig(), None, (), 1 << 20, 0, False, {}), None, hold=False)
    told, _ = Channel(ours).receive()
    assert told["event"] == event
    ours.close()
    theirs.close()
