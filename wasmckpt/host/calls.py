"""How a host function is declared and what becomes of its errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from wasmckpt.wasm.values import I32, I64

from .abi import Errno, WasiError, from_os_error

__all__ = ["HostFunction", "signature", "table_of"]

_FAULT = int(Errno.FAULT)
_OVERFLOW = int(Errno.OVERFLOW)
_CODES = {"i": I32, "I": I64}


class HostFunction(NamedTuple):
    """One import: types as codes of `wasmckpt.wasm.values`, and the function, called as ``call(memory, *arguments)``.

    Arguments are unsigned bit patterns, as are the results: an int, a tuple of several, or None. WASI's are errnos.
    """

    params: tuple[int, ...]
    results: tuple[int, ...]
    call: Callable[..., Any]


def signature(params: str, results: str = "i") -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Declare a method as a host function: ``i`` an i32, ``I`` an i64. Its errors become errnos."""

    def declare(method: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(method)
        def call(*args: Any) -> int:
            try:
                return method(*args)
            except WasiError as error:
                return error.errno
            except IndexError:
                return _FAULT
            except OSError as error:
                return from_os_error(error)
            except OverflowError:
                return _OVERFLOW

        call.__wasi__ = tuple(_CODES[p] for p in params), tuple(_CODES[r] for r in results)  # type: ignore[attr-defined]
        return call

    return declare


def table_of(*groups: object) -> dict[str, HostFunction]:
    """Name -> function, of all declared methods of the groups."""
    functions: dict[str, HostFunction] = {}
    for group in groups:
        for name in dir(group):
            method = getattr(group, name)
            types: tuple[tuple[int, ...], tuple[int, ...]] | None = getattr(method, "__wasi__", None)
            if types is not None:
                functions[name] = HostFunction(types[0], types[1], method)
    return functions
