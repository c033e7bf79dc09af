"""What a worker is to run, as it crosses the wire: plain data on one side, module, grants and entry on the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..errors import UsageError
from ..host import HostFunctions, JournalOptions, UserFunction, WasiConfig
from ..lazydata import dataclass, field
from ..runtimes import DEFAULT_STACK_BYTES
from ..wasm.values import Value
from .confine import ResourceLimits
from .sandbox import Sandbox
from .stack import LARGEST_STACK

__all__ = ["BEFORE", "Assignment", "config_from_plain", "config_to_plain"]

BEFORE: Final = ("wasmckpt", "before_call")
"""Name of the call by which a worker asks for a checkpoint before a call of the guest's; its argument is an index into
`Assignment.before_calls`. No guest can import it: it is not in the guest API."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A program and how it runs.

    Attributes:
        module: the original bytes; None: the image carries them.
        config: arguments, environment, folders; its standard streams count in the worker, where they are 0, 1 and 2.
        invoke: export to call; None: ``_start``. arguments: its arguments.
        stack_bytes: the guest's stack. freeze_at: freeze at the n-th safepoint passed (0: only when asked to).
        accept_changed: resume even where files are not what they were.
        functions: what the guest imports from the user; a callable stays behind, and is called over the wire.
        checkpoint_here: whether somebody takes the checkpoints that the guest itself asks for.
        before_calls: imports, ``name`` or ``module.name``, before whose calls somebody takes a checkpoint.
        huge_pages: ask the kernel for huge pages for its memories.
        journal: of its calls; ``maybe``: only if it is the image's.
        search: where named functions are imported from, beside the worker's own places.
        discard_dead_stack: images leave out what lies below the stack pointer, see `wasmckpt.wasm.shadow_stack`.
        canonical_nans: of a program that begins; one that goes on does as its image says.
        limits, sandbox: of the worker's process.

    Raises:
        UsageError: a number is out of its range.
    """

    module: bytes | None
    config: WasiConfig
    invoke: str | None = None
    arguments: tuple[Value, ...] = ()
    stack_bytes: int = DEFAULT_STACK_BYTES
    freeze_at: int = 0
    accept_changed: bool = False
    functions: HostFunctions = field(default_factory=dict)
    checkpoint_here: bool = False
    search: tuple[str, ...] = ()
    before_calls: tuple[str, ...] = ()
    huge_pages: bool = False
    discard_dead_stack: bool = False
    journal: JournalOptions | None = None
    journal_maybe: bool = False
    canonical_nans: bool = False
    limits: ResourceLimits | None = None
    sandbox: Sandbox | None = None

    def __post_init__(self) -> None:
        if not 0 < self.stack_bytes <= LARGEST_STACK:
            raise UsageError(f"a guest's stack is at most {LARGEST_STACK >> 20} MiB", stack_bytes=self.stack_bytes)
        if not 0 <= self.freeze_at < 1 << 63:
            raise UsageError("there is no such safepoint", freeze_at=self.freeze_at)

    def to_plain(self) -> dict[str, object]:
        """Plain data for the wire."""
        return {
            "module": self.module, "config": config_to_plain(self.config), "invoke": self.invoke,
            "arguments": [[v.type, v.bits.to_bytes(16, "little")] for v in self.arguments],
            "stack_bytes": self.stack_bytes, "freeze_at": self.freeze_at, "accept_changed": self.accept_changed,
            "functions": [
                [*name, f.signature, f.freeze, f.call if isinstance(f.call, str) else None]
                for name, f in self.functions.items()
            ],
            "checkpoint_here": self.checkpoint_here, "search": list(self.search),
            "before_calls": list(self.before_calls),
            "huge_pages": self.huge_pages,
            "discard_dead_stack": self.discard_dead_stack,
            "journal": None if self.journal is None else _journal_to_plain(self.journal),
            "journal_maybe": self.journal_maybe,
            "canonical_nans": self.canonical_nans,
            "limits": None if self.limits is None else self.limits.to_plain(),
        }

    def confinement(self) -> dict[str, object] | None:
        """What a worker has to know to give up all else, before it hears of the rest; None: nothing."""
        if self.sandbox is None:
            return None
        read_only = {_octets(guest) for guest in self.config.read_only}
        journal = None if self.journal is None else os.path.dirname(os.path.abspath(self.journal.path))
        return {
            "sandbox": self.sandbox.to_plain(), "search": list(self.search),
            "folders": [[os.fsencode(host), _octets(guest) not in read_only] for host, guest in self.config.preopens],
            "journal": None if journal is None else os.fsencode(journal),
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Assignment:
        """The other direction."""
        return cls(
            data["module"], config_from_plain(data["config"]), data["invoke"],
            tuple(Value(type_, int.from_bytes(bits, "little")) for type_, bits in data["arguments"]),
            data["stack_bytes"], data["freeze_at"], data["accept_changed"],
            {
                (module, name): UserFunction(signature, _elsewhere if call is None else call, freeze)
                for module, name, signature, freeze, call in data["functions"]
            },
            data["checkpoint_here"], tuple(data["search"]), tuple(data["before_calls"]), data["huge_pages"],
            data["discard_dead_stack"],
            None if data["journal"] is None else _journal_from_plain(data["journal"]), data["journal_maybe"],
            data["canonical_nans"], None if data["limits"] is None else ResourceLimits(*data["limits"]),
        )


def _journal_to_plain(journal: JournalOptions) -> list[object]:
    image = None if journal.image is None else os.fsencode(journal.image)
    return [os.fsencode(os.path.abspath(journal.path)), image, journal.sync, journal.in_doubt]


def _journal_from_plain(data: Sequence[Any]) -> JournalOptions:
    path, image, sync, in_doubt = data
    return JournalOptions(os.fsdecode(path), None if image is None else os.fsdecode(image), sync, in_doubt)


def _elsewhere() -> None:
    """Stands for a callable of the user's process."""
    raise AssertionError("runs in the user's process")


def config_to_plain(config: WasiConfig) -> dict[str, object]:
    """Grants as plain data; standard streams and clocks stay behind (the worker has its own)."""
    return {
        "args": config.encoded_args(),
        "env": [list(pair) for pair in config.encoded_env()],
        "preopens": [[os.fsencode(host), _octets(guest)] for host, guest in config.preopens],
        "read_only": [_octets(guest) for guest in config.read_only],
        "random_seed": None if config.random_seed is None else str(config.random_seed),
        "suspended_time_counts": config.suspended_time_counts,
        "carry_limit": config.carry_limit,
    }


def config_from_plain(data: Mapping[str, Any]) -> WasiConfig:
    """The other direction, with the worker's own standard streams."""
    seed = data["random_seed"]
    return WasiConfig(
        args=data["args"], env=dict(map(tuple, data["env"])),
        preopens=[(host, guest) for host, guest in data["preopens"]],
        read_only=data["read_only"], random_seed=None if seed is None else int(seed),
        suspended_time_counts=data["suspended_time_counts"], carry_limit=data["carry_limit"],
    )


def _octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
