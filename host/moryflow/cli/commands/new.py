"""``moryflow new``: a tool, an agent or a plugin to begin with."""

from __future__ import annotations

from collections.abc import Callable
from errno import EDQUOT, ENOSPC
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moryflow.base.builtins import BUILTINS
from moryflow.cli.open_host import own_home
from moryflow.cli.options import Flags, NounGroup, asking_options
from moryflow.cli.terminal import at_terminal, plain, say, show

from .tool_files import SWITCH

if TYPE_CHECKING:
    from moryflow.authoring.scaffold import Scaffold
    from moryflow.runtime.host import Host

_FOLDER = click.argument("folder", required=False, type=click.Path(path_type=Path, file_okay=False))


@click.group("new", cls=NounGroup)
@asking_options
def command(_: Flags) -> None:
    """Write a tool, an agent or a plugin to start from; it works as it is. Nothing is overwritten without asking."""


@command.command("tool")
@click.argument("name")
@_FOLDER
@click.option("--language", type=click.Choice(["python", "bash", "javascript"]), default="python", show_default=True)
@asking_options
def new_tool(flags: Flags, name: str, folder: Path | None, language: str) -> None:
    """Write a tool in one file, in ~/.moryflow/tools or in FOLDER.

    A tool in ~/.moryflow/tools is allowed as it is written here. The command asks whether to take your changes too: it sets
    agents.runtime.tools.external.enabled to true. Without that, allow each change: moryflow tool allow NAME.
    """
    from moryflow.authoring.scaffold import tool_scaffold
    from moryflow.plugins.consent import Consents

    home = own_home()
    scaffold = tool_scaffold(name, folder or home / "tools", _builtin_tools(), language)
    _write(scaffold, flags, home)
    if folder is not None:
        move = f"cp {next(iter(scaffold.files))} {home / 'tools'}/"
        _tell(scaffold, flags, (move, f"moryflow tool allow {name}", scaffold.following[0]))
        return
    for path in scaffold.files:
        Consents(home).give(path)
    after = () if _takes_changes(home, flags) else (f"moryflow tool allow {name}",)
    _tell(scaffold, flags, (*scaffold.following, *after))


@command.command("agent")
@click.argument("name")
@_FOLDER
@asking_options
def new_agent(flags: Flags, name: str, folder: Path | None) -> None:
    """Write an agent, a Markdown file, in ~/.moryflow/agents or in FOLDER."""
    from moryflow.authoring.scaffold import agent_scaffold

    own = own_home() / "agents"
    taken = _of_builtins(lambda host: frozenset(agent.id for agent in host.agents.values() if Path(agent.source).parent != own))
    scaffold = agent_scaffold(name, folder or own, taken)
    _write(scaffold, flags, own_home())
    _tell(scaffold, flags, scaffold.following)


@command.command("plugin")
@click.argument("name")
@_FOLDER
@asking_options
def new_plugin(flags: Flags, name: str, folder: Path | None) -> None:
    """Write a plugin as a project of its own, moryflow-NAME, in the current folder or in FOLDER.

    A package with a tool, a hook and settings, a manifest, tests that pass, and a README.
    """
    from moryflow.authoring.scaffold import plugin_scaffold

    taken = frozenset(dotted.rpartition(".")[2] for dotted in BUILTINS)
    scaffold = plugin_scaffold(name, folder or Path(), taken, _builtin_tools())
    _write(scaffold, flags, own_home())
    _tell(scaffold, flags, scaffold.following)


def _builtin_tools() -> frozenset[str]:
    return _of_builtins(lambda host: frozenset(name for name, owned in host.tools.items() if not owned.tool.source))


def _of_builtins(names: Callable[[Host], frozenset[str]]) -> frozenset[str]:
    from moryflow.cli.terminal.interrupts import run_on_loop
    from moryflow.runtime.host import open_host

    async def found() -> frozenset[str]:
        async with open_host(plugins=()) as host:
            return names(host)

    return run_on_loop(found)


def _write(scaffold: Scaffold, flags: Flags, home: Path) -> None:
    """Write the files, asking first if one of them exists and differs."""
    from moryflow_sdk import ConfigError, MoryflowError
    from moryflow_sdk.support.own_files import LOST_HINT, leads_nowhere

    from moryflow.cli.terminal.stdin import confirm

    for path in scaffold.files:
        if lost := leads_nowhere(path):
            raise ConfigError(lost, where=str(path), next_step=LOST_HINT)
    if scaffold.existing:
        there = ", ".join(str(path) for path in scaffold.existing)
        confirm(f"{there} exists and differs. Overwrite it?", flags)
    try:
        if any(path.is_relative_to(home) for path in scaffold.files):
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
        scaffold.write()
    except OSError as error:
        step = "free some space, then try again" if error.errno in (ENOSPC, EDQUOT) else "name another FOLDER"
        where = str(error.filename or "")
        raise MoryflowError(f"it cannot be written: {error.strerror}", where=where, next_step=step) from error


def _takes_changes(home: Path, flags: Flags) -> bool:
    from moryflow.config import load_config
    from moryflow.config.values import set_value

    config = load_config(home)
    if config.get(SWITCH):
        return True
    if not flags.yes and not at_terminal():
        return False
    question = f"Load your changes in {home / 'tools'} without asking? This sets {SWITCH} to true in {config.path}."
    if not flags.yes and not click.confirm(question, err=True, default=True):
        return False
    set_value(config.path, SWITCH, True)
    say(f"moryflow: {SWITCH} is now true ({config.path})")
    return True


def _tell(scaffold: Scaffold, flags: Flags, following: tuple[str, ...]) -> None:
    paths = [str(path) for path in scaffold.files]
    text = "\n".join([*(f"wrote {path}" for path in paths), "", "Next:", *(f"  {line}" for line in following)])
    show(flags, {"files": paths, "next": list(following)}, plain(text))
