"""Which plugin is bad: `check` tries one in the probe, where it cannot hurt the host; `bisect` finds the one of a bad turn.

Here too is how all plugin commands see the plugins that are found, loaded or not.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError, MoryflowError
from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.open_host import own_home, with_host
from moryflow.cli.options import Flags, document_options, find
from moryflow.cli.terminal import at_terminal, columns, plain, show

if TYPE_CHECKING:
    from moryflow.authoring.bisect import Culprit, Judge
    from moryflow.config import Config
    from moryflow.packages.inventory import Row
    from moryflow.packages.manager import Manager
    from moryflow.plugins.discovery import Candidate, PluginSettings
    from moryflow.plugins.preflight.prober import ProbeVerdict
    from moryflow.runtime.host import Host


class Desk:
    """Home, configuration and plugins as a host would find them, without loading any."""

    def __init__(self, flags: Flags) -> None:
        from moryflow.config import load_config
        from moryflow.packages import put_back

        self.flags = flags
        self.home: Path = own_home()
        self.config: Config = load_config(self.home, inline=flags.config, environ=os.environ)
        put_back(self.home)

    @property
    def settings(self) -> PluginSettings:
        """What a person wants loaded: configuration, flags and environment."""
        from moryflow.runtime.generation import wanted_plugins

        return wanted_plugins(self.config, safe_mode=self.flags.safe_mode or None)

    def rows(self) -> list[Row]:
        from moryflow.packages.inventory import rows

        return rows(self.home, self.config, self.settings)

    def found(self, name: str, rows: list[Row]) -> list[Row]:
        """Return all plugins called `name`: two may claim one name. The name of a package stands for the plugin it brings.

        :raises ConfigError: there is none.
        """
        from moryflow.plugins.entry_points import normal

        same = [row for row in rows if row.name == name]
        of_package = [row for row in rows if (made := row.package) and normal(made) == normal(name)]
        if same := same or (of_package if len(of_package) == 1 else []):
            return same
        raise self.unknown(name, [row.name for row in rows])

    def unknown(self, name: str, known: list[str]) -> Exception:
        return ConfigError(f"there is no plugin {name!r}{did_you_mean(name, known)}", next_step="moryflow plugin list")

    def manager(self, *, building: bool = False, downgrading: bool = False) -> Manager:
        """Return what installs, telling and asking on standard error; ``-y`` answers its questions."""
        from moryflow.cli.terminal.stdin import confirm
        from moryflow.packages.manager import Manager, Trial

        def ask(text: str) -> None:
            confirm(text, self.flags, command=shlex.join(["moryflow", *sys.argv[1:], "-y"]))

        trial = Trial(self.home, self.config.section(""), self.settings.disabled)
        return Manager(self.home, os.environ, self.tell, ask, trial, building, downgrading)

    def tell(self, text: str) -> None:
        """Show a notice or a screen; ``-q`` leaves it out unless a question follows it."""
        if not self.flags.quiet or not self.flags.yes:
            click.echo(plain(text), err=True)


@click.command("check")
@click.argument("what", metavar="[NAME|PATH]", required=False)
@document_options
def check(flags: Flags, what: str | None) -> int:
    """Run a plugin's import, registration and contributions in the probe; exit code 3 when it fails.

    Without NAME or PATH every plugin that is installed, or is a file of your own.
    """
    from moryflow.plugins.sources import slips

    desk = Desk(flags)
    documents: list[dict[str, Any]] = []
    texts: list[str] = []
    candidates = _everyone(desk) if what is None else _candidates(desk, what)
    taken = taken_tools(desk, {candidate.name for candidate in candidates})
    for candidate, verdict in zip(candidates, probe_verdicts(desk, candidates), strict=True):
        verdict = with_clashes(verdict, taken)
        taken |= {tool.casefold(): f"the {candidate.tier} plugin {candidate.name}" for tool in verdict.tools}
        undeclared = _undeclared(candidate, verdict)
        good = verdict.ok and not undeclared and not verdict.notes
        warnings = slips(_code(candidate)) if verdict.ok else []
        about = {"ok": good, "undeclared": undeclared, "warnings": warnings}
        documents.append({"name": candidate.name, **asdict(verdict), **about})
        text = verdict_text(candidate.name, verdict, undeclared, again=what)
        texts.append("\n".join([text, *(f"  warning: {each}" for each in warnings)]))
    document = documents[0] if what is not None and len(documents) == 1 else documents
    show(flags, document, plain("\n".join(texts)) or "there are no plugins but the built-in ones")
    return 0 if all(document["ok"] for document in documents) else 3


def _code(candidate: Candidate) -> list[Path]:
    """Return the files of a plugin; those of one that removed itself meanwhile are none."""
    from moryflow.hooks.plugin_set import LoadFailure
    from moryflow.plugins.importer import code_of

    try:
        return code_of(candidate)
    except LoadFailure:
        return []


def probe_verdicts(desk: Desk, candidates: Sequence[Candidate]) -> list[ProbeVerdict]:
    """Return what the probe says of candidates as they are now; what is wrong before anything is run stays so."""
    from moryflow.packages.manager import probe_candidates

    return probe_candidates(candidates, desk.home, desk.config.section(""))


def taken_tools(desk: Desk, but: Collection[str]) -> dict[str, str]:
    """Return who has which name of a tool, without those of the plugins `but`, as a host would give them out."""
    from moryflow.cli.terminal.interrupts import run_on_loop
    from moryflow.runtime.host import open_host

    async def own() -> dict[str, str]:
        async with await open_host(desk.home, safe_mode=True) as host:
            return {name.casefold(): f"the builtin plugin {owned.plugin}" for name, owned in host.tools.items()}

    try:
        taken = run_on_loop(own)
    except (MoryflowError, OSError):  # a home that cannot be used says so elsewhere
        taken = {}
    for row in desk.rows():
        if row.record.status == "loaded" and row.name not in but and row.record.tier != "builtin":
            for name in row.record.tools:
                taken.setdefault(name.casefold(), f"the {row.record.tier} plugin {row.name}")
    return taken


def with_clashes(verdict: ProbeVerdict, taken: Mapping[str, str]) -> ProbeVerdict:
    """Return a verdict that says which of its tools a host would leave out, because others have their names."""
    clashes = [name for name in verdict.tools if name.casefold() in taken]
    if not clashes:
        return verdict
    notes = [f"{verdict.file}: the name {name!r} is taken by {taken[name.casefold()]}" for name in clashes]
    tools = tuple(name for name in verdict.tools if name not in clashes)
    return replace(verdict, tools=tools, notes=(*verdict.notes, *notes))


def verdict_text(name: str, verdict: ProbeVerdict, undeclared: list[str], *, again: str | None = None) -> str:
    """Return a verdict for people: a line when it is good; what, where and what helps when it is not.

    :param again: what was checked, if it was not called `name`.
    """
    if not verdict.ok:
        place = f"{verdict.file}:{verdict.line}: " if verdict.line else f"{verdict.file}: " if verdict.file else ""
        hint = f"\n  next: {verdict.hint or f'change it, then moryflow plugin check {shlex.quote(again or name)}'}"
        return f"{_indented(f'{name} failed ({verdict.stage}): {place}{verdict.error}')}{hint}"
    rows = [("hooks", " ".join(verdict.hooks)), ("tools", " ".join(verdict.tools)), ("changed", " ".join(verdict.changed))]
    wrong = ["its plugin.toml does not match its code"] * bool(undeclared) + ["not all of it can be used"] * bool(verdict.notes)
    state = f"loads, but {' and '.join(wrong)}" if wrong else "ok"
    lines = [f"{name}: {state}, {verdict.ms:.0f} ms in the probe"]
    lines += [f"  {line}" for line in columns([(key, value) for key, value in rows if value]).splitlines()]
    lines += [f"  not declared in plugin.toml: {', '.join(undeclared)}"] if undeclared else []
    lines += [f"  {_indented(note.partition('; next: ')[0])}" for note in verdict.notes]
    return "\n".join(lines)


def _indented(text: str) -> str:
    """Return a plugin's text with its later lines set in, so that none of them looks like a verdict."""
    return "\n    ".join(text.splitlines())


def _undeclared(candidate: Candidate, verdict: ProbeVerdict) -> list[str]:
    """Return the hooks that a plugin implements and its manifest, which people agree to, does not name."""
    from moryflow.packages.inventory import manifest_card

    card = manifest_card(candidate)
    return [hook for hook in verdict.hooks if card is not None and hook not in card.hooks]


def _everyone(desk: Desk) -> list[Candidate]:
    """Return every plugin that a host would try: not what is disabled, nor what waits for a person."""
    from moryflow.plugins.consent import Consents

    consents = Consents(desk.home)
    return [
        _with_problem(row)
        for row in desk.rows()
        if row.candidate is not None
        and row.record.tier != "builtin"
        and row.record.status != "skipped"
        and not consents.is_waiting(row.candidate.target)
    ]


def _candidates(desk: Desk, what: str) -> list[Candidate]:
    """Return what is to be checked: every plugin of a name, or what lies at a path.

    :raises ConfigError: there is nothing.
    """
    path = Path(what).expanduser()
    looks = "/" in what or what.endswith(".py") or what.startswith((".", "~"))
    if looks or (path.is_dir() and (path / "pyproject.toml").is_file()):
        known = {row.candidate.target: row for row in desk.rows() if row.candidate is not None}
        found = _at(path.absolute())
        return [_with_problem(known[each.target]) if each.target in known else each for each in found]
    rows = desk.found(what, desk.rows())
    return [_with_problem(row) for row in rows if row.candidate is not None and row.record.tier != "builtin"] or [
        row.candidate for row in rows if row.candidate is not None
    ]


def _with_problem(row: Row) -> Candidate:
    """Return a candidate with what is known to be wrong with it, as that another has its name."""
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


# ---------------------------------------------------------------- Bisect

CANNOT_TELL = 125
"""What a judging command exits with when it cannot tell, as for ``git bisect run``."""
SHOWN = 3
"""Changes of the plugin that are shown."""


@click.command("bisect")
@click.argument("session", required=False)
@click.option("--bad-turn", "turn", metavar="N", required=True, help="The turn that is bad (a number from 1, or its id).")
@click.option("--expect", metavar="TEXT", help="The turn is good when its text contains TEXT.")
@click.option("--reject", metavar="TEXT", help="The turn is bad when its text contains TEXT.")
@click.option("--run", "judging", metavar="CMD", help="A command that reads the turn's text and exits with 0 if it is good.")
@document_options
def bisect(flags: Flags, session: str | None, turn: str, expect: str | None, reject: str | None, judging: str | None) -> None:
    """Find the plugin whose hooks made a turn of SESSION bad (default: the last session).

    Calls the hooks of the turn again with halves of your plugins on, without a model and without a tool. The turn's
    text is what the hooks made: prompt, messages, parameters, arguments, verdicts and results. Good or bad is said by
    --expect, --reject, --run (as for `git bisect run`: 0 good, 125 cannot tell, else bad), or by you.
    """

    async def work(host: Host) -> tuple[str, Culprit]:
        from moryflow.authoring.bisect import Bisection
        from moryflow.authoring.trace import recorded

        row = await find(host.store, session, flags)
        past = await recorded(host.store, row.id, outputs=True)
        bad = past.turn(turn)
        judge = _judge(expect, reject, judging, shlex.join(["moryflow", "plugin", "bisect", row.id, "--bad-turn", turn]))
        return row.id, await Bisection(host, past, bad, judge).find()

    name, found = with_host(flags, work)
    document = {
        "v": 1,
        "type": "bisect",
        "plugin": found.plugin,
        "needs": list(found.needs),
        "changed": [{"where": place, "before": before, "after": after} for place, before, after in found.changed],
        "rounds": [{"on": list(on), "good": good} for on, good in found.rounds],
    }
    following = f"moryflow trace {name} --turn {turn} --plugin {found.plugin}"
    show(flags, document, plain("\n".join([*_lines(found), "", f"next: {following}"])))


def _judge(expect: str | None, reject: str | None, judging: str | None, typed: str) -> Judge:
    """Return who says whether a turn is good.

    :param typed: the command without any of the three, for what to type instead.
    :raises ConfigError: several were named, or none and there is no terminal to ask at.
    """
    named = [each for each in (expect, reject, judging) if each is not None]
    if len(named) > 1:
        raise ConfigError("--expect, --reject and --run are three ways to say the same", next_step=f"{typed} --expect TEXT")
    if expect is not None:
        return lambda text, on, changed: expect in text
    if reject is not None:
        return lambda text, on, changed: reject not in text
    if judging is not None:
        return _by_command(judging, typed)
    if not at_terminal():
        said = "nobody can be asked here whether the turn is good; --expect, --reject or --run says it"
        raise ConfigError(said, next_step=f"{typed} --expect TEXT")
    return _by_person


def _by_command(command: str, typed: str) -> Judge:
    import subprocess

    words = shlex.split(command)

    def judge(text: str, on: Sequence[str], changed: str) -> bool:
        try:
            done = subprocess.run(words, input=text.encode("utf-8", "replace"), capture_output=True, check=False)
        except OSError as error:
            said = f"--run: {words[0]} cannot be run: {error.strerror}"
            raise ConfigError(said, next_step=f"{typed} --run PROGRAM") from error
        code = done.returncode
        said = (done.stdout + done.stderr).decode("utf-8", "replace")
        click.echo(plain(said), err=True, nl=False)
        if code == CANNOT_TELL or not 0 <= code < 128:
            state = "cannot tell" if code == CANNOT_TELL else f"ended with {code}"
            said = f"--run: the command {state} with {', '.join(on) or 'no plugin'} on"
            raise ConfigError(said, next_step=f"{typed}, and judge it yourself")
        click.echo(plain(f"{'good' if code == 0 else 'bad '}  with {', '.join(on) or 'no plugin of yours'}"), err=True)
        return code == 0

    return judge


def _by_person(text: str, on: Sequence[str], changed: str) -> bool:
    what = "this is another than without them" if on else "this is the turn"
    click.echo(plain(f"\n{changed}\n-- with {', '.join(on) or 'no plugin of yours'} on, {what}"), err=True)
    answer = click.prompt("good or bad", type=click.Choice(["good", "bad", "g", "b"]), show_choices=False, err=True)
    return answer.startswith("g")


def _lines(found: Culprit) -> list[str]:
    from moryflow.authoring.replay import first_difference

    lines = [f"{found.plugin} made the turn bad" + (f", together with {', '.join(found.needs)}" if found.needs else "")]
    for place, before, after in found.changed[:SHOWN]:
        change = first_difference(before, after)
        lines += [f"  {place}", *(f"    {line}" for line in (change.lines() if change else ()))]
    if len(found.changed) > SHOWN:
        lines.append(f"  and {len(found.changed) - SHOWN} places more")
    return [*lines, f"  found in {len(found.rounds)} runs of its hooks"]
