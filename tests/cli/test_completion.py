"""Shells complete commands, options, runtimes, files and names of running programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wasmckpt import runtimes
from wasmckpt.cli.main import COMMANDS

from ..support.tiers import missing
from .conftest import PATIENCE, Cli, Module, Spawn, wait_for
from .programs import FOREVER

Offered = Callable[[str], list[tuple[str, str]]]
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def offered(tmp_path: Path) -> Offered:
    """``offered("run --runtime ")``: what the command offers in the place of the last word, as (kind, word)."""
    def ask(line: str) -> list[tuple[str, str]]:
        words = "wasmckpt " + line
        environment = {
            **os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "_WASMCKPT_COMPLETE": "bash_complete", "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        code = "import sys; sys.argv = ['wasmckpt']; from wasmckpt.cli.__main__ import main; sys.exit(main())"
        done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True,
                              text=True, check=True, timeout=PATIENCE)
        assert done.stderr == ""
        return [(kind, word) for kind, _, word in (line.partition(",") for line in done.stdout.split())]

    return ask


def test_what_is_offered(offered: Offered) -> None:
    assert offered("") == [("plain", name) for name in COMMANDS]
    assert offered("mi") == [("plain", "migrate")]
    assert offered("run --runtime ") == [("plain", name) for name in runtimes.names()]
    assert offered("migrate --to wasm3 --from wasmt") == [("plain", "wasmtime")]
    assert ("plain", "--checkpoint-every") in offered("run --check")
    assert offered("inspect im") == [("file", "im")]
    assert offered("run --dir da") == [("dir", "da")]
    assert ("plain", "PATH=") in offered("run --env PA")
    assert offered("completion ") == [("plain", shell) for shell in SHELLS]


@pytest.mark.slow
def test_names_of_running_programs(offered: Offered, spawn: Spawn, cli: Cli, module: Module) -> None:
    spawn("run", "--name", "j1", module(FOREVER))
    wait_for(lambda: "running" in cli("ps").out, "the job in the list")
    assert offered("checkpoint ") == [("plain", "j1")]
    assert offered("migrate j") == [("file", "j"), ("plain", "j1")]
    assert offered("checkpoint x") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_is_given_a_script(cli: Cli, shell: str) -> None:
    done = cli("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_WASMCKPT_COMPLETE={shell}_complete" in done.out


ASK = {
    "bash": """eval "$(wasmckpt completion bash)"
        COMP_WORDS=(wasmckpt ver); COMP_CWORD=1; _wasmckpt_completion wasmckpt; echo "${COMPREPLY[@]}" """,
    "zsh": """autoload -U compinit; compinit -D; eval "$(wasmckpt completion zsh)"
        compadd() { print -rl -- ${completions} } ; _describe() { print -rl -- ${completions_with_descriptions} }
        words=(wasmckpt ver); CURRENT=2; _wasmckpt_completion""",
    "fish": """wasmckpt completion fish | source; complete -C 'wasmckpt ver'""",
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell(tmp_path: Path, shell: str) -> None:
    """Its own completion, loaded as --help says, offers both commands that begin so."""
    program = shutil.which(shell)
    if program is None:
        missing(shell, f"{shell} is not installed")
    (tmp_path / "wasmckpt").write_text(f'#!/bin/sh\nexec {sys.executable} -m wasmckpt.cli "$@"\n')
    (tmp_path / "wasmckpt").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    options = {"bash": ["--norc"], "zsh": ["-f"], "fish": ["--no-config"]}[shell]
    done = subprocess.run([program, *options, "-c", ASK[shell]], env=environment, cwd=tmp_path, capture_output=True,
                          text=True, check=False, timeout=PATIENCE)
    assert "verify" in done.stdout, done.stderr
    assert "version" in done.stdout
    assert "migrate" not in done.stdout
