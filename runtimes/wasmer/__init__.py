"""wasmer (a JIT, Cranelift) through its C library with a few functions more: see `wasmckpt.runtimes.provided.wasmer`.

PyPI's ``wasmer`` has no build for Python 3.11 and later, so it is not used.

What it cannot do here, and why: control words lie in a second memory, polled by an atomic load, the one load that
Cranelift never hoists; no tail calls (its Cranelift back end has none); no v128 in calls from and to the host, as the C
API has none; nobody can tell which function a slot of a table holds, so whoever wants to know keeps indices; each
compilation starts threads, and the process would die where it may start none: such a compilation is refused.
"""

from wasmckpt.runtimes.wasmer.adapter import WasmerEngine

__all__ = ["WasmerEngine"]
