"""wasmtime (a JIT, Cranelift) through the C library inside its PyPI wheel.

What it cannot do here, and why: no pointer to a global's storage (control words live in a second memory, polled by an
atomic load, the one load that Cranelift never hoists); a store serves one thread at a time.
"""

from wasmckpt.runtimes.wasmtime.adapter import WasmtimeEngine

__all__ = ["WasmtimeEngine"]
