"""Where a running instance's state lies in native memory, so that it can be read from outside of the guest.

The same addresses hold in a forked copy of the process, so one reader serves both: this process's own memory, or the
copy's through ``/proc/PID/mem``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from ..instrument.instrument import Instrumented
from ..instrument.linker import PREFIX
from ..instrument.spill import WORDS
from ..runtimes import Instance

__all__ = ["Read", "View", "read_here"]

Read = Callable[[int, int], bytes]
"""``read(address, n)``: native memory of the process that is looked at."""


def read_here(address: int, length: int) -> bytes:
    """Native memory of this process."""
    return ctypes.string_at(address, length)


class View:
    """Addresses of an instance's control words, window and memories.

    Control words (see `wasmckpt.instrument.spill`) lie in the control memory, or in globals that the runtime gives
    addresses of.
    """

    def __init__(self, instance: Instance, module: Instrumented) -> None:
        self.instance = instance
        self.module = module
        self.in_memory = module.linker.control
        count = len(module.module.memories)
        self.memories = [instance.memory_locator(f"{PREFIX}memory{i}") for i in range(count)]
        name = "control" if self.in_memory else "window" if module.linker.own_memory else "memory0"
        self._window = instance.memory_locator(PREFIX + name)
        if self.in_memory:
            control, _ = self._window.resolve(read_here)
            self._words = {name: control + offset for name, offset in WORDS.items()}
        else:
            self._words = {name: instance.word_address(PREFIX + name) for name in (*WORDS, "base", "rp", "rend")}

    def address(self, word: str) -> int:
        """Native address of a control word; it stays the same as long as the instance."""
        return self._words[word]

    def word(self, name: str, read: Read = read_here) -> int:
        """Value of a control word."""
        return int.from_bytes(read(self._words[name], 4), "little")

    def set_word(self, name: str, value: int) -> None:
        """Store a control word; an aligned store, which the guest sees at once."""
        ctypes.c_uint32.from_address(self._words[name]).value = value

    def window(self, read: Read = read_here) -> tuple[bytes, bytes]:
        """The spilled frames' records, and what follows them (globals, dropped segments)."""
        memory, _ = self._window.resolve(read)
        base = self.module.linker.window_base if self.module.linker.own_memory else self.word("base", read)
        frames, end = self.word("frames", read), self.word("sp", read)
        data = read(memory + base, end - base)
        return data[: frames - base], data[frames - base :]

    def memory_pages(self, index: int, read: Read = read_here) -> tuple[int, int]:
        """Native address and size in 64 KiB pages of a memory, as the guest sees it (our window is not part of it)."""
        base, length = self.memories[index].resolve(read)
        if length is None:
            length = self.instance.memory(f"{PREFIX}memory{index}").size
        if index == 0 and not self.module.linker.own_memory and self.word("done", read):
            length = self.word("base", read)  # zero, where the guest's memory has no page
        return base, length >> 16
