"""Run as a process of its own: ``python -m tests.faults.fork_worker TASK RUNTIME ...``.

``loop``     takes snapshots of a program for ever, until killed; ``every`` as in the guest
``refused``  becomes an unprivileged user who may have no more processes; takes snapshots; prints what came out
``allowed``  the same user without that limit
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import time

from wasmckpt.errors import JobEnded, RetryLater
from wasmckpt.snapshot.fork_result import ForkRefused

from ..support.processes import children
from ..unit.snapshot.fork_guests import MIXER, Life

NOBODY = 65534
PR_SET_DUMPABLE = 4


def loop(engine: str, every: int) -> None:
    source = Life(engine, MIXER, (4_000_000_000, every), log=lambda _: None)
    source.live.snapshot(60, "fork")
    print("ready", flush=True)
    while True:
        source.live.snapshot(60, "fork")


def as_nobody(engine: str, turns: int, *, limit: bool) -> None:
    results = Life(engine, MIXER, (turns, 5_000)).result()
    source = Life(engine, MIXER, (turns, 5_000), start=False)
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # changing the user takes it away, a plain start has it
    source.start()
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if limit:
        resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    try:
        print(source.live.snapshot(60, "fork").way)
    except ForkRefused as refused:
        print("refused", refused.fields.get("reason"))
    except JobEnded:
        print("ended")
    images = []
    try:
        for _ in range(3):
            images.append(source.live.snapshot(60, "auto"))
            time.sleep(0.02)
    except (JobEnded, RetryLater):  # later: the runtime could not resume it in place
        pass
    print(" ".join(sorted({"in-place" if s.way == "in-place" else "fork" for s in images})))
    print("source", source.result() == results)
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    print("children", len(children()))
    sys.stdout.flush()
    for snapshot in images:
        print("image", Life(engine, MIXER, image=snapshot.image).result() == results)


if __name__ == "__main__":
    task, name = sys.argv[1:3]
    if task == "loop":
        loop(name, int(sys.argv[3]))
    else:
        as_nobody(name, int(sys.argv[3]), limit=task == "refused")
