"""Preopened folders: what the embedder grants, opened."""

from __future__ import annotations

import os

from wasmckpt.errors import HostStateError, UsageError

from .abi import ALL_RIGHTS, CHANGING_RIGHTS, DIRECTORY_RIGHTS, FILETYPE_DIRECTORY
from .config import WasiConfig, encode
from .descriptors import Directory

__all__ = ["check_names", "granted_rights", "open_preopen"]


def check_names(config: WasiConfig) -> None:
    """Raise `UsageError` if two preopens have one name: a restored guest could not tell them apart."""
    seen: set[bytes] = set()
    for _, guest_path in config.preopens:
        name = encode(guest_path)
        if name in seen:
            raise UsageError("two preopened folders have one name in the guest", path=name.decode(errors="replace"))
        seen.add(name)


def granted_rights(config: WasiConfig, name: bytes) -> int:
    """Rights that the preopen ``name`` gives to what is opened through it."""
    if name in {encode(read_only) for read_only in config.read_only}:
        return ALL_RIGHTS & ~CHANGING_RIGHTS
    return ALL_RIGHTS


def open_preopen(config: WasiConfig, host_path: str | bytes | os.PathLike[str], name: bytes) -> Directory:
    """The descriptor of a granted folder. Raises `HostStateError`."""
    try:
        os_fd = os.open(host_path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise HostStateError(
            f"preopened folder cannot be opened: {error.strerror}", path=os.fsdecode(host_path),
            hint="create it or grant another one",
        ) from None
    granted = granted_rights(config, name)
    return Directory(os_fd, FILETYPE_DIRECTORY, granted & DIRECTORY_RIGHTS, granted, root=name, preopen=True)
