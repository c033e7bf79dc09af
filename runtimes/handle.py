"""Ownership of a foreign object: closed once, children before their owner, never used after."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from wasmckpt.errors import UsageError

__all__ = ["Handle"]


class Handle:
    """Owns one object of a C library.

    Args:
        what: its name in messages ("store").
        value: the pointer (whatever the FFI calls one).
        release: frees it; called once, with ``value``. It must not refer to the handle.
        owner: a handle that must outlive this one. It is kept alive, and closing it closes this one first, also when
            both became garbage together, which Python finalizes in any order.
        keep: Python objects that the foreign side points to (callbacks, buffers); let go of after ``release``.
    """

    __slots__ = ("__weakref__", "_keep", "_owner", "_resource", "what")

    def __init__(self, what: str, value: Any, release: Callable[[Any], object], *, owner: Handle | None = None,
                 keep: tuple[object, ...] = ()) -> None:
        self.what = what
        self._owner = owner
        self._keep: list[object] = list(keep)
        if owner is not None and owner.closed:
            release(value)
            raise UsageError(f"the {owner.what} is closed")
        above = owner._resource if owner is not None else None
        self._resource: _Resource = _Resource(value, release, above, self)

    @property
    def value(self) -> Any:
        """The pointer. Raises `UsageError` after `close`."""
        if not self._resource.release:
            raise UsageError(f"the {self.what} is closed")
        return self._resource.value

    @property
    def closed(self) -> bool:
        return not self._resource.release

    def keep(self, *objects: object) -> None:
        """Keeps more Python objects alive until after the release."""
        self._keep.extend(objects)

    def close(self) -> None:
        """Closes the children, newest first, then this object; does nothing the second time."""
        self._resource.close()

    def _let_go(self) -> None:
        self._keep.clear()
        self._owner = None

    def __del__(self, _ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # While the interpreter ends, the library's own parts may be gone already; the process frees it all. By then
        # this module's globals may be gone, too.
        if not _ending() and (resource := getattr(self, "_resource", None)) is not None:
            resource.close()


class _Resource:
    """What is to be released, apart from its handle.

    An owner cannot rely on weak references to its children's handles: when a cycle of garbage holds both, Python
    clears those first and may then finalize the owner before the child, whose release would write into freed memory.
    Nor may it hold the handles, since what they keep (callbacks) often refers to whatever would drop them.
    """

    __slots__ = ("children", "handle", "owner", "release", "value")

    def __init__(self, value: Any, release: Callable[[Any], object], owner: _Resource | None, handle: Handle) -> None:
        self.value = value
        self.release = [release]  # a list, as `pop` lets one of several threads or finalizers have it
        self.owner = owner
        self.handle = weakref.ref(handle)
        self.children: dict[_Resource, None] = {}
        if owner is not None:
            owner.children[self] = None

    def close(self) -> None:
        try:
            release = self.release.pop()
        except IndexError:
            return
        for child in reversed(list(self.children)):
            child.close()
        value, self.value = self.value, None
        release(value)
        if self.owner is not None:
            self.owner.children.pop(self, None)
            self.owner = None
        if (handle := self.handle()) is not None:
            handle._let_go()
