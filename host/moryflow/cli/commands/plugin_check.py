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
@click.option("--host", metavar="VERSION|PATH", help="Try a plugin's folder with another Moryflow.")
@document_options
def check(flags: Flags, what: str | None, host: str | None) -> int:
    """Run a plugin's import, registration and contributions in the probe; exit code 3 when it fails.

    Without NAME or PATH every plugin that is installed, or is a file of your own.
    """
    if host is not None:
        return _check_with(host, what, flags)
    plugins = FoundPlugins(flags)
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    candidates, left = _all_candidates(plugins) if what is None else (_candidates(plugins, what), [])
    for candidate, verdict in zip(candidates, probe_verdicts(plugins, candidates), strict=True):
        # The manifest is what people agree to.
        from moryflow.packages.inventory import manifest_card

        card = manifest_card(candidate)
        undeclared = [hook for hook in verdict.hooks if card and not card.derived and hook not in card.hooks]
        good = verdict.ok and not undeclared and not verdict.notes
        documents.append({"name": candidate.name, **asdict(verdict), "ok": good, "undeclared": undeclared})
        texts.append(verdict_text(candidate.name, verdict, undeclared, again=what))
    document = documents[0] if what is not None and len(documents) == 1 else documents
    texts += [f"{row.name}: not checked: {row.record.reason}" for row in left]
    show(flags, document, plain("\n".join(texts)) or "there are no plugins but the built-in ones")
    return 0 if all(document["ok"] for document in documents) else 3


def _check_with(host: str, what: str | None, flags: Flags) -> int:
    import subprocess
    import tempfile
    import venv

    from moryflow.cli.terminal import say

    step = "moryflow plugin check PATH --host VERSION"
    if what is None or not Path(what).exists():
        raise ConfigError("--host checks the folder or the file of a plugin", next_step=step)
    plugin, wanted = Path(what).resolve(), Path(host).expanduser()
    packages = [str(wanted.resolve()) if wanted.exists() else f"moryflow=={host}"]
    packages += [str(plugin)] if plugin.is_dir() else []
    with tempfile.TemporaryDirectory(prefix="moryflow-") as folder:
        say(f"moryflow: installing {' and '.join(packages)} into an environment of their own")
        venv.create(folder, with_pip=True)
        environ = {**os.environ, "MORYFLOW_HOME": str(Path(folder, "home"))}

        def python(*words: str) -> subprocess.CompletedProcess[str]:
            command = [str(Path(folder, "bin", "python")), "-m", *words]
            return subprocess.run(
                command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )

        put = python("pip", "install", "--quiet", "--disable-pip-version-check", "--", *packages)
        if put.returncode:
            why = put.stderr.strip().splitlines() or ["pip said nothing"]
            raise ConfigError(f"they cannot be installed together: {why[-1]}", next_step=step)
        done = python("moryflow", "plugin", "check", str(plugin), *(["--json"] if flags.as_json else []))
    click.echo(done.stdout, nl=False)
    click.echo(done.stderr, nl=False, err=True)
    return done.returncode


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
