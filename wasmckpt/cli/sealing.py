"""Options that say how images are compressed, encrypted and signed, and whose signature they must have.

They set the environment variables of `wasmckpt.formats.sealing` and `wasmckpt.formats.compression`, for as long as the
command runs: so a worker, and whatever writes or reads an image on the way, does as they say.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from .params import FILE

if TYPE_CHECKING:
    from ..formats.sealed import Seal

__all__ = ["check_keys", "compressing_options", "plain", "reading_options", "writing_options"]

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _option(name: str, variable: str, separator: str = "", **more: Any) -> Decorator:
    def keep(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        given = [value] if isinstance(value, str) else list(value or ())
        if not given:
            return
        _set(ctx, variable, separator.join(
            one if one.startswith("ed25519:") else os.path.abspath(os.path.expanduser(one)) for one in given
        ))
        check_keys()

    return click.option(name, type=FILE, multiple=bool(separator), expose_value=False, callback=keep, **more)


def _number(name: str, variable: str, allowed: range, **more: Any) -> Decorator:
    def keep(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
        if value is not None:
            _set(ctx, variable, str(value))

    return click.option(name, type=click.IntRange(allowed.start, allowed.stop - 1), envvar=variable, expose_value=False,
                        callback=keep, **more)


def _set(ctx: click.Context, variable: str, value: str) -> None:
    ctx.find_root().call_on_close(functools.partial(_restore, variable, os.environ.get(variable)))  # also if refused
    os.environ[variable] = value


def _restore(variable: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(variable, None)
    else:
        os.environ[variable] = before


def check_keys(*, rereads: bool = False) -> None:
    """Find out now whether the keys can be used, and not when an image is to be written; ``rereads``: and then read.
    Raises `UsageError`, `NotSupported`."""
    from ..formats.sealing import Sealing, current

    if (sealing := current()) != Sealing():
        from ..formats.sealed import check

        check(sealing, rereads=rereads)


def plain(seal: Seal) -> dict[str, object]:
    """Whether an image is encrypted, and who signed it, for programs."""
    return {"encrypted_with": [key.hex() for key in seal.keys],
            "signed_by": None if seal.signer is None else seal.signer.text}


_encrypt = _option("--encrypt-with", "WASMCKPT_ENCRYPT_WITH", metavar="KEYFILE",
                   help="Encrypt images with the key in this file (`wasmckpt key generate` makes one).")
_sign = _option("--sign-with", "WASMCKPT_SIGN_WITH", metavar="KEYFILE", help="Sign images with the key in this file.")
_key = _option("--key", "WASMCKPT_DECRYPT_WITH", os.pathsep, metavar="KEYFILE",
               help="Read encrypted images with the keys in this file.")
_required = _option("--require-signed-by", "WASMCKPT_REQUIRE_SIGNED_BY", ",", metavar="KEY",
                    help="Refuse images that this public key, ed25519:... or a file, has not signed; several: none of "
                         "them.")
_level = _number("--zstd-level", "WASMCKPT_ZSTD_LEVEL", range(1, 23),
                 help="How small images are made, 22 the smallest; default: 3.")
_threads = _number("--zstd-threads", "WASMCKPT_ZSTD_THREADS", range(1, 65), help="Threads that do it; default: 1.")


def compressing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """For commands that write pages."""
    return _level(_threads(function))


def writing_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """For commands that write images."""
    return _encrypt(_sign(function))


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """For commands that read images."""
    return _key(_required(function))
