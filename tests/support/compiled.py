"""The rewriter as a wheel carries it, compiled: built once for each state of its sources, into the cache folder.

`python -m tests.support.compiled` builds it, which takes two minutes; `tree` puts the package together with it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

from .toolchain import Unavailable, cache_folder

__all__ = ["TOP", "build", "copy_sources", "tree"]

TOP: Final = Path(__file__).resolve().parents[2]
_PACKAGE: Final = ("wasmckpt", "runtimes", "formats")
_BUILDING: Final = 1200.0
_SOURCES: Final = (".ci/backend.py", "setup.py", "wasmckpt/wasm", "wasmckpt/instrument", "wasmckpt/lazydata.py",
                   "wasmckpt/lazyload.py", "wasmckpt/errors.py")
"""What the compiled modules are made of."""


def copy_sources(target: Path, names: tuple[str, ...]) -> None:
    """Copy files and folders of the repository, links as they are, without what was built."""
    junk = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "target", ".*_cache", "*.so")
    for name in names:
        if (TOP / name).is_dir():
            shutil.copytree(TOP / name, target / name, symlinks=True, ignore=junk)
        else:
            shutil.copyfile(TOP / name, target / name)


@functools.cache
def build() -> Path:
    """A folder with the wheel's name in a file ``name``, and in ``modules`` the extension modules alone, below
    ``wasmckpt``. Raises `Unavailable`: it cannot be built here."""
    digest = hashlib.sha256(sys.version.encode())
    for name in _SOURCES:
        top = TOP / name
        for path in sorted(top.rglob("*.py")) if top.is_dir() else [top]:
            digest.update(f"\0{path.relative_to(TOP)}\0".encode() + path.read_bytes())
    target = cache_folder() / "compiled-rewriter" / digest.hexdigest()[:16]
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        copy_sources(source, ("pyproject.toml", "setup.py", ".ci", "README.md", "LICENSE", *_PACKAGE))
        done = subprocess.run(
            [sys.executable, "-m", "build", "--wheel", "--outdir", scratch, source], cwd=scratch, check=False,
            capture_output=True, text=True, env={**os.environ, "WASMCKPT_COMPILE": "always"}, timeout=_BUILDING,
        )
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            raise Unavailable("compiled", f"the rewriter cannot be compiled: {(done.stdout + done.stderr)[-1000:]}")
        made = Path(scratch, "made")
        with zipfile.ZipFile(wheels[0]) as wheel:
            for name in wheel.namelist():
                if name.endswith(".so"):
                    wheel.extract(name, made / "modules")
        (made / "name").write_text(wheels[0].name)
        try:
            os.replace(made, target)
        except OSError:
            if not target.exists():  # else somebody else was faster, with the same content
                raise
    return target


def tree(folder: Path) -> Path:
    """Put the package as it is now into ``folder`` with the compiled modules, for PYTHONPATH. Raises as `build`."""
    modules = build() / "modules"
    copy_sources(folder, _PACKAGE)
    shutil.copytree(modules, folder, dirs_exist_ok=True)
    return folder


if __name__ == "__main__":
    try:
        print(build())
    except Unavailable as missing:  # the tests that need it say so
        print(missing.reason, file=sys.stderr)
