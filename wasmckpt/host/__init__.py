"""The host layer: WASI preview 1 in Python, the same under every runtime.

No runtime is in sight here. A worker wraps the functions of `Wasi.functions` for its runtime and hands each call the
guest's memory; in the other direction a call returns an errno, or raises `ProcExit` (the guest ended) or `RepeatCall`
(it was interrupted for a checkpoint before it did anything, and is to be made again).

Four rules make its state movable:

- A call is done or not begun. Only waits are interrupted, so no byte is consumed by a call that is repeated; a partial
  transfer is a finished call with a short count.
- The state is plain data (`Wasi.state`): positions are kept here and not in the system, clocks are offsets, directory
  cookies are indices into a listing that belongs to the state.
- Files are the world outside. They are opened again below what the target grants, never created or truncated, and
  compared with what was seen of them.
- Paths never leave their root: see `preopens`.

`journal` is the record of all calls since the last image, for who wants to lose nothing when a program is killed.

Beside WASI stand the functions of the library's user (`user`, `user_calls`) and the guest API (`guest_api`), under the
same rules; ``docs/guest-api.md`` is the page about both.

The names are imported on first use: a command that starts a worker needs a configuration, and nothing of WASI itself.
"""

from __future__ import annotations

from ..lazyload import on_first_use

TYPE_CHECKING = False  # type checkers take it as True

__getattr__ = on_first_use(__name__, {
    "MODULE_NAME": "abi", "Errno": "abi",
    "HostFunction": "calls",
    "HostClocks": "clocks",
    "WasiConfig": "config",
    "GUEST_API": "guest_api:MODULE_NAME", "GuestApi": "guest_api", "header_path": "guest_api",
    "JournalOptions": "journal.options",
    "BytesMemory": "memory", "GuestMemory": "memory", "MemoryFault": "memory",
    "PageSet": "page_set",
    "ProcExit": "signals", "RepeatCall": "signals",
    "Mark": "snapshot",
    "Call": "user", "HostFunctions": "user", "UserFunction": "user", "invoke": "user",
    "UserCalls": "user_calls",
    "Wasi": "wasi",
})
__all__ = [
    "GUEST_API", "MODULE_NAME", "BytesMemory", "Call", "Errno", "GuestApi", "GuestMemory", "HostClocks",
    "HostFunction", "HostFunctions", "JournalOptions", "Mark", "MemoryFault", "PageSet", "ProcExit", "RepeatCall",
    "UserCalls", "UserFunction", "Wasi", "WasiConfig", "header_path", "invoke",
]

if TYPE_CHECKING:
    from .abi import MODULE_NAME, Errno
    from .calls import HostFunction
    from .clocks import HostClocks
    from .config import WasiConfig
    from .guest_api import MODULE_NAME as GUEST_API
    from .guest_api import GuestApi, header_path
    from .journal.options import JournalOptions
    from .memory import BytesMemory, GuestMemory, MemoryFault
    from .page_set import PageSet
    from .signals import ProcExit, RepeatCall
    from .snapshot import Mark
    from .user import Call, HostFunctions, UserFunction, invoke
    from .user_calls import UserCalls
    from .wasi import Wasi
