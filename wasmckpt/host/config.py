"""What the embedder grants a guest."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence

from ..lazydata import dataclass, field
from .clocks import HostClocks

__all__ = ["WasiConfig"]


@dataclass(frozen=True)
class WasiConfig:
    """Arguments, environment and grants of one guest; everything is refused that does not stand here.

    Attributes:
        args: ``argv``, the program's name first.
        env: environment variables.
        preopens: folders, as (path on the host, name in the guest); they get the descriptors 3, 4, ... in this order.
        read_only: names in the guest of those preopens that grant no change of any kind.
        stdin, stdout, stderr: descriptors of the host; not closed by us.
        random_seed: None for the system's random numbers; else the same numbers for the same seed, over moves too.
        suspended_time_counts: whether the monotonic clock and sleeps include the real time spent frozen.
        carry_limit: bytes, together, of open files without a name that an image carries (a temporary file that was
            unlinked could not be found by the target).
        clocks: where the host's time comes from.
    """

    args: Sequence[str | bytes] = ()
    env: Mapping[str, str] | Mapping[bytes, bytes] = field(default_factory=dict[str, str])
    preopens: Sequence[tuple[str | bytes | os.PathLike[str], str | bytes]] = ()
    read_only: Collection[str | bytes] = ()
    stdin: int = 0
    stdout: int = 1
    stderr: int = 2
    random_seed: int | None = None
    suspended_time_counts: bool = False
    carry_limit: int = 16 << 20
    clocks: HostClocks = field(default_factory=HostClocks)

    def encoded_args(self) -> list[bytes]:
        """``args`` as the bytes that the guest sees."""
        return [encode(arg) for arg in self.args]

    def encoded_env(self) -> list[tuple[bytes, bytes]]:
        """``env`` as the bytes that the guest sees."""
        return [(encode(name), encode(value)) for name, value in self.env.items()]


def encode(text: str | bytes) -> bytes:
    """UTF-8; bytes that came from the command line as surrogates go back to what they were."""
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
