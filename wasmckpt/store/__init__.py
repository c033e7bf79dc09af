"""A folder that keeps the images of many programs, and never loses one.

::

    index.sqlite            what there is: images, and checkpoints that name them by program and number
    images/SHA256.wckpt     an image without its pages, called by the digest of its file (`stored`)
    packs/SHA256.pack       pages, which any images may refer to (`packs`)
    modules/SHA256.wasm     the programs, once each
    incoming/               what is being written
    lock, turn              see below

A checkpoint is in the store from the commit of one transaction of SQLite on, and not before. What comes first is in the
order that makes this true after a kill or a power cut at any moment: a pack of new pages is written under ``incoming``
and synced, renamed, its folder synced; then so is the image; then the transaction. What is left of a failure is a file
that nobody names; `Store.gc` takes it away. It goes the other way round: names first, then files.

Writers and readers share the lock; whoever takes files away has it alone. Who waits holds ``turn``, through which all
others pass, so a stream of checkpoints keeps nobody waiting for ever. The kernel lets go of a lock when its owner dies.

An image may be the difference to its parent. A chain is made one whole image by `Store.compact`, beside the running
program: the checkpoint then names the new image, and the program's next one may rest on that, since it is the same
state. An image that others rest on stays as long as they do, whoever has let it go.

Equal pages are kept once, whichever images of whichever programs have them (`sharing`): a fleet of programs of one
module takes the room of one and of what they differ in. An image names its packs, and packs name their contents, by
SHA-256; the index only helps to find a page, and is not believed. Measured by `benchmarks what-not-to-save`.

    folder   files and locks      index   SQLite       store      the operations
    series   the checkpoints of one running program    retention  which ones are kept
    remote   the same in a bucket: objects, records    levels, copier  a folder first, the bucket behind it
    packs, stored    the two kinds of files            sharing, whole   an image taken apart, and put together
    files    an image of a store, by its file's name
"""

from .files import as_file, load_image
from .index import Entry
from .retention import Retention
from .series import Series
from .store import Freed, Problem, Store

__all__ = ["Entry", "Freed", "Problem", "Retention", "Series", "Store", "as_file", "load_image"]
