"""``sock_*``: sockets are not supported (``ENOTSUP``); what is no socket at all is told so (``ENOTSOCK``)."""

from __future__ import annotations

from .abi import FILETYPE_SOCKET_DGRAM, FILETYPE_SOCKET_STREAM, Errno
from .calls import signature
from .descriptors import DescriptorTable
from .memory import GuestMemory

__all__ = ["SocketCalls"]


class SocketCalls:
    """Present since modules import them, often without ever calling them."""

    def __init__(self, table: DescriptorTable) -> None:
        self._table = table

    def _refuse(self, fd: int) -> int:
        # Standard streams can be sockets of the host.
        sockets = (FILETYPE_SOCKET_STREAM, FILETYPE_SOCKET_DGRAM)
        return int(Errno.NOTSUP if self._table.require(fd).filetype in sockets else Errno.NOTSOCK)

    @signature("iii")
    def sock_accept(self, _memory: GuestMemory, fd: int, _flags: int, _result: int) -> int:
        self._table.require(fd)
        return int(Errno.NOTSUP)

    @signature("iiiiii")
    def sock_recv(
        self, _memory: GuestMemory, fd: int, _iovecs: int, _count: int, _flags: int, _size: int, _result_flags: int
    ) -> int:
        return self._refuse(fd)

    @signature("iiiii")
    def sock_send(self, _memory: GuestMemory, fd: int, _iovecs: int, _count: int, _flags: int, _size: int) -> int:
        return self._refuse(fd)

    @signature("ii")
    def sock_shutdown(self, _memory: GuestMemory, fd: int, _how: int) -> int:
        return self._refuse(fd)
