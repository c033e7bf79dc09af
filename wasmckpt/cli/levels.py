"""Where a program's checkpoints go: a folder or a bucket, and from a folder on to a bucket behind it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..errors import RetryLater, UsageError
from .output import count, report, say, working

if TYPE_CHECKING:
    from ..store import Series
    from ..store.copier import Copied, Copier
    from ..store.interface import ImageStore

__all__ = ["finish", "nearest", "open_series"]


def open_series(
    where: str, job: str, module: bytes | None, keep: int | None, remote: str | None, patience: float,
) -> tuple[Series, Copier | None]:
    """The series of a program that starts, in the store ``where``; and what copies it to the bucket ``remote``.

    A bucket that does not answer now keeps nobody from starting.

    Raises:
        UsageError: they do not go together. What opening a store raises.
    """
    from ..store import Retention, Series, Store  # SQLite, which programs without a store need not wait for

    rule = None if keep is None else Retention(last=keep)
    if where.startswith("s3://"):
        if remote is not None:
            raise UsageError("--remote is for a store in a folder", hint="--store DIR --remote s3://BUCKET/PREFIX")
        from ..store.levels import open_store

        with working(f"opening {where}"):
            return Series(open_store(where, create=True), job, module, rule=rule), None
    store = Store(where, create=True)
    if remote is None:
        return Series(store, job, module, rule=rule), None
    from ..store.copier import Copier
    from ..store.remote import RemoteStore

    after = 0
    try:
        with working(f"opening {remote}"):
            newest = RemoteStore(remote, create=True).newest(job)
        after = 0 if newest is None else newest.number
    except RetryLater as problem:
        report(problem)
        say(f"going on; checkpoints are in {where}, and will be in {remote} when it answers")
    copier = Copier(store, remote, job, patience=patience, after=after)
    copier.wake()
    return Series(store, job, module, rule=rule, after=after, on_commit=copier.wake), copier


def nearest(where: str, remote: str | None, job: str, number: int | None) -> ImageStore:
    """The store that has a checkpoint, or without a number the newest: the folder, or else the bucket."""
    from ..store.levels import nearest, open_store

    levels = [functools.partial(open_store, name) for name in (where, remote) if name is not None]
    return nearest(levels, job, number, lambda problem: report(problem) if isinstance(problem, RetryLater) else None)


def finish(copier: Copier) -> Copied:
    """Wait for what copies, and say what it could not do."""
    with working("copying the last checkpoints", alone=False):
        copied = copier.finish()
    if copied.renumbered:
        say(f"{count(copied.renumbered, 'checkpoint')} copied under other numbers: somebody else has theirs")
    if copied.dropped:
        say(f"{count(copied.dropped, 'checkpoint')} let go of before being copied: the bucket is slower than they come")
    if copied.missing or copied.problem:
        why = f" ({copied.problem})" if copied.problem else ""
        say(f"not copied: {count(copied.missing, 'checkpoint')}{why}; `wasmckpt store push` does it later")
    return copied
