"""wasmer (a JIT, Cranelift) through its C library with a few functions more: see `wasmckpt.runtimes.provided.wasmer`.

PyPI's ``wasmer`` has no build for Python 3.11 and later, so it is not used.

What it cannot do here, and why: no pointer to a global's storage (control words live in a second memory, polled by an
atomic load, which Cranelift never hoists); no tail calls (its Cranelift back end has none); no v128 at the boundary
(the C API has none); it cannot tell which function a table's slot holds, so whoever wants to know keeps indices.
"""

from wasmckpt.runtimes.wasmer.adapter import WasmerEngine

__all__ = ["WasmerEngine"]
