"""The build backend: setuptools, and the decision whether a wheel carries the rewriter compiled.

The same sources make two kinds of wheels: one of pure Python for every machine, and one for this kind of machine in
which `wasmckpt/wasm` and `wasmckpt/instrument` are compiled too (by mypyc, which is then fetched for the build). What
is asked for is said by ``pip install . -C compile=always`` (or ``never``), else by the environment variable
``WASMCKPT_COMPILE``:

    auto    compiled where CPython's headers and a C compiler are; else, and if that fails, pure. The default.
    always  compiled, or the build fails
    never   pure

An editable install is always pure: an edit must be seen at the next start. What a user installs needs neither mypy nor
a compiler.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel", "prepare_metadata_for_build_editable", "prepare_metadata_for_build_wheel",
]

MYPYC = "mypy>=2.4,<3"
CHOICES = ("auto", "always", "never")
ASKED = "WASMCKPT_BUILD_COMPILED"
"""Tells setup.py to compile; only this module sets it."""

Settings = dict[str, Any] | None


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Setuptools' own, and mypyc where something is to be compiled."""
    return build_meta.get_requires_for_build_wheel(_rest(config_settings)) + [MYPYC] * _to_compile(config_settings)


def build_wheel(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None,
) -> str:
    """A wheel, compiled or pure. Raises what the build raises, and `SystemExit` for a choice that there is not."""
    if _to_compile(config_settings):
        os.environ[ASKED] = "1"
        try:
            return build_meta.build_wheel(wheel_directory, _rest(config_settings), metadata_directory)
        except (Exception, SystemExit) as problem:
            if _choice(config_settings) == "always":
                raise
            print(f"The rewriter stays pure Python, which works the same; it could not be compiled: {problem}")
        finally:
            del os.environ[ASKED]
    return build_meta.build_wheel(wheel_directory, _rest(config_settings), metadata_directory)


def _choice(config_settings: Settings) -> str:
    given = (config_settings or {}).get("compile") or os.environ.get("WASMCKPT_COMPILE") or "auto"
    if given not in CHOICES:
        raise SystemExit(f"compile is {given!r}; choose one of {', '.join(CHOICES)}")
    return str(given)


def _rest(config_settings: Settings) -> Settings:
    """What is for setuptools."""
    return {key: value for key, value in (config_settings or {}).items() if key != "compile"}


def _to_compile(config_settings: Settings) -> bool:
    choice = _choice(config_settings)
    return choice == "always" or (choice == "auto" and _has_compiler())


def _has_compiler() -> bool:
    """Whether a C compiler is here that finds the headers of this Python."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint main(void) { return PY_MAJOR_VERSION; }\n")
        out = source.with_suffix(".o")
        command = [*compiler, "-I", sysconfig.get_path("include"), "-c", str(source), "-o", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, check=False, timeout=60)
        except (OSError, subprocess.SubprocessError):
            return False
    return sys.implementation.name == "cpython" and done.returncode == 0
