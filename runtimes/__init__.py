"""Runtimes, by name, loaded on first use.

>>> from wasmckpt import runtimes
>>> engine = runtimes.load("wasmtime")
>>> engine.name
'wasmtime'

`base` is the contract; each sub-package is one adapter. Nothing here imports a runtime before `load`.
"""

from __future__ import annotations

import ctypes
import glob
import importlib
import importlib.util
import os
import threading

from wasmckpt.errors import CheckpointError, RuntimeMissing, UsageError
from wasmckpt.lazydata import dataclass
from wasmckpt.runtimes import provided
from wasmckpt.runtimes.base import (
    DEFAULT_STACK_BYTES,
    Capabilities,
    Compiled,
    CompiledFormError,
    Engine,
    HostFunction,
    HostGlobal,
    Imports,
    Instance,
    Memory,
    MemoryFault,
    MemoryLocator,
    MissingImport,
    SideNames,
)
from wasmckpt.runtimes.threads import GuestThread, run_in_guest_thread

__all__ = [
    "DEFAULT_STACK_BYTES",
    "Capabilities",
    "Compiled",
    "CompiledFormError",
    "Engine",
    "Facts",
    "GuestThread",
    "HostFunction",
    "HostGlobal",
    "Imports",
    "Instance",
    "Memory",
    "MemoryFault",
    "MemoryLocator",
    "MissingImport",
    "SideNames",
    "absent",
    "available",
    "facts",
    "load",
    "load_library_early",
    "loader",
    "names",
    "run_in_guest_thread",
]


@dataclass(frozen=True, slots=True)
class _Adapter:
    package: str
    class_name: str
    needs: tuple[str, ...]
    """Python packages. For a name in `provided.NAMES`, the library as well."""
    install: str
    library: str = ""
    """Pattern of the big shared library's path inside the first of ``needs``; empty: not worth loading early."""
    mode_of: str = ""
    """The runtime whose library it is, used in another way."""


_ADAPTERS = {
    "wasmtime": _Adapter("wasmtime", "WasmtimeEngine", ("wasmtime",), "pip install wasmtime",
                         "*/_libwasmtime.so"),
    "wasm3": _Adapter("wasm3", "Wasm3Engine", ("wasm3", "cffi"), "wasmckpt runtimes install wasm3"),
    "wamr": _Adapter("wamr", "WamrEngine", ("cffi",), "pip install cffi"),
    "wasmer": _Adapter("wasmer", "WasmerEngine", ("cffi",), "pip install cffi"),
    "wasmedge": _Adapter("wasmedge", "WasmEdgeEngine", ("cffi",), "pip install cffi"),
    "wasmedge-aot": _Adapter("wasmedge", "WasmEdgeAotEngine", ("cffi",), "pip install cffi", mode_of="wasmedge"),
}
_loaded: dict[str, Engine] = {}
_lock = threading.RLock()


@dataclass(frozen=True, slots=True)
class Facts:
    """What ``doctor`` shows of one runtime."""

    name: str
    version: str | None
    """None: not usable here."""
    problem: str
    """Why not, and what to type."""
    capabilities: Capabilities | None


def names() -> tuple[str, ...]:
    """All runtimes that there is an adapter for."""
    return tuple(_ADAPTERS)


def available() -> tuple[str, ...]:
    """Those whose packages are installed here (not loaded yet: `load` may still find one unusable)."""
    return tuple(name for name, adapter in _ADAPTERS.items() if not _absent(name, adapter))


def absent(name: str) -> RuntimeMissing | None:
    """Why a runtime is not installed here, and what to type; None if it is. Raises `UsageError`: no such adapter."""
    return _absent(name, _adapter(name))


def load(name: str) -> Engine:
    """The runtime's engine, one a process.

    Raises:
        UsageError: no adapter of that name.
        RuntimeMissing: not installed (the hint says what to type), or its library is not as the adapter knows it.
    """
    adapter = _adapter(name)
    with _lock:
        engine = _loaded.get(name)
        if engine is None:
            if missing := _absent(name, adapter):
                raise missing
            try:
                module = importlib.import_module(f"{__name__}.{adapter.package}")
                engine = getattr(module, adapter.class_name)()
            except (ImportError, OSError) as problem:
                raise RuntimeMissing(f"{name} cannot be loaded: {problem}", hint=adapter.install,
                                     runtime=name) from problem
            assert isinstance(engine, Engine)
            _loaded[name] = engine
        return engine


def loader(name: str) -> tuple[str, ...]:
    """The words that come before Python's in the command line of a process that is to `load` a runtime; mostly none.

    A runtime that is not here gets none: `load` tells.
    """
    adapter = _ADAPTERS.get(name)
    if adapter is None or _of(name, adapter) not in provided.NAMES or _absent(name, adapter):
        return ()
    return provided.loader(_of(name, adapter))


def load_library_early(name: str) -> None:
    """Have the dynamic linker load a runtime's library in a thread of its own, without the GIL, while Python goes on.

    For the start of a process that will `load` it; whatever goes wrong here comes out there.
    """
    adapter = _ADAPTERS.get(name)
    if adapter is not None and (path := _large_library(name, adapter)):
        dlopen = ctypes.CDLL(None).dlopen  # called as a C function: `ctypes.CDLL` itself would hold the GIL
        dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
        threading.Thread(target=dlopen, args=(os.fsencode(path), os.RTLD_NOW), daemon=True).start()


def facts(name: str) -> Facts:
    """Loads a runtime to see whether it works here; never raises for one that does not. Raises `UsageError` for a name
    without an adapter."""
    try:
        engine = load(name)
    except RuntimeMissing as problem:
        return Facts(name, None, str(problem), None)
    return Facts(name, engine.version, "", engine.capabilities)


def _adapter(name: str) -> _Adapter:
    adapter = _ADAPTERS.get(name)
    if adapter is None:
        raise UsageError(f"unknown runtime {name!r}", hint=f"known: {', '.join(_ADAPTERS)}")
    return adapter


def _of(name: str, adapter: _Adapter) -> str:
    """The runtime whose library one is, or is a mode of."""
    return adapter.mode_of or name


def _absent(name: str, adapter: _Adapter) -> RuntimeMissing | None:
    """Why a runtime is not here, or None."""
    missing = [package for package in adapter.needs if importlib.util.find_spec(package) is None]
    if missing:
        return RuntimeMissing(f"{name} is not installed (no {' and no '.join(missing)})", hint=adapter.install,
                              runtime=name)
    if _of(name, adapter) in provided.NAMES:
        try:
            provided.library(_of(name, adapter))
        except RuntimeMissing as problem:
            return problem
        except CheckpointError as problem:  # a path or a config file of the user's that is wrong
            return RuntimeMissing(problem.what, hint=problem.hint, runtime=name, **problem.fields)
    return None


def _large_library(name: str, adapter: _Adapter) -> str | os.PathLike[str] | None:
    if _of(name, adapter) in provided.NAMES:
        return None if _absent(name, adapter) else provided.library(_of(name, adapter))
    spec = importlib.util.find_spec(adapter.needs[0]) if adapter.library else None
    if spec is None or spec.origin is None:
        return None
    found = glob.glob(os.path.join(os.path.dirname(spec.origin), adapter.library))
    return found[0] if len(found) == 1 else None
