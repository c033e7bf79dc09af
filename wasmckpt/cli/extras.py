"""Parts that are not installed unless somebody wants them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import RuntimeMissing

__all__ = ["extra"]


@contextlib.contextmanager
def extra(name: str) -> Iterator[None]:
    """Around imports that need an extra. Raises `RuntimeMissing`: it is not installed."""
    try:
        yield
    except ImportError as reason:
        hint = f"pip install 'wasmckpt[{name}]'"
        raise RuntimeMissing(f"a package is not installed: {reason.name}", hint=hint) from None
