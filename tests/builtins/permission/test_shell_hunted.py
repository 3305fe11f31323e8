"""Commands that were made up to get past the judge, in agent mode and in others, and harmless ones beside them."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command
from moryflow_sdk.verdicts import settle

DATA = Path(__file__).parents[2] / "data"
RULESETS = json.loads((DATA / "corpus" / "shell_rulesets.json").read_text("utf-8"))
ORDER = {"allow": 0, "ask": 1, "deny": 2, "stop": 2}
SIGNS = str.maketrans({"␤": "\n", "␉": "\t", "␍": "\r", "␈": "\b"})


def _sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the head of each section, a rule set and a mode, and its cases, decision first."""
    text = (DATA / "permission" / "shell_hunted.txt").read_text("utf-8").partition("\n[")[2]
    for section in text.split("\n["):
        head, *lines = section.splitlines()
        yield head.rstrip("]"), [(line.partition(" ")[0], line.partition(" ")[2]) for line in lines if line]


@pytest.mark.parametrize(("head", "cases"), list(_sections()), ids=lambda value: value if isinstance(value, str) else "")
def test_each_command_gets_no_more_than_it_may(
    head: str, cases: list[tuple[str, str]], make_policy: Callable[..., Policy]
) -> None:
    """No attack is judged more freely than written, and nothing harmless is asked about (SECURITY §4, R6, R8, R9, R14)."""
    ruleset, _, mode = head.partition(" ")
    policy = make_policy(RULESETS[ruleset]["rules"])
    wrong: list[str] = []
    for wanted, command in cases:
        verdict = judge_command(policy, command.translate(SIGNS)).verdict
        found = settle(verdict, mode="full_access" if mode == "full_access" else "agent", headless=mode == "headless")
        if ORDER[found] < ORDER[wanted] or (wanted == "allow" and found != "allow"):
            wrong.append(f"{wanted} {command}: {found}")
    assert wrong == []


SPELLINGS = (
    "{home}/config.jsonc",
    "~/.moryflow/x",
    "~{user}/.moryflow/x",
    "$HOME/.moryflow/x",
    "${{HOME%/}}/.moryflow/x",
)
WRITERS = (
    "foo {}",
    "foo --to={}",
    "foo -o{}",
    "foo a:{}:b",
    "python3 x.py {}",
    "tee {} < a",
    "ls {} | xargs foo",
    "X={}; foo $X",
)


@pytest.mark.parametrize("command", WRITERS)
@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_moryflows_own_folder_is_open_to_a_program_that_may_write(
    command: str, path: str, tmp_path: Path, make_policy: Callable[..., Policy]
) -> None:
    """In full access too; what only reads is asked about as elsewhere outside the vault (R14)."""
    person = pwd.getpwuid(os.getuid())
    policy = make_policy(vault=tmp_path, user_home=Path(person.pw_dir))
    shown = path.format(home=f"{person.pw_dir}/.moryflow", user=person.pw_name)
    verdict = judge_command(policy, command.format(shown)).verdict
    assert settle(verdict, mode="full_access", headless=False) == "deny"
    read = judge_command(policy, f"cat {person.pw_dir}/.moryflow/config.jsonc").verdict
    assert settle(read, mode="full_access", headless=False) == "allow"
