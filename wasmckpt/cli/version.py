"""``wasmckpt version``: versions of everything that an error report should name."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import click

from .. import runtimes
from ..formats.features import VERSION
from ..runtimes.apart import facts_apart
from ..version import __version__
from .output import print_json

__all__ = ["command"]


@click.command("version")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(as_json: bool) -> None:
    """Print versions: of this tool, its image format, Python, the runtimes."""
    found = {
        "wasmckpt": __version__, "image format": str(VERSION), "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }
    for fact in facts_apart(runtimes.names()):
        found[fact.name] = fact.version or "not usable"
    for package in ("msgpack", "zstandard", "click", "rich"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "?"
    if as_json:
        print_json(found)
    else:
        for key, value in found.items():
            click.echo(f"{key:<14} {value}")
