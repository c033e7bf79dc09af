"""Between the rewriter and a runtime: the options that it needs, and what it cannot do.

The environment variable ``WASMCKPT_RESUME=whole`` has continuations compiled together with their module also where the
runtime can have them in a module of their own (see `wasmckpt.instrument.side`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ..errors import NotSupported
from ..instrument.options import Options
from ..lazydata import replace
from ..runtimes import Capabilities, Engine
from ..wasm.features import Use

__all__ = ["options_for", "options_with", "refuse_unsupported"]


def options_for(engine: Engine, *, base: Options | None = None) -> Options:
    """The rewriter's options for a runtime, from what its adapter declares; ``base`` gives all the others."""
    return options_with(engine.capabilities, base=base)


def options_with(can: Capabilities, *, base: Options | None = None) -> Options:
    """As `options_for`, for a runtime that need not be loaded here."""
    return replace(
        base or Options(),
        poll=can.poll,
        minimal_leb="minimal-leb" in can.lowerings,
        label_values="label-values" in can.lowerings,
        label_vectors="label-vectors" in can.lowerings,
        lower_atomics="atomics" not in can.features,
        tail_calls="tail-calls" in can.features,
        own_table_items="own-table-items" in can.lowerings,
        depth_counter="depth-counter" in can.lowerings,
        strip_names="strip-names" in can.lowerings,
        side_modules=can.side_modules and os.environ.get("WASMCKPT_RESUME") != "whole",
        max_memory_pages=can.max_memory_pages,
    )


def refuse_unsupported(engine: Engine, features: Mapping[str, Use]) -> None:
    """Refuse a module that uses what the runtime does not have, before the runtime sees it.

    Raises:
        NotSupported: with feature (``need``), runtime, function and byte offset of the first use.
    """
    can = engine.capabilities.features
    for name, use in features.items():
        if name not in can and not (name == "memory-copy-fill" and "bulk-memory" in can):
            raise NotSupported(
                f"{engine.name} cannot run this module: it uses {use.what}", need=name, runtime=engine.name,
                function=use.function if use.function >= 0 else None, offset=use.offset or None,
                hint="choose another runtime (see `wasmckpt doctor`)",
            )
