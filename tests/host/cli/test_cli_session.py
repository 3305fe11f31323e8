"""``moryflow session``: look, branch, copy, carry over, find, delete."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from moryflow.cli.commands.session import write_whole


@pytest.fixture
def talked(cli: Any) -> str:
    """The id of a session with two turns and one tool call."""
    cli("run", "-m", cli.script(cli.calls("hello", name="Ann"), "first answer"), "first question")
    cli("run", "-c", "-m", cli.script("second answer"), "second question")
    return json.loads(cli("session", "list", "--json").stdout)[0]["id"]


def texts(cli: Any, session: str) -> list[str]:
    messages = json.loads(cli("session", "context", session, "--json").stdout)["messages"]
    return [message["text"] for message in messages if message.get("text")]


def test_show_and_context(cli: Any, talked: str) -> None:
    """The conversation for a person; what the model would be sent, with tokens, for a check (invariant 7)."""
    shown = cli("session", "show", talked[:8]).stdout
    assert shown.index("you: first question") < shown.index("→ hello") < shown.index("agent: second answer")
    document = json.loads(cli("session", "show", "--json").stdout)
    assert [node["kind"] for node in document["nodes"]] == ["user", "assistant", "tool", "assistant", "user", "assistant"]
    assert [turn["end_reason"] for turn in document["turns"]] == ["completed", "completed"]
    context = json.loads(cli("session", "context", "--json").stdout)
    assert [message["role"] for message in context["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    assert context["tokens"] == sum(message["tokens"] for message in context["messages"]) > 0
    assert "tokens" in cli("session", "context").stdout


def test_switching_leaves_a_branch_behind(cli: Any, talked: str) -> None:
    """The active node moves; the left branch stays in the tree and out of the context (S1.7)."""
    nodes = json.loads(cli("session", "tree", "--json").stdout)["nodes"]
    first_answer = nodes[3]["id"]
    assert cli("session", "switch", talked, first_answer[:10]).returncode == 0
    cli("run", "-c", "-m", cli.script("another answer"), "another question")
    assert texts(cli, talked)[-3:] == ["first answer", "another question", "another answer"]
    assert "second answer" not in texts(cli, talked)
    tree = cli("session", "tree").stdout.splitlines()
    assert len(tree) == 8
    assert [line for line in tree if line.startswith("*")] == [line for line in tree if "another answer" in line]
    assert [line[:5] for line in tree if "├" in line or "└" in line] == ["  ├─ ", "  └─ "]
    assert any(line.startswith("  ├─ ") and "second question" in line for line in tree)
    done = cli("session", "switch", talked, "zzz")
    assert (done.returncode, "there is no node 'zzz'" in done.stderr) == (2, True)


def test_a_fork_is_a_session_of_its_own(cli: Any, talked: str) -> None:
    """The copy goes on, the old one stays as it is."""
    node = json.loads(cli("session", "tree", "--json").stdout)["nodes"][3]["id"]
    copy = cli("session", "fork", talked, "--node", node, "--title", "a copy").stdout.strip()
    assert copy != talked
    cli("run", "-r", copy, "-m", cli.script("in the copy"), "more")
    assert texts(cli, copy)[-1] == "in the copy"
    assert texts(cli, talked)[-1] == "second answer"
    assert "a copy" in cli("session", "list").stdout


def test_an_export_that_fails_leaves_the_earlier_one(cli: Any, talked: str, tmp_path: Any) -> None:
    """It may be the only copy; a pipe and - are written to as they are (S2.14, issue 2, full disk)."""
    file = tmp_path / "s.jsonl"
    cli("run", "-c", "-m", cli.script("third answer"), "x" * 60_000)
    assert cli("session", "export", talked, "-o", str(file)).returncode == 0
    exported = file.read_text()
    file.chmod(0o600)
    limited = f"ulimit -f 40; trap '' XFSZ; exec {sys.executable} -m moryflow session export {talked} -o {file}"
    done = subprocess.run(["bash", "-c", limited], env=cli.env, cwd=cli.vault, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, f"moryflow: {file}: File too large")
    assert file.read_text() == exported
    assert [path.name for path in tmp_path.iterdir() if "part" in path.name] == []
    assert cli("session", "export", talked, "-o", str(file)).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert cli("session", "export", talked, "-o", "-").stdout == exported
    assert cli("session", "export", talked, "-o", "/dev/stdout", "-q").stdout == exported


def test_an_export_is_for_its_owner_alone_and_nobody_can_lead_it_elsewhere(
    cli: Any, talked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that others may write to, a file or a link of theirs is never what is written to (R12)."""
    file, mine = tmp_path / "s.jsonl", tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / ".s.jsonl.part").symlink_to(mine)
    assert cli("session", "export", talked, "-o", str(file)).returncode == 0
    assert not file.is_symlink() and file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".s.jsonl.guessed.part").symlink_to(mine)
    with pytest.raises(FileExistsError, match=r"/s\.jsonl'"), write_whole(file) as out:
        out.write("more")
    assert mine.read_text() == "mine"


def test_export_and_import_lose_nothing(cli: Any, talked: str, tmp_path: Any) -> None:
    """JSON Lines out, the same session in another home (S2.14)."""
    file = tmp_path / "session.jsonl"
    assert cli("session", "export", talked, "-o", str(file)).returncode == 0
    exported = cli("session", "export", talked).stdout
    assert file.read_text() == exported == cli("session", "export", talked, "--output", "json").stdout
    assert not (cli.vault / "json").exists()
    assert all(json.loads(line) for line in exported.splitlines())
    before = cli("session", "tree", talked, "--json").stdout
    cli.home = tmp_path / "other"
    assert cli("session", "import", "-", stdin=exported).stdout.strip() == talked
    assert cli("session", "tree", talked, "--json").stdout == before
    done = cli("session", "import", "-", stdin="not json\n")
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr


def test_an_export_is_readable_where_its_name_says_so(cli: Any, talked: str, tmp_path: Any) -> None:
    """Markdown or one page that runs nothing, by the ending (S2.14)."""
    for name, begins in (("a.md", "# "), ("a.html", "<!doctype html>")):
        assert cli("session", "export", talked, "--to", str(tmp_path / name)).returncode == 0
        text = (tmp_path / name).read_text()
        assert text.startswith(begins) and "second" in text and "<script" not in text


def test_an_import_never_works_in_the_folder_that_its_file_names(cli: Any, talked: str) -> None:
    """A stranger's file may name the home or /: the session works here, or where --vault says, and that is shown (R20)."""
    lines = cli("session", "export", talked).stdout.replace(json.dumps(str(cli.vault)), '"/"', 1)
    done = cli("session", "import", "-", stdin=lines)
    assert f"it works in {cli.vault}" in done.stderr
    assert json.loads(cli("session", "show", done.stdout.strip(), "--json").stdout)["vault"] == str(cli.vault)
    assert cli("session", "import", "-", "--vault", "/nowhere", stdin=lines).returncode == 2


def test_search_finds_what_was_said(cli: Any, talked: str) -> None:
    """Session and node of every hit."""
    hits = json.loads(cli("session", "search", "second", "--json").stdout)
    assert {hit["session"] for hit in hits} == {talked}
    assert {hit["kind"] for hit in hits} == {"user", "assistant"}
    assert "nothing found" in cli("session", "search", "zebra").stdout


def test_delete_asks_first(cli: Any, talked: str, at_terminal: Any) -> None:
    """-y answers; without it somebody must (CONTRACT §1). `rm` is delete."""
    done = cli("session", "delete", talked)
    assert (done.returncode, "add -y" in done.stderr) == (2, True)
    terminal = at_terminal("session", "delete", talked)
    terminal.expect("Delete session")
    terminal.type("n\n")
    assert terminal.end() != 0
    assert talked in cli("session", "list").stdout
    assert cli("session", "rm", talked, "-y").stdout == f"deleted {talked}\n"
    assert json.loads(cli("session", "list", "--json").stdout) == []


def test_sessions_of_one_vault(cli: Any, talked: str, tmp_path: Any) -> None:
    """--vault narrows the list; -c looks in the vault only."""
    other = tmp_path / "other"
    other.mkdir()
    cli("run", "--vault", str(other), "-m", cli.script("x"), "elsewhere")
    assert len(json.loads(cli("session", "list", "--json").stdout)) == 2
    [row] = json.loads(cli("session", "list", "--json", "--vault", str(other)).stdout)
    assert row["vault"] == str(other)
    assert "second answer" in cli("session", "show").stdout


def test_looking_at_sessions_loads_no_plugin(cli: Any, talked: str) -> None:
    """A plugin that breaks the start cannot keep anyone from their sessions."""
    cli.plugin("broken", "raise RuntimeError('no')")
    for words in (["list"], ["show"], ["tree"], ["context"], ["export"]):
        done = cli("session", *words)
        assert (done.returncode, done.stderr) == (0, "")
