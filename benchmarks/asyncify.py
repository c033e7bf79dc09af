"""Binaryen's Asyncify beside ours, and the poll that it lacks.

The tools come from Debian's package ``binaryen``, unpacked into the cache and not installed (a ``wasm-opt`` on the path
would be run by clang, unasked, on whatever it links); where there is no Debian, from the npm package, whose tools run
under node and take a quarter of an hour for a large module.

Asyncify can unwind only under calls of imports. To stop a running loop, the module must poll, and no tool does that
for it: so ``if (global.get flag) call $poll`` is put at each loop's header first, in the text that ``wasm-dis`` prints,
with ``$poll`` an import that may unwind. The flag is an exported global on both runtimes, the cheapest that there is
(on a compiler it cannot be raised from another thread, which ours can).
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.toolchain import Unavailable, cache_folder, publish

__all__ = ["asyncified", "instrumenting_alone", "optimized", "version"]

NPM_VERSION: Final = "132.0.0"
_LOOP: Final = re.compile(
    r"^(\s*\(loop(?: \$[^\s()]+)?(?: \(type [^)]*\))?(?: \((?:param|result)[^)]*\))*)$", re.MULTILINE
)
_FEATURES: Final = ("--enable-sign-ext", "--enable-bulk-memory", "--enable-mutable-globals",
                    "--enable-nontrapping-float-to-int")
_POLL: Final = "(if (global.get $__poll_flag) (then (call $__poll)))"


def asyncified(wasm: bytes, *, polls: bool) -> bytes:
    """The module through ``wasm-opt --asyncify -O1``; with polls at loop headers, or as it is.

    Raises:
        Unavailable: no node or no npm. RuntimeError: a tool refused; the message is its own.
    """
    def make(source: Path, out: Path) -> None:
        if polls:
            text = source.with_suffix(".wat")
            _run("wasm-dis", source, "-o", text)
            text.write_text(with_polls(text.read_text()))
            source = text
        _run("wasm-opt", source, "--asyncify", "-O1", "-o", out)

    return _kept(wasm, f"asyncify, polls {polls}, {_POLL}", make)


def optimized(wasm: bytes) -> bytes:
    """The plain module through ``wasm-opt -O1``: how much of Asyncify's figure is the optimizer's doing."""
    return _kept(wasm, "optimized", lambda source, out: _run("wasm-opt", source, "-O1", "-o", out))


def instrumenting_alone(path: Path, most: float) -> tuple[float, int] | None:
    """Seconds of processor time and bytes of memory at the peak that ``wasm-opt --asyncify`` takes on one core; None:
    more than ``most`` seconds. Raises as `asyncified`."""
    child = (  # what a process was before the exec counts for its peak: so a small one calls the tool
        "import json, resource, subprocess, sys\n"
        "try: code = subprocess.run(sys.argv[2:], timeout=float(sys.argv[1])).returncode\n"
        "except subprocess.TimeoutExpired: code = None\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss << 10]))\n"
    )
    with tempfile.TemporaryDirectory() as scratch:
        command = [*_command("wasm-opt"), *_FEATURES, str(path), "--asyncify", "-o", str(Path(scratch, "out.wasm"))]
        done = subprocess.run([sys.executable, "-c", child, str(most), *command], capture_output=True, text=True,
                              check=False, env={**os.environ, "BINARYEN_CORES": "1"})
    code, seconds, peak = json.loads(done.stdout)
    if code:
        raise RuntimeError(f"wasm-opt: {done.stderr.strip()[:300] or code}")
    return None if code is None else (float(seconds), int(peak))


def _kept(wasm: bytes, what: str, make: Callable[[Path, Path], object]) -> bytes:
    """What ``make(source, out)`` writes, from the cache if it was made before: Binaryen under node takes minutes."""
    key = hashlib.sha256(f"{version()} {what}\0".encode() + wasm).hexdigest()[:24]
    target = cache_folder() / "asyncify" / f"{key}.wasm"
    if not target.exists():
        with tempfile.TemporaryDirectory() as scratch:
            source, out = Path(scratch, "in.wasm"), Path(scratch, "out.wasm")
            source.write_bytes(wasm)
            make(source, out)
            publish(out.read_bytes(), target)
    return target.read_bytes()


def with_polls(text: str) -> str:
    """A module's text with a poll at each loop's header.

    Raises `RuntimeError`: a loop is written as this does not expect.
    """
    text, count = _LOOP.subn(rf"\1 {_POLL}", text)
    if count != text.count("(loop"):
        raise RuntimeError(f"{count} of {text.count('(loop')} loops were found in the text")
    added = '(import "env" "poll" (func $__poll))'
    flag = '(global $__poll_flag (mut i32) (i32.const 0))\n (export "poll_flag" (global $__poll_flag))'
    head, _, rest = text.partition("(module")
    imports = rest.rfind("\n (import ")
    at = imports if imports >= 0 else rest.find("\n (")
    first_import_end = at
    return f"{head}(module{rest[:first_import_end]}\n {added}{_after_imports(rest[first_import_end:], flag)}"


def _after_imports(rest: str, flag: str) -> str:
    """``rest`` begins with the last import, if there is one; the flag goes behind it."""
    if rest.startswith("\n (import "):
        line, _, others = rest[1:].partition("\n")
        return f"\n{line}\n {flag}\n{others}"
    return f"\n {flag}{rest}"


def _run(tool: str, *arguments: str | Path) -> str:
    done = subprocess.run(
        [*_command(tool), *_FEATURES, *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=1800,
    )
    if done.returncode:
        raise RuntimeError(f"{tool}: {(done.stderr or done.stdout).strip()[:300] or done.returncode}")
    return done.stdout


@functools.cache
def version() -> str:
    """Binaryen's version. Raises `Unavailable`."""
    return _run("wasm-opt", "--version").split()[2]


def _command(tool: str) -> list[str]:
    native = _debian()
    if native is not None:
        return [str(native / tool)]
    node = shutil.which("node")
    if node is None:
        raise Unavailable("node", "Binaryen comes as a package for node, which is not installed")
    return [node, "--stack-size=16000", str(_npm() / "bin" / tool)]


@functools.cache
def _debian() -> Path | None:
    """Folder of the native tools; None where there is no such package."""
    folder = cache_folder() / "binaryen-debian"
    tools = folder / "usr" / "bin"
    if (tools / "wasm-opt").exists():
        return tools
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", "--quiet", "binaryen"], cwd=scratch, capture_output=True, check=False)
        packages = list(Path(scratch).glob("binaryen_*.deb"))
        if not packages:
            return None
        subprocess.run(["dpkg-deb", "-x", str(packages[0]), str(folder)], capture_output=True, check=False)
    return tools if (tools / "wasm-opt").exists() else None


def _npm() -> Path:
    """The unpacked npm package; fetched once."""
    folder = cache_folder() / "npm" / f"binaryen-{NPM_VERSION}"
    package = folder / "node_modules" / "binaryen"
    if (package / "bin" / "wasm-opt").exists():
        return package
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm", "Binaryen comes from npm, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [npm, "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", "--ignore-scripts",
         f"binaryen@{NPM_VERSION}"],
        capture_output=True, text=True, check=False,
    )
    if done.returncode:
        raise Unavailable("npm", f"binaryen {NPM_VERSION} cannot be fetched: {done.stderr.strip()[-300:]}")
    return package
