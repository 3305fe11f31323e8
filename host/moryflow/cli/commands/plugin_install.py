"""``moryflow plugin install``, ``update`` and ``sync``."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.options import asking_options
from moryflow.cli.terminal.text import plain, show

from .plugin_context import Desk

if TYPE_CHECKING:
    from moryflow.packages.install import InstallResult
    from moryflow.packages.lock import Locked
    from moryflow.packages.manager import DoesNotLoad

_downgrade = click.option("--allow-downgrade", is_flag=True, help="Allow an older version to replace the installed one.")


@click.command("install")
@click.argument("what", metavar="NAME|PATH|GIT|FILE.py")
@click.option("-e", "--editable", is_flag=True, help="Install a project's folder so that its edits count at once.")
@click.option("--build", is_flag=True, help="Let a package without a wheel be built, which runs its build script.")
@_downgrade
@asking_options
@click.pass_context
def install(ctx: click.Context, what: str, editable: bool, build: bool, allow_downgrade: bool) -> None:
    """Install a plugin: a package, a folder, a git address, or one Python file.

    You are first shown what it declares, which is read without running it. Moryflow's own dependencies stay as they are.
    After you agree it is tried in the probe; if it does not load, everything is restored, and the exit code is 3.
    """
    from moryflow.packages.install import install as run
    from moryflow.packages.lock import origin_of
    from moryflow.packages.manager import DoesNotLoad

    desk = Desk(ctx)
    try:
        done = run(origin_of(what, editable=editable), desk.manager(building=build, downgrading=allow_downgrade))
    except DoesNotLoad as error:
        show(desk.flags, _taken_back(what, error), "")
        raise
    names = ", ".join(done.plugins)
    text = f"{names}: installed already" if done.action == "unchanged" else f"installed {names} ({_name(done.entry)})"
    show(desk.flags, _document(done), plain(f"{text}; moryflow plugin info {done.plugins[0]}"))


@click.command("update")
@click.argument("name", required=False)
@click.option("--build", is_flag=True, help="Let a package without a wheel be built, which runs its build script.")
@_downgrade
@asking_options
@click.pass_context
def update(ctx: click.Context, name: str | None, build: bool, allow_downgrade: bool) -> int:
    """Bring a plugin, or all of them, up to date; asks again when one wants more hooks, services or capabilities.

    If the new version does not load, the old one stays and the exit code is 3.
    """
    from moryflow_sdk import ConfigError, MoryflowError

    from moryflow.packages.install import update as run
    from moryflow.packages.lock import plugin_named
    from moryflow.packages.manager import DoesNotLoad

    desk = Desk(ctx)
    manager = desk.manager(building=build, downgrading=allow_downgrade)
    known = manager.lock.read()
    one = plugin_named(known, name) if name else None
    if name and one is None:
        raise ConfigError(f"{name!r} was not installed with moryflow plugin install", next_step="moryflow plugin list")
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    code = 0
    for entry in [one] if one else known.values():
        try:
            done = run(entry, manager)
        except MoryflowError as error:
            if isinstance(error, DoesNotLoad):
                documents.append(_taken_back(entry.name, error))
            if one:
                if documents:
                    show(desk.flags, documents, "")
                raise
            code = 1 if code == 1 or not isinstance(error, DoesNotLoad) else 3
            lines.append(f"{entry.name}: {error}")
            if not isinstance(error, DoesNotLoad):
                documents.append({"name": entry.name, "action": "failed", "error": str(error)})
            continue
        said = "is up to date" if done.action == "unchanged" else f"is now {_name(done.entry)}: {'; '.join(done.changes)}"
        lines.append(f"{entry.name} {said}")
        documents.append(_document(done))
    show(desk.flags, documents, plain("\n".join(lines) or "nothing was installed with moryflow plugin install"))
    return code


@click.command("sync")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@asking_options
@click.pass_context
def sync(ctx: click.Context, dry_run: bool) -> int:
    """Install what plugins.lock names, in exactly the versions that you agreed to."""
    from moryflow.packages.install import sync as run

    desk = Desk(ctx)
    done = run(desk.manager(), dry_run=dry_run)
    text = "\n".join(item.text for item in done) or "everything is as plugins.lock says"
    show(desk.flags, [asdict(item) for item in done], plain(text))
    return 1 if any(item.action == "failed" for item in done) else 0


def _name(entry: Locked) -> str:
    return f"{entry.name} {entry.version}".rstrip()


def _taken_back(name: str, error: DoesNotLoad) -> dict[str, Any]:
    """Return what is told of an installation that was taken back, with what the probe said of each plugin."""
    found = [{"name": plugin, **asdict(verdict)} for plugin, verdict in error.found.items()]
    return {"name": name, "action": "taken_back", "error": error.message, "plugins": found}


def _document(done: InstallResult) -> dict[str, Any]:
    also = [{"name": name, "version": version} for name, version in done.also]
    return {"action": done.action, **asdict(done.entry), "also": also, "changes": list(done.changes)}


__all__ = ["install", "sync", "update"]
