"""``moryflow plugin install``, ``update`` and ``sync``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from .options import asking_options
from .plugin_desk import Desk
from .text import plain, show


@click.command("install")
@click.argument("what", metavar="NAME|PATH|GIT|FILE.py")
@click.option("-e", "--editable", is_flag=True, help="Install a project's folder so that its edits count at once.")
@click.option("--build", is_flag=True, help="Let a package without a wheel be built, which runs its build script.")
@asking_options
@click.pass_context
def install(ctx: click.Context, what: str, editable: bool, build: bool) -> None:
    """Install a plugin: a package, a folder, a git address, or one Python file.

    What it says of itself is shown first, read without running it. What Moryflow runs on stays as it is.
    """
    from moryflow.managing.installing import install as run
    from moryflow.managing.origins import origin_of

    desk = Desk(ctx)
    done = run(origin_of(what, editable=editable), desk.manager(building=build))
    names = ", ".join(done.plugins)
    text = f"{names}: installed already" if done.action == "unchanged" else f"installed {names} ({_name(done.entry)})"
    show(desk.flags, _document(done), plain(f"{text}; moryflow plugin info {done.plugins[0]}"))


@click.command("update")
@click.argument("name", required=False)
@click.option("--build", is_flag=True, help="Let a package without a wheel be built, which runs its build script.")
@asking_options
@click.pass_context
def update(ctx: click.Context, name: str | None, build: bool) -> int:
    """Bring a plugin, or all of them, up to date; asks again when one wants more hooks, services or capabilities."""
    from moryflow_sdk import ConfigError, MoryflowError

    from moryflow.managing.lock import plugin_named
    from moryflow.managing.updating import update as run

    desk = Desk(ctx)
    manager = desk.manager(building=build)
    known = manager.lock.read()
    one = plugin_named(known, name) if name else None
    if name and one is None:
        raise ConfigError(f"{name!r} was not installed with moryflow plugin install", next_step="moryflow plugin list")
    lines: list[str] = []
    documents: list[dict[str, Any]] = []
    failed = False
    for entry in [one] if one else known.values():
        try:
            done = run(entry, manager)
        except MoryflowError as error:
            if one:
                raise
            failed = True
            lines.append(f"{entry.name}: {error}")
            documents.append({"name": entry.name, "action": "failed", "error": str(error)})
            continue
        said = "is up to date" if done.action == "unchanged" else f"is now {_name(done.entry)}: {'; '.join(done.changes)}"
        lines.append(f"{entry.name} {said}")
        documents.append(_document(done))
    show(desk.flags, documents, plain("\n".join(lines) or "nothing was installed with moryflow plugin install"))
    return 1 if failed else 0


@click.command("sync")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@asking_options
@click.pass_context
def sync(ctx: click.Context, dry_run: bool) -> int:
    """Install what plugins.lock names, in the very versions that were agreed to."""
    from moryflow.managing.syncing import sync as run

    desk = Desk(ctx)
    done = run(desk.manager(), dry_run=dry_run)
    text = "\n".join(item.text for item in done) or "everything is as plugins.lock says"
    show(desk.flags, [asdict(item) for item in done], plain(text))
    return 1 if any(item.action == "failed" for item in done) else 0


def _name(entry: Any) -> str:
    return f"{entry.name} {entry.version}".rstrip()


def _document(done: Any) -> dict[str, Any]:
    also = [{"name": name, "version": version} for name, version in done.also]
    return {"action": done.action, **asdict(done.entry), "also": also, "changes": list(done.changes)}


__all__ = ["install", "sync", "update"]
