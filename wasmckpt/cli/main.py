"""Entry point: finds the command, and makes one line and one exit code of whatever went wrong."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from ..errors import CheckpointError
from ..version import __version__
from . import interrupt
from .output import be_quiet, report, report_json

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS: Final = {
    "run": "run a program, from its beginning",
    "restore": "run on from an image",
    "migrate": "move a program between runtimes while it runs",
    "checkpoint": "take an image of a program that runs under a name",
    "ps": "list the programs that run under a name",
    "inspect": "show what an image holds",
    "diff": "compare two images",
    "verify": "check an image, and against its module",
    "export": "make a module of an image that goes on by itself, on any runtime with WASI",
    "convert": "write an image in another form: a core dump for debuggers",
    "store": "list, check, shrink, fill a store of images",
    "key": "make keys that encrypt and sign images, and change them",
    "instrument": "rewrite a module so that it can be frozen, and say what was done",
    "cache": "rewrite and compile modules before they are needed",
    "doctor": "what works on this machine, and which runtimes can run a module",
    "runtimes": "list the runtimes, and install those that no Python package carries",
    "plan": "how often to take checkpoints, where to keep them, and what comes of it",
    "agent": "own programs on this machine, and answer REST",
    "completion": "make a shell complete all this",
    "version": "versions of everything",
}
"""Name -> what it does."""
_USAGE: Final = 64
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""What a full or broken disk says."""


class _NoReader(Exception):
    """Whoever read our output has gone."""


class _Lazy(click.Group):
    """Loads a command's file when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if ctx.params.get("agent") is not None:
            return _remote(cmd_name)
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"{__package__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        interrupt.listen()
        return command

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except BrokenPipeError:  # of --help; click would end with 1
            raise _NoReader from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise _NoReader from None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        known = COMMANDS
        if ctx.params.get("agent") is not None:
            from .remote.table import REMOTE

            known = {name: text for name, (_, text) in REMOTE.items()}
        commands = [CompletionItem(name, help=text) for name, text in known.items() if name.startswith(incomplete)]
        return commands or click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _remote(name: str) -> click.Command | None:
    """A command for an agent."""
    from .remote.table import REMOTE

    if name not in REMOTE:
        raise click.UsageError(f"an agent has no command {name!r}: {', '.join(REMOTE)}")
    command = getattr(importlib.import_module(f"{__package__}.remote.{REMOTE[name][0]}"), name)
    assert isinstance(command, click.Command)
    interrupt.listen()
    return command


@click.group(
    cls=_Lazy, invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--library", "libraries", multiple=True, metavar="NAME=PATH",
              help="A library of your own for a runtime (see `runtimes`); can be given several times.")
@click.option("--agent", metavar="URL", envvar="WASMCKPT_AGENT",
              help="Ask this agent; local: the one that runs here. Its commands: docs/agent.md.")
@click.option("--agent-token-file", "token_file", metavar="FILE",
              help="Its token; default: the environment's WASMCKPT_AGENT_TOKEN.")
@click.option("--agent-ca", "ca", metavar="FILE", help="Certificates that its own is checked by.")
@click.version_option(__version__, message="wasmckpt %(version)s")
@click.pass_context
def cli(
    ctx: click.Context, libraries: tuple[str, ...], agent: str | None, token_file: str | None, ca: str | None,
) -> int:
    """Freeze a running WebAssembly program on one runtime, let it go on elsewhere, on another one."""
    if agent is not None:
        from .remote.reach import Named

        ctx.obj = Named(agent, os.environ.get("WASMCKPT_AGENT_TOKEN"), token_file, ca)
    for word in libraries:
        from ..runtimes import provided

        provided.use(*word.partition("=")[::2])
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return _USAGE
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; gives the exit code. Never raises."""
    be_quiet(False)
    interrupt.forget()
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
    except SystemExit as end:  # click, when it has told a shell what it may complete
        return int(end.code or 0)
    except (KeyboardInterrupt, click.Abort):
        return 130
    except Exception as problem:
        if interrupt.asked():
            return 130
        error = _error(problem)
        report(error)
        own = arguments[: arguments.index("--")] if "--" in arguments else arguments
        if "--json" in own:
            report_json(error)
        return error.exit_code


def _no_reader() -> int:
    """Whoever read our output has gone, as ``head`` does: end like any other program, and silently at exit too."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 141


def _error(problem: Exception) -> CheckpointError:
    if isinstance(problem, CheckpointError):
        return problem
    if isinstance(problem, OSError) and problem.errno in _FULL:  # of a file of ours it would be a StorageError
        from ..errors import StorageError

        return StorageError(f"the output cannot be written: {problem.strerror}")
    return _usage(problem) if isinstance(problem, click.ClickException) else _bug(problem)


def _usage(problem: click.ClickException) -> CheckpointError:
    from ..errors import UsageError

    hint = ""
    if isinstance(problem, click.UsageError) and problem.ctx is not None:
        hint = f"see {problem.ctx.command_path} --help"
        if isinstance(problem, click.NoSuchOption):
            hint += "; the program's own options stand behind --"
    text = problem.format_message()
    return UsageError(text[:1].lower() + text[1:].rstrip("."), hint=hint)


def _bug(problem: Exception) -> CheckpointError:
    error = CheckpointError(f"internal error: {type(problem).__name__}: {problem}",
                            hint="set WASMCKPT_DEBUG=1 for details and report it")
    import traceback

    error.add_note("".join(traceback.format_exception(problem)))
    return error
