"""Runtimes that no Python package carries: where their libraries are, and how they get there.

Each module here is one recipe: ``VERSION``; ``BUILD``, a number that goes up when the same version is built otherwise
(none: 1); ``FILE``, the library's path in its folder; ``install(folder, say)``, which fills a folder from package
registries or raises `RuntimeMissing`. The folder is empty, or as an interrupted try has left it.

A library that the user has goes first, then one from a package ``wasmckpt-NAME`` (`wheels`), then what was installed:

    WASMCKPT_WAMR_LIBRARY=/path/to/libiwasm.so     or, in ~/.config/wasmckpt/config.toml,     [wamr]
                                                                                              library = "/path/to/..."
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from wasmckpt.cachefolder import cache_folder
from wasmckpt.errors import RuntimeMissing, UsageError

__all__ = ["NAMES", "folder_of", "library", "loader", "recipe", "use"]

NAMES = ("wamr", "wasmer", "wasmedge")


def recipe(name: str) -> Any:
    """The module that says how to get a runtime."""
    return importlib.import_module(f"{__name__}.{name}")


def folder_of(name: str) -> Path:
    """Where a runtime is installed, by version, build and machine; complete if it is there."""
    how = recipe(name)
    build = f"+{how.BUILD}" if hasattr(how, "BUILD") else ""
    return cache_folder() / "runtimes" / f"{name}-{how.VERSION}{build}-{os.uname().machine}"


def library(name: str) -> Path:
    """The shared library of a runtime: the user's own, that of a package, or the installed one.

    Raises:
        RuntimeMissing: there is none. UsageError: the one that was named is not there, or the config file is damaged.
    """
    if given := os.environ.get(f"WASMCKPT_{name.upper()}_LIBRARY") or _configured(name):
        path = Path(given)
        if not path.is_file():
            raise UsageError(f"the library of {name} that was named is not there", path=str(path))
        return path
    package = importlib.util.find_spec(f"wasmckpt_{name}")
    folder = Path(package.origin).parent if package is not None and package.origin else folder_of(name)
    path = folder / str(recipe(name).FILE)
    if not path.is_file():
        raise RuntimeMissing(f"{name} is not installed", hint=f"wasmckpt runtimes install {name}", runtime=name)
    return path


def use(name: str, path: str) -> None:
    """Have this process, and what it starts, take a library of the user's own. Raises `UsageError`."""
    if name not in NAMES or not path:
        raise UsageError(f"no library can be named for {name!r}", hint=f"for one of {', '.join(NAMES)}: NAME=PATH")
    os.environ[f"WASMCKPT_{name.upper()}_LIBRARY"] = os.path.abspath(path)


def loader(name: str) -> tuple[str, ...]:
    """What comes before Python's own words in the command line of a process that is to load a runtime's library: the
    dynamic loader that lies beside it with a C library, which may be newer than the system's. Empty if there is none.

    In such a process `sys.executable` is the plain interpreter: what it starts runs on the system's C library again.
    Raises as `library` does.
    """
    folder = library(name).parent
    for found in folder.glob("ld-linux-*.so.*"):
        if not any(os.path.exists(own) and os.path.samefile(own, found) for own in (f"/lib64/{found.name}",
                                                                                    f"/lib/{found.name}")):
            return str(found), "--library-path", str(folder), "--argv0", sys.executable
    return ()


def _configured(name: str) -> str:
    file = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "wasmckpt" / "config.toml"
    try:
        text = file.read_text()
        import tomllib  # for the few who have such a file

        given = tomllib.loads(text).get(name, {}).get("library", "")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, AttributeError) as problem:
        raise UsageError(f"the config file cannot be read: {problem}", path=str(file)) from None
    if not isinstance(given, str):
        raise UsageError("the config file names no path", path=str(file), field=f"{name}.library")
    return given
