"""The guest's memory as the host layer sees it: bytes at addresses, nothing of any runtime."""

from __future__ import annotations

from typing import Protocol

from .abi import IOVEC

__all__ = ["BytesMemory", "GuestMemory", "MemoryFault", "check_range", "read_iovecs"]


class MemoryFault(IndexError):
    """An address range lies outside the guest's memory; the guest sees ``EFAULT``."""


class GuestMemory(Protocol):
    """Linear memory for the length of one host call; fetched anew by the caller for every call, since it may move."""

    @property
    def size(self) -> int:
        """Bytes."""

    def read(self, address: int, length: int) -> bytes:
        """A copy of ``length`` bytes. Raises a subclass of IndexError outside."""

    def write(self, address: int, data: bytes) -> None:
        """Store ``data``. Raises a subclass of IndexError outside, before storing anything."""


class BytesMemory:
    """A `GuestMemory` over a ``bytearray`` or any writable buffer of bytes."""

    __slots__ = ("buffer",)

    def __init__(self, buffer: bytearray | memoryview) -> None:
        self.buffer = buffer

    @property
    def size(self) -> int:
        return len(self.buffer)

    def read(self, address: int, length: int) -> bytes:
        end = address + length
        if address < 0 or length < 0 or end > len(self.buffer):
            raise MemoryFault(f"{length} bytes at {address:#x} of {len(self.buffer):#x}")
        return bytes(self.buffer[address:end])

    def write(self, address: int, data: bytes) -> None:
        end = address + len(data)
        if address < 0 or end > len(self.buffer):
            raise MemoryFault(f"{len(data)} bytes at {address:#x} of {len(self.buffer):#x}")
        self.buffer[address:end] = data


def check_range(memory: GuestMemory, address: int, length: int) -> None:
    """Raise `MemoryFault` unless the range is inside: done before any effect, so that a fault loses no byte."""
    if address + length > memory.size:
        raise MemoryFault(f"{length} bytes at {address:#x} of {memory.size:#x}")


def read_iovecs(memory: GuestMemory, address: int, count: int) -> list[tuple[int, int]]:
    """The (address, length) pairs of a list of buffers, each checked to lie inside the memory."""
    size = memory.size
    raw = memory.read(address, 8 * count)
    if count == 1:
        start, length = IOVEC.unpack(raw)
        if start + length > size:
            raise MemoryFault(f"{length} bytes at {start:#x} of {size:#x}")
        return [(start, length)]
    buffers = list(IOVEC.iter_unpack(raw))
    for start, length in buffers:
        if start + length > size:
            raise MemoryFault(f"{length} bytes at {start:#x} of {size:#x}")
    return buffers
