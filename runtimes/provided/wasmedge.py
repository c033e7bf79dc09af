"""WasmEdge, from Debian 13's package ``libwasmedge0``, unpacked into a folder of its own with all that it needs.

That is 18 packages, 42 MB to fetch and 177 MB unpacked, the C library included: so it runs on an older Debian too, in
processes that are started through the dynamic loader that comes with it (`loader` in this package).
"""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import debian

__all__ = ["FILE", "VERSION", "install"]

VERSION: Final = "0.14.1"
FILE: Final = f"usr/lib/{sysconfig.get_config_var('MULTIARCH')}/libwasmedge.so.0"
_PACKAGE: Final = "libwasmedge0"


def install(folder: Path, say: Callable[[str], None]) -> None:
    """Fill the empty ``folder``. Raises `RuntimeMissing`."""
    files = debian.unpack([_PACKAGE], folder, of="wasmedge", say=say)
    if not any(name.startswith(f"{_PACKAGE}_{VERSION}") for name in files):
        raise RuntimeMissing(f"wasmedge cannot be installed: Debian has another version of {_PACKAGE} now",
                             hint="update wasmckpt", runtime="wasmedge")
    shutil.rmtree(folder / "apt")
