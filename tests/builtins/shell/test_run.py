"""``bash``: real commands, in real processes."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from moryflow.services.files import VaultFiles
from moryflow.services.paths import resolve_target
from moryflow_builtins import shell
from moryflow_builtins.shell import bash
from moryflow_builtins.shell.run import _IN_ITS_FOLDER, environment
from moryflow_sdk import Allow, Ask, Denied, Rule, Ruling, ToolCall, ToolError
from moryflow_sdk.support.sandbox import COMMANDS, NETWORK, confinement, find_sandbox

OURS = os.getpid()
"""Part of how long a command sleeps, by which it is found: another suite may run on the machine."""


@dataclass
class Context:
    """What ``bash`` uses of its context."""

    vault: Path
    home: Path
    confined: bool
    call: ToolCall
    watched: tuple[Path, ...] = ()
    shown: list[str] = field(default_factory=list)
    swapped: bool = False
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    id: str = "turn_1"
    agent: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(rules=()))
    answers: list[bool] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    state: dict[str, object] = field(default_factory=dict)
    log: logging.Logger = field(default_factory=lambda: logging.getLogger("moryflow.plugin.shell"))
    terminal: None = None

    @property
    def data_dir(self):
        return self.home

    @property
    def files(self):
        return (Swapping if self.swapped else VaultFiles)(self.vault, self.home, self.home)

    @property
    def rules(self):
        rules = [] if self.confined else [Rule(domain="bash", pattern=COMMANDS, decision="deny")]
        return SimpleNamespace(all=lambda: rules)

    async def ask(self, question):
        self.asked.append(question.reason)
        if not (self.answers and self.answers.pop(0)):
            raise Denied("the user refused this call")

    def progress(self, text):
        self.shown.append(text)


@pytest.fixture(
    params=[False, pytest.param(True, marks=pytest.mark.skipif(not find_sandbox(), reason="no working bubblewrap"))]
)
def context(request, tmp_path):
    """A context with and without the sandbox."""
    vault, home = tmp_path / "vault", tmp_path / "home"
    vault.mkdir()
    home.mkdir()
    return Context(vault, home, request.param, ToolCall(id="call_1", tool="bash", args={}))


async def run(context, command, *, workdir=None, **options):
    context.call = judged(context, command, workdir)
    return await bash.function(command, context, **options)


def judged(context, command, workdir=None):
    """Return the call as the host resolves it."""
    requests = bash.target_requests({"command": command, "workdir": workdir})
    return context.call.replace(targets=tuple(resolve_target(request, lambda: context.files) for request in requests))


def processes_with(text):
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in entry.read_bytes():
                found.append(entry.parent.name)
        except OSError:
            continue
    return [pid for pid in found if int(pid) != os.getpid()]


async def test_output_and_exit_code_come_back(context):
    """Output, errors and the exit code are in the result (S0.36)."""
    result = await run(context, "echo out; echo err >&2; exit 3")
    assert "out" in result.output and "err" in result.output and "[exit code 3]" in result.output
    assert result.metadata["exit_code"] == 3


async def test_output_is_shown_as_it_comes(context):
    """A person sees output while the command runs (CONTRACT §2 tool.delta)."""
    running = asyncio.ensure_future(run(context, "echo one; until [ -e go ]; do sleep 0.02; done; echo two"))
    while not (context.shown or running.done()):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert "one" in context.shown[0] and not running.done()
    (context.vault / "go").touch()
    await running
    assert len(context.shown) >= 2


async def test_a_timeout_ends_the_whole_group(context):
    """A command over its time is stopped with everything it started (invariant 9)."""
    result = await run(context, f"sleep 71.{OURS} & sleep 71.{OURS}", timeout=1)
    assert "stopped after 1 s" in result.output
    assert (result.status, result.code) == ("error", "timeout")
    assert not processes_with(f"71.{OURS}")


async def test_children_that_ignore_signals_or_leave_the_group_end_too(context):
    """No orphan: not one that traps SIGTERM, not one in a session of its own (SECURITY §3)."""
    command = f"(trap '' TERM; exec sleep 72.{OURS}) & setsid sleep 72.{OURS} & sleep 0.2; echo done"
    result = await run(context, command)
    assert "done" in result.output
    assert not processes_with(f"72.{OURS}")


async def test_a_background_process_does_not_hold_the_tool(context):
    """What keeps the pipe open after the shell has ended is not waited for (SECURITY §3)."""
    result = await run(context, "sleep 5073 & echo hi", timeout=600)
    assert "hi" in result.output and result.status == "ok"


async def test_cancelling_leaves_nothing_running(context):
    """Stopping a turn ends its commands (S4.9, S4.15)."""
    task = asyncio.ensure_future(run(context, f"sleep 74.{OURS}"))
    await asyncio.sleep(0.4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not processes_with(f"74.{OURS}")


def hold_up(seconds):
    """Keep the loop from running, as a busy machine does."""
    time.sleep(seconds)


async def test_cancelling_before_the_start_is_known_leaves_nothing_running(context):
    """The command may run, and have started others, before asyncio is connected with it (S4.9, S4.15)."""
    begun = context.vault / "begun"
    task = asyncio.ensure_future(run(context, f"sleep 75.{OURS} & : > begun; wait"))
    while not begun.exists() and not task.done():
        await asyncio.sleep(0)
        hold_up(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert begun.exists() and not processes_with(f"75.{OURS}")


async def test_a_flood_is_spooled_and_memory_stays_bounded(context):
    """Over 32 MiB the output goes to a file, whole (D54)."""
    result = await run(context, "head -c 40000000 /dev/zero | tr '\\0' 'x'")
    assert Path(result.spool).stat().st_size == 40_000_000
    assert len(result.output) < 100_000


async def test_a_spooled_output_ends_with_how_the_command_ended(context):
    """The model reads the end of the file, and would take a failed command for one that worked (D54)."""
    result = await run(context, "head -c 40000000 /dev/zero; exit 3")
    assert Path(result.spool).read_bytes().endswith(b"\0\n[exit code 3]")


async def test_a_flood_that_is_cancelled_leaves_no_file(context):
    """What nobody will read is removed (D54)."""
    task = asyncio.ensure_future(run(context, "yes | head -c 60000000; sleep 75.5"))
    for _ in range(400):
        await asyncio.sleep(0.05)
        if list(context.home.glob("spool-*")):
            break
    assert list(context.home.glob("spool-*"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(context.home.glob("spool-*"))


async def test_invalid_bytes_are_replaced(context):
    """Bytes that are not text do no harm (SECURITY §3)."""
    result = await run(context, "printf 'a\\377b'")
    assert result.output == "a\ufffdb"


async def test_standard_input_is_empty(context):
    """A command that asks for input gets none and does not hang (invariant 9)."""
    assert "[no output" in (await run(context, "cat")).output


async def test_the_text_is_one_argument_of_bash(context):
    """The host starts programs with argument lists; the text never meets another shell (R25)."""
    result = await run(context, "echo \"it's $((1+1))\" '$HOME'")
    assert result.output.strip() == "it's 2 $HOME"


async def test_a_workdir_outside_the_vault_is_refused(context):
    """Model input never chooses a folder outside the vault (R20)."""
    with pytest.raises(ToolError) as caught:
        await run(context, "pwd", workdir="/etc")
    assert caught.value.code == "outside"


async def test_a_folder_that_is_swapped_after_it_was_judged_is_refused(context):
    """Another object under the judged name is not entered (R12, R34)."""
    (context.vault / "sub").mkdir()
    (context.vault / "other").mkdir()
    context.call = judged(context, "touch here", "sub")
    (context.vault / "sub").rename(context.vault / "old")
    (context.vault / "sub").symlink_to("other")
    with pytest.raises(ToolError) as caught:
        await bash.function("touch here", context)
    assert caught.value.code == "changed"
    assert not list(context.vault.rglob("here"))


class Swapping(VaultFiles):
    """Files that somebody swaps at the worst moment: when the folder is open and nothing has started."""

    @contextmanager
    def folder(self, target):
        with super().folder(target) as descriptor:
            path = Path(target.path)
            path.rename(path.with_name("old"))
            path.symlink_to("other")
            yield descriptor


async def test_a_folder_that_is_swapped_while_it_is_open_is_not_entered(context):
    """The process starts behind the descriptor; where it goes in by name, it runs nothing in another folder (R12, R34)."""
    (context.vault / "sub").mkdir()
    (context.vault / "other").mkdir()
    context.call = judged(context, "touch here; ls /dev/fd/", "sub")
    context.swapped = True
    result = await bash.function("", context)
    assert not (context.vault / "other/here").exists()
    if context.confined:
        assert "changed after it was judged" in result.output and not list(context.vault.rglob("here"))
    else:
        assert (context.vault / "old/here").exists()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare, to hide /proc")
def test_without_proc_it_is_said_that_proc_is_missing(tmp_path):
    """The folder cannot be compared then; that it changed would be a wrong reason (R9)."""
    hidden = 'mount -t tmpfs none /proc && exec bash -c "$0" bash true < .'
    found = subprocess.run(["unshare", "-m", "bash", "-c", hidden, _IN_ITS_FOLDER], cwd=tmp_path, capture_output=True)
    assert (found.returncode, b"/proc is not mounted" in found.stdout) == (126, True)


async def test_a_command_gets_no_descriptor_of_its_folder(context):
    """It would lead out of the sandbox (R34)."""
    (context.vault / "sub").mkdir()
    result = await run(
        context, "for fd in /proc/self/fd/*; do [ -d $fd ] && echo folder $fd; done; cat | wc -c; pwd", workdir="sub"
    )
    assert "folder" not in result.output
    assert result.output.split()[:2] == ["0", str(context.vault / "sub")]


async def test_the_shell_stands_where_it_was_judged_to_stand(context, monkeypatch):
    """``cd ..`` goes up from the judged path, and ``cd name`` never to a folder of ``CDPATH`` (R9, R34)."""
    (context.vault / "sub/in").mkdir(parents=True)
    (context.vault / "way").symlink_to("sub/in")
    monkeypatch.setenv("CDPATH", "/")
    monkeypatch.setenv("PWD", str(context.vault / "way"))
    result = await run(context, "cd ..; pwd; cd etc", workdir="way")
    assert result.output.splitlines()[0] == str(context.vault / "sub") and result.metadata["exit_code"] == 1


def test_secrets_of_the_host_are_not_handed_on(monkeypatch):
    """Keys and Moryflow's own variables stay out of a command's environment (R14)."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setenv("MORYFLOW_HOME", "/h")
    monkeypatch.setenv("LANG", "C")
    found = environment("m", sandboxed=False)
    assert "OPENAI_API_KEY" not in found and "MORYFLOW_HOME" not in found and found["LANG"] == "C"


@pytest.mark.parametrize(
    "name", ["OPENAI_KEY", "MYSQL_PWD", "DB_PASS", "GITHUB_PAT", "SIGNING_KEY", "SSH_PASSPHRASE", "npm_config__auth_token"]
)
def test_a_variable_named_like_a_secret_is_not_handed_on(monkeypatch, name):
    """Keys and passwords have many names (R14)."""
    monkeypatch.setenv(name, "x")
    assert name not in environment("m", sandboxed=False)


@pytest.mark.parametrize(
    "name", ["PWD", "PATH", "HOME", "LANG", "GIT_AUTHOR_NAME", "COMPASS", "KEYMAP", "PASSENGER_ENV", "DISPATCH_PATH"]
)
def test_other_variables_are_handed_on(monkeypatch, name):
    """What a command needs is there."""
    monkeypatch.setenv(name, "x")
    assert name in environment("m", sandboxed=False)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("git commit --allow-empty", 1),
        ("git tag -a v1", 1),
        ("git rebase -i --root", 1),
        ("git branch --edit-description", 1),
        ('sh -c "${SUDO_EDITOR:-$VISUAL} file"', 1),
        ("git commit --allow-empty -m two", 0),
        ("git -c core.editor=true commit --allow-empty --amend", 0),
        ("GIT_SEQUENCE_EDITOR=true git rebase -i --root", 0),
    ],
)
async def test_an_editor_fails_with_a_sentence_at_once_whatever_the_user_has_set(context, monkeypatch, command, code):
    """Nobody could use it until the time is up; what the command itself sets works (invariant 9)."""
    for name in ("EDITOR", "VISUAL", "GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "SUDO_EDITOR"):
        monkeypatch.setenv(name, "sleep 60 #")
    for at, (name, value) in enumerate([("core.editor", "sleep 60 #"), ("user.name", "a"), ("user.email", "a@b")]):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{at}", name)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{at}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "3")
    making = await asyncio.create_subprocess_shell("git init -q . && git commit -q --allow-empty -m one", cwd=context.vault)
    assert await making.wait() == 0
    result = await run(context, command)
    assert (result.metadata["exit_code"], "give the text in the command" in result.output) == (code, bool(code)), result.output


def test_targets_are_the_command_and_the_folder():
    """What is judged is the whole command, and the folder it runs in (S0.41)."""
    requests = bash.target_requests({"command": "ls", "workdir": "sub"})
    assert [(item.kind, item.value, item.folder) for item in requests] == [("shell", "ls", "sub")]
    assert bash.domain == "bash"


def test_the_last_rule_about_the_sandbox_decides():
    """One rule lets commands in the sandbox go unasked, one opens the network, one does without (S0.36, D4)."""
    allow = Rule(domain="bash", pattern=COMMANDS, decision="allow")
    deny = Rule(domain="bash", pattern=COMMANDS, decision="deny")
    network = Rule(domain="bash", pattern=NETWORK, decision="allow")
    assert not confinement([]).unasked and confinement([]).used and not confinement([]).network
    assert confinement([deny, allow, network]).unasked and confinement([network]).network
    assert not confinement([allow, deny]).used


async def test_files_that_a_question_named_are_open_for_that_call_alone(context, monkeypatch):
    """They wait in the turn's state, end with the call, and a later decision about it replaces them (R21)."""
    opened = []

    async def started(ctx, timeout, paths):
        opened.append(paths)

    monkeypatch.setattr("moryflow_builtins.shell.run.run", started)
    asked = Ruling(decision="allow", verdicts=(("permission", Ask("a secret", opens=("/v/.env",))),))
    quiet = Ruling(decision="allow", verdicts=(("permission", Allow()),))
    for rulings in ((asked,), (quiet,), (asked, quiet), (asked, asked.replace(decision="deny"))):
        for ruling in rulings:
            shell.tool_decided(context.call, ruling, context)
        await bash.function("true", context)
    assert opened == [("/v/.env",), (), (), ()] and context.state == {}


async def test_a_working_folder_that_has_vanished_is_named(context):
    """And not the shell, which is there (SECURITY §3, issue 2)."""
    context.vault.rmdir()
    with pytest.raises(ToolError, match=r"the working folder no longer exists: .*vault") as caught:
        await run(context, "true")
    assert caught.value.code == "not_found"


async def test_a_command_that_fails_like_the_sandbox_is_told_apart(context):
    result = await run(context, "echo 'bwrap: no'; exit 1")
    assert result.output.startswith("bwrap: no") and result.metadata["exit_code"] == 1
