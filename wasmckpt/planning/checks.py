"""What a number must be before it is calculated with."""

from __future__ import annotations

import math

from ..errors import UsageError

__all__ = ["at_least_zero", "fraction", "positive", "whole"]


def positive(name: str, value: float) -> float:
    """Raises `UsageError` unless it is a finite number above zero."""
    if not math.isfinite(value) or value <= 0:
        raise UsageError(f"{name} must be a finite number above zero", given=f"{value:g}")
    return value


def at_least_zero(name: str, value: float) -> float:
    """Raises `UsageError` unless it is a finite number, zero or more."""
    if not math.isfinite(value) or value < 0:
        raise UsageError(f"{name} must be a finite number, zero or more", given=f"{value:g}")
    return value


def fraction(name: str, value: float) -> float:
    """Raises `UsageError` unless it is between 0 and 1, 1 left out."""
    if not 0 <= value < 1:
        raise UsageError(f"{name} must be a fraction: from 0 to below 1", given=f"{value:g}")
    return value


def whole(name: str, value: int, least: int = 1) -> int:
    """Raises `UsageError` unless it is at least ``least``, and no absurd number."""
    if not least <= value <= 1_000_000_000:
        raise UsageError(f"{name} must be a whole number from {least} to a thousand million", given=str(value))
    return value
