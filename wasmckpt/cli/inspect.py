"""``wasmckpt inspect``: what an image holds."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from ..errors import ImageError, StorageError
from ..formats import PAGE_SIZE, Frame, Header, Image, Point, load_header, to_json
from ..formats.files import seal_of
from ..wasm.decode import decode
from ..wasm.leb128 import read_u32
from ..wasm.module import Module
from ..wasm.numbers import show_value
from ..wasm.opcodes import TABLE
from ..wasm.values import TYPE_NAMES, Value
from .journal import describe_journal, is_journal, journal_as_json
from .names import function_names
from .output import amount, print_json
from .params import FILE, is_of_a_store, read_image, read_module
from .picture import picture
from .sealing import plain, reading_options

__all__ = ["STANDS", "command", "describe", "module_of"]

STANDS: Final = {"safepoint": "stands at", "call": "waits in the call at", "repeat": "repeats the call at"}
"""How a frame stands at its offset, by the name of its `StopKind`."""
_PREFIXES: Final = (0xFC, 0xFD, 0xFE)
_EDGE: Final = 8
"""Frames that are shown at each end of a long stack."""


@click.command("inspect")
@click.argument("image", type=FILE)
@click.option("--module", "module_path", type=FILE, metavar="MODULE",
              help="The original module, for names and dead locals.")
@click.option("--pages", is_flag=True, help="Read the memory pages as well, and draw them; checks the digest.")
@click.option("--all-frames", is_flag=True, help=f"Show every frame of a stack of more than {2 * _EDGE}.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(image: str, module_path: str | None, pages: bool, all_frames: bool, as_json: bool) -> None:
    """Show what IMAGE holds: where the program stands, with which values; globals, memory, files, clocks.

    Of a journal: which image it follows, and how much a restore answers from it.
    """
    if is_journal(image):
        if as_json:
            print_json(journal_as_json(image))
        else:
            click.echo("\n".join(describe_journal(image)))
        return
    held: Image | Header = (
        read_image(image, whole=False) if pages or is_of_a_store(image) else load_header(image)
    )
    module = module_of(held if isinstance(held, Image) else held.image, module_path, image)
    if as_json:
        print_json(_as_json(held, module) | plain(seal_of(image)))
        return
    try:
        size = os.path.getsize(image)
    except OSError as reason:
        raise StorageError(f"the image cannot be read: {reason.strerror}", path=image) from reason
    for line in describe(held, size, module, all_frames=all_frames):
        click.echo(line)
    seal = seal_of(image)
    if seal.keys:
        click.echo(f"encrypted  with key {', '.join(key.hex() for key in seal.keys)}")
    if seal.signer is not None:
        click.echo(f"signed     by {seal.signer.text}")


def module_of(image: Image, module_path: str | None, image_path: str) -> Module | None:
    """The module of an image: the file that was named, else what the image carries; None: neither.

    Raises:
        ImageError: it is another one. UsageError: the file cannot be read. InvalidModule.
    """
    raw = image.module.content if module_path is None else read_module(module_path)
    if raw is None:
        return None
    module = decode(raw)
    if module.sha256() != image.module.sha256:
        raise ImageError("the image is of another module", path=image_path,
                         hint=f"it wants sha256 {image.module.sha256.hex()}")
    return module


def _as_json(held: Image | Header, module: Module | None) -> dict[str, object]:
    counts = None
    names: Mapping[int, str] = {}
    if module is not None:
        names = function_names(module)
        first = module.imported_funcs
        image = held if isinstance(held, Image) else held.image
        used = {f.point.func for f in image.frames if first <= f.point.func < len(module.func_types)}
        counts = {func: len(module.local_types(func)) for func in used}
    data = to_json(held, local_counts=counts)
    for frame in data["frames"]:  # type: ignore[attr-defined]
        if frame["func"] in names:
            frame["name"] = names[frame["func"]]
    return data


def describe(held: Image | Header, size: int, module: Module | None, *, all_frames: bool = False) -> Iterator[str]:
    """An image in lines for people; ``size`` of its file in bytes."""
    image = held if isinstance(held, Image) else held.image
    names = {} if module is None else function_names(module)
    inside = "module" in held.optional if isinstance(held, Header) else held.module.content is not None
    producer, entry = image.producer, image.entry
    yield (f"image      {amount(size)}, by {producer.tool} on {producer.runtime} {producer.runtime_version} "
           f"({producer.machine})")
    carried = ", carried inside" if inside else ""
    yield f"module     {amount(image.module.size)}, sha256 {image.module.sha256.hex()}{carried}"
    if image.parent is not None:
        yield f"parent     sha256 {image.parent.sha256.hex()}, this is number {image.parent.position} of the chain"
    steps = [f"[{step}]" if i == entry.current else step for i, step in enumerate(entry.steps)]
    arguments = ", ".join(_typed(v) for v in entry.arguments)
    yield f"entry      {' -> '.join(steps)}" + (f" with {arguments}" if arguments else "")
    if image.canonical_nans:
        yield "nans       canonical, as the program began"
    yield from _frames(image.frames, names, module, all_frames)
    if image.globals:
        yield "globals"
        yield from _wrapped([f"g{g.index} {_typed(Value(g.type, g.bits))}" for g in image.globals])
    for table in image.tables:
        yield f"table {table.index}    {table.size} slots, {len(table.changed)} changed"
    for what, gone in (("data", image.dropped_data), ("elem", image.dropped_elem)):
        if gone:
            yield f"dropped    {what} segments {', '.join(map(str, gone))}"
    yield from _memories(held)
    yield from _host(image.host)


def _frames(
    frames: Sequence[Frame], names: Mapping[int, str], module: Module | None, all_frames: bool
) -> Iterator[str]:
    count = len(frames)
    yield f"frames     {count or 'none: between two calls'}" + (", innermost first" if count > 1 else "")
    for number, frame in enumerate(reversed(frames)):
        if not all_frames and count > 2 * _EDGE and _EDGE <= number < count - _EDGE:
            if number == _EDGE:
                yield f"  ... {count - 2 * _EDGE} more (--all-frames) ..."
            continue
        point = frame.point
        name = f" {names[point.func]}" if point.func in names else ""
        yield (f"  #{number} f{point.func}{name} {STANDS[point.kind.name.lower()]} {point.offset:#x}"
               f"{_instruction(point, module)}")
        live = frame.locals()
        shown = [f"l{index} {_typed(value)}" for index, value in live.items()]
        if module is not None and module.imported_funcs <= point.func < len(module.func_types):
            dead = len(module.local_types(point.func)) - len(live)
            shown += [f"{dead} dead"] if dead else []
        if shown:
            yield from _wrapped(shown, "locals    ")
        operands = frame.operands()
        if operands:
            yield from _wrapped([_typed(value) for value in operands], "operands  ")


def _instruction(point: Point, module: Module | None) -> str:
    """Where a point is in the module's file, as disassemblers count, and the instruction that stands there."""
    if module is None or not module.imported_funcs <= point.func < len(module.func_types):
        return ""
    body = module.body(point.func)
    at = body.expr + point.offset
    if not body.expr <= at < body.end:
        return ""
    code = module.data[at]
    if code in _PREFIXES:
        code = code << 16 | read_u32(module.data, at + 1)[0]
    return f" ({TABLE[code].name}, module {at:#x})" if code in TABLE else ""


def _typed(value: Value) -> str:
    return f"{TYPE_NAMES[value.type]} {show_value(value).text}"


def _wrapped(items: Sequence[str], head: str = "") -> list[str]:
    joined = ",  ".join(item.replace(" ", "\xa0") for item in items)
    lines = textwrap.wrap(joined, 108 - len(head), break_long_words=False, break_on_hyphens=False)
    return [
        f"     {head if not i else ' ' * len(head)}{line}".replace("\xa0", " ") for i, line in enumerate(lines)
    ]


def _memories(held: Image | Header) -> Iterator[str]:
    if isinstance(held, Header):
        for memory in held.memories:
            counts = memory.counts
            yield (f"memory {memory.index}   {amount(memory.pages << 16)}, of which {amount(counts.data * PAGE_SIZE)} "
                   f"differ from the module ({counts.data} pages of 4 KiB, {counts.zero} made zero); --pages draws it")
        return
    for state in held.memories:
        data = sum(len(raw) for _, raw in state.data)
        zero = sum(count for _, count in state.zero)
        yield (f"memory {state.index}   {amount(state.pages << 16)}, of which {amount(data)} differ from the module "
               f"({data // PAGE_SIZE} pages of 4 KiB, {zero} made zero)")
        for line in picture(state):
            yield f"  {line}"


def _host(host: Mapping[str, Any]) -> Iterator[str]:
    """The host's state, as far as it has the shape that is expected: an image may hold anything there."""
    if not host:
        return
    try:
        lines = list(_host_lines(host))
    except (TypeError, ValueError, KeyError, AttributeError):
        lines = ["host       (not in a shape that this version knows)"]
    yield from lines


def _host_lines(host: Mapping[str, Any]) -> Iterator[str]:
    yield "arguments  " + " ".join(_text(arg) for arg in host["args"])
    for name, value in host["env"]:
        yield f"variable   {_text(name)}={_text(value)}"
    clocks = host["clocks"]
    yield f"clocks     monotonic {clocks['monotonic'] / 1e9:.3f} s, processor {clocks['process_cpu'] / 1e9:.3f} s"
    if host.get("sleep") is not None:
        yield "sleeping   with a deadline that is kept"
    for record in host["descriptors"]:
        yield f"fd {record['number']:<7} {_descriptor(record)}"


def _descriptor(record: Mapping[str, Any]) -> str:
    kind = record["kind"]
    if kind in ("stdin", "stdout", "stderr"):
        done = [f"{record[key]} bytes {word}" for key, word in (("consumed", "read"), ("produced", "written"))
                if record.get(key)]
        return ", ".join([kind, *done])
    where = _text(record["root"])
    if kind != "preopen":
        where = where.rstrip("/") + "/" + _text(record["path"])
    offset = f" at {record['offset']}" if "offset" in record else ""
    return f"{kind} {where}{offset}"


def _text(raw: bytes) -> str:
    text = raw.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
