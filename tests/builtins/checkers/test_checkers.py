"""Checkers and formatters after edits: small real ones, in real steps (issue F)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow.plugins.manifest import settings_of_plugins
from moryflow.testing import IsolatedHost
from moryflow_builtins.checkers import CheckerSettings, doctor
from moryflow_builtins.checkers.run import new_problems, read_problems

# The interpreter itself: the sandbox hides a virtual environment in a temporary folder.
PYTHON = str(Path(sys.executable).resolve())
# Each line with the word bad is a problem. It counts its runs.
CHECKER = """
    import sys
    from pathlib import Path
    Path("runs").open("a").write("x")
    found = [(f, n, l) for f in sys.argv[1:] for n, l in enumerate(Path(f).read_text().splitlines(), 1) if "bad" in l]
    for file, number, line in found:
        print(f"{file}:{number}:1: E1 bad: {line.strip()}")
    sys.exit(bool(found))
"""
FORMATTER = """
    import sys
    from pathlib import Path
    for file in sys.argv[1:]:
        Path(file).write_text(Path(file).read_text().replace(" =1", " = 1"))
"""


class Desk:
    """A host with checkers that are Python scripts."""

    def __init__(self, host: IsolatedHost) -> None:
        self.host = host
        self.commands: list[Any] = []
        self.session: Any = None

    def add(self, name: str, code: str, glob: str = "*.txt", **more: Any) -> None:
        self.write(f"{name}.py", dedent(code))  # in the vault, because the sandbox hides other temporary files
        files = "" if more.get("formatter") else " {files}"
        self.commands.append({"glob": glob, "command": f"{PYTHON} {name}.py{files}", "name": name, **more})
        self.use(*self.commands)

    def use(self, *commands: Any, **more: Any) -> None:
        self.host.configure({"agents": {"runtime": {"checkers": {"commands": list(commands)}, **more}}})

    def write(self, name: str, text: str) -> None:
        (self.host.vault / name).write_text(text, "utf-8")

    def step(self, *calls: dict[str, Any]) -> list[str]:
        """Run one step with these calls; return their outputs, as the model reads them."""
        self.session = self.session or self.host.session()
        self.host.run("go", [{"calls": list(calls)}, "done"], session=self.session)
        return [message.text for message in self.host.model.requests[-1].messages if message.role == "tool"][-len(calls) :]

    def notices(self) -> list[str]:
        return [str(event.data["text"]) for event in self.host.events if event.is_one_of(("plugin.checkers.notice",))]


def write(path: str, content: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"path": path, "content": content}}


@pytest.fixture
def desk(moryflow: IsolatedHost) -> Desk:
    """Nothing is named yet."""
    return Desk(moryflow)


def test_only_what_is_new_is_said_with_file_and_line(desk: Desk) -> None:
    """What was there before the edit is not, also where its line has moved."""
    desk.add("small", CHECKER)
    desk.write("a.txt", "bad one\nfine\n")
    (output,) = desk.step(write("a.txt", "first\nbad one\nbad two\n"))
    assert "new problem (small): a.txt:3: E1 bad: bad two" in output and "a.txt:2" not in output
    (output,) = desk.step(write("a.txt", "fine\n"))
    assert "new problem" not in output


def test_it_runs_once_after_the_last_edit_of_a_step(desk: Desk) -> None:
    """Not after each: once with both files, below the last one's result; a file that is new has no state before."""
    desk.add("small", CHECKER)
    first, _, last = desk.step(write("a.txt", "bad\n"), {"name": "ls", "arguments": {}}, write("b.txt", "bad\n"))
    assert "new problem" not in first and "a.txt:1" in last and "b.txt:1" in last
    assert (desk.host.vault / "runs").read_text() == "x"


def test_a_last_edit_that_fails_still_ends_the_step(desk: Desk) -> None:
    """What was edited before it is checked."""
    desk.add("small", CHECKER)
    edit = {"name": "edit", "arguments": {"path": "none.txt", "old_string": "a", "new_string": "b"}}
    assert "new problem (small): a.txt:1" in desk.step(write("a.txt", "bad\n"), edit)[-1]


def test_a_command_without_files_is_about_the_whole_folder(desk: Desk) -> None:
    """It runs once before a step and once after it, also where the edited file is deleted."""
    desk.add("whole", CHECKER.replace("sys.argv[1:]", "sorted(map(str, Path().glob('*.txt')))"))
    desk.use({**desk.commands[0], "command": desk.commands[0]["command"].removesuffix(" {files}")})
    desk.write("old.txt", "bad\n")
    delete = {"name": "delete", "arguments": {"path": "old.txt"}}
    output = desk.step(write("a.txt", "bad\n"), delete)[-1]
    assert output == "deleted old.txt\nnew problem (whole): a.txt:1: E1 bad: bad"
    assert (desk.host.vault / "runs").read_text() == "xx"


def test_at_most_ten_lines(desk: Desk) -> None:
    """The last of them says how many are left out."""
    desk.add("small", CHECKER)
    (output,) = desk.step(write("a.txt", "".join(f"bad {number}\n" for number in range(30))))
    assert output.count("new problem (") == 9 and output.endswith("and 21 more new problems")


def test_a_formatters_change_is_told_and_undone_with_the_edit(desk: Desk) -> None:
    """It belongs to the edit's result and to its snapshot; checkers see the formatted file."""
    desk.add("neat", FORMATTER, formatter=True)
    desk.write("a.txt", "old\n")
    first, output = desk.step(write("a.txt", "x =1\ny\n"), write("b.txt", "fine\n"))
    assert "a.txt: formatted by neat, 1 line\n@@ -1 +1 @@\n-x =1\n+x = 1" in output and "formatted" not in first
    assert (desk.host.vault / "a.txt").read_text() == "x = 1\ny\n"
    assert "2 files restored" in desk.host.slash("/undo yes", session=desk.session).text
    assert (desk.host.vault / "a.txt").read_text() == "old\n" and not (desk.host.vault / "b.txt").exists()


def test_a_formatter_that_only_ends_the_last_line(desk: Desk) -> None:
    """It is told without a diff."""
    desk.add("ends", "import sys\nopen(sys.argv[1], 'a').write('\\n')", formatter=True)
    assert desk.step(write("a.txt", "x"))[0].endswith("a.txt: formatted by ends, only the ends of lines")


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_failing_checker_is_named_once_and_changes_nothing(desk: Desk, code: str) -> None:
    """Also a formatter that fails half way: the file is as the edit left it."""
    desk.add("broken", code)
    desk.add("half", f"import sys\nopen(sys.argv[1], 'w').close()\n{code}", formatter=True)
    (output,) = desk.step(write("a.txt", "x\n"))
    assert output == "created a.txt" and (desk.host.vault / "a.txt").read_text() == "x\n"
    desk.step(write("a.txt", "y\n"))
    notices = desk.notices()
    assert len([text for text in notices if "the checker broken failed" in text]) == 1
    assert len([text for text in notices if "the checker half failed" in text]) == 1


def test_a_checker_that_hangs_is_stopped_and_not_run_again(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold up every edit; the next session tries again."""
    monkeypatch.setattr("moryflow_builtins.checkers.run.SECONDS", 0.5)
    desk.add("slow", "open('runs', 'a').write('x')\nimport time\ntime.sleep(600)")
    desk.write("a.txt", "x\n")
    for text in ("y", "z"):
        assert "new problem" not in desk.step(write("a.txt", text))[0]
    assert (desk.host.vault / "runs").read_text() in ("", "x")


def test_presets_and_missing_programs(desk: Desk) -> None:
    """They are named by their name alone, and run without a sandbox too; a program that is missing is named."""
    no_sandbox = [{"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}]
    missing = {"glob": "*", "command": "no-such-program {files}"}
    desk.use("ruff", "ruff-format", missing, permission={"rules": no_sandbox})
    desk.write("a.py", "")
    (output,) = desk.step(write("a.py", "import os\nx=1\n"))
    assert "new problem (ruff): a.py:1: F401" in output and "+x = 1" in output
    assert len([text for text in desk.notices() if "the program 'no-such-program' is not found" in text]) == 1
    found = list(doctor(CheckerSettings(commands=("ruff", "tsc"))))
    assert found[-1][0] == "ok" and "would work here: ruff, ruff-format" in found[-1][1]


def test_nothing_runs_until_it_is_named(desk: Desk) -> None:
    """The default is an empty list, and globs choose among what is named."""
    assert CheckerSettings().commands == ()
    desk.add("small", CHECKER, glob="*.md,docs/*")
    (output,) = desk.step(write("a.txt", "bad\n"))
    assert "new problem" not in output and not (desk.host.vault / "runs").exists()


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("a.ts(2,5): error TS2322: no", "error TS2322: no"),
        ("a.ts:2:5: F401 unused", "F401 unused"),
        ("a.ts:2: error: no  [arg-type]", "error: no [arg-type]"),
        ("{vault}/a.ts\n  {vault}/a.ts:2:5 - error: no", "error: no"),
        ("\n{vault}/a.ts\n  2:5  error  no  semi\n\n1 problem", "error no semi"),
    ],
)
def test_the_lines_of_the_presets_are_read(tmp_path: Path, output: str, text: str) -> None:
    """tsc, ruff, mypy, pyright, eslint; a line without a file that is there is none."""
    (tmp_path / "a.ts").write_text("one\ntwo\n", "utf-8")
    (found,) = read_problems(output.replace("{vault}", str(tmp_path)) + "\n12:30: done\n", tmp_path)
    assert (found.file, found.line, found.text, found.source) == ("a.ts", 2, text, "two")


def test_of_two_alike_the_one_on_another_line_is_new(tmp_path: Path) -> None:
    """Messages that name lines move with them."""
    (tmp_path / "a").write_text("keep\n", "utf-8")
    before = read_problems("a:1: again, see line 9", tmp_path)
    (tmp_path / "a").write_text("other\nkeep\n", "utf-8")
    now = read_problems("a:1: again, see line 4\na:2: again, see line 10", tmp_path)
    assert [problem.line for problem in new_problems([list(json.loads(json.dumps(one.keys))) for one in before], now)] == [1]


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("ruf", "agents.runtime.checkers.commands: there is no preset 'ruf'; the presets are ruff,"),
        ({"command": 'a "b'}, "agents.runtime.checkers.commands[0].command: no closing quotation, not"),
        ({"glob": "*"}, "agents.runtime.checkers.commands[0].command: field required; the entry is left out"),
    ],
)
def test_a_wrong_entry_is_left_out_and_named(desk: Desk, entry: Any, said: str) -> None:
    """The others run."""
    desk.add("small", CHECKER)
    desk.use(entry, *desk.commands)
    assert "new problem (small)" in desk.step(write("a.txt", "bad\n"))[0]
    problems = desk.host.host.config.checked(settings_of_plugins(desk.host.host.plugin_set)).problems
    assert [str(problem) for problem in problems if said in str(problem)], problems
