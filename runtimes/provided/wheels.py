"""Binary packages with one runtime's library each, for users without a compiler.

    python -m wasmckpt.runtimes.provided.wheels dist wamr wasmer

makes ``dist/wasmckpt_wamr-2.4.3-py3-none-manylinux_2_36_x86_64.whl`` and its like from what is installed for this user.
Such a package has nothing but the library in it, in the import package ``wasmckpt_NAME``, where `library` looks for it.
Its tag names the C library of the machine where it was made: make it on the oldest one that is to be served.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import re
import sys
import zipfile
from pathlib import Path

from wasmckpt.errors import CheckpointError, StorageError, UsageError
from wasmckpt.runtimes.provided import library, recipe

__all__ = ["build"]

_LICENCES = {"wamr": "Apache-2.0 WITH LLVM-exception", "wasmer": "MIT"}
"""Of those that are one file."""

_TEXT = '"""The library of {name} {version}, for wasmckpt."""\n'
_METADATA = """Metadata-Version: 2.4
Name: wasmckpt-{name}
Version: {version}
Summary: The WebAssembly runtime {name} as a library for wasmckpt
License-Expression: {licence}
"""
_WHEEL = """Wheel-Version: 1.0
Generator: wasmckpt
Root-Is-Purelib: false
Tag: {tag}
"""


def build(name: str, into: Path) -> Path:
    """A wheel with the installed library of a runtime, in the folder ``into``; the same library gives the same bytes.

    Raises:
        RuntimeMissing: it is not installed. UsageError: there is no package of this runtime. StorageError: the file
            cannot be written.
    """
    if name not in _LICENCES:
        raise UsageError(f"there is no package with the library of {name}", hint=f"known: {', '.join(_LICENCES)}")
    known, path = recipe(name), library(name)
    # What the library itself asks for: this process may run on another C library than the machine has (`loader`).
    versions = re.findall(rb"\0GLIBC_2\.(\d+)(?=\0)", path.read_bytes())
    if not versions:
        raise UsageError("the library is made for another C library: there is no tag for its package", path=str(path))
    tag = f"py3-none-manylinux_2_{max(map(int, versions))}_{os.uname().machine}"
    facts = {"name": name, "version": known.VERSION, "licence": _LICENCES[name], "tag": tag}
    info = f"wasmckpt_{name}-{known.VERSION}.dist-info"
    files = {
        f"wasmckpt_{name}/__init__.py": _TEXT.format(**facts).encode(),
        f"wasmckpt_{name}/{known.FILE}": path.read_bytes(),
        f"{info}/METADATA": _METADATA.format(**facts).encode(),
        f"{info}/WHEEL": _WHEEL.format(**facts).encode(),
    }
    record = "".join(f"{file},sha256={_digest(data)},{len(data)}\n" for file, data in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = into / f"wasmckpt_{name}-{known.VERSION}-{tag}.whl"
    unfinished = wheel.with_suffix(".unfinished")
    try:
        into.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(unfinished, "w", zipfile.ZIP_DEFLATED) as archive:
            for file, data in files.items():
                entry = zipfile.ZipInfo(file)
                entry.external_attr = 0o100644 << 16
                archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
        os.replace(unfinished, wheel)
    except OSError as problem:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise StorageError(f"the package cannot be written: {problem.strerror}", path=str(wheel)) from problem
    return wheel


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


if __name__ == "__main__":
    try:
        for wanted in sys.argv[2:]:
            print(build(wanted, Path(sys.argv[1])))
    except CheckpointError as problem:
        sys.exit(f"wasmckpt: {problem}")
