"""An initramfs that holds this Python, some packages and files: a newc archive without compression, written here."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

__all__ = ["write"]

_LEFT_OUT = re.compile(
    r"/(tests?|idlelib|tkinter|turtledemo|lib2to3|ensurepip|distutils|config-[^/]*|__pycache__|site-packages|"
    r"dist-packages|pydoc_data)(/|$)|/(_tkinter|_test|_dbm|_gdbm|readline|_curses)"
)
_USELESS = (".a", ".pyc", ".pyi", ".h", ".c")
_NODES = {"console": (5, 1), "null": (1, 3), "urandom": (1, 9)}


def write(target: Path, init: str, files: Mapping[str, Path]) -> None:
    """Write the archive.

    Args:
        init: source of the program that runs as process 1, under this interpreter.
        files: path in the machine -> a file here, or a folder that is taken whole.
    """
    found: dict[str, Path] = {}
    interpreter = Path(os.path.realpath(sys.executable))
    found[str(interpreter)] = interpreter
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    found.update(_tree(stdlib, str(stdlib), _LEFT_OUT))
    for path, source in files.items():
        if source.is_dir():
            found.update(_tree(source, path, re.compile("/__pycache__/")))
        else:
            found[path] = source
    for source in list(found.values()):
        if ".so" in source.name or source == interpreter:
            found.update((path, Path(os.path.realpath(path))) for path in _libraries(source))
    with open(target, "wb") as archive:
        archive.write(b"".join(_entries(found, f"#!{interpreter} -uB\n{init}")))


def _tree(folder: Path, target: str, left_out: re.Pattern[str]) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix not in _USELESS and not left_out.search(f"/{inside}"):
            yield f"{target}/{inside}", path


def _libraries(binary: Path) -> list[str]:
    done = subprocess.run(["ldd", str(binary)], capture_output=True, text=True, check=False)
    return re.findall(r"(?:=> )?(/\S+) \(0x", done.stdout)


def _entries(files: Mapping[str, Path], init: str) -> Iterator[bytes]:
    folders = {"/proc", "/sys", "/dev", "/tmp"}
    for path in files:
        folders.update(str(parent) for parent in Path(path).parents if str(parent) != "/")
    number = 0

    def entry(name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> bytes:
        nonlocal number
        number += 1
        path = name.lstrip("/").encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + path
        return head + bytes(-len(head) % 4) + content + bytes(-len(content) % 4)

    for folder in sorted(folders):
        yield entry(folder, stat.S_IFDIR | 0o755)
    for name, device in _NODES.items():
        yield entry(f"/dev/{name}", stat.S_IFCHR | 0o666, device=device)
    for path, source in sorted(files.items()):
        yield entry(path, stat.S_IFREG | 0o755, source.read_bytes())
    yield entry("/init", stat.S_IFREG | 0o755, init.encode())
    yield entry("TRAILER!!!", 0)
