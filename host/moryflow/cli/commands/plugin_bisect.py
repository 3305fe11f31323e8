"""``moryflow plugin bisect``: find the plugin whose hooks made a turn bad."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from moryflow_sdk import ConfigError

from moryflow.cli.open_host import with_host
from moryflow.cli.options import Flags, document_options, find
from moryflow.cli.terminal import at_terminal, plain, show

if TYPE_CHECKING:
    from moryflow.authoring.bisect import Culprit, Judge
    from moryflow.runtime.host import Host


CANNOT_TELL = 125
"""The exit code of a judging command that cannot tell, as for ``git bisect run``."""
SHOWN = 3
"""How many of the plugin's changes are shown."""


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
    """Return the function that judges whether a turn is good.

    :param typed: the command line without any of the three flags, for the next step of an error.
    :raises ConfigError: several flags were given, or none and there is no terminal to ask at.
    """
    named = [each for each in (expect, reject, judging) if each is not None]
    if len(named) > 1:
        raise ConfigError("--expect, --reject and --run exclude each other", next_step=f"{typed} --expect TEXT")
    if expect is not None:
        return lambda text, on, changed: expect in text
    if reject is not None:
        return lambda text, on, changed: reject not in text
    if judging is not None:
        return _by_command(judging, typed)
    if not at_terminal():
        message = "nobody can be asked here whether the turn is good; --expect, --reject or --run says it"
        raise ConfigError(message, next_step=f"{typed} --expect TEXT")
    return _by_person


def _by_command(command: str, typed: str) -> Judge:
    import subprocess

    words = shlex.split(command)

    def judge(text: str, on: Sequence[str], changed: str) -> bool:
        try:
            done = subprocess.run(words, input=text.encode("utf-8", "replace"), capture_output=True, check=False)
        except OSError as error:
            message = f"--run: {words[0]} cannot be run: {error.strerror}"
            raise ConfigError(message, next_step=f"{typed} --run PROGRAM") from error
        code = done.returncode
        output = (done.stdout + done.stderr).decode("utf-8", "replace")
        click.echo(plain(output), err=True, nl=False)
        if code == CANNOT_TELL or not 0 <= code < 128:
            state = "cannot tell" if code == CANNOT_TELL else f"ended with {code}"
            message = f"--run: the command {state} with {', '.join(on) or 'no plugin'} on"
            raise ConfigError(message, next_step=f"{typed}, and judge it yourself")
        click.echo(plain(f"{'good' if code == 0 else 'bad '}  with {', '.join(on) or 'no plugin of yours'}"), err=True)
        return code == 0

    return judge


def _by_person(text: str, on: Sequence[str], changed: str) -> bool:
    what = "the turn differs from the one without them" if on else "this is the turn"
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
