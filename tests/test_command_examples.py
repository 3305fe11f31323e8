"""The examples of docs/reference/cli.md: each is run in a home that has what it speaks of, or says why it is not.

One home is made, and put back before each example, so that they need no order. What stands for an id on the page is replaced
by one that is there.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "packaging"))
from cli_reference import example_lines
from test_documents import Page, begun

SHOUT = """from moryflow_sdk import hookimpl


@hookimpl
def tool_after(result):
    return result.replace(output=result.output.upper())
"""
WEATHER = f"""from pydantic import BaseModel, SecretStr
{SHOUT}

class Settings(BaseModel):
    apiKey: SecretStr | None = None


config_model = Settings
"""
FILES = {
    "notes.md": "Hello, Ada! Here is the lock file.\n",
    "asks.json": '[{"calls": [{"name": "bash", "arguments": {"command": "make"}}]}, "Done."]',
    "long.txt": "".join(f"line {number}\n" for number in range(3000)),
    "prompt.md": "You are brief.\n",
    "rules.json": '[{"domain": "read", "pattern": "*", "decision": "deny"}]',
    "cases.jsonl": '{"id": "1", "tool": "read", "args": {"path": "a.md"}, "expect": "allow"}\n',
    "shout.py": SHOUT,
    "~/.moryflow/plugins/shout.py": SHOUT,
    "~/.moryflow/plugins/weather.py": WEATHER,
    "~/.moryflow/skills/pdf/SKILL.md": "---\nname: pdf\ndescription: Read PDF files.\n---\nUse pdftotext.\n",
    "~/.moryflow/bin/xdg-open": "#!/bin/sh\n",
    "~/.moryflow/bin/open": "#!/bin/sh\n",
}
SETUP = (
    "git init -q",
    "moryflow new plugin word-count && moryflow new tool words -y && moryflow new agent reviewer",
    "moryflow run 'Build it' --on-ask fail; test $? = 4",
    "moryflow run 'Read my notes'",
    "moryflow session label 'the answer'",
    "moryflow run -c 'Search the long file'",
    "moryflow session export -o session.jsonl",
)
ANSWERS = (
    replies.calls(("bash", {"command": "make"})),
    replies.calls(("read", {"path": "notes.md"})),
    replies.text("They greet Ada."),
    replies.calls(("grep", {"pattern": "line", "path": "long.txt"})),
    replies.text("Every line says line."),
)
OTHERWISE = "## Goal\nRead the notes.\n## Progress\nDone."
"""What the model answers to anything else; it is a summary too."""
WORKTREE = "git add . && git -c user.name=Ada -c user.email=ada@example.org commit -qm x && moryflow run -q --worktree Go"
MORE = "moryflow run -c One && moryflow run -c Two && moryflow run -c Three"
BEFORE = {
    "moryflow permission remove": 'moryflow permission allow bash "git status *"',
    "moryflow permission undo": (
        "moryflow run -m script:asks.json Go --on-ask fail; read -r id session _ < <(moryflow approval list | tail -1) && "
        "moryflow approval reply $id always && moryflow run -r $session"
    ),
    "moryflow session redo": "moryflow session undo -y",
    "moryflow session worktree": WORKTREE,
    "moryflow session compact": MORE,
    "moryflow session undo-compaction": f"{MORE} && moryflow session compact",
    "moryflow memory-bank check": "moryflow memory-bank init",
}
"""What a person does before such an example."""
ANSWERED = {"moryflow session delete": " -y", "moryflow session redo": " -y", "moryflow plugin key set": " <<< sk-1"}
"""What is added where the example asks."""
GOES_ON = {"moryflow serve": "http://", "moryflow dev": "HELLO, ADA"}
"""What is shown by examples that go on until Ctrl-C."""


@dataclass
class Place:
    """The home in which the examples happen."""

    page: Page
    saved: Path
    ids: dict[str, str] = field(default_factory=dict[str, str])

    def run(self, command: str) -> None:
        """Run `command` with bash.

        :raises AssertionError: it did not end with exit code 0; with what it printed.
        """
        shown = self.page.run(f'set -o pipefail; {command}\necho "exit code $?"')
        assert shown.rstrip().endswith("exit code 0"), f"{command}\n{shown}"

    def save(self) -> None:
        """Keep what there is, and learn its ids."""
        for word, noun in (("3f9a", "session"), ("ap_1f2e3d", "approval"), ("8c1d", "output")):
            self.learn(word, noun)
        shutil.copytree(self.page.home.parent, self.saved, symlinks=True)

    def learn(self, word: str, noun: str) -> None:
        """Let `word` stand for the id of the first of what there is of that kind."""
        found = json.loads(self.page.run(f"moryflow {noun} list --json -q"))[0]
        self.ids[word] = found.get("id") or found["session"]

    def put_back(self) -> None:
        """Make home and folder as they were saved."""
        for folder in (self.page.home, self.page.folder):
            shutil.rmtree(folder)
            shutil.copytree(self.saved / folder.name, folder, symlinks=True)

    def filled_in(self, line: str) -> str:
        """Return `line` with the ids that are there, and with the answer to what it asks."""
        for word, found in self.ids.items():
            line = line.replace(word, found)
        return line + _of(ANSWERED, line)


def _of(table: dict[str, str], line: str) -> str:
    return next((value for start, value in table.items() if line.startswith(start)), "")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A home with sessions, an open question, an output, plugins, a tool, an agent and a skill."""
    root = tmp_path_factory.mktemp("examples")
    with begun(root) as page, LoopbackServer(*ANSWERS, otherwise=replies.text(OTHERWISE)) as server:
        page.environ |= {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-0"}
        page.environ["PATH"] = f"{page.home / 'bin'}:{page.environ['PATH']}"
        page.write(
            "~/.moryflow/config.jsonc", '{"keepInputs": true, "agents": {"runtime": {"compaction": {"keepRecentTokens": 1}}}}'
        )
        for name, body in FILES.items():
            page.write(name, body)
        for program in (page.home / "bin").iterdir():
            program.chmod(0o700)
        found = Place(page, root.with_name(f"{root.name}-saved"))
        for command in SETUP:
            found.run(command)
        found.save()
        yield found


@pytest.mark.parametrize("line", [line for line, why_not in example_lines() if not why_not])
def test_an_example_of_the_reference_runs(line, place):
    """It ends with exit code 0; one that goes on shows what it is for."""
    place.put_back()
    if before := _of(BEFORE, line):
        place.run(before)
    if before == WORKTREE:
        place.learn("5e7a", "session worktree")
    if any(line.startswith(start) for start in GOES_ON):
        try:
            # The page server.md listens on the port of the documents, perhaps at the same time in another process.
            line = f"{line} --port 0" if line.startswith("moryflow serve") else line
            place.page.elsewhere(line, f"$ {line}\n…{_of(GOES_ON, line)}")
        finally:
            place.page.close()
            place.page.others.clear()
    else:
        place.run(place.filled_in(line))


def test_an_example_that_is_not_run_says_why():
    """They are few."""
    assert sorted(line for line, why_not in example_lines() if why_not) == [
        "moryflow eval cases.yaml --without word-count",
        "moryflow import claude --check",
        'moryflow llm embed sentence-transformers/all-MiniLM-L6-v2 "what shall be found"',
        "moryflow llm remove llm-echo",
        "moryflow mcp add files --cwd . -- npx -y @modelcontextprotocol/server-filesystem .",
        "moryflow mcp login hub",
        "moryflow mcp logout hub",
        "moryflow mcp remove files",
        "moryflow mcp review files",
        "moryflow mcp show files",
        "moryflow mcp test files",
        "moryflow model install local",
        "moryflow plugin install -e ./moryflow-word-count",
        "moryflow plugin marketplace add ./market",
        "moryflow plugin marketplace search review",
        "moryflow plugin uninstall word-count",
        "moryflow plugin update word-count",
        'moryflow schedule add "0 7 * * 1-5" "Write the daily note" --vault notes',
        "moryflow schedule list",
        "moryflow schedule remove 3adf10be",
        "moryflow serve tokens add ada",
        "moryflow serve tokens list",
        "moryflow serve tokens revoke ada",
        "moryflow worker --queue notes --concurrency 8",
        "moryflow worker drain",
        "moryflow worker limit openai --requests 500 --tokens 200000",
        "moryflow worker status",
    ]
