"""Traps, in the words of the specification's tests."""

from __future__ import annotations

from wasmckpt.errors import CheckpointError, GuestTrap

__all__ = ["LinkError", "trap"]


def trap(kind: str) -> GuestTrap:
    """A trap to raise; ``fields["kind"]`` holds the words."""
    return GuestTrap(f"the guest trapped: {kind}", kind=kind)


class LinkError(CheckpointError):
    """An import is missing or of another type than the module asks for."""
