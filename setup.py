"""What pyproject.toml cannot say: the rewriter's extension module, where `.ci/backend.py` asks for it."""

import os
from pathlib import Path

from setuptools import setup

PURE = {"__init__.py", "cache.py", "kept_resumes.py", "options.py"}
"""Not compiled: these start, read and write files, or hold a few values."""


def extensions() -> list:
    """One extension with all modules of the rewriter, and for each a small one by which it is imported."""
    if "WASMCKPT_BUILD_COMPILED" not in os.environ:
        return []
    from mypyc.build import mypycify

    folders = [Path("wasmckpt/wasm"), *(Path("wasmckpt/instrument", name) for name in ("", "neutral"))]
    sources = [str(path) for folder in folders for path in sorted(folder.glob("*.py")) if path.name not in PURE]
    # The types are those that `make lint` checks; here only what the compiler needs. (No settings of the project's:
    # packages that it names may be missing where it is built.)
    options = ["--config-file=", "--ignore-missing-imports", "--python-version=3.11"]
    return mypycify([*options, *sources], group_name="wasmckpt.rewriter", opt_level="1", debug_level="0")


setup(ext_modules=extensions())
