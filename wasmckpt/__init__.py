"""wasmckpt: freeze a running WebAssembly program and let it go on elsewhere."""

__version__ = "0.1.0"
