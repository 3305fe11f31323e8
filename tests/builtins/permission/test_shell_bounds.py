"""Texts that would take long to judge: what is beyond a limit is not understood, and no mode lifts that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command
from moryflow_builtins.permission.shell.judge import MAX_WORK
from moryflow_builtins.permission.shell.lexer import read
from moryflow_builtins.permission.shell.tables import PLAIN_VERBS, RUNNERS, WRAPPERS
from moryflow_sdk.verdicts import settle

from .judging import rules

MANY = MAX_WORK + 1
NAMES = "ls grep find sed awk jq git tar make npm docker curl python bash env rm cp uniq xxd source export moryflow".split()  # noqa: SIM905
LONG = {
    "commands": ";".join(f"ls {number}" for number in range(MANY)),
    "words": "foo " + " ".join(f"a{number}/b" for number in range(2 * MANY)),
    "words in many folders": "cd a; cd b; cd c; cat " + " ".join(f"x{number}" for number in range(MANY)),
    "redirections": "echo " + " ".join(f">a{number}" for number in range(MANY)),
    "texts": "".join(f"eval 'ls {number}';" for number in range(MANY)),
    "choices of a folder": "".join(f"cd a{number} || foo x{number}/a || " for number in range(2_000)) + "true",
}


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_what_is_beyond_a_limit_is_asked_about_in_every_mode(text: str, make_policy: Callable[..., Policy]) -> None:
    """Not even a rule that allows everything, nor full access, covers what was not looked at (R6, R37, SECURITY §4)."""
    verdict = judge_command(make_policy(rules("+*")), text).verdict
    assert settle(verdict, mode="full_access", headless=False) == "ask"


@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_behind_a_limit_denials_and_moryflows_own_folder_are_found(text: str, make_policy: Callable[..., Policy]) -> None:
    """A denied command may stand behind as many others as it likes, and so may a path in the folder (R6, R14)."""
    policy = make_policy(rules("+*", "-rm *"))
    assert judge_command(policy, f"{text};rm x").verdict.decision == "deny"
    assert judge_command(policy, f"tee ~/.moryflow/x;{text}").verdict.decision == "deny"


SLOW = {
    "homes in code": "python3 -c '" + "HOME " * 24_000 + "'",
    "quotes in code": "python3 -c '" + '"~"' * 40_000 + "'",
    "fed programs": "python3<<<x\n" * 2_000 + "# " + "a/b " * 20_000,
}


@pytest.mark.parametrize("text", SLOW.values(), ids=SLOW)
def test_a_text_is_looked_at_as_code_in_a_time_that_grows_with_it(text: str, make_policy: Callable[..., Policy]) -> None:
    """These took minutes, during which nothing else in the process ran; now half a second (R24)."""
    assert judge_command(make_policy(rules("+ls")), text).verdict.decision == "ask"


def test_a_text_with_many_quotes_is_read_in_a_time_that_grows_with_it(expect_linear_growth: Callable[..., None]) -> None:
    """With a copy of the rest for each of them, 240 KB took two seconds and a half (R24)."""
    expect_linear_growth(lambda number: lambda: read("echo " + "'a'" * number), 10_000)


GROWS = {
    "commands": "ls a{}; ",
    "pipes": "cat a{} | ",
    "words": "foo a{}/b ",
    "substitutions": "echo $(ls {}) ",
    "redirections": "echo x > a{}; ",
    "not read": "rm a{} `x`; ",
    "quotes": "'a{}'",
}


@pytest.mark.parametrize("piece", GROWS.values(), ids=GROWS)
def test_judging_takes_a_time_that_grows_with_the_text(
    piece: str, make_policy: Callable[..., Policy], expect_linear_growth: Callable[..., None]
) -> None:
    """Whatever a long text is made of, twice of it takes about twice the time (R24, R27)."""
    policy = make_policy(rules("+ls *", "+cat *", "-rm x"))
    expect_linear_growth(
        lambda number: lambda: judge_command(policy, "".join(piece.format(one) for one in range(number)) + "ls"), 400
    )


def test_braces_stand_for_a_bounded_number_of_words(make_policy: Callable[..., Policy]) -> None:
    """Many small sequences in one command would be sixty times as long as what was written (R24, SECURITY §4)."""
    policy = make_policy(rules("+echo *"))
    assert judge_command(policy, "echo " + "{1..500} " * 8).verdict.decision == "allow"
    assert judge_command(policy, "echo " + "{1..500} " * 80).verdict.decision == "ask"


@pytest.mark.parametrize("form", ["{}/ -c a", "/{}//", "{} ''", "{} -c", "{} - $x", "{} run -- {{a,b}}", "{} --x= a: :b @"])
def test_every_program_with_odd_words_gets_an_answer(form: str, make_policy: Callable[..., Policy]) -> None:
    """No program that the judge knows makes it fail, however it is spelled (SECURITY §2.7)."""
    policy = make_policy([{"domain": "bash", "pattern": "*", "decision": "allow"}])
    for name in (*NAMES, *PLAIN_VERBS, *RUNNERS, *WRAPPERS):
        assert judge_command(policy, form.format(name)).parts
