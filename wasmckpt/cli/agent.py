"""``wasmckpt agent``: owns programs on this machine, and answers REST."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .extras import extra
from .output import print_json, say
from .params import DURATION, FILE, FOLDER

if TYPE_CHECKING:
    from ..agent.config import AgentConfig

__all__ = ["command"]

_state = click.option("--state", type=FOLDER, metavar="DIR",
                      help="Folder of all that the agent keeps; default: ~/.local/state/wasmckpt/agent.")


@click.group("agent", invoke_without_command=True)
@_state
@click.option("--config", "file", type=FILE, metavar="FILE", help="Settings, as TOML; options win.")
@click.option("--listen", metavar="HOST:PORT", help="Where; default: 127.0.0.1:7420. Port 0: any that is free.")
@click.option("--root", "roots", type=FOLDER, metavar="DIR", multiple=True,
              help="Folders below this one may be given to programs; can be given several times.")
@click.option("--tls-certificate", type=FILE, help="PEM; needed for any other address than loopback.")
@click.option("--tls-key", type=FILE, help="PEM.")
@click.option("--tls-clients", type=FILE, help="PEM: clients have to show a certificate signed by one of these.")
@click.pass_context
def command(
    ctx: click.Context, /, state: str | None, file: str | None, listen: str | None, roots: tuple[str, ...],
    **tls: str | None,
) -> None:
    """Own programs on this machine, and answer REST.

    SIGTERM and Ctrl-C freeze all programs to the store; they go on when the agent starts again. A token for its owner
    is in the file `token` of its folder.
    """
    given: dict[str, Any] = {name: Path(path) for name, path in tls.items() if path is not None}
    if roots:
        given["roots"] = tuple(map(Path, roots))
    if listen is not None:
        given["host"], given["port"] = _address(listen)
    if state is not None:
        given["state"] = Path(state)
    config = _config(file, given)
    if ctx.invoked_subcommand is not None:
        ctx.obj = config
        return
    with extra("agent"):
        from ..agent.server import serve
    serve(config, lambda url: say(f"listening on {url}, the token is in {config.state / 'token'}"))


def _config(file: str | None, given: dict[str, Any]) -> AgentConfig:
    with extra("agent"):
        from ..agent.config import read_config
    return read_config(None if file is None else Path(file), given)


def _address(text: str) -> tuple[str, int]:
    host, separator, port = text.rpartition(":")
    if not separator or not host or not port.isdigit():
        raise UsageError("an address is HOST:PORT", given=text)
    return host.removeprefix("[").removesuffix("]"), int(port)


@command.command("unit")
@click.pass_context
def unit(ctx: click.Context) -> None:
    """Print a unit for systemd, hardened, that starts this agent with the options given before `unit`.

    wasmckpt agent --root /srv/data unit > /etc/systemd/system/wasmckpt-agent.service
    """
    from ..agent.unit import unit as text_of

    assert ctx.parent is not None
    config: AgentConfig = ctx.obj
    given = ctx.parent.params
    if given["state"] is not None:
        raise UsageError("a service keeps its state where systemd says", hint="leave out --state")
    arguments = [word for name in ("config", "listen", "tls-certificate", "tls-key", "tls-clients")
                 if (value := given["file" if name == "config" else name.replace("-", "_")]) is not None
                 for word in (f"--{name}", value if name == "listen" else str(Path(value).absolute()))]
    arguments += [word for root in given["roots"] for word in ("--root", str(Path(root).absolute()))]
    click.echo(text_of(arguments, stop_time=config.stop_time, roots=config.roots), nl=False)


@command.group("token")
def token() -> None:
    """Tokens: who may ask the agent for what."""


@token.command("create")
@click.argument("name")
@click.option("--scope", "scopes", multiple=True, required=True, metavar="SCOPE",
              help="jobs:read, jobs:write, modules:read, modules:write, node:read, node:admin; several times.")
@click.option("--expires-after", "seconds", type=DURATION, help="Of no use after that.")
@click.pass_obj
def create(config: AgentConfig, name: str, scopes: tuple[str, ...], seconds: float | None) -> None:
    """Make a token, and print it: it is nowhere to be seen again."""
    click.echo(_tokens(config).create(name, scopes, seconds))


@token.command("ls")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.pass_obj
def ls(config: AgentConfig, as_json: bool) -> None:
    """List tokens: their names, and what they are for."""
    found = _tokens(config).list()
    if as_json:
        print_json([{"name": one.name, "scopes": sorted(one.scopes), "created": one.created, "expires": one.expires}
                    for one in found])
        return
    for one in found:
        click.echo(f"{one.name:<20} {' '.join(sorted(one.scopes))}")


@token.command("revoke")
@click.argument("name")
@click.pass_obj
def revoke(config: AgentConfig, name: str) -> None:
    """Make a token useless, from now on."""
    _tokens(config).revoke(name)


def _tokens(config: AgentConfig) -> Any:
    with extra("agent"):
        from ..agent.database import Database
        from ..agent.tokens import Tokens
    path = config.state / "agent.sqlite"
    if not path.exists():
        raise UsageError("there is no agent's folder", path=str(config.state), hint="wasmckpt agent makes it")
    return Tokens(Database(path))
