"""Versions and the machine's kind: what a figure depends on, and nothing that names the machine."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path
from typing import Any

import wasmckpt
from wasmckpt import runtimes

__all__ = ["facts", "sentence"]


def facts() -> dict[str, Any]:
    """What is written beside each suite's figures."""
    return {
        "date": datetime.date.today().isoformat(),
        "wasmckpt": wasmckpt.__version__,
        "python": platform.python_version(),
        "runtimes": {name: runtimes.facts(name).version for name in runtimes.names()},
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
    }


def sentence(known: dict[str, Any]) -> str:
    """The facts in one line."""
    engines = ", ".join(f"{name} {version}" for name, version in known["runtimes"].items() if version)
    if "binaryen" in known:
        engines += f", binaryen {known['binaryen']}"
    return (
        f"{known['date']}: wasmckpt {known['wasmckpt']}, {engines}, Python {known['python']}, {known['system']}, "
        f"{known['machine']}, {known['processor']}, {known['cores']} cores, load {known['load']} at the start"
    )


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown processor"
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"
