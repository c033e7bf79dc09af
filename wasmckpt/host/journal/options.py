"""How a program's journal is kept."""

from __future__ import annotations

import os
from typing import Literal

from wasmckpt.errors import UsageError

from ...lazydata import dataclass

__all__ = ["JournalOptions"]


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """A journal, and what it promises.

    Attributes:
        path: its file.
        image: the image's file that it follows: each checkpoint into it cuts the journal. None: whoever takes images
            says which of them do (`Job.cut_journal`).
        sync: "batch": it outlives the death of the program, of its runtime and of us, at any moment; after a power cut
            all but the last tenth of a second of it is there. "always": it outlives a power cut as well, since it is
            written through to the disk before anything goes out.
        in_doubt: what to do about a call of which nobody can know whether it was made before the kill (the package's
            text says which ones these are): "refuse" to go on, "repeat" it, or "skip" it as made.

    Raises:
        UsageError: no such ``sync`` or ``in_doubt``.
    """

    path: str
    image: str | None = None
    sync: Literal["batch", "always"] = "batch"
    in_doubt: Literal["refuse", "repeat", "skip"] = "refuse"

    def __post_init__(self) -> None:
        if self.sync not in ("batch", "always"):
            raise UsageError("a journal is synced by batch or always", given=repr(self.sync))
        if self.in_doubt not in ("refuse", "repeat", "skip"):
            raise UsageError("what is in doubt is refused, repeated or skipped", given=repr(self.in_doubt))

    @classmethod
    def beside(
        cls, image: str | os.PathLike[str], sync: Literal["batch", "always"] = "batch",
        in_doubt: Literal["refuse", "repeat", "skip"] = "refuse",
    ) -> JournalOptions:
        """The journal that lies beside an image's file, under its name with ``.journal`` behind it."""
        path = os.path.abspath(os.fspath(image))
        return cls(path + ".journal", path, sync, in_doubt)
