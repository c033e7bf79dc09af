"""A runtime's refusal of a module that is valid is the runtime's limit, not the module's fault."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..errors import InvalidModule, NotSupported
from ..runtimes import Engine

__all__ = ["explaining"]


@contextlib.contextmanager
def explaining(engine: Engine) -> Iterator[None]:
    """Makes `NotSupported` of what the runtime calls an invalid module: our own validator has passed it before."""
    try:
        yield
    except InvalidModule as refusal:
        if refusal.fields.get("runtime") != engine.name:
            raise
        raise NotSupported(
            f"{engine.name} refuses this module: {refusal.what}", hint="choose another runtime (see wasmckpt doctor)",
            runtime=engine.name, function=refusal.fields.get("function"),
        ) from refusal
