"""Quantities that planning takes: long times, rates, percentages, amounts of data; with a unit, or refused."""

from __future__ import annotations

import re
from typing import Final

from .params import Kind

__all__ = ["BANDWIDTH", "DATA", "PERCENT", "RATE", "TIME", "number", "percent"]

_NUMBER: Final = r"([0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]{1,3})?)"
_SECONDS: Final = {
    "ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0,
    "y": 365.25 * 86400.0,
}
_LONGEST: Final = 1e6 * _SECONDS["y"]
_BYTES: Final = {
    "": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}
_MOST: Final = 1e18


def _time(text: str) -> float:
    found = re.fullmatch(_NUMBER + "(ns|us|ms|s|m|h|d|w|y)", text, re.ASCII)
    if not found:
        raise ValueError(f"{text!r} is no time (5ms, 2h, 150d, 3y)")
    seconds = float(found[1]) * _SECONDS[found[2]]
    if seconds > _LONGEST:
        raise ValueError(f"{text!r} is longer than a million years")
    return seconds


def _rate(text: str) -> float:
    found = re.fullmatch(_NUMBER + "/(s|m|h|d|w|y)", text, re.ASCII)
    if not found:
        raise ValueError(f"{text!r} is no rate (6.5e-3/d, 2/y)")
    rate = float(found[1]) / _SECONDS[found[2]]
    if not 1 / _LONGEST <= rate <= 1e9:
        raise ValueError(f"{text!r} is not between once in a million years and once in a nanosecond")
    return rate


def percent(text: str) -> float:
    """A fraction below 1, from ``3.5%`` or ``0.035``. Raises ValueError."""
    found = re.fullmatch(_NUMBER + "(%?)", text, re.ASCII)
    part = -1.0 if not found else float(found[1]) / (100 if found[2] else 1)
    if not 0 <= part < 1:
        raise ValueError(f"{text!r} is no part of a whole (3.5%, 0.035)")
    return part


def _data(text: str) -> float:
    found = re.fullmatch(_NUMBER + "([kmgt]?i?)b?", text.lower(), re.ASCII)
    if not found or found[2] == "i":
        raise ValueError(f"{text!r} is no amount of data (64MiB, 1.5GB)")
    size = float(found[1]) * _BYTES[found[2]]
    if size > _MOST:
        raise ValueError(f"{text!r} is more than a million terabytes")
    return size


def _bandwidth(text: str) -> float:
    if text.lower().endswith("bit/s"):
        return _data(text[:-5]) / 8
    if not text.endswith("/s"):
        raise ValueError(f"{text!r} is no bandwidth (1.2GB/s, 10Gbit/s)")
    return _data(text[:-2])


def number(least: float, most: float) -> Kind:
    """Of numbers from ``least`` to ``most``; not a number is none of them."""
    def read(text: str) -> float:
        found = re.fullmatch(_NUMBER, text, re.ASCII)
        if not found or not least <= float(found[1]) <= most:
            raise ValueError(f"{text!r} is no number from {least:g} to {most:g}")
        return float(found[1])

    return Kind("NUMBER", read)


TIME: Final = Kind("TIME", _time)
RATE: Final = Kind("RATE", _rate)
PERCENT: Final = Kind("PERCENT", percent)
DATA: Final = Kind("BYTES", _data)
BANDWIDTH: Final = Kind("BYTES/s", _bandwidth)
