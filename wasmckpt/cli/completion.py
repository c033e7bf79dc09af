"""``wasmckpt completion``: makes a shell complete commands, options, runtimes, files and names of running programs."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

__all__ = ["command"]

_SHELLS: Final[dict[str, type[ShellComplete]]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_SHELLS)))
def command(shell: str) -> None:
    """Print what makes SHELL complete wasmckpt's words. To be loaded at each start of the shell:

    \b
    bash   eval "$(wasmckpt completion bash)"     in ~/.bashrc
    zsh    eval "$(wasmckpt completion zsh)"      in ~/.zshrc, below compinit
    fish   wasmckpt completion fish > ~/.config/fish/completions/wasmckpt.fish
    """
    maker = _SHELLS[shell]
    words = maker.source_vars(maker(click.Command("wasmckpt"), {}, "wasmckpt", "_WASMCKPT_COMPLETE"))
    click.echo(maker.source_template % words)
