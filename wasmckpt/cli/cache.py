"""``wasmckpt cache``: what is made once for a module, made before it is needed."""

from __future__ import annotations

import time

import click

from .. import runtimes
from ..wasm.decode import decode
from ..wasm.module import ExternKind
from .output import amount, duration, print_json, say, working
from .params import FILE, RUNTIME, read_module
from .programs import quiet_option

__all__ = ["command"]


@click.group("cache")
def command() -> None:
    """Rewritten modules, and what runtimes have compiled of them, which a start or a resume then finds ready."""


@command.command("warm")
@click.argument("modules", nargs=-1, required=True, type=FILE, metavar="MODULE...")
@click.option("--runtime", type=RUNTIME, default="wasmtime", show_default=True, help="For which runtime.")
@click.option("--json", "as_json", is_flag=True, help="For programs: a line for each module.")
@quiet_option
def warm(modules: tuple[str, ...], runtime: str, as_json: bool) -> None:
    """Rewrite and compile each MODULE now, so that its next start or resume on a runtime pays neither.

    Runtimes that interpret have nothing compiled to keep: only the rewriting is kept for them. A module that imports
    globals is made for those that its program is given, so the first run warms the cache for it.
    """
    from ..instrument.cache import cached_instrument
    from ..snapshot.kept import compiled_main
    from ..snapshot.prepare import options_for, refuse_unsupported

    engine = runtimes.load(runtime)
    for path in modules:
        began = time.monotonic()
        module = decode(read_module(path))
        depends = next(module.imported(ExternKind.GLOBAL), None) is not None
        with working(f"rewriting and compiling {path}"):
            out = cached_instrument(module, options_for(engine))
            refuse_unsupported(engine, out.features)
            if not depends:
                compiled_main(engine, out).close()
        seconds = time.monotonic() - began
        kept = engine.capabilities.keeps_code and not depends
        if as_json:
            print_json({"module": path, "runtime": runtime, "compiled": kept, "seconds": seconds})
        elif depends:
            say(f"{path}: imports globals, so its first run must do it")
        else:
            what = "rewritten and compiled" if kept else "rewritten"
            say(f"{path}: {what} for {runtime}, {amount(len(module.data))} in {duration(seconds)}")
