"""Why a runtime refuses a module: runtimes say it in their own words, a reader wants the feature and the place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

from ..errors import CheckpointError, InvalidModule, NotSupported
from ..runtimes import Engine, MissingImport
from ..wasm.decode import decode
from ..wasm.opcodes import TABLE
from ..wasm.validate import analyze

__all__ = ["explaining", "first_needs"]

_COPY_AND_FILL: Final = (0xFC000A, 0xFC000B)


@contextlib.contextmanager
def explaining(engine: Engine, wasm: bytes) -> Iterator[None]:
    """Makes a runtime's refusal of a module, which our own validator has passed before, a `NotSupported` that names
    the missing feature, its function and its offset in the module."""
    try:
        yield
    except MissingImport:
        raise
    except (InvalidModule, NotSupported) as refusal:
        if refusal.fields.get("runtime") != engine.name:
            raise
        raise _explained(engine, wasm, refusal) from refusal


def _explained(engine: Engine, wasm: bytes, refusal: CheckpointError) -> CheckpointError:
    missing = {
        feature: place for feature, place in first_needs(wasm).items() if feature not in engine.capabilities.features
    }
    if missing:
        function, offset = next(iter(missing.values()))
        return NotSupported(
            f"{engine.name} cannot run this module: it needs {', '.join(missing)}", runtime=engine.name,
            function=function, offset=offset, hint="run it on another runtime; see wasmckpt doctor MODULE",
        )
    if isinstance(refusal, NotSupported):
        return refusal
    return NotSupported(
        f"{engine.name} refuses this module: {refusal.what}", hint="run it on another runtime",
        **{"runtime": engine.name, **{k: v for k, v in refusal.fields.items() if k == "function"}},
    )


def first_needs(wasm: bytes) -> dict[str, tuple[int | None, int | None]]:
    """Feature beyond the first version of WebAssembly -> function and module offset of the first need for it.

    Raises:
        InvalidModule, NotSupported: the module is not valid, or not one that this package reads.
    """
    module = decode(wasm)
    found: dict[str, tuple[int | None, int | None]] = {}
    if len(module.memories) > 1:
        found["multi-memory"] = (None, None)
    for func in range(module.imported_funcs, len(module.func_types)):
        code = analyze(module, func)
        base = module.body(func).expr
        for op in sorted(set(code.ops)):
            feature = "memory-copy-fill" if op in _COPY_AND_FILL else TABLE[op].feature
            if feature != "mvp" and feature not in found:
                found[feature] = func, base + code.pos[code.ops.index(op)]
    return found
