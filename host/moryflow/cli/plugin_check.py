"""``moryflow plugin check``: try a plugin in the probe, where nothing it does can hurt the host."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import document_options
from .plugin_desk import Desk
from .text import columns, plain, show

if TYPE_CHECKING:
    from moryflow.loading.discovery import Candidate
    from moryflow.probing import ProbeVerdict


@click.command("check")
@click.argument("what", metavar="NAME|PATH")
@document_options
@click.pass_context
def check(ctx: click.Context, what: str) -> int:
    """Run a plugin's import, registration and contributions in the probe; exit code 3 when it fails."""
    desk = Desk(ctx)
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    for candidate in _candidates(desk, what):
        verdict = probed(desk, candidate)
        undeclared = _undeclared(candidate, verdict)
        good = verdict.ok and not undeclared and not verdict.notes
        documents.append({"name": candidate.name, **asdict(verdict), "ok": good, "undeclared": undeclared})
        texts.append(said(candidate.name, verdict, undeclared))
    show(desk.flags, documents[0] if len(documents) == 1 else documents, plain("\n".join(texts)))
    return 0 if all(document["ok"] for document in documents) else 3


def probed(desk: Desk, candidate: Candidate) -> ProbeVerdict:
    """Return what the probe says of a candidate as it is now."""
    from moryflow.probing import probe_sync

    return probe_sync(candidate, home=desk.home, config=desk.config.section(""), seconds=10.0, again=True)


def said(name: str, verdict: ProbeVerdict, undeclared: list[str]) -> str:
    """Return a verdict for people: a line when it is good; what, where and what helps when it is not."""
    if not verdict.ok:
        place = f"{verdict.file}:{verdict.line}: " if verdict.line else f"{verdict.file}: " if verdict.file else ""
        hint = f"\n  next: {verdict.hint}" if verdict.hint else ""
        return f"{name} failed ({verdict.stage}): {place}{verdict.error}{hint}"
    rows = [("hooks", " ".join(verdict.hooks)), ("tools", " ".join(verdict.tools)), ("changed", " ".join(verdict.changed))]
    wrong = ["its plugin.toml is not true"] * bool(undeclared) + ["something of it is left out"] * bool(verdict.notes)
    state = f"loads, but {' and '.join(wrong)}" if wrong else "ok"
    lines = [f"{name}: {state}, {verdict.ms:.0f} ms in the probe"]
    lines += [f"  {line}" for line in columns([(key, value) for key, value in rows if value]).splitlines()]
    lines += [f"  not declared in plugin.toml: {', '.join(undeclared)}"] if undeclared else []
    lines += [f"  {note.partition('; next: ')[0]}" for note in verdict.notes]
    return "\n".join(lines)


def _undeclared(candidate: Candidate, verdict: ProbeVerdict) -> list[str]:
    """Return the hooks that a plugin implements and its manifest, which people agree to, does not name."""
    from moryflow.managing.listing import manifest_card

    card = manifest_card(candidate)
    return [hook for hook in verdict.hooks if card is not None and hook not in card.hooks]


def _candidates(desk: Desk, what: str) -> list[Candidate]:
    """Return what is to be checked: every plugin of a name, or what lies at a path.

    :raises ConfigError: there is nothing.
    """
    path = Path(what).expanduser()
    looks = "/" in what or what.endswith(".py") or what.startswith((".", "~"))
    if looks or (path.is_dir() and (path / "pyproject.toml").is_file()):
        return _at(path.resolve())
    return [row.candidate for row in desk.found(what, desk.rows()) if row.candidate is not None]


def _at(path: Path) -> list[Candidate]:
    from moryflow_sdk import ConfigError

    from moryflow.loading.discovery import Candidate

    if not path.exists():
        raise ConfigError("there is nothing to check", where=str(path), next_step="moryflow plugin check NAME or PATH")
    if (path / "__init__.py").is_file():
        toml = path / "plugin.toml"
        main = str(path / "__init__.py")
        return [Candidate(path.name, "user", str(path), str(path), file=main, manifest=str(toml) if toml.is_file() else "")]
    if path.is_dir():
        return _of_project(path)
    return [Candidate(path.stem, "user", str(path), str(path), file=str(path))]


def _of_project(folder: Path) -> list[Candidate]:
    """Return the plugins of a project that need not be installed; its packages come first on the path."""
    from moryflow_sdk import ConfigError

    from moryflow.loading.discovery import Candidate
    from moryflow.managing.packages import manifest_file, package_in_folder

    package = package_in_folder(folder)
    if not package.cards:
        hint = 'add [project.entry-points."moryflow.plugins"] to its pyproject.toml'
        raise ConfigError("this project declares no plugin", where=str(folder / "pyproject.toml"), next_step=hint)
    sys.path[:0] = [str(root) for root in (folder / "src", folder) if root.is_dir()]
    made = (Candidate(card.name, "installed", f"{package.name} {package.version}", card.target) for card in package.cards)
    return [replace(candidate, manifest=manifest_file(folder, candidate.name), version=package.version) for candidate in made]
