"""Wasm3: PyPI's ``pywasm3``, which pip compiles into this Python's own packages; a runtime in no folder of ours.

What pip alone does not do: the package returns pointers of other types, which gcc refuses from version 14 on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import tools

__all__ = ["install", "uninstall"]

_PACKAGE: Final = "pywasm3"
_LENIENT: Final = "-Wno-incompatible-pointer-types"


def install(say: Callable[[str], None]) -> None:
    """Compile and install it. Raises `RuntimeMissing`: there is no pip or no compiler, or pip fails."""
    tools.find(os.environ.get("CC", "cc").split()[0], of="wasm3", hint="install gcc")
    say("compiling")
    _pip("install", *_wanted(), flags=f"{os.environ.get('CFLAGS', '')} {_LENIENT}".strip())


def uninstall() -> bool:
    """Remove the package; whether it was there. Raises `RuntimeMissing`: pip fails."""
    try:
        metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        return False
    _pip("uninstall", "--yes", _PACKAGE)
    return True


def _wanted() -> list[str]:
    """The requirements of our own extra."""
    words = [line.partition(";") for line in metadata.requires("wasmckpt") or ()]
    return [name.strip() for name, _, marker in words if marker.replace('"', "'").strip() == "extra == 'wasm3'"]


def _pip(*arguments: str, flags: str = "") -> None:
    if not sys.executable:
        raise RuntimeMissing("wasm3 cannot be installed: this Python does not know where it is", runtime="wasm3")
    tools.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], of="wasm3", complaint="ERROR",
              env={"CFLAGS": flags} if flags else {})
