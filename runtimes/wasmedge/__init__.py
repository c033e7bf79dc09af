"""WasmEdge through its C API: its interpreter, and its ahead-of-time mode ("wasmedge-aot").

Its library comes with a C library of its own where the system's is older, so the process that loads it is started
through `wasmckpt.runtimes.loader`.

What it cannot do, and why: it has no limit of the call depth, so the module itself counts ("depth-counter" in its
lowerings); a trap has a kind, but names no function.
"""

from wasmckpt.runtimes.wasmedge.adapter import WasmEdgeEngine
from wasmckpt.runtimes.wasmedge.aot import WasmEdgeAotEngine

__all__ = ["WasmEdgeAotEngine", "WasmEdgeEngine"]
