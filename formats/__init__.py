"""The neutral image: what is frozen on one runtime and goes on, bit for bit, on another.

An image is one file, read from front to back::

    image   = magic version header block* digest
    magic   = 89 57 43 4B 50 54 0D 0A              8 bytes, "WCKPT" between what text transfers destroy
    version = msgpack integer, 1                   another one: refuse
    header  = msgpack map                          features, module, producer, entry, globals, counts of all the rest
    block   = msgpack [kind, encoding, size, where, payload]
    digest  = C4 20 + 32 bytes                     SHA-256 of all bytes before it

After the magic it is a plain sequence of msgpack values. Blocks come in this order, unknown kinds are skipped::

    host     the host layer's state                points   the distinct places where frames stand
    frames   points of all frames, then values     tables   slots that differ from the fresh table
    module   the module, if it is carried inside   zero     runs of pages that are zero now
    pages    runs of 4 KiB pages that differ from the base

A block holds at most 1 MiB, as it is (encoding 0) or as a zstd frame (1). Blocks of one kind make one stream.

What an image must understand is in the header's list ``required`` (unknown: refuse); what it may ignore in
``optional``. Maps are sorted and nothing tells the time: the same state gives the same bytes. SPEC.md has all of it,
byte by byte, enough to write a reader in another language.

`image` has the types, `codec` bytes, `files` files, `chain` images that rest on parents, `pages` the difference to a
base, `jsonview` the readable form. `sealed` is the envelope of images that are encrypted or signed, `keys` their keys,
`sealing` how this process seals what it writes and what it asks of what it reads.
"""

from wasmckpt.formats.chain import load_chain, read_chain
from wasmckpt.formats.codec import Header, decode, encode, read_header, read_image, write_image
from wasmckpt.formats.files import load, load_header, save
from wasmckpt.formats.image import (
    PAGE_SIZE,
    WASM_PAGE_SIZE,
    Entry,
    Frame,
    GlobalState,
    Image,
    MemoryState,
    ModuleRef,
    ParentRef,
    Point,
    Producer,
    StopKind,
    TableState,
)
from wasmckpt.formats.jsonview import to_json
from wasmckpt.formats.limits import Limits
from wasmckpt.formats.pages import apply, difference

__all__ = [
    "PAGE_SIZE", "WASM_PAGE_SIZE", "Entry", "Frame", "GlobalState", "Header", "Image", "Limits", "MemoryState",
    "ModuleRef", "ParentRef", "Point", "Producer", "StopKind", "TableState", "apply", "decode", "difference", "encode",
    "load", "load_chain", "load_header", "read_chain", "read_header", "read_image", "save", "to_json", "write_image",
]
