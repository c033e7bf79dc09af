"""Binaryen's Asyncify beside ours: the npm package ``binaryen``, fetched into the cache, and the poll that it lacks.

Asyncify can unwind only under calls of imports. To stop a running loop, the module must poll, and no tool does that
for it: so ``if (global.get flag) call $poll`` is put at each loop's header first, in the text that ``wasm-dis`` prints,
with ``$poll`` an import that may unwind. The flag is an exported global on both runtimes, the cheapest that there is
(on a compiler it cannot be raised from another thread, which ours can).
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.support.toolchain import Unavailable, cache_folder, publish

__all__ = ["VERSION", "asyncified", "optimized"]

VERSION: Final = "132.0.0"
_LOOP: Final = re.compile(
    r"^(\s*\(loop(?: \$[^\s()]+)?(?: \(type [^)]*\))?(?: \((?:param|result)[^)]*\))*)$", re.MULTILINE
)
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


def _kept(wasm: bytes, what: str, make: Callable[[Path, Path], None]) -> bytes:
    """What ``make(source, out)`` writes, from the cache if it was made before: Binaryen under node takes minutes."""
    key = hashlib.sha256(f"{VERSION} {what}\0".encode() + wasm).hexdigest()[:24]
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
    flag = '(global $__poll_flag (export "poll_flag") (mut i32) (i32.const 0))'
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


def _run(tool: str, *arguments: str | Path) -> None:
    done = subprocess.run(
        [_node(), "--stack-size=16000", str(_binaryen() / "bin" / tool), "--enable-sign-ext", "--enable-bulk-memory",
         "--enable-mutable-globals", "--enable-nontrapping-float-to-int", *map(str, arguments)],
        capture_output=True, text=True, check=False, timeout=900,
    )
    if done.returncode:
        raise RuntimeError(f"{tool}: {(done.stderr or done.stdout).strip()[:300] or done.returncode}")


def _node() -> str:
    found = shutil.which("node")
    if found is None:
        raise Unavailable("node", "Binaryen comes as a package for node, which is not installed")
    return found


def _binaryen() -> Path:
    """The unpacked package; fetched once."""
    folder = cache_folder() / "npm" / f"binaryen-{VERSION}"
    package = folder / "node_modules" / "binaryen"
    if (package / "bin" / "wasm-opt").exists():
        return package
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm", "Binaryen comes from npm, which is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [npm, "install", "--prefix", str(folder), "--no-save", "--no-audit", "--no-fund", "--ignore-scripts",
         f"binaryen@{VERSION}"],
        capture_output=True, text=True, check=False,
    )
    if done.returncode:
        raise Unavailable("npm", f"binaryen {VERSION} cannot be fetched: {done.stderr.strip()[-300:]}")
    return package
