"""Plugins of Claude Code and Codex, taken as they are: agents, commands, skills, hooks and servers in a folder.

A copy of the folder is kept in the home and read in place; what it needs in the configuration is written there, and taken
back when the plugin is removed. Its hooks and servers run as processes of their own, nothing of it is imported.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow.config import config_file
from moryflow.imports import ImportPlan
from moryflow.imports.claude import read_hook_commands
from moryflow.imports.files import add_server, mapping, read_settings, text_list
from moryflow.imports.write import apply, last_of, take_back

from . import InstallError
from .code_facts import code_change
from .lock import FOLDER, InstallResult, Locked, PackageOrigin, folder_digest, folder_files, folder_of

if TYPE_CHECKING:
    from .manager import Manager

MARKETS = "marketplaces.json"
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_MANIFESTS = (".claude-plugin/plugin.json", ".codex-plugin/plugin.json")
_MARKETS = (".claude-plugin/marketplace.json", ".agents/plugins/marketplace.json", "marketplace.json")
# Parts of such a plugin that have no counterpart here.
_UNKNOWN = {
    "lspServers": "language servers",
    "outputStyles": "output styles",
    "themes": "themes",
    "bin": "programs on the path",
}


@dataclass
class ClaudePlugin:
    """A plugin's folder, as its manifest or its entry in a marketplace describes it."""

    folder: Path
    name: str
    version: str = ""
    description: str = ""
    agents: list[Path] = field(default_factory=list[Path])
    commands: list[Path] = field(default_factory=list[Path])
    skills: list[Path] = field(default_factory=list[Path])
    hooks: list[str] = field(default_factory=list[str])
    hook_files: list[Path] = field(default_factory=list[Path])
    servers: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    unknown: list[str] = field(default_factory=list[str])

    @property
    def asks(self) -> dict[str, Any]:
        """What the user agrees to, as the lock stores it."""
        programs = sorted({str(server.get("command") or server.get("url")) for server in self.servers.values()})
        return {
            "manifest": True, "hooks": self.hooks, "tools": sorted(self.servers), "services": [],
            "capabilities": {"subprocess": bool(self.hooks or programs), "network": bool(programs)},
        }  # fmt: skip


# ---------------------------------------------------------------- reading


def read_plugin(folder: Path, entry: Mapping[str, Any]) -> ClaudePlugin:
    """Return the plugin in `folder`; `entry` is its entry in a marketplace, which fills what the manifest does not say.

    :raises InstallError: the manifest cannot be read, the name is none, or a part of it is outside the folder.
    """
    plan = ImportPlan("claude", folder)
    file = next((folder / name for name in _MANIFESTS if (folder / name).is_file()), None)
    manifest: Mapping[str, Any] = read_settings(plan, file) if file else {}
    if problem := next((item for item in plan.items if item.becomes == "error"), None):
        raise InstallError(f"its plugin.json cannot be read: {problem.why}", where=problem.where)
    about = {**entry, **manifest}
    name = str(about.get("name") or folder.name)
    if not _NAME.fullmatch(name):
        raise InstallError(f"{name!r} is not a name for a plugin: letters, digits, '.', '-' and '_'", where=str(file or folder))
    found = ClaudePlugin(folder, name, str(about.get("version") or ""), str(about.get("description") or ""))
    for kind, into in (("agents", found.agents), ("commands", found.commands), ("skills", found.skills)):
        into += [path for path in _paths(folder, about.get(kind), kind) if path.is_dir() or path.suffix == ".md"]
    hooks = about.get("hooks")
    named = hooks if isinstance(hooks, str | list) else None
    found.hook_files = [path for path in _paths(folder, named, "hooks/hooks.json") if path.is_file()]
    for path in found.hook_files:
        content = read_settings(plan, path)
        found.hooks += read_hook_commands(mapping(content.get("hooks", content)))
    if isinstance(hooks, Mapping):
        found.unknown.append("hooks inside plugin.json")
    servers = about.get("mcpServers")
    files = [] if isinstance(servers, Mapping) else _paths(folder, servers, ".mcp.json")
    for content in [mapping(servers), *(read_settings(plan, path) for path in files if path.is_file())]:
        wrapped = content.get("mcpServers", content)
        found.servers |= {str(key): value for key, value in mapping(wrapped).items() if isinstance(value, Mapping)}
    found.unknown += [words for key, words in _UNKNOWN.items() if about.get(key) or (folder / key).exists()]
    return found


def _paths(folder: Path, given: Any, usual: str) -> list[Path]:
    found = [folder / usual] if (folder / usual).exists() else []
    for name in text_list(given):
        path = folder / name.replace("${CLAUDE_PLUGIN_ROOT}/", "").removeprefix("./")
        if not path.resolve().is_relative_to(folder.resolve()):
            raise InstallError(f"{name!r} leads out of the plugin", where=str(folder))
        if path.exists() and path not in found:
            found.append(path)
    return found


# ---------------------------------------------------------------- fetching


def fetch(origin: PackageOrigin, folder: Path, manager: Manager) -> tuple[Path, Mapping[str, Any], str]:
    """Return the plugin's folder, its entry in a marketplace, and the commit it came from.

    `origin` is a path, ``NAME@MARKETPLACE``, or ``OWNER/REPO[/PLUGIN]``.

    :raises InstallError: there is no such plugin.
    """
    text = origin.text
    path = Path(text).expanduser()
    name, at, market = text.partition("@")
    if at and market in (known := markets(manager.home)):
        return _of_market(name, known[market], folder, manager)
    if path.is_dir():
        return path.resolve(), {}, ""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(map(_NAME.fullmatch, parts)):
        step = "moryflow plugin install claude:PATH, claude:OWNER/REPO[/PLUGIN] or claude:NAME@MARKETPLACE"
        raise InstallError(f"{text!r} is neither a folder nor a repository", next_step=step)
    return _of_market(parts[2] if len(parts) == 3 else "", f"https://github.com/{parts[0]}/{parts[1]}", folder, manager)


def _of_market(name: str, source: str, folder: Path, manager: Manager) -> tuple[Path, Mapping[str, Any], str]:
    root, commit = repository(source, folder / "market", manager)
    listed = market_plugins(root)
    if not name and not listed:
        return root, {}, commit
    renames = mapping(read_market(root).get("renames"))
    name = str(renames.get(name, name))
    entry = next((one for one in listed if one.get("name") == name), None)
    if entry is None:
        names = ", ".join(str(one.get("name")) for one in listed[:20]) or "nothing"
        raise InstallError(
            f"there is no plugin {name!r} in {source}; there are: {names}", next_step="moryflow plugin marketplace search"
        )
    where = entry.get("source", f"./{name}")
    if isinstance(where, str):
        base = str(mapping(read_market(root).get("metadata")).get("pluginRoot") or ".")
        place = (root / (where if where.startswith("./") else f"{base}/{where}")).resolve()
        if not place.is_relative_to(root.resolve()) or not place.is_dir():
            raise InstallError(f"the marketplace names {where!r}, which is no folder of it", where=source)
        return place, _described(entry), commit
    about = mapping(where)
    address = f"https://github.com/{about.get('repo')}" if about.get("source") == "github" else str(about.get("url") or "")
    if not address.startswith(("https://", "ssh://", "git@", "file://")):
        raise InstallError(f"the plugin {name!r} has a source that is not understood: {dict(about)}", where=source)
    commit = manager.installer.clone(address, folder / "plugin", str(about.get("sha") or about.get("ref") or ""))
    place = (folder / "plugin" / str(about.get("path") or ".")).resolve()
    if not place.is_relative_to((folder / "plugin").resolve()) or not place.is_dir():
        raise InstallError(f"{address} has no folder {about.get('path')!r}", where=source)
    return place, _described(entry), commit


def _described(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what an entry says about the plugin; with ``strict: false`` it stands for the manifest."""
    return {key: value for key, value in entry.items() if key not in ("source", "strict", "category", "tags")}


def repository(source: str, folder: Path, manager: Manager) -> tuple[Path, str]:
    """Return a marketplace's or a plugin's repository: a folder as it is, anything else is cloned."""
    path = Path(source).expanduser()
    if path.is_dir():
        return path.resolve(), ""
    return folder, manager.installer.clone(source, folder)


def read_market(root: Path) -> Mapping[str, Any]:
    """Return the marketplace of a repository; an empty one if it has none."""
    plan = ImportPlan("claude", root)
    file = next((root / name for name in _MARKETS if (root / name).is_file()), None)
    return read_settings(plan, file) if file else {}


def market_plugins(root: Path) -> list[Mapping[str, Any]]:
    """Return the entries of the plugins that a marketplace lists."""
    listed = read_market(root).get("plugins")
    return [one for one in listed if isinstance(one, Mapping) and one.get("name")] if isinstance(listed, list) else []


def markets(home: Path) -> dict[str, str]:
    """Return the sources of the marketplaces that the user added, by name."""
    try:
        found = json.loads((home / FOLDER / MARKETS).read_bytes())
    except (OSError, ValueError):
        return {}
    return {str(name): str(source) for name, source in mapping(found).items()}


# ---------------------------------------------------------------- installing


def install_claude(origin: PackageOrigin, manager: Manager, before: Locked | None = None) -> InstallResult:
    """Install or update a plugin after the user has seen what is in it, or what changed since.

    :raises InstallError: it cannot be fetched or read.
    """
    with tempfile.TemporaryDirectory(prefix="moryflow-") as place:
        folder, entry, commit = fetch(origin, Path(place), manager)
        plugin, files = read_plugin(folder, entry), folder_files(folder)
        target = manager.home / FOLDER / plugin.name
        old = before or manager.lock.read().get(f"claude/{plugin.name}")
        digest = folder_digest(folder)
        if old is not None and old.hash == digest and target.is_dir() and folder_digest(target) == digest:
            return InstallResult("unchanged", old)
        manager.tell(claude_screen(plugin, origin))
        changes: tuple[str, ...] = ()
        if old is not None and target.is_dir():
            own = mapping(old.plugins.get(plugin.name))
            new = [hook for hook in plugin.hooks if hook not in own.get("hooks", ())]
            changes = (*code_change(folder_files(target), files).lines, *(f"new hook: {hook}" for hook in new))
            for line in changes:
                manager.tell(f"  changed: {line}")
        manager.ask(f"{'Update' if old else 'Install'} {plugin.name}?")
        if old is not None:
            take_out(manager.home, target)
        write_files(target, files)
        locked = Locked(
            f"claude/{plugin.name}", plugin.version, "claude", origin.text, digest, {plugin.name: plugin.asks}, commit
        )
        manager.lock.put(locked)
        _configure(manager, read_plugin(target, entry))
    return InstallResult("updated" if old else "installed", locked, changes=changes)


def claude_screen(plugin: ClaudePlugin, origin: PackageOrigin) -> str:
    """Return the consent screen: what is read, and every command and program that would be run."""
    lines = [f"{plugin.name} {plugin.version}".rstrip() + f"  from claude:{origin.text}"]
    lines += [f"  {plugin.description[:200]}"] if plugin.description else []
    for kind, paths in (("agents", plugin.agents), ("commands", plugin.commands), ("skills", plugin.skills)):
        names = [path.parent.name if path.name == "SKILL.md" else path.stem for one in paths for path in _texts(one, kind)]
        lines += [f"  {kind}: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}"] if names else []
    lines += [f"  hook: {hook}" for hook in plugin.hooks]
    for name, server in plugin.servers.items():
        runs = " ".join([str(server.get("command") or server.get("url")), *map(str, server.get("args") or ())])
        lines.append(f"  server {name}: {runs[:200]}")
    lines += [f"  not supported: {what}" for what in plugin.unknown]
    if plugin.hooks:
        lines.append("  Hooks run as programs of yours, outside the sandbox, at every call that they match.")
    return "\n".join(lines)


def _texts(path: Path, kind: str) -> Iterator[Path]:
    yield from [path] if path.is_file() else sorted(path.rglob("SKILL.md" if kind == "skills" else "*.md"))


def write_files(target: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a new folder, whole or not at all."""
    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    for name, data in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(data)
        path.chmod(0o700 if data.startswith(b"#!") else 0o600)
    fresh.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh.rename(target)


def _configure(manager: Manager, plugin: ClaudePlugin) -> None:
    """Write what the plugin needs into the user's configuration, as an import that can be taken back."""
    plan = ImportPlan("claude", plugin.folder)
    hooks = [plugin.folder] if plugin.hook_files else []
    texts = (
        ("userAgents", plugin.agents),
        ("userCommands", plugin.commands),
        ("skills", plugin.skills),
        ("claudeHooks", hooks),
    )
    for setting, paths in texts:
        if paths:
            plan.lists["agents", "runtime", setting, "paths"] = [str(path) for path in paths]
    for name, server in plugin.servers.items():
        text = json.dumps(dict(server)).replace("${CLAUDE_PLUGIN_ROOT}", str(plugin.folder))
        add_server(plan, name, json.loads(text), str(plugin.folder), literal=True)
    apply(plan, manager.home, config_file(manager.home, manager.environ))
    for item in plan.items:
        if item.kind == "server":
            manager.tell(f"moryflow: {item.result}{f'; {item.why}' if item.why else ''}")


def take_out(home: Path, target: Path) -> None:
    """Remove a folder of the home, and from the configuration what was written for it."""
    from moryflow_sdk import ConfigError

    try:
        record, done = last_of("anyhunt" if target.parent.name == "teams" else "claude", home, target)
    except ConfigError:
        pass
    else:
        take_back(done)
        record.unlink()
    shutil.rmtree(target, ignore_errors=True)


def remove_claude(name: str, manager: Manager) -> None:
    """Remove a plugin, and from the configuration what it brought."""
    take_out(manager.home, folder_of(manager.home, name))
    manager.lock.remove(name)
