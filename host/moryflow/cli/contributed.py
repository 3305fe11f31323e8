"""The commands of plugins: each is built when used, gets the common flags, and runs on one loop with one host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import Command, Tool, ToolCall, ToolError, Turn
from moryflow_sdk.support.processes import refuse_inside_tool

from moryflow.kernel.tool_call import call_as_judged
from moryflow.runtime.host import Host

from .open_host import host_for, warn
from .options import HOST, JSON, OUTPUT, YES, Flags, NounGroup, find, flags_ahead
from .terminal import as_json, streams
from .terminal.interrupts import run_on_loop

if TYPE_CHECKING:
    from moryflow.store import SessionRow

# Runs a coroutine on the host's loop and returns what it returned.
Wait = Callable[[Coroutine[Any, Any, Any]], Any]


def contributed_command(ctx: click.Context, name: str) -> click.Command | None:
    """Load the plugins and return the command `name` that one of them contributes, else ``None``."""
    given = flags_ahead(ctx)
    runner = asyncio.Runner()
    host = runner.run(host_for(given, tell=False))
    ctx.call_on_close(lambda: _close(runner, host))
    if not ctx.resilient_parsing:  # no warnings during tab completion; the command itself will print them
        warn(host, given)  # also if there is no such command: the plugin that brings it may have failed
    command = _command_named(name, host)
    if command is None or command.cli is None:
        return None
    streams.share_stdout()
    owner = host.plugin_set.command_owners[command.name]

    def run(work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return run_on_loop(lambda: work, runner.run)
        finally:
            work.close()  # Ctrl-C may have come before it began

    return _ready(command.cli(), command.name, HostContext(run, host, owner, given))


def _ready(built: click.Command, name: str, context: HostContext) -> click.Command:
    """Give the command that a plugin has built its name, the common flags, and `context` as its ``obj``."""
    built.name = name
    _give_common_flags(built)
    built.context_settings = {**built.context_settings, "obj": context}
    return built


def run_typed(host: Host, wait: Wait, vault: Path, words: Sequence[str]) -> str:
    """Run the plugin's command that `words` spell, and return what it prints. Exceptions of the command pass through.

    :raises click.ClickException: no plugin has the command, or its arguments are wrong.
    """
    from click.testing import CliRunner

    command = _command_named(words[0], host)
    if command is None or command.cli is None:
        raise click.UsageError(f"no plugin has a command {words[0]!r}")
    context = HostContext(wait, host, host.plugin_set.command_owners[command.name], Flags(vault=vault))
    built = _ready(command.cli(), command.name, context)
    return CliRunner().invoke(built, list(words[1:]), catch_exceptions=False, standalone_mode=False).output


def _command_named(name: str, host: Host) -> Command | None:
    with_cli = [command for command in host.plugin_set.commands.values() if command.cli is not None]
    exact = (command for command in with_cli if name in (command.name, *command.aliases))
    return next(exact, None) or next((command for command in with_cli if name == f"{command.name}s"), None)


def _close(runner: asyncio.Runner, host: Host) -> None:
    runner.run(host.aclose())
    runner.close()


class HostContext:
    """The :class:`moryflow_sdk.CommandContext` of a plugin's command, as click's ``ctx.obj``; its methods are documented there.

    :param wait: runs a coroutine on the host's loop and returns its result; the command runs in another thread.
    """

    def __init__(self, wait: Wait, host: Host, plugin: str, flags: Flags) -> None:
        self._host, self._plugin, self._wait = host, plugin, wait
        self.home: Path = host.home
        self.flags = flags

    @property
    def vault(self) -> Path:
        return Path(self.flags.vault or ".").absolute()

    @property
    def as_json(self) -> bool:
        return self.flags.as_json

    @property
    def yes(self) -> bool:
        return self.flags.yes

    @property
    def mode(self) -> str:
        return self._host.config.get("agents.runtime.mode.default") or "agent"

    @property
    def tools(self) -> Mapping[str, Tool]:
        return {name: owned.tool for name, owned in self._host.tools.items()}

    def run(self, work: Callable[[Turn], Awaitable[Any]], *, session: str | None = None, vault: Path | None = None) -> Any:
        async def within() -> Any:
            async with self.turn(session=session, vault=vault) as turn:
                return await work(turn)

        return self._wait(within())

    def change(self, work: Callable[[Turn], Awaitable[Any]], *, session: str | None = None) -> Any:
        async def within() -> Any:
            row = await self._session_row(session)
            opened = await self._host.resume(row.vault, row.id)
            value, _ = await opened.scoped(lambda scope: work(scope.view(self._plugin)))
            return value

        return self._wait(within())

    def configure(self, setting: Sequence[str], value: Any) -> bool:
        from moryflow.config.values import set_value, unset

        refuse_inside_tool(f"a change of {'.'.join(setting)}")
        file = self._host.config.path
        return unset(file, setting) if value is None else set_value(file, setting, value)

    @asynccontextmanager
    async def turn(
        self, *, session: str | None = None, vault: Path | None = None, mode: str | None = None
    ) -> AsyncIterator[Turn]:
        async with self._host.read_only(vault or self.vault, session=session, mode=mode) as scope:
            view: Any = scope.view(self._plugin)
            yield view

    def prepare(self, tool: str, args: Mapping[str, Any], turn: Turn) -> ToolCall:
        return prepared_call(turn, tool, args)

    async def _session_row(self, name: str | None) -> SessionRow:
        return await find(self._host.store, name, self.flags)

    def print(self, document: object, *, text: str | None = None) -> None:
        params = click.get_current_context().params
        if self.flags.as_json or params.get("as_json") or params.get("json") or text is None:
            click.echo(as_json(document, indent=None))
        elif text:
            click.echo(text)


def prepared_call(turn: Any, tool: str, args: Mapping[str, Any]) -> ToolCall:
    """Return the call that gates would judge if the model called `tool` with `args` in `turn`.

    :param turn: a turn that the host made.
    :raises ToolError: there is no such tool, or the arguments do not match its schema.
    """
    scope = turn.scope_for_host()
    if tool not in scope.plugin_set.tools:
        raise ToolError(f"there is no tool {tool!r}", code="unknown_tool", next_step="moryflow tool list")
    return call_as_judged(scope, tool, args, "call_prepared", 1)[0]


def _give_common_flags(command: click.Command) -> None:
    """Let a command and all its verbs take ``--vault``, ``--json``, ``-y`` and the like, unless they have their own."""
    if isinstance(command, click.Group):
        _accept_aliases(command)
        for name in command.list_commands(click.Context(command)):
            verb = command.get_command(click.Context(command), name)
            if verb is not None:
                _give_common_flags(verb)
    taken = {spelling for parameter in command.params for spelling in (*parameter.opts, parameter.name)}
    for option in _common_flags():
        if not taken & {*option.opts, option.name}:
            command.params.append(option)


def _accept_aliases(group: click.Group) -> None:
    """Make a group accept ``ls`` and ``rm`` and suggest similar verbs; methods that its own class overrides stay."""
    own = type(group)
    if not isinstance(group, NounGroup):
        bases: tuple[type, ...] = (NounGroup,) if own is click.Group else (own, NounGroup)
        group.__class__ = type(own.__name__, bases, {})


def _common_flags() -> list[click.Option]:
    def keep(ctx: click.Context, parameter: click.Parameter, value: str | bool) -> None:
        holder = ctx.find_object(HostContext)
        if value and holder is not None and parameter.name:
            holder.flags = holder.flags._replace(**{parameter.name: value})

    def form(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
        holder = ctx.find_object(HostContext)
        if value == "json" and holder is not None:
            holder.flags = holder.flags._replace(as_json=True)

    # The host's flags are read before the host is opened, see flags_ahead; here they are accepted and get their help.
    held = [(settings, keep) for settings in (*HOST, JSON, YES)]
    return [
        click.Option([*spellings], **settings, expose_value=False, callback=callback)
        for (spellings, settings), callback in (*held, (OUTPUT, form))
    ]
