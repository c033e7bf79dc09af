"""A unit for systemd, and the word to it that the agent is ready.

The service has a user of its own, made for it (``DynamicUser``), who owns nothing but its state and its cache, and
gives up what an agent and its workers have no use for. Left open is what they need: machine code that is made at run
time, the calls by which a worker looks at its own copies and puts itself into its sandbox, and the kernel's facts in
``/proc``.
When it is stopped the agent alone is told, and freezes its programs: it gets the time that it gives itself for that.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["STOP_SPARE", "ready", "unit"]

STOP_SPARE: Final = 30.0
"""Seconds beyond the agent's own time, after which it is killed; its programs then go on from their newest images."""

_UNIT: Final = """\
[Unit]
Description=wasmckpt agent: WebAssembly programs that outlive what they run on
After=network-online.target
Wants=network-online.target

[Service]
Type=notify
ExecStart={command}
DynamicUser=yes
User=wasmckpt-agent
StateDirectory=wasmckpt
StateDirectoryMode=0700
CacheDirectory=wasmckpt
CacheDirectoryMode=0700
Environment=WASMCKPT_CACHE=%C/wasmckpt PYTHONUNBUFFERED=1
UMask=0077
Restart=on-failure
RestartSec=2
KillMode=mixed
TimeoutStopSec={stop:.0f}
OOMPolicy=continue
LimitNOFILE=65536
LimitCORE=0
TasksMax=infinity

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
PrivateDevices=yes
PrivateTmp=yes
PrivateIPC=yes
ProtectSystem=strict
ProtectHome={home}
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RemoveIPC=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service ptrace process_vm_readv process_vm_writev userfaultfd seccomp
SystemCallFilter=landlock_create_ruleset landlock_add_rule landlock_restrict_self
SystemCallFilter=~@privileged @mount @reboot @swap @raw-io @module @clock @cpu-emulation @obsolete
SystemCallErrorNumber=EPERM
{folders}
[Install]
WantedBy=multi-user.target
"""


_HIDDEN = ("home", "root", "run/user")
"""Folders of `/` that ``ProtectHome=`` hides."""


def unit(arguments: Sequence[str], *, stop_time: float, roots: Sequence[Path] = ()) -> str:
    """The unit's text, for this installation.

    Args:
        arguments: of the command, behind ``wasmckpt agent --state ...``. stop_time: `AgentConfig.stop_time`.
        roots: folders whose contents programs may change.
    """
    program = Path(sys.argv[0]).absolute() if Path(sys.argv[0]).name == "wasmckpt" else None
    words = [str(program)] if program is not None and os.access(program, os.X_OK) else [
        sys.executable, "-m", "wasmckpt.cli"]
    command = " ".join([*map(_quoted, words), "agent", "--state", "%S/wasmckpt/agent", *map(_quoted, arguments)])
    in_home = any(str(path).startswith(f"/{folder}/") for folder in _HIDDEN for path in (words[0], sys.prefix, *roots))
    folders = "".join(f"ReadWritePaths={_quoted(str(root.absolute()))}\n" for root in roots)
    return _UNIT.format(command=command, stop=stop_time + STOP_SPARE, home="read-only" if in_home else "yes",
                        folders=folders)


def _quoted(word: str) -> str:
    """As systemd reads it: its own marks are doubled."""
    return shlex.quote(word).replace("%", "%%").replace("$", "$$")


def ready() -> None:
    """Tell systemd, if it has started this process and wants to know."""
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if address.startswith(("/", "@")):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(b"READY=1", "\0" + address[1:] if address[0] == "@" else address)
