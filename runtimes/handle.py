"""Ownership of a foreign object: closed once, children before their owner, never used after."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from wasmckpt.errors import UsageError

__all__ = ["Handle"]

_lock = threading.Lock()


class Handle:
    """Owns one object of a C library.

    Args:
        what: its name in messages ("store").
        value: the pointer (whatever the FFI calls one).
        release: frees it; called once, with ``value``.
        owner: a handle that must outlive this one. It is kept alive, and closing it closes this one first.
        keep: Python objects that the foreign side points to (callbacks, buffers); let go of after ``release``.
    """

    __slots__ = ("__weakref__", "_children", "_keep", "_owner", "_release", "_value", "what")

    def __init__(self, what: str, value: Any, release: Callable[[Any], object], *, owner: Handle | None = None,
                 keep: tuple[object, ...] = ()) -> None:
        self.what = what
        self._value = value
        self._release: Callable[[Any], object] | None = release
        self._owner = owner
        self._keep: list[object] = list(keep)
        self._children: list[weakref.ref[Handle]] = []
        if owner is not None:
            if owner._release is None:
                self._release = None
                release(value)
                raise UsageError(f"the {owner.what} is closed")
            owner._children = [c for c in owner._children if c() is not None]
            owner._children.append(weakref.ref(self))

    @property
    def value(self) -> Any:
        """The pointer. Raises `UsageError` after `close`."""
        if self._release is None:
            raise UsageError(f"the {self.what} is closed")
        return self._value

    @property
    def closed(self) -> bool:
        return self._release is None

    def keep(self, *objects: object) -> None:
        """Keeps more Python objects alive until after the release."""
        self._keep.extend(objects)

    def close(self) -> None:
        """Closes the children, newest first, then this object; does nothing the second time."""
        with _lock:
            release, self._release = self._release, None
        if release is None:
            return
        for child in reversed(self._children):
            if (alive := child()) is not None:
                alive.close()
        value, self._value = self._value, None
        release(value)
        self._keep.clear()
        self._owner = None
        self._children.clear()

    def __del__(self) -> None:
        # While the interpreter ends, the library's own parts may be gone already; the process frees it all.
        if getattr(self, "_release", None) is not None and not sys.is_finalizing():
            self.close()
