"""``moryflow completion``: the script a shell reads; and the names of sessions, agents and the like that a Tab key offers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from moryflow.cli.open_host import own_home
from moryflow.cli.terminal import plain

_HOW = {
    "bash": "moryflow completion bash > ~/.local/share/bash-completion/completions/moryflow",
    "zsh": "moryflow completion zsh > ~/.zfunc/_moryflow",
    "fish": "moryflow completion fish > ~/.config/fish/completions/moryflow.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_HOW.values()))
@click.argument("shell", type=click.Choice(sorted(_HOW)))
def command(shell: str) -> None:
    """Print the completion script for a shell; save it where the shell looks.

    The Tab key then completes commands, options, and the names of sessions, agents, tools, plugins, models and settings.
    """
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    classes = {"bash": BashComplete, "fish": FishComplete, "zsh": ZshComplete}
    root = click.get_current_context().find_root().command
    completer = classes[shell](root, {}, "moryflow", "_MORYFLOW_COMPLETE")
    # click asks the running bash for its version here, which need not be there; the script itself checks nothing.
    click.echo(completer.source_template % completer.source_vars())


# ---------------------------------------------------------------- The names that a Tab key offers

# Nothing is loaded for them, and nothing is written: what the last start remembered is enough, and a Tab key must not wait.

Names = Callable[[], Iterable[tuple[str, str]]]
"""Returns names, each with a remark that shells show beside it."""


def _sessions() -> Iterable[tuple[str, str]]:
    from moryflow.store import last_sessions

    return ((session, title) for session, title, _ in last_sessions(own_home()))


def _models() -> Iterable[tuple[str, str]]:
    from moryflow.store import last_sessions

    return ((model, "") for _, _, model in last_sessions(own_home()))


def _loaded(what: str) -> Names:
    """Return the names of `what`, ``tools`` or ``agents``, that plugins brought when they were loaded last."""
    return lambda: ((name, record["name"]) for record in _records() for name in record.get(what, ()))


def _plugins() -> Iterable[tuple[str, str]]:
    return ((record["name"], record["tier"]) for record in _records())


def _records() -> Iterable[dict[str, Any]]:
    """Return what :mod:`moryflow.plugins.last_seen` keeps; importing that module takes longer than all else here."""
    return json.loads((own_home() / "cache" / "plugins.json").read_text("utf-8").partition("\n")[2]).values()


def _settings() -> Iterable[tuple[str, str]]:
    from moryflow_sdk.support.settings import Settings

    from moryflow.config.schema import host_models

    sections = [*host_models()]
    for path, model in sections:  # which grows meanwhile
        for field in model.model_fields.values():
            key = f"{path}.{field.alias}" if path else field.alias
            if isinstance(field.default, Settings):
                sections.append((key, type(field.default)))
            else:
                yield key, ""


def _hooks() -> Iterable[tuple[str, str]]:
    from moryflow_sdk import HOOKS

    return ((info.dotted, info.kind) for info in HOOKS.values())


_NAMES: dict[str, Names] = {
    "session": _sessions, "sessions": _sessions, "resume": _sessions, "session words": _sessions,
    "agent": _loaded("agents"), "agent name": _loaded("agents"), "tool name": _loaded("tools"),
    "model": _models, "model name": _models, "config key": _settings, "hook hook": _hooks,
    "plugin": _plugins, "plugin name": _plugins, "plugin what": _plugins, "key name": _plugins,
}  # fmt: skip
"""What stands for the parameters of that name; with a word in front, of the verbs of that noun only."""


class _Named(click.ParamType):
    """A text that is the name of something, which the Tab key completes."""

    name = "text"

    def __init__(self, names: Names) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        try:
            found = {name: remark for name, remark in self._names() if name.startswith(incomplete)}
        except Exception:  # a broken home is for the command to report, not for the Tab key
            return []
        safe = (name for name in found if _SAFE.fullmatch(name))
        return [CompletionItem(name, help=plain(" ".join(found[name].split()))[:60] or None) for name in safe]


_SAFE = re.compile(r"\w[\w.:/@+-]*")
"""A name that a shell takes as it is: who imported a session did not choose the name of its model."""


def offer_names(command: click.Command, noun: str = "") -> None:
    """Let the parameters of a command, and of its verbs, that name something be completed.

    :param noun: the command of which `command` is a verb.
    """
    for verb in command.commands.values() if isinstance(command, click.Group) else ():
        offer_names(verb, command.name or "")
    for parameter in command.params:
        names = _NAMES.get(f"{noun} {parameter.name}") or _NAMES.get(parameter.name or "")
        if names and parameter.type is click.STRING:
            parameter.type = _Named(names)
