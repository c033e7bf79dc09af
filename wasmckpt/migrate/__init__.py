"""Live moves: a running program goes on in another process, on another machine, on another kind of runtime.

    handover   who owns the program: two phases and a fencing token, as a machine without I/O
    wire       what the two sides say to each other, over any stream of bytes
    pages      pages by digest: what the target has already is not sent; compressed where that is faster
    precopy    when to stop: rounds, the wire's rate, the program's rate of writing, the limit of the stop
    source     the side that gives the program away      target   the side that takes it

Pages flow while the program runs, in rounds: first all, then those that were written meanwhile, and so on, until what
is left can be sent within the allowed stop. The target builds the program from what it gets, page by page and frame by
frame (`wasmckpt.snapshot.incoming`), so that when the program stops little is left to be done.
``docs/live-migration.md`` is the page about it.
"""

from __future__ import annotations

from ..lazyload import on_first_use

TYPE_CHECKING = False  # type checkers take it as True

__getattr__ = on_first_use(__name__, {
    "Options": "precopy", "Progress": "precopy",
    "Moved": "source", "Source": "source", "send": "source",
    "Offer": "target", "Target": "target", "receive": "target",
    "Wire": "wire",
})
__all__ = ["Moved", "Offer", "Options", "Progress", "Source", "Target", "Wire", "receive", "send"]

if TYPE_CHECKING:
    from .precopy import Options, Progress
    from .source import Moved, Source, send
    from .target import Offer, Target, receive
    from .wire import Wire
