"""Images for those who do not have this toolkit: as a module that goes on by itself, as a core dump for debuggers.

`export` makes a WebAssembly module of an image. Started on any runtime with WASI preview 1, it goes on from where the
program was frozen. It is the original module, every function as it was, with the frozen contents in the place of the
initial ones, and functions added that go on from the frames (`wasmckpt.instrument.continuations`, not rewritten: this
module cannot be frozen again by itself; as a new program, which it is, it can).

    memory              active data segments: what is not zero, in the place of the module's own
    globals             their initial values
    tables              active element segments behind the module's own, for the slots that differ
    dropped segments    empty ones, which is the same
    start, _initialize  left out: they have run. If one has not, `_start` sees to it
    imported memories, tables, mutable globals, tags   defined, with the frozen contents: a plain runtime has none
    frames              records in a window, which the continuations read, as in a resume

Where the window lies: in the guest's own memory, over a stretch that is zero (there nearly always is one), else over
its end. When all frames are read, and before the program goes on, the guest's own bytes are put back there, by a loop
that stores zeros and by stores of constants. So there is one memory where the original has one, and neither bulk memory
nor anything else that the original does not need; the guest never sees the window. Records that are longer than the
whole memory come in pieces, each put there by stores of constants. Rejected: constants in one continuation for each
frame (recursion has one place and ten thousand frames, each would be the whole function again); memory behind the
guest's end (``memory.size`` would tell it, and memory cannot shrink); a memory of our own (Wasm3 and WAMR take one
memory only; used where the guest has none, or one of no pages, or where a single record is larger than its memory); a
function with constants for each frame that calls the continuation (twice the native frames).

What is the host's cannot be in a module: open files, positions, clocks. `host_losses` lists it, by what it means for
the program; `export` refuses what would make the program wrong unless that is accepted.

    standalone   the module    window        where records lie     contents    memories whole, and as segments
    sections     its parts     host_losses   what is not in it     core_dump   core dumps
    exceptions   those that frames hold
"""

from __future__ import annotations

from ..lazyload import on_first_use

TYPE_CHECKING = False

__getattr__ = on_first_use(__name__, {
    "Exported": "standalone", "export": "standalone", "Loss": "host_losses", "losses": "host_losses",
    "coredump": "core_dump",
})

__all__ = ["Exported", "Loss", "coredump", "export", "losses"]

if TYPE_CHECKING:
    from .core_dump import coredump
    from .host_losses import Loss, losses
    from .standalone import Exported, export
