"""``moryflow plugin check``: try a plugin in the probe, where it cannot hurt the host."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError

from moryflow.cli.found_plugins import FoundPlugins
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import columns, plain, show

if TYPE_CHECKING:
    from moryflow.packages.inventory import Row
    from moryflow.plugins.discovery import Candidate
    from moryflow.plugins.preflight.prober import ProbeVerdict


@click.command("check")
@click.argument("what", metavar="[NAME|PATH]", required=False)
@document_options
def check(flags: Flags, what: str | None) -> int:
    """Run a plugin's import, registration and contributions in the probe; exit code 3 when it fails.

    Without NAME or PATH every plugin that is installed, or is a file of your own.
    """
    plugins = FoundPlugins(flags)
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    candidates, left = _all_candidates(plugins) if what is None else (_candidates(plugins, what), [])
    for candidate, verdict in zip(candidates, probe_verdicts(plugins, candidates), strict=True):
        # The manifest is what people agree to.
        from moryflow.packages.inventory import manifest_card

        card = manifest_card(candidate)
        undeclared = [hook for hook in verdict.hooks if card is not None and hook not in card.hooks]
        good = verdict.ok and not undeclared and not verdict.notes
        documents.append({"name": candidate.name, **asdict(verdict), "ok": good, "undeclared": undeclared})
        texts.append(verdict_text(candidate.name, verdict, undeclared, again=what))
    document = documents[0] if what is not None and len(documents) == 1 else documents
    texts += [f"{row.name}: not checked: {row.record.reason}" for row in left]
    show(flags, document, plain("\n".join(texts)) or "there are no plugins but the built-in ones")
    return 0 if all(document["ok"] for document in documents) else 3


def probe_verdicts(plugins: FoundPlugins, candidates: Sequence[Candidate]) -> list[ProbeVerdict]:
    """Return the probe's verdict on each candidate as it is now; one with a known problem fails without being run."""
    from moryflow.packages.manager import probe_candidates

    return probe_candidates(candidates, plugins.home, plugins.config.section(""))


def verdict_text(name: str, verdict: ProbeVerdict, undeclared: list[str], *, again: str | None = None) -> str:
    """Return a verdict as text for people; of a failure, the error, its place and what helps.

    :param again: the argument of ``plugin check`` that led to the plugin, if it was not `name`.
    """
    if not verdict.ok:
        place = f"{verdict.place}: " if verdict.place else ""
        hint = f"\n  next: {verdict.hint or f'change it, then moryflow plugin check {shlex.quote(again or name)}'}"
        return f"{_indented(f'{name} failed ({verdict.stage}): {place}{verdict.error}')}{hint}"
    rows = [("hooks", " ".join(verdict.hooks)), ("tools", " ".join(verdict.tools))]
    wrong = ["its plugin.toml does not match its code"] * bool(undeclared) + ["part of it cannot be used"] * bool(verdict.notes)
    state = f"loads, but {' and '.join(wrong)}" if wrong else "ok"
    lines = [f"{name}: {state}, {verdict.ms:.0f} ms in the probe"]
    lines += [f"  {line}" for line in columns([(key, value) for key, value in rows if value]).splitlines()]
    lines += [f"  not declared in plugin.toml: {', '.join(undeclared)}"] if undeclared else []
    lines += [f"  {_indented(note.partition('; next: ')[0])}" for note in verdict.notes]
    return "\n".join(lines)


def _indented(text: str) -> str:
    """Return a plugin's text with its later lines indented, so that none of them looks like a verdict."""
    return "\n    ".join(text.splitlines())


def _all_candidates(plugins: FoundPlugins) -> tuple[list[Candidate], list[Row]]:
    """Return every plugin that a host would try to load, and the rows of those that are disabled or wait for consent.

    Built-in plugins are in neither.
    """
    from moryflow.plugins.consent import Consents

    consents = Consents(plugins.home)
    found = [(row, row.candidate) for row in plugins.rows() if row.candidate is not None and row.record.tier != "builtin"]
    left = [row for row, each in found if row.record.status == "skipped" or consents.is_waiting(each.target)]
    return [_with_problem(row) for row, _ in found if row not in left], left


def _candidates(plugins: FoundPlugins, what: str) -> list[Candidate]:
    """Return the candidates to check: every plugin called `what`, or those at the path `what`.

    :raises ConfigError: there is no such plugin or path.
    """
    path = Path(what).expanduser()
    looks = "/" in what or what.endswith(".py") or what.startswith((".", "~"))
    if looks or (path.is_dir() and (path / "pyproject.toml").is_file()):
        known = {row.candidate.target: row for row in plugins.rows() if row.candidate is not None}
        found = _at(path.absolute())
        return [_with_problem(known[each.target]) if each.target in known else each for each in found]
    rows = plugins.found(what, plugins.rows())
    return [_with_problem(row) for row in rows if row.candidate is not None and row.record.tier != "builtin"] or [
        row.candidate for row in rows if row.candidate is not None
    ]


def _with_problem(row: Row) -> Candidate:
    """Return a candidate with the problem found at discovery, if any, for example that another plugin has its name."""
    from moryflow.hooks.plugin_set import LoadFailure

    record, candidate = row.record, row.candidate
    assert candidate is not None
    if candidate.problem is not None or record.status != "failed" or record.stage != "discover":
        return candidate
    problem = LoadFailure("discover", record.error, file=record.file, line=record.line, hint=record.hint)
    return candidate._replace(problem=problem)


def _at(path: Path) -> list[Candidate]:
    from moryflow.plugins.discovery import in_development

    if not os.path.lexists(path):
        raise ConfigError("there is nothing to check", where=str(path), next_step="moryflow plugin check NAME or PATH")
    is_project = (path / "pyproject.toml").is_file()
    found = in_development(path.parent if path.name == "__init__.py" else path.resolve() if is_project else path)
    if not found:
        hint = 'add [project.entry-points."moryflow.plugins"] to its pyproject.toml'
        raise ConfigError("this project declares no plugin", where=str(path / "pyproject.toml"), next_step=hint)
    return found
