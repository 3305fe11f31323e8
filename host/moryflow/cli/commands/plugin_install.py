"""``moryflow plugin install``, ``update``, ``sync``, ``enable``, ``disable`` and ``uninstall``.

A plugin that does not work can still be disabled and uninstalled.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError, MoryflowError

from moryflow.cli.found_plugins import FoundPlugins
from moryflow.cli.options import Flags, asking_options, document_options
from moryflow.cli.terminal import plain, say, show

from .plugin_check import probe_verdicts, verdict_text

if TYPE_CHECKING:
    from moryflow.packages.install import InstallResult
    from moryflow.packages.inventory import Row
    from moryflow.packages.lock import Locked
    from moryflow.packages.manager import DoesNotLoad


@click.command("install")
@click.argument("what", metavar="NAME|PATH|GIT|FILE.py|claude:PLUGIN")
@click.option("-e", "--editable", is_flag=True, help="Install a project's folder so that its edits count at once.")
@click.option("--build", is_flag=True, help="Let a package without a wheel be built, which runs its build script.")
@asking_options
def install(flags: Flags, what: str, editable: bool, build: bool) -> None:
    """Install a plugin: a package, a folder, a git address, one Python file, or claude:PLUGIN, one of Claude Code or Codex.

    You are first shown what it declares, which is read without running it. Moryflow's own dependencies stay as they are.
    After you agree it is tried in the probe; if it does not load, the version before is put back, and the exit code is 3.
    """
    from moryflow.packages.install import install as run
    from moryflow.packages.lock import origin_of
    from moryflow.packages.manager import DoesNotLoad

    plugins = FoundPlugins(flags)
    try:
        done = run(origin_of(what, editable=editable), plugins.manager(building=build))
    except DoesNotLoad as error:
        show(flags, _taken_back(what, error), "")
        raise
    names = ", ".join(done.plugins)
    text = f"{names}: installed already" if done.action == "unchanged" else f"installed {names} ({_name(done.entry)})"
    show(flags, _document(done), plain(f"{text}; moryflow plugin info {done.plugins[0]}"))


@click.command("update")
@click.argument("name", required=False)
@click.option("--build", is_flag=True, help="Let a package without a wheel be built, which runs its build script.")
@asking_options
def update(flags: Flags, name: str | None, build: bool) -> int:
    """Bring a plugin, or all of them, up to date; asks again when one wants more hooks, services or capabilities.

    If the new version does not load, the old one stays and the exit code is 3.
    """
    from moryflow.packages.install import update as run
    from moryflow.packages.lock import plugin_named
    from moryflow.packages.manager import DoesNotLoad

    plugins = FoundPlugins(flags)
    manager = plugins.manager(building=build)
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
            back = isinstance(error, DoesNotLoad)
            failure = {"name": entry.name, "action": "failed", "error": str(error)}
            documents.append(_taken_back(entry.name, error) if isinstance(error, DoesNotLoad) else failure)
            if one:
                if back:
                    show(flags, documents, "")
                raise
            code = 3 if back and code != 1 else 1
            lines.append(f"{entry.name}: {error}")
            continue
        outcome = "is up to date" if done.action == "unchanged" else f"is now {_name(done.entry)}: {'; '.join(done.changes)}"
        lines.append(f"{entry.name} {outcome}")
        documents.append(_document(done))
    show(flags, documents, plain("\n".join(lines) or "nothing was installed with moryflow plugin install"))
    return code


@click.command("sync")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--from", "team", metavar="GIT-URL|PATH", help="First take over what a team shares, shown as one list.")
@asking_options
def sync(flags: Flags, dry_run: bool, team: str | None) -> int:
    """Install what plugins.lock names, in exactly the versions that you agreed to."""
    from moryflow.packages.install import sync as run

    plugins = FoundPlugins(flags)
    if team is not None:
        from moryflow.packages.team import join

        if not join(team, plugins.manager(), plugins.config.path, dry_run=dry_run):
            return 0
    done = run(plugins.manager(), dry_run=dry_run)
    text = "\n".join(item.text for item in done) or "everything is as plugins.lock says"
    show(flags, [asdict(item) for item in done], plain(text))
    return 1 if any(item.action == "failed" for item in done) else 0


def _name(entry: Locked) -> str:
    return f"{entry.name} {entry.version}".rstrip()


def _taken_back(name: str, error: DoesNotLoad) -> dict[str, Any]:
    found = [{"name": plugin, **asdict(verdict)} for plugin, verdict in error.found.items()]
    return {"name": name, "action": "taken_back", "error": error.message, "plugins": found}


def _document(done: InstallResult) -> dict[str, Any]:
    also = [{"name": name, "version": version} for name, version in done.also]
    return {"action": done.action, **done.entry._asdict(), "also": also, "changes": list(done.changes)}


# ---------------------------------------------------------------- Switching plugins on and off


@click.command("disable")
@click.argument("name")
@document_options
def disable(flags: Flags, name: str) -> None:
    """Do not load a plugin from now on (disabledPlugins in the configuration)."""
    plugins = FoundPlugins(flags)
    listed = _disabled(plugins)
    rows = [] if name in listed else plugins.found(name, plugins.rows())
    name = rows[0].name if rows else name
    if name in listed:
        show(flags, {"disabled": listed}, f"{name} is disabled already")
        return
    changed = _write(plugins, [*listed, name])
    if any(row.record.gate for row in rows):
        say(f"moryflow: {name} judges calls; from now on they are decided without it")
    show(flags, {"disabled": changed}, f"{name} is disabled from the next turn on ({plugins.config.path})")


@click.command("enable")
@click.argument("name")
@document_options
def enable(flags: Flags, name: str) -> int:
    """Let a plugin run: agree to it, and undo `disable`.

    It is tried in the probe first; if that fails, nothing changes and the exit code is 3.
    """
    plugins = FoundPlugins(flags)
    listed = _disabled(plugins)
    row = _row(plugins, name, known=name in listed)
    name = row.name if row is not None else name
    if row is not None and row.candidate is not None and row.record.tier != "builtin":
        [verdict] = probe_verdicts(plugins, [row.candidate])
        if not verdict.ok:
            again = "\n  nothing was changed; moryflow plugin uninstall removes it" if name not in listed else ""
            document = {"enabled": False, "error": verdict.error, "stage": verdict.stage}
            show(flags, document, verdict_text(name, verdict, []) + again)
            return 3
    done = [*_switch_on(plugins, name, listed), *_agree(plugins, row)]
    text = f"{name}: {'; '.join(done)}" if done else f"{name} is not disabled already"
    show(flags, {"enabled": True, "done": done, "disabled": _disabled(plugins)}, plain(text))
    return 0


def _switch_on(plugins: FoundPlugins, name: str, listed: list[str]) -> list[str]:
    if name not in listed:
        return []
    _write(plugins, [item for item in listed if item != name])
    return [f"is enabled from the next turn on ({plugins.config.path})"]


def _agree(plugins: FoundPlugins, row: Row | None) -> list[str]:
    from moryflow.plugins.consent import Consents

    if row is None or row.candidate is None:
        return []
    if row.candidate.tier == "user":
        given = Consents(plugins.home).give(row.candidate.target)
        return [f"your consent is recorded for {row.candidate.target}"] if given else []
    return _lock(plugins, row) if row.candidate.tier == "installed" else []


def _lock(plugins: FoundPlugins, row: Row) -> list[str]:
    from moryflow.packages.distributions import screen
    from moryflow.packages.install import lock_installed

    locked = lock_installed(plugins.home, row.package)
    if locked is None:
        return []
    package, entry = locked
    plugins.tell(screen(package, origin=entry.origin, editable=entry.kind == "editable"))
    return [f"{entry.name} {entry.version} as it is now is noted in plugins.lock"]


@click.command("uninstall")
@click.argument("name")
@asking_options
def uninstall(flags: Flags, name: str) -> None:
    """Remove a plugin: uninstall its package, or move its file aside. Its settings and data stay."""
    from moryflow.packages.manager import remove, target_of

    plugins = FoundPlugins(flags)
    rows = plugins.rows()
    manager = plugins.manager()
    target = target_of(name, rows, manager)
    if target is None:
        raise plugins.unknown(name, [row.name for row in rows])
    if target.name.startswith("claude/"):
        from moryflow.packages.claude import remove_claude

        remove_claude(target.name, manager)
    aside = "" if target.name.startswith("claude/") else remove(target, manager)
    listed = _disabled(plugins)
    if set(target.plugins) & set(listed):
        _write(plugins, [item for item in listed if item not in target.plugins])
    kept = [str(folder) for plugin in target.plugins if (folder := plugins.home / "data" / plugin).is_dir()]
    text = f"{target.name} is moved to {aside}" if aside else f"{target.name} is uninstalled"
    notes = f"; its data stays in {', '.join(kept)}" if kept else ""
    document: dict[str, Any] = {"name": target.name, "plugins": list(target.plugins), "aside": aside, "data": kept}
    show(flags, document, plain(text + notes))


def _row(plugins: FoundPlugins, name: str, *, known: bool) -> Row | None:
    rows = plugins.rows()
    if known and all(row.name != name for row in rows):
        return None
    return plugins.found(name, rows)[0]


def _disabled(plugins: FoundPlugins) -> list[str]:
    from moryflow.config import load_config

    return list(load_config(plugins.home, environ={}).get("disabledPlugins") or ())


def _write(plugins: FoundPlugins, names: list[str]) -> list[str]:
    from moryflow.config.values import set_value

    set_value(plugins.config.path, "disabledPlugins", names)
    return names
