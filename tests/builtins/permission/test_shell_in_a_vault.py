"""Commands in a vault with a repository, secrets and what runs later: the decision that each gets, harmful and harmless."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy

from .conftest import build_policy
from .judging import decide, git, rules

DATA = Path(__file__).parents[2] / "data" / "permission" / "shell_vault.txt"
TRACKED = (
    "README.md", "src/a.py", "src/b/c.py", "Makefile", ".github/workflows/ci.yml", "package.json", "tests/test_a.py",
    ".env.example", "notes.md", "docs/x.md", "pyproject.toml", "sub/Makefile", "sub/package.json", ".vscode/settings.json",
    "scripts/run.sh",
)  # fmt: skip
IGNORED = (
    ".env",
    "sub/.env",
    "secrets/token.txt",
    "app/conf.pem",
    "node_modules/.bin/x",
    ".venv/bin/python",
    "a.7z",
    "a.rar",
    "a.jar",
)


@pytest.fixture(scope="module")
def vault(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vault as people have them; what is secret is ignored by git."""
    vault = tmp_path_factory.mktemp("judged") / "vault"
    for name in (*TRACKED, *IGNORED):
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text("x\n")
    (vault / ".gitignore").write_text(".env\n.venv\nnode_modules\n*.pem\nsecrets\n")
    git(vault, "init", "-q")
    git(vault, "add", "-A")
    git(vault, "commit", "-qm", "x")
    git(vault, "config", "core.hooksPath", "tools/hooks")
    return vault


def _sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the rules of each section and its cases, decision first."""
    text = DATA.read_text("utf-8").partition("\nRULES ")[2]
    for section in text.split("\nRULES "):
        head, *lines = section.splitlines()
        yield head, [line.partition(" ")[::2] for line in lines]


@pytest.mark.parametrize(
    ("written", "cases"), list(_sections()), ids=lambda value: value[:40] if isinstance(value, str) else ""
)
def test_each_command_gets_its_decision(written: str, cases: list[tuple[str, str]], vault: Path) -> None:
    """Neither laxer nor stricter than a person expects (SECURITY §2, R8, R9, R21, R35, R36)."""
    policy: Policy = build_policy(rules(*written.split(" | ")), vault=vault, user_home=vault.parent / "home")
    wrong = [f"{wanted} {command}: {found}" for wanted, command in cases
             if (found := decide(policy, command.replace("\\n", "\n"))) != wanted]  # fmt: skip
    assert not wrong
