"""``wasmckpt restore``: run on from an image."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any, Literal

import click

from ..errors import UsageError
from ..host import JournalOptions
from ..lazydata import replace
from ..snapshot.job import Job
from .attend import Hooks, Plan, attend
from .output import say
from .params import FILE, Grant, is_of_a_store, read_module
from .programs import checkpoint_options, config_of, grant_options, plan_of, runtime_option
from .sealing import reading_options

__all__ = ["command"]


@click.command("restore")
@click.argument("image", type=FILE, metavar="IMAGE|NAME")
@click.option("--number", type=click.IntRange(min=1), metavar="N",
              help="With --store: not the newest image of the program NAME, but this one.")
@click.option("--module", "module_path", type=FILE, metavar="MODULE",
              help="The original module, unless the image carries it.")
@click.option("--no-journal", is_flag=True,
              help="Go on from the image alone, even if there is a journal: what came after it happens again.")
@click.option("--in-doubt", type=click.Choice(["refuse", "repeat", "skip"]), default="refuse", show_default=True,
              help="What to do with a call of which nobody can know whether it was made before the program was killed.")
@click.option("--accept-changed", is_flag=True, help="Go on even if open files are not what they were.")
@reading_options
@runtime_option
@grant_options
@checkpoint_options
def command(
    image: str, number: int | None, module_path: str | None, no_journal: bool,
    in_doubt: Literal["refuse", "repeat", "skip"], accept_changed: bool, runtime: str, grants: tuple[Grant, ...],
    stack_size: int, huge_pages: bool, discard_dead_stack: bool, store: str | None, remote: str | None,
    sync: Literal["batch", "always"], keep_journal: bool, **checkpoints: Any,
) -> int:
    """Run on from IMAGE, on any runtime. Folders are granted anew; arguments and environment are in the image.

    If the program kept a journal (`run --journal`), which lies beside the image, it goes on from where it was when it
    was killed: what it did since the image is answered from there, and output that was written is not written again.

    With --store: from the newest image of the program NAME in that store, where further ones go as well; with --remote
    from the bucket if the newest, or the one with --number, is only there.
    """
    if store is None and number is not None:
        raise UsageError("--number without a store", hint="add --store DIR")
    with ExitStack() as until_it_runs:
        path, wasm = image, None if module_path is None else read_module(module_path)
        checked = False
        if store is not None:
            from ..store import Store  # SQLite, which programs without a store need not wait for
            from .levels import nearest

            level = nearest(store, remote, image, number)
            found, module = until_it_runs.enter_context(level.reading(image, number))
            checked = isinstance(level, Store)  # who has signed it, each of the chain; what it gives is in memory
            path = str(found)
            if wasm is None and module is not None:
                wasm = read_module(str(module))
        elif is_of_a_store(image):
            from ..store import as_file

            path = until_it_runs.enter_context(as_file(image))
        source = image if store is not None else module_path or image
        plan = plan_of(source, print_results=True, module=wasm, store=store, remote=remote, sync=sync, **checkpoints)
        journal = _journal(path, plan, sync, in_doubt, wanted=keep_journal, refused=no_journal)
        if journal is not None and plan.series is None and checkpoints["output"] is None:
            plan = replace(plan, output=image)  # where the images that cut the journal go

        def start(hooks: Hooks) -> Job:
            job = Job.restore(
                path, runtime, module=wasm, config=config_of(grants), accept_changed=accept_changed,
                stack_bytes=stack_size, freeze_at=plan.at, on_checkpoint_here=hooks.here, before_call=hooks.before,
                huge_pages=huge_pages, discard_dead_stack=discard_dead_stack, journal=journal,
                checked=checked,
                journal_maybe=not keep_journal,
            )
            until_it_runs.close()
            if journal is not None and job.replay is None:
                say(f"{journal.path} is not the journal of this image: not used")
            return job

        return attend(start, plan)


def _journal(
    image: str, plan: Plan, sync: Literal["batch", "always"], in_doubt: Literal["refuse", "repeat", "skip"], *,
    wanted: bool, refused: bool,
) -> JournalOptions | None:
    """The journal that is there, or is to be begun."""
    if refused:
        if wanted:
            raise UsageError("--journal and --no-journal contradict each other")
        return None
    series = plan.series
    if series is None:
        journal = JournalOptions.beside(image, sync, in_doubt)
    else:
        from ..store import Store

        if not isinstance(series.store, Store):
            if wanted:
                raise UsageError("a journal lies in a folder", hint="--store DIR; --remote copies to a bucket")
            return None
        journal = JournalOptions(str(series.store.journal(series.job, create=wanted).absolute()), None, sync, in_doubt)
    return journal if wanted or os.path.exists(journal.path) else None
