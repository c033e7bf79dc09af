"""``wasmckpt instrument``: rewrite a module, and say what was done and why."""

from __future__ import annotations

import os
import secrets
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from .. import runtimes
from ..errors import RuntimeMissing, StorageError
from ..instrument.instrument import Instrumented, instrument
from ..instrument.options import Options
from ..instrument.sites import Site
from ..runtimes.apart import facts_apart
from ..snapshot.prepare import options_with
from .names import function_names
from .output import amount, count, print_json, say, working
from .params import FILE, RUNTIME, read_module
from .programs import quiet_option

__all__ = ["command", "explain", "lines"]


@click.command("instrument")
@click.argument("module", type=FILE)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Where to write the rewritten module.")
@click.option("--runtime", type=RUNTIME, default="wasmtime", show_default=True, help="For which runtime.")
@click.option("--canonical-nans", is_flag=True, help="Make the NaNs of arithmetic the same on all processors.")
@click.option("--explain", "explained", is_flag=True, help="For each function: touched or not, why, and where.")
@click.option("--json", "as_json", is_flag=True, help="The explanation for programs.")
@quiet_option
def command(
    module: str, output: str | None, runtime: str, canonical_nans: bool, explained: bool, as_json: bool,
) -> None:
    """Rewrite MODULE so that it can be frozen on a runtime. All other commands do that by themselves."""
    wasm = read_module(module)
    with working(f"rewriting {module}"):
        options = options_with(_capabilities(runtime), base=Options(canonical_nans=canonical_nans))
        out = instrument(wasm, options)
    if output is not None:
        _write(output, out.wasm)
    if as_json:
        print_json(explain(out))
    elif explained:
        for line in lines(explain(out)):
            click.echo(line)
    elif output is None:
        say("nothing was written: add -o FILE or --explain")
    touched = sum(1 for func in out.verdicts if func in out.linker.bodies)
    say(f"{touched} of {len(out.verdicts)} functions rewritten, {count(len(out.sites), 'safepoint')}, "
        f"{amount(len(wasm))} -> {amount(len(out.wasm))} ({len(out.wasm) / max(1, len(wasm)):.2f})")


def _capabilities(runtime: str) -> runtimes.Capabilities:
    """Those of a runtime, which may need another process to be loaded in. Raises `RuntimeMissing`."""
    if not runtimes.loader(runtime):
        return runtimes.load(runtime).capabilities
    (facts,) = facts_apart([runtime])
    if facts.capabilities is None:
        raise RuntimeMissing(facts.problem, runtime=runtime)
    return facts.capabilities


def _write(path: str, data: bytes) -> None:
    """Write a file whole or not at all; what is no file (a pipe) is written to."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            Path(path).write_bytes(data)
            return
        temporary = Path(path).with_name(f".wasmckpt-{secrets.token_hex(8)}.part")
        try:
            temporary.write_bytes(data)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as reason:
        what = reason.strerror if isinstance(reason, OSError) else reason
        raise StorageError(f"the module cannot be written: {what}", path=path) from reason


def explain(out: Instrumented) -> dict[str, Any]:
    """What was decided about each function, and why; offsets are relative to the function's body expression."""
    names = function_names(out.source)
    by_function: dict[int, list[Site]] = defaultdict(list)
    for site in out.sites:
        by_function[site.func].append(site)
    functions = []
    for func, verdict in sorted(out.verdicts.items()):
        body, neutral = out.source.body(func), out.module.body(func)
        code = out.codes[func]
        inside = [code.pos[loop + 1] for loop in verdict.unrolled]
        before = body.end - body.start
        new = out.linker.bodies.get(func) or out.module.data[neutral.start : neutral.end]
        touched = new != out.source.data[body.start : body.end]
        functions.append({
            "function": func, "name": names.get(func), "touched": touched,
            "why": out.graph.suspends.get(func, "cannot suspend: no loop, no recursion, no import below it"),
            "bytes_before": before, "bytes_after": len(new),
            "safepoints": [_site(site, out.original_offset(func, site.offset), body.expr, site.offset in inside)
                           for site in by_function[func]],
        })
    return {"functions": functions, "bytes_before": len(out.source.data), "bytes_after": len(out.wasm)}


def _site(site: Site, offset: int, base: int, unrolled: bool) -> dict[str, Any]:
    kind = "call" if site.is_call else "entry" if not site.offset else "loop"
    return {
        "kind": kind, "offset": offset, "module_offset": base + offset, "unrolled": unrolled,
        "imported": site.is_import, "locals": len(site.locals), "operands": len(site.stack),
    }


def lines(data: dict[str, Any]) -> Iterator[str]:
    """An explanation as text, one line for each function and safepoint."""
    for f in data["functions"]:
        name = f" {f['name']}" if f["name"] else ""
        if f["touched"]:
            growth = f["bytes_after"] - f["bytes_before"]
            yield (f"f{f['function']}{name}: rewritten ({f['why']}), {f['bytes_before']} -> {f['bytes_after']} bytes "
                   f"({growth:+d}), {count(len(f['safepoints']), 'safepoint')}")
        else:
            yield f"f{f['function']}{name}: as it is ({f['why']}), {f['bytes_before']} bytes"
        for s in f["safepoints"]:
            what = {"loop": "loop at", "call": "after the call at", "entry": "entry at"}[s["kind"]]
            more = ", unrolled" if s["unrolled"] else ""
            more += ", of an import" if s["imported"] else ""
            yield (f"    {what} {s['offset']:#x} (module {s['module_offset']:#x}{more}): "
                   f"{count(s['locals'], 'local')}, {count(s['operands'], 'operand')}")
