"""What stands in a journal's frames: msgpack arrays, the first element says which kind.

::

    [function, check, result, writes, change?]                      a call that returned
    [-1, function, check, "out", cell, result address, position, evidence, data]    about to send data to a stream
    [-1, function, check, "in", cell, result address, buffers, position]            about to take input from a pipe
    [-1, function, check, "do", evidence]                           about to change files
    [-1, function, check, "user"]                                   about to call a function of the user's
    [-2, export, arguments, writes]                                 that function calls an export ...
    [-3]                                                            ... which has returned
    [-4, line]                                                      a new life begins here: 16 random bytes

``function`` is a number among the module's imported functions; ``check`` the CRC-32 of the arguments, of the paths they
point to, and of what is written; ``result`` an int, None, or an array of several; ``writes`` are [address, bytes] that
the call stored in the memory. ``position`` is [descriptor, consumed, produced] of the stream before the call. ``cell``
is 0 or 1, or -1: the bytes went by an ordinary call of the system.

The moment before them is [clocks, sleep, random]: readings of the four clocks, as in an image; None, or digest of the
waiting ``poll_oneoff`` and deadlines; None, or how often a seeded generator was asked.

``change`` says what the call changed of the host's state (``formats/SPEC.md``), for whoever goes on from here::

    p: [descriptor, offset] of a file, or [descriptor, consumed, produced] of a stream
    d: descriptor -> its record, None: it was closed          gone: descriptors whose files have no name any more
    w: descriptors whose files were written                   world: 1 if names in folders were changed
    api: the guest API's part                                 exit: the program ended with this code
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..abi import U32
from .file import Frame

__all__ = ["ATTACH", "ERRAND", "ERRAND_END", "INTENT", "folded", "input_taken", "output_in", "output_sent"]

INTENT: Final = -1
ERRAND: Final = -2
ERRAND_END: Final = -3
ATTACH: Final = -4

CLOCKS: Final = ("monotonic", "realtime", "process_cpu", "thread_cpu")

State = dict[str, Any]


def output_sent(intent: list[Any], sent: int) -> list[Any]:
    """The call that is over when so many bytes have gone."""
    number, consumed, produced = intent[6]
    return [intent[1], intent[2], 0, [[intent[5], U32.pack(sent)]], {"p": [number, consumed, produced + sent]}]


def input_taken(intent: list[Any], data: bytes) -> list[Any]:
    """The call that is over when these bytes have come."""
    number, consumed, produced = intent[7]
    writes, start = [], 0
    for address, length in intent[6]:
        if start >= len(data):
            break
        writes.append([address, data[start : start + length]])
        start += length
    writes.append([intent[5], U32.pack(len(data))])
    return [intent[1], intent[2], 0, writes, {"p": [number, consumed + len(data), produced]}]


def output_in(items: Iterable[list[Any]]) -> int:
    """Bytes of output among these calls."""
    total, out = 0, None
    for item in items:
        if item[0] == INTENT:
            out = item if item[3] == "out" else None
        elif item[0] >= 0:
            if out is not None and item[0] == out[1] and item[2] == 0 and item[3]:
                total += U32.unpack(item[3][-1][1])[0]
            out = None
    return total


def folded(
    state: Mapping[str, Any], items: Iterable[list[Any]], frames: Iterable[Frame], *, touched: bool = False,
) -> State:
    """The host's state behind these items, of the one before them.

    Args:
        touched: whether files may have been changed by one more call.

    Raises:
        KeyError and such: they do not fit.
    """
    new: State = dict(state)
    records: dict[int, State] = {record["number"]: dict(record) for record in state["descriptors"]}
    contents: list[Any] = list(state["anonymous"])
    for item in items:
        if item[0] >= 0 and len(item) > 4:
            _apply(item[4], new, records, contents)
    if touched:
        _apply({"world": 1}, new, records, contents)
    for frame in frames:
        clocks, sleep, random = frame.moment
        new["clocks"] = dict(zip(CLOCKS, clocks, strict=True))
        new["sleep"] = sleep and {"call": sleep[0], "deadlines": sleep[1]}
        if random is not None:
            new["random"] = {**new["random"], "calls": random}
    new["descriptors"] = [records[number] for number in sorted(records)]
    new["anonymous"] = contents
    return new


def _apply(change: Mapping[str, Any], state: State, records: dict[int, State], contents: list[Any]) -> None:
    if "p" in change:
        number, *position = change["p"]
        names = ("offset",) if len(position) == 1 else ("consumed", "produced")
        records[number].update(zip(names, position, strict=True))
    for number, record in change.get("d", {}).items():
        if record is None:
            records.pop(number, None)
        else:
            records[number] = dict(record)
    for number in change.get("w", ()):
        written = records[number]
        if "anonymous" in written:
            contents[written["anonymous"]] = None  # they died with the process
        for record in records.values():
            if (record.get("root"), record.get("path")) == (written.get("root"), written.get("path")):
                record.pop("seen", None)
    if "world" in change:
        for record in records.values():
            record.pop("seen", None)
    for number in change.get("gone", ()):
        record = records[number]
        if "anonymous" not in record or contents[record["anonymous"]] is not None:
            record["anonymous"] = len(contents)
            contents.append(None)
            record.pop("seen", None)
    if "api" in change:
        state["guest_api"] = change["api"]
    if "exit" in change:
        state["exit_code"] = change["exit"]
