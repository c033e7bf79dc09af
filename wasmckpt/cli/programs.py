"""Options that `run`, `restore` and `migrate` share, and the job that they make."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from ..errors import StorageError, UsageError
from ..formats.sealing import refuse_journal
from ..host import JournalOptions, WasiConfig
from .attend import Plan
from .output import be_quiet
from .params import DIRECTORY, DURATION, ENVIRONMENT, EVERY, FILE, FOLDER, RUNTIME, SIGNAL, SIZE, Grant
from .quantities import PERCENT, TIME
from .sealing import check_keys, compressing_options, writing_options

__all__ = [
    "checkpoint_options", "config_of", "grant_options", "plan_of", "program_options", "quiet_option",
    "runtime_option",
]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _all(*decorators: Decorator) -> Decorator:
    def apply(function: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda done, decorator: decorator(done), reversed(decorators), function)

    return apply


def _quiet(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        be_quiet()
    return value


quiet_option = click.option("-q", "--quiet", is_flag=True, expose_value=False, callback=_quiet,
                            help="No notes on standard error; errors only.")
runtime_option = click.option("--runtime", type=RUNTIME, default="wasmtime", show_default=True, help="What runs it.")

grant_options = _all(
    click.option("--dir", "grants", type=DIRECTORY, metavar="HOST[::GUEST[::ro]]", multiple=True,
                 help="A folder for the program, and its name there; ::ro: it may not change anything in it."),
    click.option("--stack-size", type=SIZE, default="8M", show_default=True, help="The program's stack."),
    click.option("--huge-pages", is_flag=True, help="Ask for huge pages for its memory: large programs stop shorter."),
    click.option("--discard-dead-stack", is_flag=True,
                 help="Leave what lies below the stack pointer in memory out of images, where that is provable."),
    quiet_option,
)
program_options = _all(
    click.option("--env", "environment", type=ENVIRONMENT, multiple=True,
                 help="An environment variable for the program; without a value: the one it has here."),
    click.option("--invoke", metavar="NAME", help="Call this export, not _start; ARGS are numbers of its types."),
    click.option("--canonical-nans", is_flag=True,
                 help="Make the NaNs of its arithmetic the same on all processors, for all its life."),
    click.option("--seed", type=int, help="Give the program the same random numbers each time."),
)
checkpoint_options = _all(
    writing_options,
    compressing_options,
    click.option("-o", "--output", type=FILE, metavar="IMAGE",
                 help="File for images; default: the module's name with .wckpt."),
    click.option("--checkpoint-after", "after", type=DURATION, help="Take an image after this time."),
    click.option("--checkpoint-every", "every", type=EVERY,
                 help="Take an image each time so much has passed; auto: as often as --overhead allows."),
    click.option("--overhead", type=PERCENT, help="What auto may take of the time; default: 3.5%."),
    click.option("--shortest-interval", "shortest", type=DURATION, help="Of auto; default: 1s."),
    click.option("--longest-interval", "longest", type=DURATION, help="Of auto, whatever it costs; default: 1h."),
    click.option("--mtbf", type=TIME, help="Mean time between failures: auto takes no more images than that is worth."),
    click.option("--checkpoint-at", "at", type=click.IntRange(1, (1 << 63) - 1), metavar="N",
                 help="Take an image at the N-th safepoint: the same state each time. For tests; runs slower."),
    click.option("--checkpoint-here", "here", is_flag=True,
                 help="Take an image whenever the program asks for one, see wasmckpt.h."),
    click.option("--on-signal", "signals", type=SIGNAL, multiple=True,
                 help="Take an image when this signal comes; with --stop: and end with it. (USR1 always takes one.)"),
    click.option("--on-idle", "idle", is_flag=True,
                 help="Take an image when the program waits for input or a time, and has changed since the last one."),
    click.option("--before-host-call", "before", multiple=True, metavar="NAME",
                 help="Take an image before each call of this import (fd_write, env.pay)."),
    click.option("--stop", is_flag=True, help="End the program with the image."),
    click.option("--carry-module", is_flag=True, help="Put the module into the image: one file is enough."),
    click.option("--store", type=FOLDER, metavar="DIR|URL",
                 help="Keep images in this store, all of them, each the difference to the one before."),
    click.option("--remote", metavar="URL",
                 help="Copy what is in the store to this bucket, s3://BUCKET/PREFIX, while the program runs."),
    click.option("--remote-wait", type=DURATION, default="30s", show_default=True,
                 help="At the end, wait so long for the last copies."),
    click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the last N images in the store."),
    click.option("--journal", "keep_journal", is_flag=True,
                 help="Keep a journal beside the image: what is killed goes on as if it had not been, see `restore`."),
    click.option("--journal-sync", "sync", type=click.Choice(["batch", "always"]), default="batch", show_default=True,
                 help="always: it outlives a power cut as well; slower."),
    click.option("--name", help="Let other terminals find it: wasmckpt checkpoint NAME, wasmckpt ps."),
    click.option("--json", "json", is_flag=True, help="Print how it ended as JSON: the last line of standard output."),
)


def config_of(
    grants: Sequence[Grant], *, arguments: Sequence[str] = (), environment: Sequence[tuple[str, str]] = (),
    seed: int | None = None,
) -> WasiConfig:
    """What the program gets."""
    return WasiConfig(
        args=arguments, env=dict(environment), preopens=[(g.host, g.guest) for g in grants],
        read_only=[g.guest for g in grants if g.read_only], random_seed=seed,
    )


def plan_of(
    source: str, *, output: str | None, after: float | None, every: float | str | None, at: int | None, here: bool,
    stop: bool, carry_module: bool, name: str | None, store: str | None, keep: int | None, remote: str | None = None,
    remote_wait: float = 0.0, overhead: float | None = None, shortest: float | None = None,
    longest: float | None = None, mtbf: float | None = None, signals: Sequence[int] = (), idle: bool = False,
    before: Sequence[str] = (), keep_journal: bool = False, sync: Literal["batch", "always"] = "batch",
    in_doubt: Literal["refuse", "repeat", "skip"] = "refuse", **more: Any,
) -> Plan:
    """What to do while it runs. Raises `UsageError` and `StorageError` for what can be known to fail already."""
    asked = after is not None or every is not None or bool(at) or here or idle or bool(signals) or bool(before)
    if stop and not asked:
        raise UsageError("--stop without a time", hint="add --checkpoint-after 300ms")
    pace = None
    limits: dict[str, Any] = {"overhead": overhead, "shortest": shortest, "longest": longest, "mtbf": mtbf}
    limits = {name: given for name, given in limits.items() if given is not None}
    if every == "auto" or idle:
        from ..planning import Pace  # not for programs without it

        pace = Pace(**limits, first=None if every == "auto" else 0.0)
    elif limits:
        option = "--" + next(iter(limits)) + ("-interval" if "est" in next(iter(limits)) else "")
        raise UsageError(f"{option} is for images as often as they are cheap",
                         hint="add --checkpoint-every auto, or --on-idle")
    if at and (idle or before):
        raise UsageError("--checkpoint-at freezes the program at that safepoint only",
                         hint="leave out --on-idle and --before-host-call")
    for option, interval in (("--checkpoint-every", every), ("--shortest-interval", shortest)):
        if isinstance(interval, float) and interval < 0.01:
            raise UsageError(f"{option} is shorter than 10 ms")
    if store is None and keep is not None:
        raise UsageError("--keep without a store", hint="add --store DIR; -o keeps the newest image only")
    if store is None and remote is not None:
        raise UsageError("--remote without a store", hint="add --store DIR: images go there first")
    if store is not None and output is not None:
        raise UsageError("images go to a file or to a store, not to both", hint="leave out -o or --store")
    if output is None:
        output = (name or Path(source).name.removesuffix(".wasm").removesuffix(".wckpt")) + ".wckpt"
        wanted = asked or keep_journal
    else:
        wanted = True
    if wanted or store is not None:
        check_keys(rereads=store is not None)
    series = copier = None
    if store is not None:
        from .levels import open_series

        series, copier = open_series(
            store, output.removesuffix(".wckpt"), more.get("module"), keep, remote, remote_wait
        )
    elif wanted:
        _check_output(output)
    if keep_journal and at:
        raise UsageError("--journal with --checkpoint-at: counting is for tests, which compare single images")
    if keep_journal:
        refuse_journal()
    journal = None
    if keep_journal and series is not None:
        from ..store import Store

        if not isinstance(series.store, Store):
            raise UsageError("a journal lies in a folder", hint="--store DIR; --remote copies the images to a bucket")
        journal = JournalOptions(str(series.store.journal(series.job, create=True).absolute()), None, sync, in_doubt)
    elif keep_journal:
        journal = JournalOptions.beside(output, sync, in_doubt)
    return Plan(output, carry_module, after, None if isinstance(every, str) else every, at or 0, here, stop, name=name,
                what=Path(source).name, series=series, copier=copier, pace=pace, auto=every == "auto", idle=idle,
                signals=signals, before=before, journal=journal, **more)


def _check_output(output: str) -> None:
    folder = os.path.dirname(output) or "."
    if not os.path.isdir(folder):
        raise StorageError("there is no such folder for images", path=folder)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StorageError("the folder for images is not writable", path=folder)
    if os.path.isdir(output):
        raise StorageError("the image's name is a folder's", path=output)

