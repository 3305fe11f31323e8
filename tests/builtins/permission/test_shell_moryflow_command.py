"""The program ``moryflow``, started by a tool: it looks, and loosens nothing (R38)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest
from moryflow.cli import COMMANDS, cli
from moryflow_builtins.permission.cli import PRESETS, permission
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import judge_command
from moryflow_builtins.permission.shell.tables import OWN_CHANGES as CHANGES
from moryflow_builtins.permission.shell.tables import OWN_READS as READS
from moryflow_sdk.verdicts import settle

MakePolicy = Callable[..., Policy]
CHANGE = "permission allow bash 'sudo *'"
FORMS = {
    "plain": "moryflow {}",
    "by its path": ".venv/bin/moryflow {}",
    "by an absolute path": "/usr/local/bin/moryflow {}",
    "in capitals": "Moryflow.EXE {}",
    "flags first": "moryflow --vault . --json {}",
    "a flag nobody knows first": "moryflow --newer thing {}",
    "flags between": "moryflow -q -y {}",
    "module": "python -m moryflow {}",
    "module in one word": "python3 -mmoryflow {}",
    "module with options": "python3.11 -I -W ignore -m moryflow {}",
    "script of an interpreter": ".venv/bin/python .venv/bin/moryflow {}",
    "main file": "python host/moryflow/__main__.py {}",
    "env": "env -i PATH=/bin moryflow {}",
    "mark removed": "env -u MORYFLOW_CALL moryflow {}",
    "assignment": "MORYFLOW_CALL= moryflow {}",
    "uv": "uv run moryflow {}",
    "uv with a package": "uv run --with rich moryflow {}",
    "uvx": "uvx moryflow {}",
    "uv tool": "uv tool run moryflow {}",
    "pipx": "pipx run moryflow {}",
    "poetry": "poetry run python -m moryflow {}",
    "coverage": "coverage run -m moryflow {}",
    "timeout": "timeout 5 nice moryflow {}",
    "nobody knows it": "withcare --fast moryflow {}",
    "command": "command moryflow {}",
    "xargs": "echo '*' | xargs moryflow {}",
    "find": "find . -name x -exec moryflow {} ';'",
    "shell": 'sh -c "moryflow {}"',
    "shell with an expansion": 'bash -c "moryflow {} $X"',
    "eval": 'eval "moryflow {}"',
    "fed into a shell": 'echo "moryflow {}" | sh',
    "here-document": "bash <<END\nmoryflow {}\nEND",
    "here-document with an expansion": "bash <<END\nmoryflow {} $X\nEND",
    "list": "true && moryflow {}",
    "substitution": "echo $(moryflow {})",
    "function": "f() {{ moryflow {}; }}; f",
    "does not parse": "if moryflow {}",
    "a name known only when it runs": "$M {}",
}


def _settled(policy: Policy, command: str, mode: str) -> str:
    return settle(judge_command(policy, command).verdict, mode=mode, headless=False)


@pytest.fixture
def trusting(make_policy: MakePolicy) -> Policy:
    """The most trusting preset, and a rule that names the program."""
    rules = [*PRESETS["trusting"].rules, *({"domain": "bash", "pattern": p, "decision": "allow"} for p in ("moryflow *", "*"))]
    return make_policy(rules)


@pytest.mark.parametrize("mode", ["agent", "full_access"])
@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_the_program_changes_a_rule(form: str, mode: str, trusting: Policy) -> None:
    """Under a rule for every command and in full access too (R38, R6)."""
    assert _settled(trusting, FORMS[form].format(CHANGE), mode) == "deny"


@pytest.mark.parametrize("words", sorted(CHANGES))
def test_every_verb_that_changes_is_refused(words: str, trusting: Policy, make_policy: MakePolicy) -> None:
    """Permissions, plugins, configuration, answers to questions; an exact rule opens none (R38)."""
    exact = make_policy([{"domain": "bash", "pattern": f"moryflow {words} x", "decision": "allow"}])
    for policy in (trusting, exact):
        assert _settled(policy, f"moryflow {words} x", "full_access") == "deny"
    plural = " ".join((f"{words.partition(' ')[0]}s", words.partition(" ")[2]))
    assert _settled(trusting, f"moryflow {plural} x", "agent") == "deny"


@pytest.mark.parametrize("words", sorted(READS - {""}))
def test_verbs_that_look_are_commands_like_any_other(words: str, trusting: Policy, make_policy: MakePolicy) -> None:
    """A rule may cover them; without one they ask (R38, R7)."""
    assert _settled(trusting, f"moryflow {words} x", "agent") == "allow"
    assert _settled(make_policy(), f"moryflow {words} x", "agent") == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "moryflow --help",
        "moryflow --version",
        "moryflow permission allow --help",
        "python -m moryflow permission rules --json",
        "uv run moryflow plugin list",
        "moryflow permission explain bash 'moryflow permission allow bash x'",
        "moryflow session search 'permission allow'",
        "grep -rn 'moryflow permission allow' docs",
        "git commit -m 'moryflow permission allow says more'",
        "echo moryflow permission allow",
        "grep -rn 'moryflow serve' docs",
        "python -c 'import moryflow_sdk; print(moryflow_sdk.__all__)'",
    ],
)
def test_what_only_names_a_change_is_not_one(command: str, make_policy: MakePolicy) -> None:
    """Help, and words that are data, are not refused (R38)."""
    exact = make_policy([{"domain": "bash", "pattern": command, "decision": "allow"}])
    assert _settled(exact, command, "agent") == "allow"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("moryflow approval reply a1 always --message --help", "deny"),
        ("moryflow run --mode full_access x", "deny"),
        ("moryflow run --mode=full_access x", "deny"),
        ("moryflow --mode full_access run x", "deny"),
        ("moryflow run --config '{}' x", "deny"),
        ("moryflow --config x.json chat", "deny"),
        ("moryflow tool run bash --mode full_access -y", "deny"),
        ("moryflow dev --run 'permission allow bash x'", "deny"),
        ("python -c \"import subprocess; subprocess.run(['moryflow', 'permission', 'allow', 'bash', '*'])\"", "deny"),
        ('node -e \'require("child_process").execSync("moryflow config set a b")\'', "deny"),
        ('node -e \'require("child_process").spawn("moryflow", ["serve", "--link"])\'', "deny"),
        ("moryflow $X allow bash x", "ask"),
        ("moryflow permission $X bash x", "ask"),
        ("xargs moryflow", "ask"),
        ("xargs moryflow permission", "ask"),
    ],
)
def test_freer_turns_and_hidden_verbs_pass_in_no_mode(command: str, decision: str, trusting: Policy) -> None:
    """A nested turn is not freer than its tool; a verb that is not known is asked about in full access too (R38, R24)."""
    assert _settled(trusting, command, "full_access") == decision


@pytest.mark.parametrize(
    "command",
    [
        "moryflow run hello",
        "moryflow frobnicate",
        "moryflow session delete x",
        "moryflow plugin check x",
        "moryflow trace export --otlp http://example.org --content",
        "moryflow --json trace export x",
    ],
)
def test_other_verbs_ask_under_a_wildcard(command: str, make_policy: MakePolicy) -> None:
    """What is not known to look is not covered by a rule over the program (R38, R8)."""
    wide = make_policy([{"domain": "bash", "pattern": "moryflow *", "decision": "allow"}])
    assert _settled(wide, command, "agent") == "ask"


def test_a_link_to_the_program_is_the_program(tmp_path: Path, make_policy: MakePolicy) -> None:
    """The name of a link says nothing (R38, R10)."""
    (tmp_path / "vault" / "bin").mkdir(parents=True)
    (tmp_path / "vault" / "bin" / "moryflow").write_text("")
    (tmp_path / "vault" / "m").symlink_to("bin/moryflow")
    policy = make_policy([{"domain": "bash", "pattern": "*", "decision": "allow"}], vault=tmp_path / "vault")
    assert _settled(policy, f"./m {CHANGE}", "full_access") == "deny"


def _verbs(command: click.Command, words: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(words)
        return
    for name in command.list_commands(click.Context(command)):
        verb = command.get_command(click.Context(command), name)
        assert verb is not None
        yield from _verbs(verb, (*words, name))


OTHERS = {
    "run", "chat", "dev", "replay", "tool run", "tool check", "hook fire", "plugin check", "new plugin",
    "session compact", "session delete", "session export", "session fork", "session import", "session label",
    "session redo", "session summary", "session switch", "session undo", "session undo-compaction", "trace export",
}  # fmt: skip
"""They start turns, run code, change sessions or send them somewhere: asked about unless a rule names them."""


def test_every_verb_of_the_program_is_thought_of() -> None:
    """A new command stands in one of the tables, so that none that changes something is forgotten (R38)."""
    names = [name for name in COMMANDS if name != "completion"]
    found = {words for name in names for words in _verbs(cli.get_command(click.Context(cli), name), (name,))}  # type: ignore[arg-type]
    found |= set(_verbs(permission, ("permission",)))
    assert found - CHANGES - READS == OTHERS
