"""Programs that read folders whole: a file that is asked about when it is named is asked about when it is found."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from moryflow_builtins.permission.policy import Policy
from moryflow_builtins.permission.shell import folder_scan, judge_command
from moryflow_sdk.support.threads import on_daemon_thread

from .judging import git

MakePolicy = Callable[..., Policy]
SECRET = "TOP-CANARY-SECRET"
PROGRAMS = (
    "grep *", "egrep *", "rgrep *", "zgrep *", "rg", "rg *", "ag *", "ack *", "ugrep *", "diff *", "git *", "cp *", "rsync *",
    "tar *", "zip *", "7z *", "gzip *", "cd *", "cat *", "scp *", "find *", "ls *",
)  # fmt: skip


def _write(vault: Path, *names: str, text: str = SECRET) -> None:
    for name in names:
        (vault / name).parent.mkdir(parents=True, exist_ok=True)
        (vault / name).write_text(f"{text}\n")


@pytest.fixture
def vault(tmp_path: Path) -> Path:
    """A vault in which ``src`` and ``docs`` are harmless and ``app`` holds secrets: hidden, plain and ignored ones."""
    vault = tmp_path / "vault"
    _write(vault, "src/a.py", "src/sub/b.py", "docs/a.md", "docs/b.md", text="foo")
    _write(vault, "app/.env", "app/conf/server.pem", "app/conf/credentials.json")
    (vault / ".gitignore").write_text(".env\n*.pem\n/app/conf/credentials.json\n")
    git(vault, "init", "-q")
    git(vault, "add", "src", "docs", ".gitignore")
    git(vault, "commit", "-q", "-m", "x")
    return vault


@pytest.fixture
def judge(vault: Path, make_policy: MakePolicy):
    """Judge a command under wildcards over readers."""
    policy = make_policy([{"domain": "bash", "pattern": one, "decision": "allow"} for one in PROGRAMS], vault=vault)
    return lambda command: judge_command(policy, command).verdict


READ = (
    "grep -r foo .", "grep -rn foo app", "grep --recursive foo app", "grep --recurs foo app", "grep -d recurse foo app",
    "grep -drecurse foo app", "grep --directories=recurse foo app", "grep -r foo", "egrep -r foo app", "rgrep foo app",
    "zgrep -r foo app", "grep -r foo src app", "cd app && grep -r foo .", "cd app/conf; grep -rl foo", "grep -rf pats app",
    "grep -r --include='*.pem' foo app", "grep -r --include='*' foo .", "grep -r --exclude=.env foo app",
    "grep -r --exclude-dir=conf foo app", "grep -r --exclude=.env --include=.env foo app",
    "grep -r --exclude='*.o' --include='*.c' foo app", "diff -r app docs", "diff -r docs app", "diff app docs",
    "diff --recursive app docs", "diff -rx .env app docs", "rg -uuu foo", "rg --no-ignore foo", "rg -u foo app",
    "rg -g '*.pem' foo", "rg -g '*' foo", "rg --no-ignore --hidden foo app", "rg --unrestricted foo", "ag foo app",
    "ack foo app", "ugrep -r foo app", "git grep --untracked --no-exclude-standard foo", "git grep --no-index foo",
    "git grep --no-index foo -- app", "git stash -a", "git stash push --all", "git stash --al", "git add -f .",
    "git add -f app", "git add --force -A", "git add -fA", "git diff --no-index app docs", "cp -r app copy", "cp -a app copy",
    "cp -R app copy", "cp --recursive app copy", "rsync -a app copy", "rsync -r app/ copy", "tar cf a.tar app",
    "tar -czf a.tgz .", "tar --create --file=a.tar app", "zip -r a.zip app", "zip -qr a.zip .", "7z a a.7z app",
    "gzip -rc app", "git add -f ':(top)app'", "git -C app add -f .",
)  # fmt: skip


@pytest.mark.parametrize("command", READ)
def test_a_reader_of_folders_asks_for_the_secrets_in_them(command: str, judge) -> None:
    """And names one of them; however its option is spelled (R36)."""
    verdict = judge(command)
    assert verdict.decision == "ask"
    assert any(name in verdict.reason for name in ("app/.env", "app/conf/server.pem", "app/conf/credentials.json"))
    assert not verdict.remember


LEFT_OUT = (
    "grep -r foo src", "grep -rn foo src docs", "grep -r foo docs/a.md", "grep foo src/a.py", "cd src && grep -r foo .",
    "grep -r --exclude-dir=app --exclude-dir=.git foo .", "grep -r --exclude-dir=conf --exclude=.env foo app",
    "grep -r --exclude='*.pem' --exclude='.env*' --exclude='cred*' foo app", "grep -r --include='*.py' foo .",
    "grep -r --include='*.md' foo app", "rg foo", "rg foo .", "rg -n foo src", "rg -tpy foo", "rg -g '*.py' foo",
    "rg -uu -g '!{.env,*.pem,credentials.json}' foo app", "rg --hidden -g '!.git' foo", "rg foo -g '!.env'",
    "rg --files", "diff -r src docs",
    "diff src docs", "diff -r -x .env -x conf app docs", "git grep foo", "git grep --untracked foo", "git add .", "git add -A",
    "git add src", "git stash", "git stash list", "git grep foo HEAD", "git diff src docs", "cp -r src copy", "cp app/x copy",
    "rsync -a --exclude=.env --exclude=conf app copy", "tar cf a.tar src", "tar cf a.tar --exclude=.env --exclude=conf app",
    "zip -r a.zip src", "zip -r a.zip app -x '*.env' -x '*conf/*'", "ls -R .", "cat docs/a.md", "tar xf a.tar",
)  # fmt: skip


@pytest.mark.parametrize("command", LEFT_OUT)
def test_a_reader_that_leaves_the_secrets_out_is_not_asked_about(command: str, judge, vault: Path) -> None:
    """Where the folder holds none, an option leaves them out, or an ignore file does that the program follows (R36)."""
    verdict = judge(command)
    assert (verdict.decision, verdict.reason) == ("allow", "") or "tar xf" in command


@pytest.mark.parametrize("command", [*READ, *LEFT_OUT, "git grep foo; git diff --cached", "git stash show -p"])
def test_no_allowed_reader_shows_a_secret(command: str, judge, vault: Path, tmp_path: Path) -> None:
    """The programs themselves are the reference, run where the judge allows them (R36, R9)."""
    if judge(command).decision != "allow":
        return
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1", "GIT_AUTHOR_NAME": "a",
                   "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}  # fmt: skip
    shown = b""
    for text in (
        command.replace("foo", "''"),
        "git diff --cached",
        "git stash show -p --include-untracked",
        "cat copy/* copy/conf/*",
    ):
        done = subprocess.run(["bash", "-c", text], cwd=vault, env=environment, capture_output=True, check=False)
        shown += done.stdout + done.stderr
    assert SECRET.encode() not in shown


@pytest.mark.parametrize("name", [".ignore", ".rgignore", ".gitignore", "app/.ignore"])
def test_an_ignore_file_that_takes_secrets_back_counts(name: str, judge, vault: Path) -> None:
    """``!.env`` in an ignore file makes `rg` read what is hidden; an agent may write such a file (R36)."""
    assert judge("rg foo").decision == "allow"
    with (vault / name).open("a") as stream:
        stream.write("!.env\n")
    verdict = judge("rg foo")
    assert verdict.decision == "ask" and "app/.env" in verdict.reason


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("rg x app", ".gitignore"),
        ("git add -A", ".gitignore"),
        ("docker build app", "app/.dockerignore"),
        ("npm publish app", "app/package.json"),
        ("grep -r x .", ".git/config"),
    ],
)
def test_a_pipe_holds_up_no_judgement(command: str, name: str, judge, vault: Path) -> None:
    """An ignore file that nobody writes to the end of leaves nothing out (R36, R37)."""
    (vault / name).unlink(missing_ok=True)
    os.mkfifo(vault / name)
    assert on_daemon_thread(lambda: judge(command).decision, "judge").result(10) == "ask"


def test_ignore_files_are_git_s_only_in_a_repository(judge, vault: Path) -> None:
    """Without ``.git`` rg does not follow ``.gitignore`` (R36)."""
    shutil.rmtree(vault / ".git")
    assert "credentials.json" in judge("rg foo").reason


def test_what_git_tracks_is_read_by_git_grep(judge, vault: Path) -> None:
    """A secret that was added is in the tree that it searches (R36)."""
    assert judge("git grep foo").decision == "allow"
    git(vault, "add", "-f", "app/.env")
    assert "app/.env" in judge("git grep foo").reason and judge("git grep foo src").decision == "allow"


def test_links_are_followed_by_those_who_follow_them(judge, vault: Path, tmp_path: Path) -> None:
    """`diff -r` reads what a link leads to (R36, R10)."""
    _write(tmp_path, "outside/x")
    (vault / "docs" / "x").symlink_to(tmp_path / "outside" / "x")
    assert judge("diff -r src docs").decision == "ask"
    assert judge("diff -r --no-dereference src docs").decision == "allow"
    assert judge("grep -r foo docs").decision == "allow"


def test_rules_of_a_person_hold_for_what_is_found(vault: Path, make_policy: MakePolicy) -> None:
    """A deny for a file refuses the reader of its folder; an allow opens it (R36, R10)."""
    grep = {"domain": "bash", "pattern": "grep *", "decision": "allow"}
    denied = make_policy([grep, {"domain": "read", "pattern": "**/b.py", "decision": "deny"}], vault=vault)
    assert judge_command(denied, "grep -r foo src").verdict.decision == "deny"
    assert judge_command(denied, "grep -r foo docs").verdict.decision == "allow"
    opened = make_policy([grep, {"domain": "read", "pattern": "app/**", "decision": "allow"}], vault=vault)
    assert judge_command(opened, "grep -r foo app").verdict.decision == "allow"


def test_the_home_of_moryflow_is_read_by_no_recursive_reader(tmp_path: Path, make_policy: MakePolicy) -> None:
    """Its secrets stay closed when a folder above is opened (R14, R36)."""
    _write(tmp_path, "u/.moryflow/server.token", "u/notes/a.md")
    (tmp_path / "vault").mkdir()
    rules = [
        {"domain": "bash", "pattern": "*", "decision": "allow"},
        {"domain": "read", "pattern": "fs:**", "decision": "allow"},
    ]
    policy = make_policy(rules, vault=tmp_path / "vault", user_home=tmp_path / "u")
    assert judge_command(policy, f"grep -r foo {tmp_path}/u/notes").verdict.decision == "allow"
    assert judge_command(policy, f"grep -r foo {tmp_path}/u").verdict.decision == "deny"


def test_what_a_sandbox_hides_is_not_asked_about(vault: Path, make_policy: MakePolicy) -> None:
    """The policy says which files a command does not see (R36, R14)."""
    policy = make_policy([{"domain": "bash", "pattern": "grep *", "decision": "allow"}], vault=vault)
    hidden = policy._replace(hides=lambda path: path.startswith(f"{vault}/app/"))
    assert judge_command(policy, "grep -r foo app").verdict.decision == "ask"
    assert judge_command(hidden, "grep -r foo app").verdict.decision == "allow"
    assert judge_command(hidden, "cat app/.env").verdict.decision == "ask"


@pytest.mark.parametrize(
    ("line", "decision"),
    [
        ("url = https://github.com/a/b.git", "allow"),
        ("url = git@github.com:a/b.git", "allow"),
        ("url = ssh://git@github.com/a/b.git", "allow"),
        ("url = https://x-access-token:ghp_abc@github.com/a/b.git", "ask"),
        ("url = https://ghp_abc@github.com/a/b.git", "ask"),
        ("extraheader = AUTHORIZATION: basic eDpnaHA=", "ask"),
        ("oauthToken = abc", "ask"),
    ],
)
def test_the_configuration_of_a_repository_asks_where_it_holds_credentials(
    line: str, decision: str, judge, vault: Path
) -> None:
    """Each reader of a whole repository would be asked about else; named alone it always is (R36)."""
    with (vault / ".git" / "config").open("a", encoding="utf-8") as file:
        file.write(f'[remote "origin"]\n\t{line}\n')
    reader = "grep -r --exclude-dir=app foo ."
    assert judge(reader).decision == decision and judge("cat .git/config").decision == "ask"


def test_a_configuration_that_is_too_long_to_be_read_asks(judge, vault: Path) -> None:
    """Credentials may stand in the rest, however many bytes its characters have (R36)."""
    with (vault / ".git" / "config").open("a", encoding="utf-8") as file:
        file.write(f'# {"é" * 200_000}\n[remote "origin"]\n\turl = https://ghp_abc@github.com/a/b.git\n')
    assert judge("grep -r --exclude-dir=app foo .").decision == "ask"


def test_a_folder_too_large_to_look_through_asks(judge, vault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk is bounded by the number of files, and its end is not a yes (R36)."""
    monkeypatch.setattr(folder_scan, "MAX_ENTRIES", 2)
    assert "reads more than 2 files" in judge("grep -r foo src").reason
    assert judge("grep foo src/a.py").decision == "allow"


def test_a_command_with_many_readers_walks_a_folder_once(judge, vault: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same folder counts once, so that long texts stay cheap (R36)."""
    monkeypatch.setattr(folder_scan, "MAX_ENTRIES", 5)
    assert judge("; ".join(f"grep -r x{number} src" for number in range(50))).decision == "allow"


@pytest.mark.parametrize(
    "command", ["find . -name '*.py' -exec cat {} +", "find src -type f -exec cat {} ';'", "find . -exec ls {} +"]
)
def test_find_gives_files_to_a_reader_only_where_it_looks(command: str, vault: Path, make_policy: MakePolicy) -> None:
    """What `-exec` is given is what `find` finds (R36)."""
    exact = make_policy([{"domain": "bash", "pattern": command, "decision": "allow"}], vault=vault)
    assert not any("also reads" in part.reason for part in judge_command(exact, command).parts)
    wide = command.replace("-name '*.py'", "").replace("src", ".").replace("ls", "cat")
    assert any("also reads" in part.reason for part in judge_command(exact, wide).parts)


def test_a_line_of_an_ignore_file_with_many_stars_is_never_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matching takes time that grows with the stars; such a line is not understood, and leaves nothing out (S2.11)."""
    monkeypatch.setattr(folder_scan, "fnmatchcase", lambda *_: pytest.fail("it was matched"))
    assert not list(folder_scan._line_decisions("*a" * 60 + "\n", ("aaa",), folder=False))
