"""What a journal looks at of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...lazydata import dataclass
from ..descriptors import DescriptorTable

__all__ = ["Surroundings"]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a journal looks at of the host.

    Attributes:
        table: the guest's descriptors. moment: clocks, a sleep under way and random numbers drawn, now. api: the guest
            API's part of the state. call_export: calls an export of the guest, in its thread.
    """

    table: DescriptorTable
    moment: Callable[[], list[Any]]
    api: Callable[[], Mapping[str, object]]
    call_export: Callable[[str, Sequence[int]], tuple[int, ...]]
