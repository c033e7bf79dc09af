"""Names of a package that are imported on first use. No `typing` here: importing it takes 4 ms of every start."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping

__all__ = ["on_first_use"]


def on_first_use(package: str, where: Mapping[str, str]) -> Callable[[str], object]:
    """A package's ``__getattr__``. ``where``: its names -> the submodule of each, ``module:name`` where it is called
    otherwise there."""

    def __getattr__(name: str) -> object:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, called = where[name].partition(":")
        value: object = getattr(importlib.import_module(f".{module}", package), called or name)
        setattr(sys.modules[package], name, value)
        return value

    return __getattr__
