"""Wasm3 (a small interpreter) through the C API that the extension module of its PyPI package exports.

The package's own Python API holds the GIL for the whole run, so that nobody could raise the flag; the C functions
(``m3_*``) called through cffi release it.

What it cannot do, and why: no full validation (it ran ``i64.add`` on two i32), so validate elsewhere first; no segments
that are dropped, reference types, SIMD or second memory; 2 GiB of memory at most; a memory that moves when it grows;
signalling f32 NaNs are quieted by every move. Values carried by branches are miscompiled now and then: see the
lowerings in its capabilities.
"""

from wasmckpt.runtimes.wasm3.adapter import Wasm3Engine

__all__ = ["Wasm3Engine"]
