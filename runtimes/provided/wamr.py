"""WAMR, built by cmake from the C sources that the crate ``wamrx-sys`` carries (10 seconds of processor time).

A fast interpreter with bulk memory, references, tail calls, extended constants and atomics. Vectors need the headers of
SIMDe, which are taken from Debian 13's package ``libsimde-dev`` or from this system; without them it is built without.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from wasmckpt.errors import RuntimeMissing
from wasmckpt.runtimes.provided import debian, tools

__all__ = ["BUILD", "FILE", "VERSION", "install"]

VERSION: Final = "2.4.3"
BUILD: Final = 2
FILE: Final = "libiwasm.so"
_NAME: Final = "wamr"
_CRATE, _CRATE_VERSION = "wamrx-sys", "0.3.0"
_OPTIONS: Final = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "ON",
    "WAMR_BUILD_INTERP": "1", "WAMR_BUILD_FAST_INTERP": "1", "WAMR_BUILD_AOT": "0",
    "WAMR_BUILD_LIBC_BUILTIN": "0", "WAMR_BUILD_LIBC_WASI": "0",
    "WAMR_BUILD_BULK_MEMORY": "1", "WAMR_BUILD_REF_TYPES": "1", "WAMR_BUILD_TAIL_CALL": "1",
    "WAMR_BUILD_EXTENDED_CONST_EXPR": "1",
    "WAMR_BUILD_SHARED_MEMORY": "1", "WAMR_BUILD_THREAD_MGR": "1",  # atomics come with them
    "WAMR_BUILD_DUMP_CALL_STACK": "1",  # a trap names its function
    "WAMR_DISABLE_HW_BOUND_CHECK": "1",  # it would take SIGSEGV, and mark each thread
}
_SIMD: Final = {"WAMR_BUILD_SIMD": "1", "WAMR_BUILD_LIB_SIMDE": "1", "FETCHCONTENT_FULLY_DISCONNECTED": "ON"}
_NO_SIMD: Final = {"WAMR_BUILD_SIMD": "0", "WAMR_BUILD_LIB_SIMDE": "0"}

_TARGET: Final = "-march=x86-64-v2" if os.uname().machine == "x86_64" else ""
"""Processors since 2009 round by one instruction. What gcc makes for older ones lets signalling NaNs pass."""
_QUIET: Final = """\
/* WAMR prints the functions of a trap to stdout, which is the guest's. */
#include <stdarg.h>
static inline int wasmckpt_prints_nothing(const char *format, va_list arguments)
{
    (void)format;
    (void)arguments;
    return 0;
}
#define BH_VPRINTF wasmckpt_prints_nothing
"""


def install(folder: Path, say: Callable[[str], None], target: Mapping[str, str] | None = None) -> None:
    """Fill the empty ``folder``; sources that are there from an interrupted try are not fetched again.

    Args:
        target: cmake's settings for another machine than this one.

    Raises:
        RuntimeMissing: a tool is not here, the sources cannot be fetched, or they do not build.
    """
    for program, hint in (("cmake", "install cmake"), ("make", "install make"), ("cc", "install gcc")):
        tools.find(program, of=_NAME, hint=hint)
    work = folder / "build"
    sources = _sources(work / "sources", say)
    options = _OPTIONS | _simd(work / "simde", say) | dict(target or {})
    quiet = work / "quiet.h"
    quiet.write_text(_QUIET)
    build = work / "out"
    shutil.rmtree(build, ignore_errors=True)
    say("compiling WAMR")
    tools.run(["cmake", "-S", str(sources / "wasm-micro-runtime"), "-B", str(build),
               *(f"-D{name}={value}" for name, value in options.items())],
              of=_NAME, complaint="CMake Error", env={"CFLAGS": f'-include "{quiet}" {"" if target else _TARGET}'})

    def progress(line: str) -> None:
        if found := re.match(r"\[ *(\d+)%\] Building", line):
            say(f"compiling WAMR: {found[1]} %")

    tools.run(["cmake", "--build", str(build), "--parallel", str(os.cpu_count() or 1)], of=_NAME, complaint="make",
              progress=progress)
    shutil.copyfile(sources / "wasm-micro-runtime" / "LICENSE", folder / "LICENSE")
    os.replace((build / FILE).resolve(), folder / FILE)
    shutil.rmtree(work)


def _sources(folder: Path, say: Callable[[str], None]) -> Path:
    """The crate's sources, fetched by cargo; nothing of it is run."""
    unpacked = folder / "vendor" / f"{_CRATE}-{_CRATE_VERSION}"
    if unpacked.is_dir():
        return unpacked
    cargo = tools.find("cargo", of=_NAME, hint="install Rust's cargo: it fetches the sources")
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "lib.rs").touch()
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n'
        f'[dependencies]\n{_CRATE} = "={_CRATE_VERSION}"\n[workspace]\n')
    say(f"fetching the sources of WAMR {VERSION}")
    tools.run([cargo, "vendor", "--quiet", "--versioned-dirs", "part"], of=_NAME, complaint="error", cwd=folder)
    os.replace(folder / "part", folder / "vendor")
    return unpacked


def _simd(folder: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Options for vectors."""
    try:
        say("fetching SIMDe")
        debian.unpack(["libsimde-dev"], folder, of=_NAME)
        include = folder / "usr" / "include"
    except RuntimeMissing as problem:
        include = Path("/usr/include")
        if not (include / "simde").is_dir():
            say(f"WAMR will have no vectors: there is no SIMDe ({problem.what})")
            return _NO_SIMD
    return _SIMD | {"FETCHCONTENT_SOURCE_DIR_SIMDE": str(include)}
