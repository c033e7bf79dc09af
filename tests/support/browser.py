"""A real browser: Debian's Chromium, driven by Playwright. ``CHROMIUM`` names another one."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from . import tiers

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["browser"]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Skips the test where there is none."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        tiers.missing("chromium", "apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        tiers.missing("chromium", "pip install playwright")
    with sync_playwright() as playwright:
        # As root Chromium has no sandbox of its own; it sees pages of ours only.
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        try:
            yield started
        finally:
            started.close()
