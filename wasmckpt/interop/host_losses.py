"""What a module that goes on by itself does not have of the frozen program: what was the host's, or the rewriter's.

A plain runtime begins with standard input, output and error as descriptors 0, 1, 2 and the folders that it is given as
3, 4, ... in the order in which they are given. All else that the program had of the host is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..formats import Image
from ..host import MODULE_NAME as WASI
from ..host.guest_api import MODULE_NAME as GUEST_API
from ..host.plain import Fields
from ..lazydata import dataclass
from ..wasm.module import ExternKind, Module

__all__ = ["Loss", "losses"]

_STANDARD = ("stdin", "stdout", "stderr")
_CLOCKS = frozenset({"clock_time_get", "poll_oneoff"})
_KNOWN = frozenset({
    "version", "args", "env", "exit_code", "clocks", "sleep", "random", "anonymous", "descriptors", "guest_api",
    "journal",
})
_HIGHEST_NUMBER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that is not carried.

    Attributes:
        kind: "descriptor", "folder", "stdin", "clock", "sleep", "random", "journal", "import", "nans",
            "host".
        what: what it is and what comes of it, one phrase.
        wrong: whether the program would most likely do something wrong. Else it may notice, or somebody has to see to
            it.
    """

    kind: str
    what: str
    wrong: bool = False


def losses(image: Image, module: Module) -> list[Loss]:
    """All of them, for an image and its module. Raises `ImageError`: the host's state is damaged."""
    found = [*_imports(module)]
    if image.canonical_nans:
        found.append(Loss("nans", "its NaNs were canonical: from here on they are the processor's own", wrong=True))
    if image.host:
        found += _of_host(image.host, module)
    return found


def _imports(module: Module) -> Iterator[Loss]:
    for item in module.imported(ExternKind.FUNC):
        if item.module == GUEST_API:
            yield Loss("import", f"{item.module}.{item.name} is wasmckpt's own: no other runtime has it", wrong=True)
        elif item.module != WASI:
            yield Loss("import", f"{item.module}.{item.name} is not WASI's: whoever starts the module has to give it")


def _of_host(host: Mapping[str, object], module: Module) -> Iterator[Loss]:
    fields = Fields(host, "host")
    wasi = {item.name for item in module.imported(ExternKind.FUNC) if item.module == WASI}
    if "descriptors" in fields:
        yield from _descriptors(fields.records("descriptors"))
    if "sleep" in fields:
        yield Loss("sleep", "it was asleep or waiting: it waits for the whole time once more")
    if "clocks" in fields and wasi & _CLOCKS:
        seconds = fields.sub("clocks").integer("monotonic") / 1e9
        yield Loss("clock", f"the monotonic clock stood at {seconds:.3f} s: the runtime's own may stand before that")
    if "random" in fields and "random_get" in wasi:
        yield Loss("random", "random numbers came from a seed: the runtime's own are others")
    if "journal" in fields:
        yield Loss("journal", "there is a journal: what the program did after this image it does again")
    for name in sorted(host.keys() - _KNOWN):
        yield Loss("host", f"the host's state {name!r} is not known here")


def _descriptors(records: list[Fields]) -> Iterator[Loss]:
    here = {}
    for record in records:
        number = record.integer("number", _HIGHEST_NUMBER)
        here[number] = kind = record.text("kind")
        if kind in _STANDARD:
            if number != _STANDARD.index(kind):
                yield Loss("descriptor", f"{kind} has become descriptor {number}", wrong=True)
            elif kind == "stdin" and (read := record.integer("consumed")):
                yield Loss("stdin", f"{read} bytes of standard input have been read: give it what comes behind them")
        elif kind == "preopen":
            yield from _folder(record, number, here)
        else:
            path = _text(record.octets("root")).rstrip("/") + "/" + _text(record.octets("path"))
            offset = f", at {record.integer('offset')}" if kind == "file" else ""
            yield Loss("descriptor", f"descriptor {number} is an open {kind}, {path}{offset}: it is closed", wrong=True)
    for number, kind in enumerate(_STANDARD):
        if kind not in here.values():
            yield Loss("descriptor", f"{kind} was closed: descriptor {number} is open again")


def _folder(record: Fields, number: int, here: Mapping[int, str]) -> Iterator[Loss]:
    root = _text(record.octets("root"))
    position = sum(kind == "preopen" for kind in here.values())
    if number != len(_STANDARD) - 1 + position:
        yield Loss("folder", f"folder {root} is descriptor {number}, and would become {len(_STANDARD) - 1 + position}",
                   wrong=True)
    else:
        yield Loss("folder", f"it has folder {root} as descriptor {number}: give it as folder number {position}")
    if "listing" in record:
        yield Loss("folder", f"names in folder {root} have been read: in the middle of that, some may be missed")


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
