"""wasmckpt: freeze a running WebAssembly program and let it go on elsewhere, on stock runtimes.

    >>> import wasmckpt
    >>> with wasmckpt.Job.start(module) as job:        # doctest: +SKIP
    ...     job.migrate("wasm3")
    ...     job.wait()

Words: a **safepoint** is a place where a program can be frozen (a loop's header, a call's return); a **frame** is one
activation, with function index, relative bytecode offset, typed locals and operands, all of the original module; an
**image** is the frozen program in the neutral format; a **worker** is the process in which one runtime runs it.

Folders: `wasm` reads and writes modules; `instrument` rewrites them and makes continuations; `formats` is the image;
`runtimes` the adapters; `host` WASI; `dirty` which pages were written; `snapshot` puts these together in a worker and
beside it; `store` keeps images; `migrate` moves programs to other machines while they run; `interop` makes of images
what needs none of this; `planning` says how often; `agent` owns programs of a machine, `client` asks it, in the words
of `api`; `cli` the commands.

The public names are imported on first use, so that ``import wasmckpt`` needs no runtime.
"""

from __future__ import annotations

from .lazyload import on_first_use
from .version import __version__

TYPE_CHECKING = False  # type checkers take it as True; importing `typing` takes 4 ms of every start

__getattr__ = on_first_use(__name__, {
    "AsyncJob": "snapshot.async_job",
    "Checkpoint": "snapshot.job", "Ended": "snapshot.job", "Job": "snapshot.job", "Move": "snapshot.job",
    "Statistics": "snapshot.job", "Times": "snapshot.job", "Superseded": "snapshot.turn",
    "check": "snapshot.job", "WasiConfig": "host", "UserFunction": "host", "Call": "host", "header_path": "host",
    "Pace": "planning",
    "JournalOptions": "host", "ResourceLimits": "snapshot.confine",
    "RemoteStore": "store.remote", "Retention": "store", "Series": "store", "Store": "store",
    "Exported": "interop", "Loss": "interop", "coredump": "interop", "export": "interop",
    "Value": "wasm.values", "Image": "formats", "load_image": "formats:load", "CheckpointError": "errors",
})

__all__ = [
    "AsyncJob", "Call", "Checkpoint", "CheckpointError", "Ended", "Exported", "Image", "Job", "JournalOptions", "Loss",
    "Move", "Pace", "RemoteStore", "ResourceLimits", "Retention", "Series", "Statistics", "Store", "Superseded",
    "Times", "UserFunction", "Value", "WasiConfig", "__version__", "check", "coredump", "export", "header_path",
    "load_image",
]

if TYPE_CHECKING:
    from .errors import CheckpointError
    from .formats import Image
    from .formats import load as load_image
    from .host import Call, JournalOptions, UserFunction, WasiConfig, header_path
    from .interop import Exported, Loss, coredump, export
    from .planning import Pace
    from .snapshot.async_job import AsyncJob
    from .snapshot.confine import ResourceLimits
    from .snapshot.job import Checkpoint, Ended, Job, Move, Statistics, Times, check
    from .snapshot.turn import Superseded
    from .store import Retention, Series, Store
    from .store.remote import RemoteStore
    from .wasm.values import Value
