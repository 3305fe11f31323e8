"""``moryflow plugin bisect``: which plugin made a turn bad."""

from __future__ import annotations

import shlex
import sys

import pytest

from .scripts import ANN, QUIET, SHOUT

ADD = """
    from moryflow_sdk import hookimpl

    @hookimpl
    def tool_after(result):
        return result.replace(output=result.output + {text!r}) if {when!r} in result.output else None
"""


@pytest.fixture(scope="module")
def crowd(shared_desk):
    """A desk with six plugins, one of which ruins the second turn."""
    desk = shared_desk
    desk.plugin("greeter", SHOUT.replace(".upper()", ""))
    for name in ("alpha", "beta", "delta", "zeta"):
        desk.plugin(name, QUIET)
    desk.plugin("gamma", ADD.format(text=" RUINED", when="hello"))
    desk.turn("nothing yet")
    assert desk.turn({"calls": [ANN]}, "done", again=True).code == 0
    return desk


def test_the_plugin_that_made_the_turn_bad_is_found_by_halves(crowd) -> None:
    """One of many, in about as many runs as the logarithm of their number (CONTRACT 1)."""
    found = crowd("plugin", "bisect", "--bad-turn", "2", "--reject", "RUINED", "--json").json
    assert (found["plugin"], found["needs"]) == ("gamma", [])
    suspects = max(len(run["on"]) for run in found["rounds"])
    assert len(found["rounds"]) <= 3 + suspects.bit_length() < suspects
    change = found["changed"][0]
    assert change["where"].startswith("turn 2, step 1, tool.after greet")
    assert (change["before"], change["after"]) == ("ok\nhello Ann", "ok\nhello Ann RUINED")


def test_a_command_judges_as_for_git_bisect_run(crowd) -> None:
    """It reads the turn; exit code 0 is good, 125 cannot tell (CONTRACT 1)."""
    code = "import sys; sys.exit('RUINED' in sys.stdin.read())"
    done = crowd("plugin", "bisect", "--bad-turn", "2", "--run", f'{sys.executable} -c "{code}"')
    assert done.code == 0 and done.out.startswith("gamma made the turn bad")
    assert "moryflow trace" in done.out and "--plugin gamma" in done.out
    unsure = crowd("plugin", "bisect", "--bad-turn", "2", "--run", f'{sys.executable} -c "exit(125)"')
    assert (unsure.code, "cannot tell" in unsure.err) == (2, True)


def test_those_that_do_harm_only_together_are_all_named(desk) -> None:
    """The one that tipped it, and what it needs; one that only stood between is not among them (CONTRACT 1)."""
    desk.plugin("greeter", SHOUT.replace(".upper()", ""))
    desk.plugin("alpha", ADD.format(text=" RUINED", when="hello"))
    desk.plugin("beta", QUIET)
    desk.plugin("kappa", ADD.format(text=" SPOILED", when="RUINED"))
    desk.plugin("omega", ADD.format(text=" WORSE", when="SPOILED"))
    desk.turn({"calls": [ANN]}, "done")
    found = desk("plugin", "bisect", "--bad-turn", "1", "--reject", "WORSE", "--json").json
    assert (found["plugin"], found["needs"]) == ("omega", ["alpha", "kappa"])


def test_a_turn_that_no_plugin_made_bad_is_said_to_be_so(crowd) -> None:
    """And where else to look."""
    without = crowd("plugin", "bisect", "--bad-turn", "2", "--expect", "never said")
    assert (without.code, "without any plugin of yours" in without.err) == (2, True)
    good = crowd("plugin", "bisect", "--bad-turn", "2", "--reject", "never said")
    assert (good.code, "good with every plugin" in good.err) == (2, True)


def test_without_a_terminal_the_judge_must_be_named(crowd) -> None:
    """Nobody is asked where nobody answers; what to type names this session and this turn, and works (CONTRACT 1)."""
    session = crowd("session", "list", "--json").json[0]["id"]
    refused = crowd("plugin", "bisect", "--bad-turn", "1")
    (typed,) = (line.strip() for line in refused.err.splitlines() if line.strip().startswith("next: "))
    assert (refused.code, typed) == (2, f"next: moryflow plugin bisect {session} --bad-turn 1 --expect TEXT")
    assert crowd(*shlex.split(typed)[2:]).err.startswith("moryflow: turn 1 is bad without any plugin of yours too")


def test_a_turn_that_is_not_there_is_said_before_anybody_is_asked(crowd) -> None:
    """The session's turns are counted, and the command that lists them is named (CONTRACT 1)."""
    session = crowd("session", "list", "--json").json[0]["id"]
    refused = crowd("plugin", "bisect", session, "--bad-turn", "9")
    assert (refused.code, "there is no turn '9'; it has 2 turns" in refused.err) == (2, True)
    assert f"next: moryflow trace {session}" in refused.err
