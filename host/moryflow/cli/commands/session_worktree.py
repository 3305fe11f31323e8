"""``--worktree`` of ``run`` and ``chat``, and ``moryflow session worktree list|merge|drop``."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click
from moryflow_sdk import MoryflowError

from moryflow.cli.open_host import own_home, with_store
from moryflow.cli.options import Flags, asking_options, document_options, noun
from moryflow.cli.terminal import at_terminal, columns, plain, say, show

if TYPE_CHECKING:
    from moryflow.cli.options import RunFlags
    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session
    from moryflow.runtime.worktrees import Worktree
    from moryflow.store import Store

command = noun("worktree", "List, merge and drop the git worktrees of sessions (run --worktree).")
# The most files that are named of those that the worktree does not have.
MAX_NAMES = 5


async def begin_session(host: Host, flags: Flags, chosen: RunFlags, model: str | None) -> Session:
    """Begin a session in a worktree of its own, and say what that does not contain.

    :raises ConfigError: there is no git repository, or nothing was committed in it; or as :meth:`Host.new_session`.
    """
    from moryflow.base.paths import readable_vault
    from moryflow.runtime.worktrees import create, remove, uncommitted

    id = secrets.token_hex(8)
    made = create(host.home, readable_vault(flags.vault), id)
    try:
        session = await host.new_session(made.vault, agent=chosen.agent, mode=chosen.mode, model=model, id=id)
    except BaseException:
        remove(host.home, made)
        raise
    if not flags.quiet:
        say(f"moryflow: this session works in {plain(made.folder)}, on the branch {made.branch}")
        if files := uncommitted(made.repository):
            more = f" and {len(files) - MAX_NAMES} more" if len(files) > MAX_NAMES else ""
            names = plain(", ".join(files[:MAX_NAMES]))
            say(f"moryflow: it begins with the last commit, without your changes of {names}{more}")
    return session


def finish(vault: str, flags: Flags, *, ask: bool) -> None:
    """At the end of a run or a conversation in a worktree, ask whether to merge it; or say what the user may do with it.

    :param vault: the folder that the session worked in.
    :param ask: whether the user may be asked.
    """
    if not (own_home() / "worktrees").is_dir():  # most users have none: then nothing is imported for them
        return
    from moryflow.runtime.worktrees import worktree_of

    worktree = worktree_of(own_home(), vault)
    if worktree is None:
        return
    changed, problem = _changes(worktree)
    if ask and changed and not problem and at_terminal():
        say(plain(changed))
        text = "Merge these changes into your folder, keep the worktree, or drop it?"
        answer = click.prompt(text, type=click.Choice(["merge", "keep", "drop"]), default="keep", err=True)
        if answer != "keep":
            (_merge if answer == "merge" else _drop)(worktree, flags)
            return
    if not flags.quiet:
        state = f"cannot be merged: {plain(problem)}" if problem else "has changes" if changed else "is unchanged"
        verb = f"moryflow session worktree merge {worktree.name}, or drop" if changed else "moryflow session worktree drop"
        say(f"moryflow: the branch {worktree.branch} in {plain(worktree.folder)} {state}")
        say(f"  next: {verb} {worktree.name}; moryflow run -r {worktree.name} goes on")


def _changes(worktree: Worktree) -> tuple[str, str]:
    from moryflow.runtime.worktrees import changes

    try:
        return changes(worktree), ""
    except MoryflowError as error:
        return "", str(error)


@command.command("list")
@document_options
def list_worktrees(flags: Flags) -> None:
    """List the worktrees of sessions, the newest last."""
    from moryflow.runtime.worktrees import worktrees

    found = worktrees(own_home())
    document = [{**one._asdict(), "branch": one.branch, "there": Path(one.folder).is_dir()} for one in found]
    rows = ((one.name, one.origin, one.folder if Path(one.folder).is_dir() else "(its folder is gone)") for one in found)
    show(flags, document, columns(rows) or "no worktrees; moryflow run --worktree makes one")


@command.command("merge")
@click.argument("id")
@document_options
def merge(flags: Flags, id: str) -> None:
    """Commit what a session changed in its worktree, merge that into your folder, and remove the worktree.

    git merges, as it always does, into what is checked out. Where it finds a conflict, it leaves both the conflict and the
    worktree. From then on the session works in your folder.
    """
    from moryflow.runtime.worktrees import named

    _merge(named(own_home(), id), flags)


@command.command("drop")
@click.argument("id")
@asking_options
def drop(flags: Flags, id: str) -> None:
    """Remove the worktree of a session and its branch, with everything that was not merged."""
    from moryflow.cli.terminal.stdin import confirm
    from moryflow.runtime.worktrees import named

    worktree = named(own_home(), id)
    changed, problem = _changes(worktree)
    if Path(worktree.folder).is_dir() and (changed or problem):
        say(plain(changed or problem))
        confirm("Throw these changes away?", flags, command=f"moryflow session worktree drop {worktree.name} -y")
    _drop(worktree, flags)


def _merge(worktree: Worktree, flags: Flags) -> None:
    from moryflow.runtime import worktrees

    async def work(store: Store) -> str:
        async with worktrees.moving_back(store, worktree) as sessions:
            title = next((row.title for row in sessions if row.id == worktree.session), "") or "Changes of a session"
            worktrees.commit(worktree, f"{title}\n\nMoryflow session {worktree.session}")
            into = worktrees.merge(worktree)
            worktrees.remove(own_home(), worktree)
            return into

    into = with_store(work)
    if not flags.quiet:
        say(f"moryflow: merged into {into} of {plain(worktree.repository)}; the session works there now")


def _drop(worktree: Worktree, flags: Flags) -> None:
    from moryflow.runtime import worktrees

    async def work(store: Store) -> None:
        async with worktrees.moving_back(store, worktree):
            worktrees.remove(own_home(), worktree)

    with_store(work)
    if not flags.quiet:
        say(f"moryflow: {worktree.branch} was dropped; its session works in {plain(worktree.origin)} now")
