"""Arguments, environment, clocks, random numbers, exit."""

from __future__ import annotations

from .abi import U32, U64, Errno
from .calls import signature
from .clocks import GuestClocks
from .memory import GuestMemory, check_range
from .random import RandomSource
from .signals import ProcExit

__all__ = ["ProcessCalls"]

_RANDOM_PIECE = 1 << 20


class ProcessCalls:
    """Calls about the process itself.

    Attributes:
        args: ``argv``.
        env: name and value of each variable.
        exit_code: what the guest gave to ``proc_exit``; None before.
    """

    def __init__(
        self, args: list[bytes], env: list[tuple[bytes, bytes]], clocks: GuestClocks, random: RandomSource
    ) -> None:
        self.args = args
        self.env = env
        self.clocks = clocks
        self.random = random
        self.exit_code: int | None = None

    @signature("ii")
    def args_get(self, memory: GuestMemory, pointers: int, buffer: int) -> int:
        return _store_strings(memory, self.args, pointers, buffer)

    @signature("ii")
    def args_sizes_get(self, memory: GuestMemory, count: int, size: int) -> int:
        return _store_sizes(memory, self.args, count, size)

    @signature("ii")
    def environ_get(self, memory: GuestMemory, pointers: int, buffer: int) -> int:
        return _store_strings(memory, self._variables(), pointers, buffer)

    @signature("ii")
    def environ_sizes_get(self, memory: GuestMemory, count: int, size: int) -> int:
        return _store_sizes(memory, self._variables(), count, size)

    def _variables(self) -> list[bytes]:
        return [name + b"=" + value for name, value in self.env]

    @signature("ii")
    def clock_res_get(self, memory: GuestMemory, clock: int, result: int) -> int:
        memory.write(result, U64.pack(self.clocks.resolution(clock)))
        return 0

    @signature("iIi")
    def clock_time_get(self, memory: GuestMemory, clock: int, _precision: int, result: int) -> int:
        memory.write(result, self.clocks.read(clock).to_bytes(8, "little"))
        return 0

    @signature("ii")
    def random_get(self, memory: GuestMemory, buffer: int, length: int) -> int:
        check_range(memory, buffer, length)
        for start in range(0, length, _RANDOM_PIECE):
            memory.write(buffer + start, self.random.take(min(_RANDOM_PIECE, length - start)))
        return 0

    @signature("")
    def sched_yield(self, _memory: GuestMemory) -> int:
        return 0

    @signature("i", "")
    def proc_exit(self, _memory: GuestMemory, code: int) -> int:
        self.exit_code = code
        raise ProcExit(code)

    @signature("i")
    def proc_raise(self, _memory: GuestMemory, _signal: int) -> int:
        return int(Errno.NOTSUP)


def _store_sizes(memory: GuestMemory, strings: list[bytes], count: int, size: int) -> int:
    check_range(memory, size, 4)
    memory.write(count, U32.pack(len(strings)))
    memory.write(size, U32.pack(sum(len(text) + 1 for text in strings)))
    return 0


def _store_strings(memory: GuestMemory, strings: list[bytes], pointers: int, buffer: int) -> int:
    addresses = []
    for text in strings:
        addresses.append(U32.pack(buffer))
        memory.write(buffer, text + b"\0")
        buffer += len(text) + 1
    memory.write(pointers, b"".join(addresses))
    return 0
