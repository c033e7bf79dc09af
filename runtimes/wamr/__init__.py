"""WAMR (a fast interpreter) through its embedding C API, from a shared library of its own (`provided`).

What it cannot do here, and why: a memory that moves when it grows; one memory only; a stack that is touched when it is
made; no host functions with several results or with vectors, so modules that import such are given wrappers (`shape`);
its active element segments of expressions put function 0 where null is meant, so they are written anew, too.
"""

from wasmckpt.runtimes.wamr.adapter import WamrEngine

__all__ = ["WamrEngine"]
