"""What the commands share: the common flags, and the click group of a noun and its verbs (``session list``).

Flags may stand before or after the verb; the last one given counts.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from moryflow.store import SessionRow, Store


F = TypeVar("F", bound=Callable[..., Any])


class Flags(NamedTuple):
    """The values of the common flags; ``None`` and ``False`` mean that a flag was not given."""

    vault: Path | None = None
    config: str | None = None
    safe_mode: bool = False
    strict: bool = False
    profile: str | None = None
    quiet: bool = False
    verbose: bool = False
    as_json: bool = False
    yes: bool = False
    debug: bool = False


class RunFlags(NamedTuple):
    """The flags that ``run`` and ``chat`` have in addition to the common ones."""

    prompt: str | None
    files: tuple[Path, ...]
    model: str | None
    agent: str | None
    mode: str | None
    resume: str | None
    output: str
    on_ask: str | None
    max_steps: int | None
    max_cost: float | None
    effort: str | None = None
    typed: int | None = None
    schema: str | None = None
    worktree: bool = False
    until: str | None = None
    rounds: int | None = None


def flags_of(ctx: click.Context) -> Flags:
    """Return the flags given so far on the command line."""
    return ctx.find_object(Flags) or Flags()


# The key of `ctx.meta` for the arguments that follow the name of a command.
FOLLOWING = "moryflow.following"


def flags_ahead(ctx: click.Context) -> Flags:
    """Return the flags of the command line before click has called the group's function, which would collect them.

    Flags after the verb are included if they must be known before a host is opened, for example ``--config``.
    """
    values: list[tuple[str, Any]] = [*ctx.params.items()]
    waiting = iter(ctx.meta.get(FOLLOWING, ()))
    for word in waiting:
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in ("--config", "--profile"):
            values.append((name[2:], value if equals else next(waiting, None)))
        elif word in ("--safe-mode", "--strict", "--debug"):
            values.append((word[2:].replace("-", "_"), True))
    return flags_of(ctx)._replace(**{name: value for name, value in values if value and name in Flags._fields})


# The spellings of a flag, and its keyword arguments for `click.option`.
Settings = tuple[tuple[str, ...], dict[str, Any]]


def _switch(*spellings: str, **settings: object) -> Settings:
    return spellings, {"is_flag": True, "default": False, **settings}


class _Folder(click.Path):
    """A folder, as a :class:`pathlib.Path`. Imports :mod:`pathlib` only when used: help and version do without it."""

    def convert(self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None) -> Path:
        from pathlib import Path

        return Path(os.fsdecode(super().convert(value, param, ctx)))


class CommonOption(click.Option):
    """An option of every command. Only the help of `moryflow` itself describes it; the others have one line for all."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        if ctx.parent is None:
            return super().get_help_record(ctx)
        if self.name != "vault":
            return None
        return "--vault, -q, -v, ...", "Options of every command: moryflow --help lists them."


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max", "default")
MODE = click.Choice(["agent", "full_access"])
ON_ASK = click.Choice(["prompt", "deny", "fail"])

# Flags of every command that opens a host.
HOST: tuple[Settings, ...] = (
    (("--vault",), {"type": _Folder(readable=False), "help": "The folder to work in (default: the current one)."}),
    (("--config",), {"metavar": "JSON|PATH", "help": "An inline layer of configuration."}),
    _switch("--safe-mode", help="Load built-in plugins only."),
    _switch("--strict", help="A failed plugin is an error (exit code 6)."),
    (("--profile",), {"type": click.Choice(["local", "remote"]), "help": "remote: tools of your own stay off."}),
    _switch("-q", "--quiet", help="No notices on standard error."),
    _switch("-v", "--verbose", help="More on standard error; tracebacks."),
    _switch("--debug", help="No deadlines for plugins and tools."),
)
JSON = _switch("--json", "as_json", help="Print JSON.")
OUTPUT: Settings = (
    ("--output", "form"),
    {"type": click.Choice(["text", "json"]), "help": "json is the same as --json."},
)
YES = _switch("-y", "--yes", help="Answer this command's own questions with yes.")
_YES_UNSEEN = _switch("-y", "--yes", hidden=True)
_JSON_UNSEEN = _switch("--json", "as_json", hidden=True)


def _with_flags(function: F, *options: Settings) -> F:
    """Add `options` to a command. Its function gets their values, with those given before its name, as :class:`Flags`."""
    names = set(Flags._fields)

    @functools.wraps(function)
    def collect(**given: object) -> Any:
        ctx = click.get_current_context()
        own: dict[str, Any] = {name: given.pop(name) for name in names & set(given)}
        own["as_json"] = given.pop("form", None) == "json" or own.get("as_json")
        values = {name: value for name, value in own.items() if value}
        ctx.obj = flags = flags_of(ctx)._replace(**values)
        _refuse_inside_tool(ctx, given)
        return function(flags, **given)

    wrapped: Any = collect
    for spellings, settings in reversed(options):
        wrapped = click.option(*spellings, cls=CommonOption, **settings)(wrapped)
    return wrapped


# Commands that change what is allowed, loaded or configured, or hand out the keys to it: for people, not for tools.
DECISIONS = frozenset(
    {
        "plugin install", "plugin uninstall", "plugin update", "plugin sync", "plugin enable", "plugin disable",
        "key set", "marketplace add",
        "config set", "config unset", "prompt edit", "prompt reset", "approval reply", "model use",
        "worktree merge", "worktree drop",
        "model install", "tool allow", "new tool", "new agent", "serve", "acp",
        "tokens add", "tokens revoke", "worker", "worker drain", "worker limit", "schedule add", "schedule remove",
        "import", "eval",
    }
)  # fmt: skip


def _refuse_inside_tool(ctx: click.Context, given: Mapping[str, object]) -> None:
    """Inside a tool, refuse a command of :data:`DECISIONS`, and a turn that could do more than the turn the tool runs in."""
    words = " ".join(ctx.command_path.split()[-2:])
    freer = "--mode full_access" if given.get("mode") == "full_access" else ""
    layered = ctx.info_name in ("run", "chat", "dev") and (flags_of(ctx).config or os.environ.get("MORYFLOW_CONFIG"))
    freer = freer or ("a configuration of its own" if layered else "")
    # These run words of the command line, or of a package, which no rule for commands has seen.
    freer = freer or next((f"--{name}" for name in ("until", "host") if given.get(name)), "")
    if {words, ctx.info_name} & DECISIONS or freer:
        from moryflow_sdk.support.processes import refuse_inside_tool

        refuse_inside_tool(ctx.command_path + (f" with {freer}" if freer else ""))


def host_options(function: F) -> F:
    """Add the flags of every command that opens a host."""
    return _with_flags(function, *HOST)


def document_options(function: F) -> F:
    """Add the flags of commands that print a document: those of the host, ``--json`` and ``--output json``.

    These commands ask nothing, but accept ``-y`` like all others, so that a script may give it everywhere.
    """
    return _with_flags(function, *HOST, JSON, OUTPUT, _YES_UNSEEN)


def asking_options(function: F) -> F:
    """Add the flags of commands that may ask a question of their own: the host's, ``--json``, ``--output json`` and ``-y``."""
    return _with_flags(function, *HOST, JSON, OUTPUT, YES)


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not an amount of money.")
    return value


class TurnCommand(click.Command):
    """A command that runs turns. The word after ``--attach`` is the prompt, unless it is an address."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        words: list[str] = []
        for word in args[:own]:
            if words[-1:] == ["--attach="] and word.startswith(("http://", "https://", "unix:")):
                words[-1] += word
            else:
                words.append("--attach=" if word == "--attach" else word)
        return super().parse_args(ctx, words + args[own:])


class InputCommand(click.Command):
    """A command that takes a JSON object as ``--args``. ``--json`` prints JSON, as everywhere, unless JSON follows it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        words: list[str] = []
        for at, word in enumerate(args[:own]):
            follows = args[at + 1] if at + 1 < own else ""
            if word == "--json":
                word = "--args" if follows == "-" or follows[:1] in tuple('{["0123456789') else "--output=json"
            words.append(f"--args={word.partition('=')[2]}" if word.startswith("--json=") else word)
        return super().parse_args(ctx, words + args[own:])


def json_object(text: str, what: str, example: str) -> dict[str, Any]:
    """Parse `text` as a JSON object; a dash means standard input.

    :raises ConfigError: it is not a JSON object. The message calls it `what`, and the next step is `example`.
    """
    import json
    import sys

    from moryflow_sdk import ConfigError

    try:
        value = json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        raise ConfigError(f"{what} is not JSON: {error}", next_step=example) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{what} must be an object", next_step=example)
    return value


_TURN = (
    click.option("-m", "--model", help="The model, for example openai/gpt-4.1 or local."),
    click.option("--agent", help="The agent's id."),
    click.option("--mode", type=MODE, help="What the session may do."),
    click.option("-c", "--continue", "again", is_flag=True, help="Go on with the last session of this vault."),
    click.option(
        "-r", "--resume", metavar="[ID]", is_flag=False, flag_value="", help="Go on with this session, or the last one."
    ),
    click.option(
        "--attach", metavar="[URL]", is_flag=False, flag_value="", help="Let the running server (moryflow serve) do the work."
    ),
    click.option("--worktree", is_flag=True, help="Work in a git worktree of its own, on a new branch from the last commit."),
    click.option("--on-ask", type=ON_ASK, help="What to do with a question."),
    click.option("--max-steps", type=click.IntRange(min=1), help="The most model calls that a turn may make."),
    click.option(
        "--max-cost",
        type=click.FloatRange(min=0, min_open=True),
        callback=_finite,
        metavar="USD",
        help="The most that a turn may cost.",
    ),
    click.option("--effort", type=click.Choice(EFFORTS), help="How long the model reasons, from now on."),
)


def turn_options(function: F, json: Settings = JSON) -> F:
    """Add the flags of commands that run turns and the common ones, but no ``--output``: such a command has its own."""
    wrapped: Any = _with_flags(function, *HOST, json, YES)
    for option in reversed(_TURN):
        wrapped = option(wrapped)
    return wrapped


def talk_options(function: F) -> F:
    """Add the flags of a conversation: those of :func:`turn_options`, with ``--json`` hidden; the command must refuse it."""
    return turn_options(function, _JSON_UNSEEN)


async def find(store: Store, session: str | None, flags: Flags) -> SessionRow:
    """Return the session called `session`, or the last one of the vault.

    :raises ConfigError: there is none.
    """
    if session is not None:
        return await store.session(session)
    from pathlib import Path

    from moryflow_sdk import ConfigError

    vault = (flags.vault or Path.cwd()).resolve()
    row = await store.latest(str(vault))
    if row is None:
        step = 'moryflow run "your question" begins one; moryflow session list shows those of other folders'
        raise ConfigError(f"there is no session of {vault}", next_step=step)
    return row


# ---------------------------------------------------------------- Nouns with verbs


VERB_ALIASES = {"ls": ("list",), "rm": ("delete", "uninstall", "remove")}
# The key in a context's `meta` for a word that is not a command; nothing can be completed after it.
UNKNOWN = "moryflow.unknown"
# The key of `ctx.meta` for the context of the command whose flags are being read.
REACHED = "moryflow.reached"


class NounGroup(click.Group):
    """A noun with verbs: accepts ``ls`` and ``rm``, and suggests a similar verb for one that it does not know."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the verbs before the flags: they are what the user looks for."""
        self.format_commands(ctx, formatter)
        click.Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs with their whole first sentence; click would cut it at the width of the terminal."""
        rows = [(name, self.summary(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the first sentence of a verb's help."""
        verb = self.get_command(ctx, name)
        return verb.get_short_help_str(limit=400) if verb else ""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs, among them those that plugins bring; none is loaded for it."""
        if UNKNOWN in ctx.meta:
            return []
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        from click.shell_completion import CompletionItem

        verbs = (name for name in self.list_commands(ctx) if name.startswith(incomplete))
        return [CompletionItem(name, help=self.summary(ctx, name)) for name in verbs]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = (cmd_name, *VERB_ALIASES.get(cmd_name, ()))
        return next((found for name in names if (found := super(NounGroup, self).get_command(ctx, name))), None)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if self.get_command(ctx, args[0]) is None and ctx.resilient_parsing:  # tab completion: no answer, and no message either
            ctx.meta[UNKNOWN] = args[0]
            return None, None, args[1:]
        if self.get_command(ctx, args[0]) is None:
            verbs = self.list_commands(ctx)
            from moryflow_sdk.support.texts import nearest

            near = nearest(args[0], verbs)
            hint = f" Did you mean {near!r}?" if near else f" One of: {', '.join(verbs)}."
            raise click.UsageError(f"there is no command '{ctx.info_name} {args[0]}'.{hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        ctx.meta[REACHED] = click.Context(command, ctx, name) if command else None
        return name, command, rest


def noun(name: str, does: str, kind: type[NounGroup] = NounGroup) -> NounGroup:
    """Return the group of a noun, still without verbs."""

    @click.group(name, cls=kind, help=does)
    @document_options
    def group(_: Flags) -> None: ...

    return group


def with_flags_behind_verb(args: list[str], program: click.Command, find: Callable[[str], click.Command | None]) -> list[str]:
    """Move flags that stand before the verb and belong to it behind it, and return the arguments of `program`.

    ``moryflow -m MODEL run …`` means ``moryflow run -m MODEL …``.

    :param find: returns the command of that name.
    """
    if not args or not args[0].startswith("-"):
        return args
    for at, word in enumerate(args):
        if word == "--":
            break
        command = None if word.startswith("-") else find(word)
        if command is not None and (split := _split_flags(args[:at], program, command)) is not None:
            kept, moved = split
            return [*kept, word, *moved, *args[at + 1 :]]
    return args


def _split_flags(words: list[str], program: click.Command, command: click.Command) -> tuple[list[str], list[str]] | None:
    own, others = _options(program), {} if isinstance(command, click.Group) else _options(command)
    kept: list[str] = []
    moved: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.partition("=") if word.startswith("--") else (word[:2], word[2:], "")
        option = others.get(name) or own.get(name)
        if option is None:
            return None
        place = moved if name in others else kept
        place.append(word)
        optional = isinstance(option.flag_value, str)  # its value follows an equals sign, or a blank behind the verb
        if not (equals or option.is_flag or option.count or optional):
            if (value := next(rest, None)) is None:
                return None
            place.append(value)
    return kept, moved


def _options(command: click.Command) -> dict[str, click.Option]:
    found = [param for param in command.params if isinstance(param, click.Option)]
    return {name: option for option in found for name in (*option.opts, *option.secondary_opts)}
