"""The command line: the table of commands, and the program from its start to the end of the process.

Each command is a module of its own, which is imported when the command is used.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any

import click

from moryflow import __version__
from moryflow.base import leave_out_pydantic_plugins
from moryflow.base.builtins import CONTRIBUTED, OF_SESSIONS

from .failures import install_excepthooks, report
from .options import FOLLOWING, REACHED, Flags, NounGroup, asking_options, with_flags_behind_verb
from .terminal import at_terminal, streams

__all__ = ["cli", "main"]

COMMANDS = {
    "run": "Run one prompt and print the answer",
    "chat": "Talk with an agent, with approvals and slash commands",
    "serve": "Serve the page and the HTTP API of this machine's sessions",
    "worker": "Take turns from a store in PostgreSQL, on any number of machines",
    "schedule": "Run prompts at times, in a store that workers serve",
    "acp": "Be the agent of an editor, over the Agent Client Protocol",
    "dev": "Watch and reload while you write a tool, an agent or a plugin",
    "new": "Write a tool, an agent or a plugin to begin with",
    "tool": "List, show and run tools without a model",
    "hook": "List the hooks; call one hook chain with a given input",
    "session": "List, show, branch, export and search sessions",
    "trace": "Show what each plugin did in a session, and what it cost",
    "replay": "Try a changed plugin on what a stored session gave it",
    "eval": "Run cases with graders, with and without a plugin",
    "approval": "List open questions and answer them",
    "agent": "List and show agents",
    "model": "List models, install the local one, choose a default",
    "plugin": "List plugins and what they bring",
    "config": "Show, explain, check and change the configuration",
    "import": "Take over rules, servers, agents and sessions of another system",
    "doctor": "One line per thing that could be wrong, and what fixes it",
    "completion": "Print the completion script for a shell",
}
# Commands whose module cannot have their name.
MODULES = {"import": "import_from", "eval": "eval_cases"}
ALIASES = {
    name + "s": name for name in ("tool", "hook", "session", "approval", "agent", "model", "plugin", "schedule", "worker")
} | {"configs": "config"}
# The commands that help and completion show, those of built-in plugins included. `moryflow undo` and the others in
# `OF_SESSIONS` are left out: old spellings of `moryflow session undo`, which still work.
_LISTED = {**COMMANDS, **{name: help_line for name, help_line in CONTRIBUTED if name not in OF_SESSIONS}}

# How help groups them: those of every day first. What is in no group, such as a command of a user's plugin, stands last.
GROUPS: dict[str, tuple[str, ...]] = {
    "Commands": ("run", "chat", "serve", "session", "agent", "model", "tool", "plugin", "config", "doctor"),
    "Write your own": ("new", "dev", "hook", "trace", "replay", "eval"),
    "What is allowed": ("permission", "approval", "audit"),
    "What agents know and use": ("instructions", "skill", "memory-bank", "mcp", "llm", "output"),
    "Editors, machines, shells": ("import", "acp", "worker", "schedule", "completion"),
}

WELCOME = """\
Moryflow runs LLM agents on your files.

  moryflow run "What is this project?"     one prompt, one answer
  moryflow chat                            a conversation
  moryflow new tool words                  a tool of your own, in a minute
  moryflow doctor                          what is missing, and how to fix it

`moryflow --help` lists everything.
"""


class LazyGroup(NounGroup):
    """The program's commands: imports a command when it is used, and loads the plugins only for a name not in the table."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_LISTED]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        if name in COMMANDS:
            return import_module(f"moryflow.cli.commands.{MODULES.get(name, name)}").command
        from .contributed import contributed_command

        return contributed_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = [*args[1:], "--help"] if args[:1] == ["help"] else args
        find = lambda name: self.get_command(ctx, name) if ALIASES.get(name, name) in COMMANDS else None  # noqa: E731
        return super().parse_args(ctx, with_flags_behind_verb(given, self, find))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        ctx.meta[FOLLOWING] = args[1:]
        command = self.get_command(ctx, args[0])
        if command is None and ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        if command is None:
            raise click.UsageError(_no_such_command(args[0], self.list_commands(ctx)), ctx)
        ctx.meta[REACHED] = click.Context(command, ctx, command.name)
        return command.name, command, args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # click does not always name the command
            error.ctx = error.ctx or ctx.meta.get(REACHED)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in their groups."""
        grouped = {name for names in GROUPS.values() for name in names}
        more = tuple(name for name in self.list_commands(ctx) if name not in grouped)
        for title, names in [*GROUPS.items(), *([("More", more)] if more else [])]:
            with formatter.section(title):
                formatter.write_dl([(name, self.summary(ctx, name)) for name in names])

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the help from the table, so that no command is imported for it."""
        return _LISTED[name]


def _no_such_command(name: str, known: list[str]) -> str:
    if name in known:
        return f"the plugin that brings {name!r} is not loaded; moryflow plugin list says why."
    from moryflow_sdk.support.texts import nearest

    near = nearest(name, known)
    return f"there is no command {name!r}." + (f" Did you mean {near!r}?" if near else "")


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="moryflow")
@asking_options
def cli(_: Flags) -> Any:
    """Moryflow: a host for LLM agents that people want to extend."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        return None
    click.echo(WELCOME, nl=False)
    if not (at_terminal() and sys.stdout.isatty() and click.confirm("\nStart a chat in this folder?", default=True, err=True)):
        return None
    command = import_module("moryflow.cli.commands.chat").command
    with command.make_context("chat", [], parent=ctx) as chat:
        return command.invoke(chat)


# The exit code that a shell reports for a program ended by Ctrl-C: 128 + SIGINT.
STOPPED = 130
# The exit code that a shell reports for a program whose output nobody reads any more (`| head`): 128 + SIGPIPE.
READER_GONE = 141


def main(arguments: list[str] | None = None) -> int:
    """Run `moryflow` and return its exit code."""
    if arguments is None:  # a program that calls main() handles its own exit
        atexit.register(_end)  # before anything else: the function registered first is called last
    try:
        code = _main(arguments)
    except KeyboardInterrupt:  # before the command began, or after it ended
        code = STOPPED
    if arguments is None:
        _end_with(code)
    return code


def _main(arguments: list[str] | None) -> int:
    streams.prepare(own_process=arguments is None)
    if arguments is None:
        leave_out_pydantic_plugins()
    try:
        code = _run(arguments)
        streams.stdout().flush()
    except OSError as error:
        code = output_lost(error)
    except ValueError as error:  # a plugin has closed the file below the stream
        code = report(OSError(errno.EBADF, str(error), streams.NAME))
    finally:
        streams.drop_unwritten()
        if arguments is not None:
            streams.release()
    return code


def _run(arguments: list[str] | None) -> int:
    if arguments is None:  # a program that calls main() has its own handlers of signals and uncaught exceptions
        if callable(signal.getsignal(signal.SIGINT)):  # until here Ctrl-C leaves at once, see moryflow.__main__
            signal.signal(signal.SIGINT, signal.default_int_handler)
        install_excepthooks()
    try:
        if "_MORYFLOW_COMPLETE" in os.environ:
            with contextlib.suppress(Exception, SystemExit):  # a Tab key writes no error into the line
                cli.main(args=arguments, prog_name="moryflow", standalone_mode=False)
            return 0
        # Not cli.main() otherwise: that turns a broken pipe, wherever it happened, into exit code 1.
        with cli.make_context("moryflow", sys.argv[1:] if arguments is None else list(arguments)) as ctx:
            outcome = cli.invoke(ctx)
    except OSError as error:
        streams.stdout().flush()  # raises again if buffered output still cannot be written
        if isinstance(error, BrokenPipeError) and streams.nobody_reads():
            raise
        return report(error)
    except BaseException as error:
        return report(error)
    return outcome if isinstance(outcome, int) else 0


def output_lost(error: OSError) -> int:
    """Return the exit code when standard output cannot be written; report the reason unless the reader has just gone."""
    if isinstance(error, BrokenPipeError):
        return READER_GONE
    return report(OSError(error.errno, error.strerror, streams.NAME))


# ---------------------------------------------------------------- The end of the process: flush, close, exit code

# Python must not shut down while a thread is still inside a library (OpenSSL, in the thread that prepares the first request):
# the library's memory would be freed under the thread, and the process would crash. In that case the process leaves with
# os._exit(), after all other atexit functions have run and both standard streams have been written.

# Seconds that threads and clean-ups of plugins may delay the end of the process.
GRACE = 5.0

_COUNTDOWN = "moryflow-ending"
_codes: list[int] = []


def _end_with(code: int) -> None:
    """Note the exit code and start the countdown of :data:`GRACE`. From now on Ctrl-C leaves at once, without a traceback."""
    if callable(signal.getsignal(signal.SIGINT)):
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    _codes[:] = [code]
    threading.Thread(target=_force_exit, name=_COUNTDOWN, daemon=True).start()


def _force_exit() -> None:
    time.sleep(GRACE)
    with contextlib.suppress(Exception):
        err = streams.stderr()
        err.write(f"moryflow: a plugin's thread or clean-up did not end within {GRACE:g} s; Moryflow exits without it\n")
        err.flush()
    os._exit(_codes[0])  # flush nothing: a flush may be what hangs


def _end() -> None:
    if _codes and any(thread.daemon and thread.name != _COUNTDOWN for thread in threading.enumerate()):
        with contextlib.suppress(Exception):
            streams.stdout().flush()
            streams.stderr().flush()
        os._exit(_codes[0])
    gc.freeze()  # skips a last collection, which takes 40 ms: the memory goes with the process
