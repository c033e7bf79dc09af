"""From module bytes to what an engine loads: the options that a runtime needs."""

from __future__ import annotations

from dataclasses import replace

from ..instrument.options import Options
from ..runtimes import Engine

__all__ = ["options_for"]


def options_for(engine: Engine, *, base: Options | None = None) -> Options:
    """The rewriter's options for a runtime, from what its adapter declares; ``base`` gives all the others."""
    can = engine.capabilities
    return replace(
        base or Options(),
        poll=can.poll,
        minimal_leb="minimal-leb" in can.lowerings,
        label_values="label-values" in can.lowerings,
        strip_names="strip-names" in can.lowerings,
        max_memory_pages=can.max_memory_pages,
    )
