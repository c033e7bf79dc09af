"""Entry point: finds the command, and makes one line and one exit code of whatever went wrong."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any, Final

import click

from ..errors import CheckpointError
from ..version import __version__
from .output import be_quiet, report

__all__ = ["cli", "main"]

_COMMANDS: Final = {
    "run": "run a program, from its beginning",
    "restore": "run on from an image",
    "migrate": "run a program and move it between runtimes while it runs",
    "checkpoint": "take an image of a program that runs under a name",
    "ps": "list the programs that run under a name",
    "inspect": "show what an image holds",
    "verify": "check an image, and against its module",
    "instrument": "rewrite a module so that it can be frozen, and say what was done",
    "doctor": "what works on this machine, and which runtimes can run a module",
    "version": "versions of everything",
}
_USAGE: Final = 64
_INTERNAL: Final = 70


class _NoReader(Exception):
    """Whoever read our output has gone."""


class _Lazy(click.Group):
    """Loads a command's file when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command = importlib.import_module(f"{__package__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # click would end with 1
            raise _NoReader from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_Lazy, invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="wasmckpt %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> int:
    """Freeze a running WebAssembly program on one runtime and let it go on on another."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return _USAGE
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; gives the exit code. Never raises."""
    be_quiet(False)
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        return _run(arguments)
    finally:
        if "wasmckpt.snapshot.launch" in sys.modules:
            from ..snapshot.worker_process import kill_all

            kill_all()


def _run(arguments: list[str]) -> int:
    try:
        try:
            result = cli.main(arguments, prog_name="wasmckpt", standalone_mode=False)
            code = result if isinstance(result, int) else 0
        except click.exceptions.Exit as end:
            code = end.exit_code
        sys.stdout.flush()
        return code
    except (_NoReader, BrokenPipeError):
        return _no_reader()
    except click.ClickException as problem:
        return _usage(problem)
    except CheckpointError as problem:
        report(problem)
        return problem.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as problem:
        return _bug(problem)


def _no_reader() -> int:
    """Whoever read our output has gone, as ``head`` does: end like any other program, and silently at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def _usage(problem: click.ClickException) -> int:
    from ..errors import UsageError

    hint = ""
    if isinstance(problem, click.UsageError) and problem.ctx is not None:
        hint = f"see {problem.ctx.command_path} --help"
        if isinstance(problem, click.NoSuchOption):
            hint += "; the program's own options stand behind --"
    text = problem.format_message()
    report(UsageError(text[:1].lower() + text[1:].rstrip("."), hint=hint))
    return _USAGE


def _bug(problem: Exception) -> int:
    error = CheckpointError(f"internal error: {type(problem).__name__}: {problem}",
                            hint="set WASMCKPT_DEBUG=1 for details and report it")
    import traceback

    error.add_note("".join(traceback.format_exception(problem)))
    report(error)
    return _INTERNAL
