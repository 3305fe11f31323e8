"""``--worktree``: a session in a git worktree of its own, merged or dropped at the end. With a real git."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Repository(NamedTuple):
    """The user's folder: a repository with one commit."""

    cli: Any

    @property
    def folder(self) -> Path:
        return self.cli.vault

    def git(self, *arguments: str, folder: Path | None = None) -> str:
        own = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        command = ["git", *own, *arguments]
        return subprocess.run(command, cwd=folder or self.folder, capture_output=True, text=True, check=True).stdout

    def writes(self, *files: tuple[str, str]) -> str:
        """Return a model that writes files, one call after another."""
        calls = [{"name": "write", "arguments": {"path": path, "content": text}} for path, text in files]
        return self.cli.script(*({"calls": [call]} for call in calls), "Written.", "Again.", "And again.")

    def run(self, *files: tuple[str, str], words: tuple[str, ...] = ()) -> Any:
        """Run a turn in a new worktree that writes these files."""
        done = self.cli("run", "--worktree", "-m", self.writes(*files), *words, "Write it")
        assert done.returncode == 0, done.stderr
        return done

    def worktree(self) -> dict[str, Any]:
        (found,) = json.loads(self.cli("session", "worktree", "list", "--json").stdout)
        return found


@pytest.fixture
def repository(cli) -> Repository:
    allowed = [{"domain": domain, "pattern": "*", "decision": "allow"} for domain in ("read", "edit")]
    left_out = ["search", "shell", "local_model", "litellm_models"]
    cli.config(disabledPlugins=left_out, agents={"runtime": {"permission": {"rules": allowed}}})
    cli.environ["HOME"] = str(cli.vault.parent)  # no git configuration of the user's
    made = Repository(cli)
    made.git("init", "-q", "-b", "main")
    (cli.vault / "notes.md").write_text("one\n")
    (cli.vault / "sub").mkdir()
    (cli.vault / "sub" / "deep.md").write_text("deep\n")
    made.git("add", "-A")
    made.git("commit", "-q", "-m", "first")
    return made


def test_a_session_works_beside_the_users_folder(repository) -> None:
    """HEAD, on a branch of its own; what was not committed is named and not there; nobody is asked without a terminal (D)."""
    (repository.folder / "notes.md").write_text("changed\n")
    (repository.folder / "new.md").write_text("new\n")
    done = repository.run(("made.md", "made"))
    found = repository.worktree()
    folder = Path(found["folder"])
    assert sorted(path.name for path in folder.iterdir()) == [".git", "made.md", "notes.md", "sub"]
    assert (folder / "notes.md").read_text() == "one\n" and not (repository.folder / "made.md").exists()
    assert found["branch"] == f"moryflow/{found['session'][:8]}" and found["branch"] in repository.git("branch")
    assert "without your changes of notes.md, new.md" in done.stderr
    assert f"moryflow session worktree merge {found['name']}" in done.stderr and str(folder) in done.stderr
    assert folder.stat().st_mode & 0o777 == 0o700 or folder.parent.stat().st_mode & 0o777 == 0o700
    assert done.stdout == "Written.\n"


def test_a_merge_commits_what_was_changed_and_the_session_goes_on_in_the_folder(repository) -> None:
    """New, changed and removed files; the branch and the worktree are gone; `-c` continues the session (D)."""
    repository.run(("made.md", "made"), ("sub/deep.md", "deeper\n"))
    found = repository.worktree()
    (Path(found["folder"]) / "notes.md").unlink()
    (repository.folder / "own.md").write_text("the user's, not committed\n")
    merged = repository.cli("session", "worktree", "merge", found["name"])
    assert merged.returncode == 0, merged.stderr
    assert (repository.folder / "made.md").read_text() == "made" and not (repository.folder / "notes.md").exists()
    assert (repository.folder / "sub" / "deep.md").read_text() == "deeper\n"
    assert repository.git("status", "--porcelain") == "?? own.md\n"
    assert found["session"] in repository.git("log", "-1", "--format=%b")
    assert repository.git("branch", "--format=%(refname:short)") == "main\n"
    assert len(repository.git("worktree", "list").splitlines()) == 1 and not Path(found["folder"]).exists()
    assert json.loads(repository.cli("session", "worktree", "list", "--json").stdout) == []
    more = repository.cli("run", "-c", "-m", repository.cli.script("More."), "--output", "json", "Go on")
    assert json.loads(more.stdout)["session"] == found["session"]


def test_a_conflict_is_left_as_git_leaves_it(repository) -> None:
    """It is named with its file; the branch has the agent's commit, the worktree stays, nothing is lost (D)."""
    repository.run(("notes.md", "the agent's\n"))
    (repository.folder / "notes.md").write_text("the user's\n")
    repository.git("commit", "-q", "-a", "-m", "second")
    found = repository.worktree()
    failed = repository.cli("session", "worktree", "merge", found["name"])
    assert failed.returncode == 1 and "conflicts in notes.md" in failed.stderr and "git merge --abort" in failed.stderr
    assert "<<<<<<<" in (repository.folder / "notes.md").read_text()
    assert repository.git("show", f"{found['branch']}:notes.md") == "the agent's\n"
    repository.git("merge", "--abort")
    assert repository.worktree() == found and Path(found["folder"]).is_dir()


def test_a_change_of_the_user_s_that_the_merge_would_overwrite_stops_it(repository) -> None:
    """git refuses, and its words are said; the user's file is as it was (D)."""
    repository.run(("notes.md", "the agent's\n"))
    (repository.folder / "notes.md").write_text("the user's, not committed\n")
    failed = repository.cli("session", "worktree", "merge", repository.worktree()["name"])
    assert failed.returncode == 1 and "was not merged" in failed.stderr and "notes.md" in failed.stderr
    assert (repository.folder / "notes.md").read_text() == "the user's, not committed\n"
    assert Path(repository.worktree()["folder"]).is_dir()


def test_a_drop_asks_before_it_throws_changes_away(repository) -> None:
    """Without a terminal it refuses, with exit code 2; -y drops; one without changes goes without a question (D)."""
    repository.run(("made.md", "made"))
    found = repository.worktree()
    refused = repository.cli("session", "worktree", "drop", found["name"])
    assert refused.returncode == 2 and "made.md" in refused.stderr and Path(found["folder"]).is_dir()
    assert repository.cli("session", "worktree", "drop", found["name"], "-y").returncode == 0
    assert not Path(found["folder"]).exists() and "moryflow/" not in repository.git("branch")
    assert not (repository.folder / "made.md").exists()
    repository.run()
    assert repository.cli("session", "worktree", "drop", repository.worktree()["session"]).returncode == 0


def test_a_resumed_session_works_in_its_worktree(repository) -> None:
    """By its id; `-c` is for sessions of the folder itself, and the flag is for new sessions (D)."""
    repository.run(("made.md", "made"))
    found = repository.worktree()
    again = repository.cli("run", "-r", found["name"], "-m", repository.writes(("more.md", "more")), "Go on")
    assert again.returncode == 0 and (Path(found["folder"]) / "more.md").exists(), again.stderr
    assert f"moryflow session worktree merge {found['name']}" in again.stderr
    assert repository.cli("run", "-c", "-m", repository.cli.script("No."), "Go on").returncode == 2
    both = repository.cli("run", "--worktree", "-r", found["name"], "Go on")
    assert both.returncode == 2 and "begins a session" in both.stderr


def test_a_folder_below_the_top_stays_one(repository) -> None:
    """The session works in the same folder of the worktree; one without a committed file is made (D)."""
    (repository.folder / "empty").mkdir()
    for name in ("sub", "empty"):
        done = repository.cli("run", "--worktree", "-m", repository.writes(("here.md", "here")), "Go", "--vault", name)
        assert done.returncode == 0, done.stderr
        found = repository.worktree()
        assert found["vault"] == f"{found['folder']}/{name}" and (Path(found["vault"]) / "here.md").exists()
        assert repository.cli("session", "worktree", "merge", found["name"]).returncode == 0
        assert (repository.folder / name / "here.md").exists()


@pytest.mark.parametrize(("commands", "said"), [((), "needs a git repository"), (("init",), "has no commit yet")])
def test_no_repository_and_no_commit_are_said(cli, commands: tuple[str, ...], said: str) -> None:
    """Exit code 2, no session, no folder (D)."""
    for command in commands:
        subprocess.run(["git", command, "-q"], cwd=cli.vault, check=True)
    done = cli("run", "--worktree", "-m", cli.script("Never."), "Go")
    assert done.returncode == 2 and said in done.stderr and "next:" in done.stderr
    assert cli("session", "list", "--json").stdout == "[]\n"
    assert not cli.home.with_name(f"{cli.home.name}-worktrees").exists()


def test_a_session_that_cannot_begin_leaves_no_worktree(repository) -> None:
    """An unknown agent is refused as always (D)."""
    done = repository.cli("run", "--worktree", "--agent", "nobody", "-m", repository.cli.script("Never."), "Go")
    assert done.returncode == 2
    assert json.loads(repository.cli("session", "worktree", "list", "--json").stdout) == []
    assert "moryflow/" not in repository.git("branch") and len(repository.git("worktree", "list").splitlines()) == 1


def test_no_hook_of_the_repository_runs(repository) -> None:
    """Neither at checkout, at commit nor at merge (SECURITY: nothing of the repository runs that git does not run itself)."""
    ran = repository.folder.parent / "ran"
    for name in ("post-checkout", "pre-commit", "commit-msg", "post-commit", "pre-merge-commit", "post-merge"):
        hook = repository.folder / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\necho {name} >> {ran}\n")
        hook.chmod(0o755)
    repository.run(("made.md", "made"))
    repository.git("-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "so that it is no fast-forward")
    assert repository.cli("session", "worktree", "merge", repository.worktree()["name"]).returncode == 0
    assert not ran.exists() and (repository.folder / "made.md").exists()


def test_what_looks_like_a_repository_in_the_worktree_is_neither_read_nor_lost(repository) -> None:
    """A configuration that runs a program does not run, whether it replaces `.git` or lies deeper (SECURITY)."""
    repository.run(("made.md", "made"))
    found = repository.worktree()
    folder, ran = Path(found["folder"]), repository.folder.parent / "ran"
    evil = f'[core]\n\tfsmonitor = touch {ran}\n\tworktree = {folder}\n[filter "x"]\n\tclean = touch {ran}; cat\n'
    (folder / ".git").unlink()
    repository.git("init", "-q", folder=folder)
    (folder / ".git" / "config").write_text(evil)
    (folder / ".gitattributes").write_text("* filter=x\n")
    assert repository.cli("run", "-r", found["name"], "-m", repository.cli.script("Yes."), "Go").returncode == 0
    (folder / "deep").mkdir()
    repository.git("init", "-q", folder=folder / "deep")
    (folder / "deep" / "lost.md").write_text("not lost")
    refused = repository.cli("session", "worktree", "merge", found["name"])
    assert refused.returncode == 1 and f"{folder}/deep" in refused.stderr and (folder / "deep" / "lost.md").exists()
    (folder / "deep" / ".git" / "HEAD").unlink()
    subprocess.run(["rm", "-r", str(folder / "deep" / ".git")], check=True)
    merged = repository.cli("session", "worktree", "merge", found["name"])
    assert merged.returncode == 0, merged.stderr
    assert (repository.folder / "deep" / "lost.md").exists() and not folder.exists() and not ran.exists()


def test_a_session_at_work_is_not_taken_away(repository, tmp_path) -> None:
    """Merge and drop say that it is in use, and change nothing (D)."""
    call = repository.cli.holding()
    process = repository.cli.start("run", "--worktree", "-m", repository.cli.script(call, "Done."), "Hold")
    try:
        while not repository.cli.holds():
            assert process.poll() is None, process.communicate()
        found = repository.worktree()
        for verb in (("merge",), ("drop", "-y")):
            assert repository.cli("session", "worktree", *verb, found["name"]).returncode != 0
        assert Path(found["folder"]).is_dir()
    finally:
        repository.cli.let_go()
        process.communicate()


def test_a_folder_that_the_user_removed_is_cleared_up(repository) -> None:
    """`list` says that it is gone; `drop` removes the branch and git's record of it (D)."""
    repository.run(("made.md", "made"))
    found = repository.worktree()
    subprocess.run(["rm", "-r", found["folder"]], check=True)
    assert "its folder is gone" in repository.cli("session", "worktree", "list").stdout
    assert repository.cli("session", "worktree", "merge", found["name"]).returncode == 2
    assert repository.cli("session", "worktree", "drop", found["name"]).returncode == 0
    assert len(repository.git("worktree", "list").splitlines()) == 1 and "moryflow/" not in repository.git("branch")


def test_attached_it_is_refused(repository) -> None:
    """The server works in folders of its own choice (CONTRACT 1)."""
    refused = repository.cli("run", "--attach", "--worktree", "Go")
    assert refused.returncode == 2 and "--worktree" in refused.stderr


@pytest.mark.parametrize(("answer", "merged", "there"), [("merge", True, False), ("keep", False, True), ("drop", False, False)])
def test_at_a_terminal_the_user_is_asked_at_the_end(
    repository, at_terminal: Callable[..., Any], answer: str, merged: bool, there: bool
) -> None:
    """With the diff stat, after the answer (D)."""
    terminal = at_terminal("run", "--worktree", "-m", repository.writes(("made.md", "made")), "Go")
    terminal.expect("made.md | 1 +")
    terminal.expect("keep the worktree, or drop it?")
    terminal.type(f"{answer}\r")
    assert terminal.end() == 0, terminal.text
    assert (repository.folder / "made.md").exists() is merged
    assert bool(json.loads(repository.cli("session", "worktree", "list", "--json").stdout)) is there


def test_a_conversation_is_asked_about_when_it_ends(repository, at_prompt: Callable[..., Any]) -> None:
    """`chat --worktree` works the same way (CONTRACT 1)."""
    terminal = at_prompt("--worktree", "-m", repository.writes(("made.md", "made")))
    terminal.type("Write it\r")
    terminal.expect("Written.")
    terminal.expect("\n>")
    terminal.type("/quit\r")
    terminal.expect("keep the worktree, or drop it?")
    terminal.type("merge\r")
    assert terminal.end() == 0, terminal.text
    assert (repository.folder / "made.md").exists()


def test_no_variable_of_git_leads_elsewhere(repository) -> None:
    """A `GIT_DIR` of a hook or an editor that started the program is not taken (SECURITY)."""
    other = repository.folder.parent / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    repository.cli.environ |= {"GIT_DIR": str(other / ".git"), "GIT_WORK_TREE": str(other)}
    repository.run(("made.md", "made"))
    assert Path(repository.worktree()["repository"]) == repository.folder
