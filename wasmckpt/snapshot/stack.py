"""How much stack a guest gets: room for our larger frames, and for all frames that an image brings."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..errors import NotSupported
from ..wasm.decode import decode

if TYPE_CHECKING:
    from ..formats import Image
    from ..runtimes import Engine

__all__ = ["LARGEST_STACK", "guest_stack"]

_LARGEST_THREAD = 1 << 30
"""Native stack in bytes that a thread can be given, and the largest that a runtime makes for a guest."""
LARGEST_STACK = _LARGEST_THREAD // 2
"""The largest stack in bytes that a guest can be promised."""
_WORTH_A_LOOK = 500
"""Frames below which the ordinary stack is enough, whatever functions they are of."""


def guest_stack(engine: Engine, wasm: bytes, image: Image | None, stack_bytes: int) -> int:
    """Bytes of stack for a guest that was promised ``stack_bytes``.

    A rewritten function keeps more values alive over its calls, and unwinding needs some room at the deepest place: so
    twice the size, and 64 KiB. The frames of an image may come from a runtime with smaller frames; what they need here
    is estimated from above.

    Raises:
        NotSupported: no stack can hold the frames on this runtime; nothing has been built yet.
    """
    given = min(2 * stack_bytes + 65536, _LARGEST_THREAD)
    if image is None or len(image.frames) < _WORTH_A_LOOK:
        return given
    module = decode(wasm)
    functions = Counter(frame.point for frame in image.frames)
    needed = 0
    for point, count in functions.items():
        known = module.imported_funcs <= point.func < len(module.func_types)  # the check of the image comes later
        slots = (len(module.local_types(point.func)) if known else 0) + len(point.stack) + 8
        needed += count * (8 * slots + 64)
    wanted = max(given, needed + needed // 2)
    if max(wanted, engine.thread_stack_bytes(wanted)) <= _LARGEST_THREAD:
        return wanted
    if max(needed, engine.thread_stack_bytes(needed)) > _LARGEST_THREAD:
        raise NotSupported(
            f"{engine.name} cannot hold {len(image.frames)} frames of this program", runtime=engine.name,
            need=f"{needed} bytes of stack", hint="resume it on another runtime",
        )
    return max(given, needed)
