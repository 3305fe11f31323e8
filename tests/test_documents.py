"""The pages a person follows: every command shown is run, every output shown is compared.

A block ```console is run. What differs from run to run (times, ids) may differ, and a line ``[... the others]`` stands for
lines that the page leaves out; ``python tests/packaging/record_outputs.py`` writes the outputs. A comment above a block says
more: ``<!-- file: PATH -->`` writes it to that file, ``<!-- keys: a -->`` types these keys at the terminal in which it runs,
and ``<!-- terminal: NAME -->`` runs it in another terminal, where it goes on; a later block of that name without a command is
what is seen there next.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import forked_program
import moryflow
import moryflow_builtins
import moryflow_sdk
import pytest
from moryflow.testing import replies
from moryflow.testing.replies import LoopbackServer

sys.path.insert(0, str(Path(__file__).parent))
from document_terminals import Terminal, same, typed

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_FENCE = re.compile(
    r"(?:<!-- (?P<mark>\w+): (?P<what>[^\n]+?) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.DOTALL | re.MULTILINE
)
YOU = "/home/you"
"""The home folder of the person in the documentation."""
SITE = f"{YOU}/.venv/lib/python3.11/site-packages"
BUSY = re.compile(
    r"^.*\b(it has kept the whole host from running for|is being tried out in a process of its own|"
    r"recording (the|[\d,]+) files of);? .*\n",
    re.MULTILINE,
)
"""What a host says of a plugin, or of git, that was slow; on a busy machine that may be any."""
ANSWER = "A host for LLM agents: a small kernel, and everything else a plugin."


@dataclass
class Page:
    """A fresh home and folder in which a page's blocks happen, top to bottom."""

    home: Path
    folder: Path
    environ: dict[str, str]
    others: dict[str, Terminal] = field(default_factory=dict)

    def write(self, name: str, body: str) -> None:
        """Write a file that the page shows; ``~/.moryflow`` is the fresh home, and ``~`` the folder that it is in."""
        path = self.home.parent / name.removeprefix("~/") if name.startswith("~") else self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body, encoding="utf-8")
        path.chmod(0o600)

    def run(self, command: str, keys: str = "") -> str:
        """Run one shown command and return what a person would see; with `keys`, at a terminal where they type them."""
        if keys:
            return typed(command, keys, self.folder, self.environ)
        if command.startswith("export "):
            name, _, value = command.removeprefix("export ").partition("=")
            self.environ[name] = shlex.split(value)[0]
            return ""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.stdout

    def shown(self, text: str) -> str:
        """Return what was printed as a page shows it: of a person called you, on no machine of ours."""
        for package in (moryflow, moryflow_builtins, moryflow_sdk):
            text = text.replace(f"{Path(package.__file__).parents[1]}{os.sep}", f"{SITE}{os.sep}")
        return BUSY.sub("", text.replace(str(self.folder.parent), YOU))

    def elsewhere(self, name: str, body: str) -> None:
        """Begin a command in another terminal, which goes on; or see there what comes next."""
        command, _, expected = body.partition("\n") if body.startswith("$ ") else ("", "", body)
        if command:
            self.others[name] = Terminal(command[2:], self.folder, self.environ, self.shown)
        self.others[name].shows(expected.strip())

    def close(self) -> None:
        """End what the page has left running."""
        for terminal in self.others.values():
            terminal.close()


def steps(body: str) -> list[tuple[str, str]]:
    """Return (command, expected output) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif found and found[-1][0].endswith("\\"):
            found[-1] = (found[-1][0][:-1] + line.strip(), [])
        elif found:
            found[-1][1].append(line)
    return [(command, "\n".join(lines).strip()) for command, lines in found]


def play(page: str, place: Page) -> Iterator[tuple[str, str, str]]:
    """Do what a page says, from its beginning; yield each command, what the page shows of it, and what was printed."""
    for block in _FENCE.finditer(page):
        match block["mark"], block["kind"]:
            case "file", _:
                place.write(block["what"], block["body"])
            case "terminal", _:
                place.elsewhere(block["what"], block["body"])
            case mark, "console":
                keys = block["what"] if mark == "keys" else ""
                for command, expected in steps(block["body"]):
                    yield command, expected, place.shown(place.run(command, keys))


def test_no_output_begins_with_an_ellipsis():
    """A reader sees whole lines of what was printed; where some are left out, a line says which (issue C, 2)."""
    blocks = [(page.name, block) for page in PAGES for block in _FENCE.finditer(page.read_text(encoding="utf-8"))]
    shown = [(name, line) for name, block in blocks if block["kind"] == "console" for line in block["body"].splitlines()]
    assert len(shown) > 300
    hint = "python tests/packaging/record_outputs.py PAGE"
    assert [(name, line) for name, line in shown if line.lstrip().startswith("…") or line == "..."] == [], hint


@contextmanager
def begun(root: Path) -> Iterator[Page]:
    """A home and a folder below `root`, with a model that always says the same."""
    home, folder = root / ".moryflow", root / "notes"
    home.mkdir(mode=0o700)
    folder.mkdir()
    (folder / "README.md").write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    with LoopbackServer(otherwise=replies.text(ANSWER)) as server:
        path = os.pathsep.join([str(forked_program.folder()), str(Path(sys.executable).parent), os.environ["PATH"]])
        place = Page(home, folder, {"PATH": path, "HOME": str(root), "MORYFLOW_HOME": str(home), "OPENAI_BASE_URL": server.url})
        place.environ["PYTEST_ADDOPTS"] = "-p no:asyncio"  # one of our environment, which warns
        try:
            yield place
        finally:
            place.close()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix().removeprefix("docs/"))
def test_every_command_on_the_page_prints_what_it_says(page, tmp_path):
    """README and documentation are true: their commands are run, their outputs compared (S0.93, S4.2)."""
    ran = 0
    with begun(tmp_path) as place:
        for command, expected, actual in play(page.read_text(encoding="utf-8"), place):
            assert same(expected, actual), f"{page.name}: $ {command}\nshown:\n{expected}\nprinted:\n{actual}"
            ran += 1
    assert ran or page.name != "README.md"
