"""The map between bytecode offsets of a function's original body and of its neutral one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

__all__ = ["OffsetMap"]


class OffsetMap:
    """Between its marks both codes are the same; each mark says that one offset stands for another.

    An original offset has several marks where its instruction became several at which something may stand.
    """

    __slots__ = ("neutral", "original")

    def __init__(self, original: list[int] | None = None, neutral: list[int] | None = None) -> None:
        self.original: list[int] = original if original is not None else [0]
        self.neutral: list[int] = neutral if neutral is not None else [0]

    def mark(self, original: int, neutral: int) -> None:
        """What begins at ``neutral`` stands for ``original``; marks come in ascending order."""
        if (self.original[-1], self.neutral[-1]) != (original, neutral):
            self.original.append(original)
            self.neutral.append(neutral)

    def to_original(self, offset: int) -> int:
        """The original offset for a neutral one."""
        at = bisect_right(self.neutral, offset) - 1
        return self.original[at] + offset - self.neutral[at]

    def to_neutral(self, offset: int, *, in_call: bool = False) -> int:
        """The neutral offset of what an original instruction became: its beginning, or (``in_call``) the call in it."""
        if in_call:
            at = bisect_right(self.original, offset) - 1
        else:
            at = bisect_left(self.original, offset)
            if at == len(self.original) or self.original[at] != offset:
                at -= 1
        return self.neutral[at] + offset - self.original[at]
