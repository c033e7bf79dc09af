"""Which checkpoints of a program are kept: as with backups, the last few, and one each hour and day of some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..lazydata import dataclass
from .index import Entry

__all__ = ["Retention"]

_HOUR: Final = 3600
_DAY: Final = 86400


@dataclass(frozen=True, slots=True)
class Retention:
    """A rule; what one of its parts keeps is kept. Without any part everything is.

    Attributes:
        last: the newest so many. hourly, daily: the newest of each of the last so many hours and days (UTC) in which
            there is one.
    """

    last: int | None = None
    hourly: int | None = None
    daily: int | None = None

    def keeps(self, entries: Sequence[Entry]) -> frozenset[int]:
        """Numbers of the checkpoints of one program that stay; the newest always does."""
        newest_first = sorted(entries, key=lambda entry: entry.number, reverse=True)
        if self.last is None and self.hourly is None and self.daily is None:
            return frozenset(entry.number for entry in entries)
        kept = {entry.number for entry in newest_first[:max(1, self.last or 0)]}
        for length, most in ((_HOUR, self.hourly), (_DAY, self.daily)):
            times: dict[int, int] = {}
            for entry in newest_first:
                times.setdefault(int(entry.taken // length), entry.number)
            kept.update(list(times.values())[:most or 0])
        return frozenset(kept)
