"""How images are sealed when they are written, and what is asked of those that are read.

A property of the process, and of the workers that it starts: four environment variables, which the command line sets,
and where they are not set a configuration file. So whatever writes an image (a worker, a store that makes a chain
whole) does it in one way, and nothing that reads one can forget to ask.

=============================  ============================  =======================================================
environment variable           in ``[images]`` of the file   meaning
=============================  ============================  =======================================================
WASMCKPT_ENCRYPT_WITH          encrypt_with                  file with the key that images are encrypted with
WASMCKPT_DECRYPT_WITH          decrypt_with                  files with further keys for reading, older ones say
WASMCKPT_SIGN_WITH             sign_with                     file with the key that signs images
WASMCKPT_REQUIRE_SIGNED_BY     require_signed_by             public keys, or files with some: images that none of them
                                                             signed are refused
=============================  ============================  =======================================================

The file is ``wasmckpt/config.toml`` in ``$XDG_CONFIG_HOME`` (``~/.config``), or what ``WASMCKPT_CONFIG`` names. Several
files are given with ``:`` between them in a variable, public keys with commas, as a list in the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from wasmckpt.errors import UsageError
from wasmckpt.lazydata import dataclass

__all__ = ["Sealing", "current", "refuse_journal"]

_SECTION: Final = "images"
_SEPARATOR: Final = {"encrypt_with": None, "decrypt_with": os.pathsep, "sign_with": None, "require_signed_by": ","}
"""Names in the file -> what stands between several values in a variable."""


@dataclass(frozen=True, slots=True)
class Sealing:
    """As in this module's table; empty: not asked for."""

    encrypt_with: str = ""
    decrypt_with: tuple[str, ...] = ()
    sign_with: str = ""
    require_signed_by: tuple[str, ...] = ()

    @property
    def seals(self) -> bool:
        """Whether images are written as anything else than themselves."""
        return bool(self.encrypt_with or self.sign_with)


def current() -> Sealing:
    """What counts now. Raises `UsageError`: the configuration file is not what it should be."""
    values: dict[str, Any] = {}
    in_file: Mapping[str, Any] | None = None
    for name, separator in _SEPARATOR.items():
        given = os.environ.get(_variable(name))
        if given is None:
            in_file = _in_file() if in_file is None else in_file
            if name in in_file:
                values[name] = in_file[name]
        else:
            values[name] = given if separator is None else tuple(part for part in given.split(separator) if part)
    return Sealing(**values)


def refuse_journal() -> None:
    """Raises `UsageError` where images are sealed or must be: a journal is neither encrypted nor signed, and a program
    that goes on from one does what is written there."""
    sealing = current()
    if sealing.seals or sealing.require_signed_by:
        raise UsageError("a journal is neither encrypted nor signed", hint="leave out the journal, or the keys")


def _variable(name: str) -> str:
    return f"WASMCKPT_{name.upper()}"


def _in_file() -> Mapping[str, Any]:
    path = os.environ.get("WASMCKPT_CONFIG") or os.path.join(
        os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"), "wasmckpt", "config.toml"
    )
    try:
        with open(path, "rb") as file:
            import tomllib

            section = tomllib.load(file).get(_SECTION, {})
    except (OSError, ValueError) as reason:
        if isinstance(reason, OSError) and not os.path.exists(path) and not os.environ.get("WASMCKPT_CONFIG"):
            return {}  # also where the home is another user's
        raise UsageError(f"the configuration file cannot be read: {reason}", path=path) from reason
    if not isinstance(section, dict):
        raise UsageError(f"[{_SECTION}] in the configuration file is not a section", path=path)
    return {name: _checked(name, value, path) for name, value in section.items()}


def _checked(name: str, value: object, path: str) -> Any:
    """A value of the file; names of files in it are relative to its folder."""
    if name not in _SEPARATOR:
        raise UsageError(f"{name!r} is nothing that the configuration file can say", path=path,
                         hint=f"[{_SECTION}] has: {', '.join(_SEPARATOR)}")
    many = _SEPARATOR[name] is not None
    given: list[Any] = value if many and isinstance(value, list) else [value]
    if not all(isinstance(one, str) for one in given):
        raise UsageError(f"{name} in the configuration file is no text", path=path)
    texts = [one if one.startswith("ed25519:") else os.path.join(os.path.dirname(path), os.path.expanduser(one))
             for one in given if one]
    return tuple(texts) if many else "".join(texts)
