"""A folder that keeps the images of many programs, and never loses one.

::

    index.sqlite            what there is: images, and checkpoints that name them by program and number
    images/SHA256.wckpt     an image, called by the digest of its file, so that children find their parents beside them
    modules/SHA256.wasm     the programs, once each
    incoming/               what is being written
    lock, turn              see below

A checkpoint is in the store from the commit of one transaction of SQLite on, and not before. What comes first is in the
order that makes this true after a kill or a power cut at any moment: the file is written under ``incoming`` and
synced, renamed, its folder synced, then the transaction. What is left of a failure is a file that nobody names;
`Store.gc` takes it away. It goes the other way round: names first, then files.

Writers and readers share the lock; whoever takes files away has it alone. Who waits holds ``turn``, through which all
others pass, so a stream of checkpoints keeps nobody waiting for ever. The kernel lets go of a lock when its owner dies.

An image may be the difference to its parent. A chain is made one whole image by `Store.compact`, beside the running
program: the checkpoint then names the new image, and the program's next one may rest on that, since it is the same
state. An image that others rest on stays as long as they do, whoever has let it go.

    folder   files and locks      index   SQLite       store      the operations
    series   the checkpoints of one running program    retention  which ones are kept
    remote   the same in a bucket: objects, records    levels, copier  a folder first, the bucket behind it
"""

from .index import Entry
from .retention import Retention
from .series import Series
from .store import Freed, Problem, Store

__all__ = ["Entry", "Freed", "Problem", "Retention", "Series", "Store"]
