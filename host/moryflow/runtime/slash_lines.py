"""Lines that begin with a slash and a word: commands on every surface, and never a prompt for a model.

The host's own commands that work everywhere are in one table here. `chat` and editors have a few more of their own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moryflow_sdk import ConfigError, SlashResult
from moryflow_sdk.support.own_files import replace_file
from moryflow_sdk.support.texts import did_you_mean

from .documents import with_title
from .session_commands import compact_now, run_slash

if TYPE_CHECKING:
    from .host import Host
    from .session import Session

# By name: what a command does, and a hint for the text after it.
COMMON: Mapping[str, tuple[str, str]] = {
    "help": ("list the commands", ""),
    "mode": ("show the mode, or change it: /mode agent|full_access", "agent or full_access"),
    "model": ("show the model that goes on, or name another: /model NAME", "name of a model"),
    "agent": ("show the agents, or let another one go on: /agent ID", "id of an agent"),
    "compact": ("replace the older part of the conversation by a summary: /compact [FOCUS]", "what it must keep above all"),
    "share": ("write this conversation as one page to send to others, in the session's folder", ""),
}
_LINE = re.compile(r"\s*/([\w:.@?-]+)(?:\s+(.*))?\s*", re.DOTALL)
_EXPORT = "moryflow session export --to FILE.html"
Confirm = Callable[[], Awaitable[bool]]


def slash_line(text: str, known: Container[str] = ()) -> tuple[str, str] | None:
    """Return the command that a line names and the text after it; ``None`` if it is a prompt, as ``/etc/hosts`` is.

    :param known: the names of commands; another name that is a place of this machine, as ``/tmp`` is, makes a prompt too.
    """
    found = _LINE.fullmatch(text)
    if found is None or (found[1] not in known and os.path.lexists(f"/{found[1]}")):
        return None
    return found[1], (found[2] or "").strip()


def with_choices(name: str, done: SlashResult) -> str:
    """Return what a command says, and how to type each of its choices."""
    hints = (f"/{name} {text}: {label.replace('[', '').replace(']', '')}" for label, text in done.choices.items())
    return "\n".join(filter(None, (done.text, *hints)))


def known_commands(host: Host) -> set[str]:
    """Return the names of the commands that work on every surface."""
    return {*COMMON, *_theirs(host)}


def _theirs(host: Host) -> dict[str, str]:
    return {one.name: one.help for one in host.plugin_set.commands.values() if one.slash is not None}


def check_known(host: Host, name: str, more: Collection[str] = ()) -> None:
    """Check that the table or a plugin has a command.

    :param more: names of commands that the surface has of its own, for the message.
    :raises ConfigError: there is none.
    """
    known = [*COMMON, *_theirs(host)]
    if name not in known:
        hint = did_you_mean(name, [*known, *more], "/")
        raise ConfigError(f"there is no command /{name[:80]}{hint}", next_step="/help lists them")


async def _share(host: Host, session: Session) -> Path:
    """Write the conversation as a page, for the owner alone, and return the file. It is always the same one: no name is taken
    from a client, which could name any file of this machine.
    """
    from .readable import readable

    file = host.config.place(session.row.vault) / f"{session.id}.html"
    title = (await with_title(host.store, session.row)).title or session.id
    try:
        replace_file(file, readable(".html", title, await host.store.path(session.id)).encode())
    except OSError as error:
        raise ConfigError(f"cannot write the file: {error.strerror}", where=str(file), next_step=_EXPORT) from error
    return file


async def run_line(
    host: Host, session: Session, line: tuple[str, str], confirmed: Confirm, more: Collection[str] = ()
) -> SlashResult:
    """Run a command of the table or of a plugin; a prompt in its result is to be sent.

    :param confirmed: whether the user confirms full access; asked only if it is needed.
    :param more: names of commands that the surface has of its own, for the message about an unknown one.
    :raises ConfigError: there is no such command, it takes no such value, or full access was not confirmed.
    """
    name, text = line
    check_known(host, name, more)
    match name:
        case "help":
            known = {**_theirs(host), **{name: about for name, (about, _) in COMMON.items()}}
            return SlashResult(text="\n".join(f"/{one}: {about}" for one, about in sorted(known.items())))
        case "mode":
            if text and text not in ("agent", "full_access"):
                raise ConfigError(f"there is no mode {text[:80]!r}", next_step="/mode agent, or /mode full_access")
            if text == "full_access" != session.mode and not await confirmed():
                raise ConfigError("full_access was not confirmed", next_step="choose the mode beside the input")
            if text:
                await session.set_mode(text)
            return SlashResult(text=f"mode: {session.mode}")
        case "model":
            if text:
                await host.refresh_if_changed()
                session.check_choice(None, text)
                await session.set_model(text)
            return SlashResult(text=f"model: {host.choose_model(session)[1].id}")
        case "agent":
            if text:
                await host.refresh_if_changed()
                session.check_choice(text, None)
                await session.set_agent(text)
            offered = ", ".join(one.id for one in host.agents.values() if not one.hidden and one.mode != "subagent")
            return SlashResult(text=f"agent: {session.agent.id}; there are {offered}")
        case "compact":
            done = await compact_now(host, session, text)
            return SlashResult(text=f"compacted: about {done['tokens_before']} tokens before, {done['tokens_after']} now")
        case "share":
            if text:
                raise ConfigError("/share takes a name only in chat", next_step=_EXPORT)
            return SlashResult(text=f"written to {await _share(host, session)}")
        case _:
            done = await run_slash(host, session, name, text)
            return replace(done, text=with_choices(name, done), choices={})
