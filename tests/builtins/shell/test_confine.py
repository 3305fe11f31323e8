"""What a sandboxed command makes, moves and sees: nothing that runs later, and no secrets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from moryflow.services.files import VaultFiles
from moryflow.services.paths import resolve_target
from moryflow_builtins.shell import bash
from moryflow_builtins.shell.confine import settle_leftovers
from moryflow_builtins.shell.protected import Search
from moryflow_builtins.shell.run import run
from moryflow_sdk import Denied, Rule, ToolCall
from moryflow_sdk.support.sandbox import find_sandbox

pytestmark = pytest.mark.skipif(
    find_sandbox() is None, reason="no working bubblewrap on this machine (install bubblewrap, or moryflow[sandbox])"
)
TOKEN = "tok-in-a-secret"


class Context(SimpleNamespace):
    """What ``bash`` uses of its context; a person answers the questions of its body with `answers`."""

    def __init__(self, place, command, rules=(), answers=()):
        vault, home = place
        files = VaultFiles(vault, home, home)
        requests = bash.target_requests({"command": command})
        targets = tuple(resolve_target(request, lambda: files) for request in requests)
        super().__init__(
            vault=vault, home=home, data_dir=home, files=files, watched=(), agent=SimpleNamespace(rules=()),
            call=ToolCall(id="c", tool="bash", args={}, targets=targets), rules=SimpleNamespace(all=lambda: list(rules)),
            mark=secrets.token_hex(8), progress=lambda _: None, log=logging.getLogger("moryflow.plugin.shell"),
            answers=list(answers), asked=[],
        )  # fmt: skip

    async def ask(self, question):
        self.asked.append(question.reason)
        if not (self.answers and self.answers.pop(0)):
            raise Denied("the user refused this call")


def sh(vault, command):
    """Do something outside the sandbox, as a person does."""
    subprocess.run(["bash", "-c", command], cwd=vault, check=True)


async def until_it_is_there(path):
    """Wait for what a command makes."""
    while not path.exists():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


@pytest.fixture
def place(tmp_path):
    """A vault with two repositories, things that run later, and secrets; and a home."""
    vault, home = tmp_path / "vault", tmp_path / "home"
    for folder in (home, vault / "sub", vault / ".husky", vault / "deep/.aws", vault / "conf"):
        folder.mkdir(parents=True)
    for repository in (vault, vault / "sub"):
        subprocess.run(["git", "init", "-q", str(repository)], check=True)
    (vault / ".env").write_text(TOKEN)
    (vault / "deep/.aws/credentials").write_text(TOKEN)
    (vault / "plain.txt").write_text("plain")
    (vault / ".idea").symlink_to("conf")
    (vault / "tools/odd").mkdir(parents=True)
    (vault / ".github/workflows").mkdir(parents=True)
    for name in ("tools/odd/pre-push", "tools/included", "watch.sh"):
        (vault / name).write_text("[core]\n")
    names = {"core.hooksPath": "tools/odd", "include.path": "../tools/included", "filter.x.clean": "./watch.sh"}
    for key, value in names.items():
        subprocess.run(["git", "config", "-f", str(vault / ".git/config"), key, value], check=True)
    return vault, home


def state(vault):
    """Return what runs later in a vault, file by file, with its content; of a repository what makes git run something."""
    found = {}
    for path, entry in Search(str(vault)).before().guarded.items():
        below = () if entry.kind == "repository" else sorted((vault / path).rglob("*"))
        found |= {str(file): file.read_bytes() if file.is_file() else b"" for file in (vault / path, *below)}
    return found


MADE = {
    "an editor's folder": "mkdir -p .vscode && echo x > .vscode/tasks.json",
    "one below": "mkdir -p a/b/.vscode; echo x > a/b/.vscode/settings.json",
    "continuous integration": "mkdir -p .github/workflows; echo x > .github/workflows/x.yml",
    "a hook of a repository below": "echo x > sub/.git/hooks/pre-commit; mkdir -p sub/.git/info; echo x > sub/.git/commondir",
    "a hook": "echo x > .git/hooks/pre-commit; echo '[core]' >> .git/config; echo x > .git/config.worktree",
    "another repository": "mv .git .g2 && mkdir .git && echo x > .git/config",
    "a new repository": "git init -q new",
    "one without .git": "mkdir g; cd g; echo 'ref: x' > HEAD; mkdir objects refs",
    "a copy of a repository": "mkdir o; cp -r sub/.git o/.git",
    "a renamed folder": "mkdir -p w/tasks; echo x > w/tasks/t.json; mv w .vscode",
    "a link": "ln -s conf .vscode",
    "what a link leads to": "echo x > conf/workspace.xml",
    "a folder that nobody can look into": "mkdir -p shut/.idea; chmod 0 shut",
    "a rebase that runs programs": "mkdir .git/rebase-merge; echo 'exec x' > .git/rebase-merge/git-rebase-todo",
    "a link to a file with the same number": "ln plain.txt .envrc; ln .husky/pre-commit x; echo x > x",
    "away and back": "mv sub s; echo x > s/.git/hooks/pre-commit; mv s sub; echo x > sub/.git/config",
    "through the process": "mkdir -p /proc/self/root$PWD/.zed /proc/1/root$PWD/.fleet",
    "a socket": "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\".envrc\")'; mkfifo .bashrc",
    "an odd folder of hooks": "echo x > tools/odd/pre-commit; echo x > tools/included",
    "a program of git's configuration": "echo x > watch.sh; mv watch.sh w; echo x > watch.sh",
    "the configuration itself": "git config core.hooksPath plain; git config core.fsmonitor ./x; git worktree add w",
    "capitals": "mkdir .VSCODE; touch .GitAttributes",
    "programs": "mkdir -p node_modules/.bin; echo x > node_modules/.bin/x",
    "a change of what is there": "echo x > .husky/pre-commit; mv .husky h; rm -rf .husky",
    "from the background": "(sleep 0.1; mkdir .vscode) & sleep 0.3",
    "before it is stopped": "mkdir .vscode; sleep 60",
    "without a mark": "env -i setsid sh -c 'mkdir .vscode; sleep 60' & sleep 0.3",
}


async def test_no_process_in_the_sandbox_holds_a_way_out(place):
    """No descriptor, folder or root of any process there leads to what is hidden, or to a place outside (R14, R34)."""
    vault, home = place
    (home / "server.token").write_text("tok-of-the-home")
    ways = "for way in /proc/[0-9]*/fd/* /proc/[0-9]*/task/*/fd/* /proc/[0-9]*/cwd /proc/[0-9]*/root; do"
    inside = f'cat "$way/.env" "$way{vault}/.env" "$way/../home/server.token" "$way{home}/server.token"'
    result = await run(Context(place, f'{ways} {inside}; echo x > "$way/../escaped"; echo x > "$way{home}/y"; done; true'), 60)
    assert TOKEN not in result.output and "tok-of-the-home" not in result.output
    assert not (vault.parent / "escaped").exists() and not (home / "y").exists()


async def test_no_socket_of_another_program_can_be_spoken_to(place):
    """A read-only place does not close a socket; an agent for keys would sign, a Docker would start anything (R14)."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/agent")
        listener.listen()
        speak = f"import socket; socket.socket(socket.AF_UNIX).connect('{folder}/agent'); print('spoken')"
        allowed = Rule(domain="bash", pattern="sandbox:network", decision="allow", source="user")
        for rules in ((), (allowed,)):
            result = await run(Context(place, f'python3 -c "{speak}"', rules), 60)
            assert "ConnectionRefusedError" in result.output


@pytest.mark.parametrize("name", [b".env.\xff", b".env.\n", b".env.$(id)", b"a\nb.pem", b"-rf.key", b".env.\xc3\xa9"])
async def test_a_secret_is_hidden_whatever_its_name_is(place, name):
    """One whose name is no text would stop every command (R10)."""
    (place[0] / os.fsdecode(name)).write_text(TOKEN)
    result = await run(Context(place, "cat -- .env* *.pem *.key; echo done"), 60)
    assert "done" in result.output and TOKEN not in result.output


async def test_watched_files_are_closed_in_the_vault_and_not_shown_elsewhere(place, tmp_path):
    """A link in Moryflow's folder may lead to a secret in a hidden folder; shown read-only, it could be read (R10, R21)."""
    vault, home = place
    linked, elsewhere = vault / "linked.jsonc", home / "secrets.json"
    linked.write_text("{}")
    elsewhere.write_text(TOKEN)
    context = Context(place, f"echo x > linked.jsonc; cat {elsewhere}; echo over > /dev/null && echo fine")
    context.watched = (linked, elsewhere, Path("/dev/null"))
    result = await run(context, 60)
    assert TOKEN not in result.output and "fine" in result.output and linked.read_text() == "{}"


async def test_links_that_lead_in_a_circle_stop_no_command(place):
    """They have names of files that run later."""
    (place[0] / ".envrc").symlink_to("circle")
    (place[0] / "circle").symlink_to(".envrc")
    assert "plain" in (await run(Context(place, "cat plain.txt"), 60)).output


async def test_what_nobody_could_look_into_is_hidden(place):
    """A command could open it, or go into it step by step (R10)."""
    deep = place[0].joinpath(*["d" * 250] * 13)
    deep.mkdir(parents=True)
    (deep / ".env").write_text(TOKEN)
    result = await run(Context(place, f"cd {deep} && cat .env; cat {deep}/.env; find . -name .env -exec cat {{}} +"), 60)
    assert TOKEN not in result.output


@pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")
async def test_a_folder_that_was_closed_before_the_command_stays_where_and_as_it_is(place):
    """The command cannot have changed what was hidden from it, and the model is told nothing of it (R21, S0.36)."""
    for name in ("shut", "parent/shut"):
        (place[0] / name).mkdir(parents=True)
        (place[0] / name / "mine.txt").write_text("mine")
        (place[0] / name).chmod(0)
    context = Context(place, "ls; mkdir .vscode", answers=[True])
    result = await run(context, 60)
    assert context.asked and "shut" not in context.asked[0] and "shut" not in result.output.split("[")[-1]
    for name in ("shut", "parent/shut"):
        assert (place[0] / name).stat().st_mode & 0o777 == 0
        (place[0] / name).chmod(0o700)
        assert (place[0] / name / "mine.txt").read_text() == "mine"


async def test_the_home_of_moryflow_in_the_working_folder_is_hidden(place):
    """Whoever works in their own home can run commands there, and none reaches Moryflow's (R14)."""
    vault, _ = place
    home = vault / ".moryflow"
    home.mkdir()
    (home / "server.token").write_text(TOKEN)
    result = await run(Context((vault, home), "cat plain.txt; cat .moryflow/*; echo x > .moryflow/config.jsonc"), 60)
    assert "plain" in result.output and TOKEN not in result.output
    assert not (home / "config.jsonc").exists()


@pytest.mark.parametrize("inside", ["", "plugins/mine"])
async def test_a_working_folder_in_the_home_of_moryflow_is_read_only(place, inside):
    """No command changes what Moryflow is configured by, or sees its token (R14)."""
    home = place[1]
    vault = home / inside
    vault.mkdir(parents=True, exist_ok=True)
    sh(vault, "git init -q")
    (vault / "plugin.py").write_text("code")
    (home / "server.token").write_text(TOKEN)
    command = f"cat plugin.py; cat {home}/server.token; for to in . .git {home}; do echo x > $to/config.jsonc; done"
    result = await run(Context((vault, home), command), 60)
    assert "code" in result.output
    assert TOKEN not in result.output and not list(home.rglob("config.jsonc"))


MOVED = {
    "a moved repository": "mv sub moved",
    "the place of a moved repository": "mv sub moved; mkdir -p sub/.git; echo x > sub/.git/config",
    "a link that leads elsewhere": "mkdir evil; echo x > evil/x; rm .idea; ln -s evil .idea",
    "a link that is gone": "rm .idea",
    "the place of an odd folder of hooks": "mv tools t; mkdir -p tools/odd; echo x > tools/odd/pre-commit",
    "a folder that holds one": "mv .github g; mv tools .github; mkdir tools",
}


@pytest.mark.parametrize("command", MOVED.values(), ids=MOVED.keys())
async def test_what_moves_with_its_folder_keeps_its_content(place, command):
    """What runs later may be moved with a folder above it, or a link to it be removed; nothing new runs later (R21)."""
    vault, _ = place
    before = state(vault)
    await run(Context(place, f"{command}; true"), 60)
    now = state(vault)
    assert all(data == before.get(path, data) and (not data or data in before.values()) for path, data in now.items())


@pytest.mark.parametrize("command", MADE.values(), ids=MADE.keys())
async def test_nothing_that_runs_later_appears_or_changes(place, command):
    """What did is set aside and asked about, and nothing is lost (R21, S0.36)."""
    vault, home = place
    before = state(vault)
    context = Context(place, f"{command}; true")
    result = await run(context, 1.5 if "sleep 60" in command else 60)
    assert state(vault) == before
    assert len(context.asked) <= 1 and bool(context.asked) == (result.code == "runs_later")
    assert result.metadata["sandboxed"] and not list((home / "running").iterdir())


async def test_what_is_put_back_is_asked_about_and_kept(place):
    """The question names file and reason; refused, the model is told and the file is kept outside (R21)."""
    vault, home = place
    context = Context(place, "mkdir -p .vscode && echo x > .vscode/tasks.json; echo fine > a.txt")
    result = await run(context, 60)
    assert context.asked == [
        "the command made files that run later: .vscode (an editor runs it when the folder is opened). "
        "They were set aside. Move them where the command wanted them?"
    ]
    assert (result.status, result.code) == ("error", "runs_later") and "the user refused this call" in result.output
    (kept,) = home.glob("aside/*/.vscode/tasks.json")
    assert kept.read_text() == "x\n" and str(kept.parent) in result.output
    assert (vault / "a.txt").read_text() == "fine\n"


@pytest.mark.parametrize(
    ("command", "there", "gone"),
    [
        ("mkdir -p .vscode && echo x > .vscode/tasks.json", ".vscode/tasks.json", "aside"),
    ],
)
async def test_a_person_can_have_it_put_in_place(place, command, there, gone):
    """Agreed to, it is where the command wanted it, and the model is told so (R21)."""
    vault, _ = place
    result = await run(Context(place, command, answers=[True]), 60)
    assert (vault / there).exists() and not (vault / gone).exists()
    assert result.status == "ok" and "the user agreed" in result.output


async def test_a_file_that_a_question_named_may_be_written(place):
    """Asked about before, it is not asked about again; what is beside it is (R21)."""
    vault, _ = place
    context = Context(place, "mkdir -p .vscode && echo x > .vscode/tasks.json; echo y > .vscode/launch.json")
    await run(context, 60, [str(vault / ".vscode/tasks.json")])
    assert (vault / ".vscode/tasks.json").exists() and not (vault / ".vscode/launch.json").exists()
    assert ".vscode/launch.json" in context.asked[0] and "tasks.json" not in context.asked[0]


async def test_a_rule_that_allows_an_edit_lets_it_stand(place):
    """What a person's rule allows to edit is neither closed nor asked about (D4)."""
    vault, _ = place
    rules = [Rule(domain="edit", pattern="vault:/.github/**", decision="allow")]
    context = Context(place, "mkdir -p .github/workflows; echo x > .github/workflows/x.yml", rules)
    assert (await run(context, 60)).status == "ok" and not context.asked
    assert (vault / ".github/workflows/x.yml").exists()


@pytest.mark.parametrize(
    "command",
    [
        "cat .e*", "cat deep/.aws/*", "grep -r . .", "cp .env x; cat x", "mv .env x; cat x", "ln .env x; cat x",
        "ln -s .env x; cat x", "mv deep d; cat d/.aws/*", "tar c . | cat", "cat .git/config", "cat priv*/*", "git config -l",
    ],
)  # fmt: skip
async def test_secrets_stay_hidden(place, command):
    """Neither by name, by pattern, through a folder nor after a move (R8, S0.36); nor what a rule keeps from being read."""
    vault, _ = place
    sh(vault, f"git config remote.o.url https://u:{TOKEN}@x/y")
    (vault / "private").mkdir()
    (vault / "private/a").write_text(TOKEN)
    rules = [Rule(domain="read", pattern="vault:/private/**", decision="deny")]
    result = await run(Context(place, command, rules), 60)
    assert TOKEN not in result.output
    assert (vault / ".env").read_text() == TOKEN and TOKEN in (vault / ".git/config").read_text()


async def test_what_is_hidden_is_said(place):
    """A file that is empty in there is no riddle (STYLE)."""
    result = await run(Context(place, "cat .env"), 60)
    assert result.output.endswith("[hidden in the sandbox: .env]")


async def test_a_pipe_in_a_repository_holds_up_no_command(place):
    """Only a bound on time would end the wait for whoever writes to it (R37)."""
    pipes = [place[0] / ".git" / name for name in ("config", "index")]
    for pipe in pipes:
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
    calling = asyncio.create_task(run(Context(place, "echo ran"), 60))
    await asyncio.wait((calling,), timeout=20)
    held_up = not calling.done()
    while not calling.done():
        for pipe in pipes:  # let a thread that waits go on
            with contextlib.suppress(OSError):
                os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
        await asyncio.sleep(0.1)
    assert not held_up and "ran" in calling.result().output


async def test_what_the_person_cannot_read_anyway_is_no_remark_on_a_failure(place, monkeypatch):
    """``lost+found`` of root is not why a command failed; it is said where the command names it (STYLE)."""
    vault, _ = place
    deep = vault.joinpath(*["d" * 250] * 13)
    deep.mkdir(parents=True)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "d" * 250 not in str(path) and access(path, mode))
    result = await run(Context(place, "false"), 60)
    assert "hidden in the sandbox: .env" in result.output and "ddd" not in result.output


async def test_a_sandbox_without_stat_says_so(place, monkeypatch):
    """The folder did not change then."""
    which = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "stat" else which(name))
    monkeypatch.setenv("PATH", str(place[0]))
    result = await run(Context(place, "echo ran"), 60)
    assert "the program stat could not say" in result.output and "changed" not in result.output
    assert "\nran" not in f"\n{result.output}"


@pytest.mark.parametrize("opened", ["rule", "question", "rule in a folder"])
async def test_a_rule_or_an_answer_shows_a_secret(place, opened):
    """What a person allows to read is there, and only that (D4)."""
    rules = [Rule(domain="read", pattern="vault:/.env", decision="allow")] if opened == "rule" else []
    shown, other = ("deep/.aws/credentials", ".env") if "folder" in opened else (".env", "deep/.aws/credentials")
    if "folder" in opened:
        rules = [Rule(domain="read", pattern=f"vault:/{shown}", decision="allow")]
    context = Context(place, f"cat {shown}; echo; cat {other}", rules)
    result = await run(context, 60, [str(place[0] / shown)] if opened == "question" else [])
    assert result.output.startswith(TOKEN) and result.output.count(TOKEN) == 1


async def test_git_never_commits_a_hidden_file_as_empty(place):
    """What git tracks cannot be read rather than be empty: a commit of everything fails and says so."""
    vault, _ = place
    git = "git -c user.name=a -c user.email=b"
    sh(vault, f"echo registry=x > .npmrc; git add -f .npmrc; {git} commit -qm x")
    result = await run(Context(place, f"echo y > y; git add y; {git} commit -qam y; git show HEAD:.npmrc"), 60)
    assert "registry=x" in result.output and "denied" in result.output


async def test_a_commit_and_ordinary_files_need_no_question(place):
    """Work goes on as before (S0.36)."""
    git = "git -c user.name=a -c user.email=b"
    context = Context(place, f"mkdir -p src; echo x > src/a.py; git add src; {git} commit -qm x && {git} log --oneline | wc -l")
    result = await run(context, 60)
    assert (result.status, result.output.strip(), context.asked) == ("ok", "1", [])


async def test_a_cancelled_command_is_put_back_too(place, caplog):
    """Nobody waits for an answer then; the person is told (R21)."""
    vault, home = place
    task = asyncio.ensure_future(run(Context(place, "mkdir .vscode; touch begun; sleep 60"), 60))
    await until_it_is_there(vault / "begun")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not (vault / ".vscode").exists() and list(home.glob("aside/*/.vscode"))
    assert ".vscode" in caplog.text


async def test_two_commands_at_once_leave_nothing_behind(place):
    """Whichever ends first puts back what both have made; what one of them found before it began is not an excuse (R21)."""
    vault, _ = place
    before = state(vault)
    commands = ["mkdir .vscode; sleep 0.5", "sleep 0.2; mkdir -p a/.idea; touch .vscode/x; sleep 0.1"]
    contexts = [Context(place, command) for command in commands]
    await asyncio.gather(*(run(context, 60) for context in contexts))
    assert state(vault) == before


HOST = """
import asyncio, importlib.util, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("confined", sys.argv[1])
tests = importlib.util.module_from_spec(spec)
spec.loader.exec_module(tests)
place = (Path(sys.argv[2]), Path(sys.argv[3]))
asyncio.run(tests.run(tests.Context(place, "mkdir .vscode; touch begun; sleep 600"), 600))
"""


async def test_what_a_killed_host_could_not_put_back_the_next_one_does(place, caplog):
    """A record is there before the command; a host that lives keeps its own (R21, SECURITY §3)."""
    vault, home = place
    before = state(vault)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", HOST, __file__, str(vault), str(home))
    await until_it_is_there(vault / "begun")
    log = logging.getLogger("moryflow.plugin.shell")
    settle_leftovers(home, log)
    assert (vault / ".vscode").exists(), "its host lives"
    process.kill()
    await process.wait()
    settle_leftovers(home, log)
    assert state(vault) == before and not list((home / "running").iterdir())
    assert ".vscode" in caplog.text


async def test_so_many_that_they_cannot_be_closed_one_by_one_close_the_folder(place, monkeypatch):
    """Over the limit nothing can be written, and the model is told why (S0.36)."""
    monkeypatch.setattr("moryflow_builtins.shell.confine.MAX_CLOSED", 5)
    vault, _ = place
    for number in range(6):
        (vault / f"p{number}/.vscode").mkdir(parents=True)
    result = await run(Context(place, "touch x"), 60)
    assert "the whole folder was read-only" in result.output and not (vault / "x").exists()


async def test_a_folder_of_packages_is_closed_as_one(place, monkeypatch):
    """Hundreds of ``node_modules/.bin`` do not close what people write (S0.36)."""
    monkeypatch.setattr("moryflow_builtins.shell.confine.MAX_CLOSED", 20)
    vault, _ = place
    for number in range(30):
        (vault / f"node_modules/p{number}/node_modules/.bin").mkdir(parents=True)
    await run(Context(place, "touch x node_modules/p1/node_modules/.bin/x"), 60)
    assert (vault / "x").exists() and not (vault / "node_modules/p1/node_modules/.bin/x").exists()


def test_a_record_that_cannot_be_read_harms_nobody(tmp_path):
    """Whatever stands there, the start goes on (invariant 8)."""
    (tmp_path / "running").mkdir()
    for name, content in {"a": "{", "b": "[]", "c": json.dumps({"vault": 5, "mark": "x", "guarded": {}, "opened": []})}.items():
        (tmp_path / f"running/{name}.json").write_text(content)
    settle_leftovers(tmp_path, logging.getLogger("x"))
    assert (tmp_path / "running").exists()
