"""``wasmckpt diff``: what differs between two images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any, Final

import click

from ..formats import PAGE_SIZE
from ..wasm.numbers import show_value
from ..wasm.values import TYPE_NAMES, Value
from .compare import PARTS, Difference, differences
from .inspect import STANDS, module_of
from .names import function_names
from .output import amount, count, print_json
from .params import FILE, read_image
from .picture import draw
from .sealing import reading_options

__all__ = ["command", "lines"]

_MOST: Final = 20
"""Differences of one part that are shown."""
_LEGEND: Final = ". the same   # differs   + differs in part"
_PREFIX: Final = {"frames": "frame ", "globals": "g", "tables": "table ", "memory": "memory "}
_TYPES: Final = {name: type_ for type_, name in TYPE_NAMES.items()}


@click.command("diff")
@click.argument("before", type=FILE)
@click.argument("after", type=FILE)
@click.option("--module", "module_path", type=FILE, metavar="MODULE", help="The original module, for names.")
@click.option("--ignore", type=click.Choice(PARTS), multiple=True, help="Leave a part out; may be given several times.")
@click.option("--all", "all_", is_flag=True, help=f"Show all differences of a part, not {_MOST}.")
@reading_options
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(
    before: str, after: str, module_path: str | None, ignore: tuple[str, ...], all_: bool, as_json: bool,
) -> int:
    """Compare the images BEFORE and AFTER: frames (counted from the outermost, 0), globals, tables, memory pages, the
    host's state and clocks.

    The exit code is 0 if they are the same program in the same state, 1 if they differ.
    """
    one, other = read_image(before), read_image(after)
    module = module_of(one, module_path, before)
    names = {} if module is None else function_names(module)
    found = [difference for difference in differences(one, other) if difference.part not in ignore]
    if as_json:
        print_json({"same": not found, "differences": [asdict(difference) for difference in found]})
    else:
        for line in lines(found, names, most=len(found) if all_ else _MOST):
            click.echo(line)
    return 1 if found else 0


def lines(found: Sequence[Difference], names: Mapping[int, str], *, most: int = _MOST) -> Iterator[str]:
    """Differences for people."""
    for part, group in groupby(found, key=lambda difference: difference.part):
        items = list(group)
        yield part
        for item in items[:most]:
            yield from _memory(item) if part == "memory" else [f"  {_where(item)}: {_both(item, names)}"]
        if len(items) > most:
            yield f"  ... {len(items) - most} more (--all) ..."


def _where(item: Difference) -> str:
    return _PREFIX.get(item.part, "") + item.where.replace(".", " ")


def _both(item: Difference, names: Mapping[int, str]) -> str:
    return f"{_show(item.before, names)} -> {_show(item.after, names)}"


def _show(value: Any, names: Mapping[int, str]) -> str:
    if value is None:
        return "nothing"
    if not isinstance(value, Mapping):
        return str(value)
    if "$hex" in value:
        return repr(bytes.fromhex(value["$hex"]))[1:]
    if "bits" in value:
        bits = Value(_TYPES[value["type"]], int(value["bits"], 16))
        return f"{value['type']} {show_value(bits).text}"
    if "func" in value and "offset" in value:
        name = f" {names[value['func']]}" if value["func"] in names else ""
        return f"f{value['func']}{name} {STANDS[value['kind']]} {value['offset']:#x}"
    return ", ".join(f"{key} {_show(inner, names)}" for key, inner in value.items())


def _memory(item: Difference) -> Iterator[str]:
    sizes = [amount(side["pages"] << 16) for side in (item.before, item.after)]
    grown = "" if sizes[0] == sizes[1] else f", {sizes[0]} -> {sizes[1]}"
    differ = sum(length for _, length in item.pages)
    yield f"  {_where(item)}: {count(differ, 'page')} of 4 KiB ({amount(differ * PAGE_SIZE)}) differ{grown}"
    for line in draw(max(item.before["pages"], item.after["pages"]), item.pages, (), _LEGEND):
        yield f"    {line}"
