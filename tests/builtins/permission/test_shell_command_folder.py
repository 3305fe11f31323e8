"""Where a command runs is part of what is judged, shown, recorded and run."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.base.builtins import BUILTINS
from moryflow.services import View
from moryflow.services.paths import PathResolver
from moryflow_builtins.permission.policy import STRENGTH
from moryflow_builtins.permission.verdict import judge_target
from moryflow_sdk import Target
from moryflow_sdk.calls import command_in

PRIVATE = ({"domain": "edit", "pattern": "vault:/private/**", "decision": "deny"},)


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin, without the sandbox: what is judged must hold by itself."""
    bench = replace(bench, builtins=BUILTINS)
    plant(bench.vault)
    return bench


def plant(vault: Path) -> None:
    """Lay out a vault with folders that a command must not enter unseen."""
    for name in (".moryflow", ".git/hooks", ".git/objects", ".git/refs", "private", "sub/deep", "evil/objects", "evil/refs"):
        (vault / name).mkdir(parents=True, exist_ok=True)
    (vault / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (vault / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n")
    (vault / "evil/objects/k").write_text("k")
    (vault / "evil/HEAD").write_text("ref: refs/heads/main\n")
    (vault / "evil/config").write_text(f"[core]\n\tworktree = {vault}\n\tfsmonitor = touch {vault}/ran; false\n")
    (vault / ".env").write_text("KEY=secret-value\n")
    (vault / "sub/notes").symlink_to("../.env")
    (vault / "way").symlink_to("sub")
    (vault / "out").symlink_to("/etc")


def allow(bench, *patterns, more=()):
    rows = [{"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}]
    rows += [{"domain": "bash", "pattern": pattern, "decision": "allow"} for pattern in patterns]
    bench.config(permission={"rules": [*rows, *more]})


def call(command, workdir):
    return ("bash", {"command": command, "workdir": workdir})


ASKED = {
    "a planted repository": ("git status", "evil", ()),
    "a planted repository, above": ("git status", "evil/refs", ()),
    "the host's own rules of a vault": ("echo x > rules", ".moryflow", ()),
    "a hook": ("echo x > pre-commit", ".git/hooks", ()),
    "a hook, from above": ("echo x > hooks/pre-commit", ".git", ()),
    "a link to a secret": ("cat notes", "sub", ()),
    "a link to a secret, through a link": ("cat notes", "way", ()),
    "a closed folder": ("echo x > a", "private", PRIVATE),
    "a closed folder, from beside": ("echo x > ../private/a", "sub", PRIVATE),
}


@pytest.mark.parametrize("case", ASKED)
async def test_a_command_is_judged_in_its_folder(bench, case):
    """Operands, redirections and the repository are those of the folder that a command runs in (R12, R20, R34)."""
    command, workdir, more = ASKED[case]
    allow(bench, "git status", "echo *", "cat *", more=more)
    before = sorted(str(path) for path in bench.vault.rglob("*"))
    outcome = await bench.run(bench.calls(call(command, workdir)))
    assert outcome.tools()[0]["status"] == "denied", outcome.tools()[0]
    left = sorted(str(path) for path in bench.vault.rglob("*") if ".agent-output" not in str(path))
    assert left == before


async def test_a_denied_folder_stays_closed_in_full_access(bench):
    """A person's deny holds for what a folder makes of a command, in every mode (D2, R34)."""
    allow(bench, "*", more=PRIVATE)
    outcome = await bench.run(bench.calls(call("echo x > a", "private"), call("echo x > a", "sub")), mode="full_access")
    assert [tool["status"] for tool in outcome.tools()] == ["denied", "ok"], outcome.tools()
    assert not (bench.vault / "private/a").exists() and (bench.vault / "sub/a").exists()


@pytest.mark.parametrize("workdir", ["..", "/etc", "out", "out/ssl", "~", "sub/../..", "/", "x\0y", "../vault-evil"])
@pytest.mark.parametrize("mode", ["agent", "full_access"])
async def test_no_command_runs_outside_the_vault(bench, workdir, mode):
    """Model input never chooses a folder outside the vault, whatever the rules and the mode (R20)."""
    (bench.vault.parent / "vault-evil").mkdir()
    allow(bench, "*", more=[{"domain": "read", "pattern": "*", "decision": "allow"}])
    outcome = await bench.run(bench.calls(call("pwd; touch here", workdir)), mode=mode)
    assert outcome.tools()[0]["status"] in ("denied", "error")
    assert not list(bench.vault.parent.rglob("here"))


@pytest.mark.parametrize("workdir", ["sub", "./sub/", "way", "sub/deep/..", ".", None])
async def test_a_folder_of_the_vault_needs_no_question_of_its_own(bench, workdir):
    """What a rule allows runs in the folders of the vault as in the vault (S0.40)."""
    allow(bench, "pwd")
    outcome = await bench.run(bench.calls(call("pwd", workdir)))
    wanted = bench.vault if workdir in (".", None) else bench.vault / "sub"
    assert outcome.tools()[0]["output"].splitlines()[0] == str(wanted)


async def test_question_approval_and_audit_name_the_folder(bench):
    """A person sees where a command runs, and the records keep it (R22, R34)."""
    outcome = await bench.run(bench.calls(call("touch x", "way")), replies=["once"])
    assert outcome.named("permission.asked")[0]["folder"] == "vault:/sub"
    assert (bench.vault / "sub/x").exists()
    assert [line["folder"] for line in bench.audit() if line["type"] == "decision"] == ["vault:/sub"]


# ------------------------------------------------------------------------------------------------
# Explained is judged
# ------------------------------------------------------------------------------------------------

COMMANDS = (
    "git status", "git log --oneline", "echo x > rules", "cat notes", "cat ../.env", "ls", "rm -rf .", "touch a", "cp a b",
    "cd .. && cat .env", "cd deep; ls", "python3 tool.py", "./build.sh", "make", "sed -i s/a/b/ x", "tee config < /dev/null",
    "find . -name x", "grep -r x .", "mv a ../private/a", "echo x >> ../.git/hooks/pre-commit", "true", "$(cat notes)",
)  # fmt: skip
FOLDERS = (".", "sub", "sub/deep", "way", "evil", "private", ".git", ".git/hooks", ".moryflow", "missing", "sub/..")
RULES = ("echo *", "git status", "cat *", "ls", "touch *", "make", "./build.sh", "cd *", "*")


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    vault = tmp_path_factory.mktemp("judged") / "vault"
    plant(vault)
    return vault


@settings(max_examples=300)
@given(
    command=st.sampled_from(COMMANDS),
    folder=st.sampled_from(FOLDERS),
    allowed=st.lists(st.sampled_from(RULES), max_size=4),
    denied=st.sampled_from([(), PRIVATE]),
)
def test_a_folder_is_never_laxer_than_going_there(planted, make_policy, command, folder, allowed, denied):
    """``workdir`` d is judged like ``cd d && …``, or more strictly (R34, R9)."""
    rows = [{"domain": "bash", "pattern": pattern, "decision": "allow"} for pattern in allowed]
    policy = make_policy([*rows, *denied, {"domain": "bash", "pattern": f"cd {folder}", "decision": "allow"}], vault=planted)
    files = PathResolver(planted, Path("/home/u"), case_sensitive=True)
    there = judge_target(policy, command_in(files.resolve(folder), command)).worst
    here = command_in(files.resolve("."), f"cd {folder} && {command}")
    gone = judge_target(policy, here).worst
    assert STRENGTH[there.decision] >= STRENGTH[gone.decision], (there, gone)


@pytest.mark.parametrize("folder", FOLDERS)
async def test_explain_gives_the_answer_that_a_call_gets(bench, folder):
    """``permission explain bash … --workdir`` judges as the gate does, by decision, cause and targets (R34, S0.49)."""
    from moryflow_builtins.permission.cli import explain_input

    allow(bench, "echo *", "git status", "cat *", "touch *", more=PRIVATE)
    found = {}

    async with bench.host() as host, host.read_only(vault=bench.vault) as scope:
        turn = View(scope, "permission")
        for command in COMMANDS:
            said = explain_input(turn, "bash", command, "agent", folder)
            found[command] = (said.document()["decision"], said.verdict.reason)
    calls = bench.calls(*(call(command, folder) for command in COMMANDS))
    events = []
    bench.config(permission={"rules": [*_rules_of(bench)]}, doomLoop={"enabled": False})
    outcome = await bench.run(calls, replies=["reject"] * len(COMMANDS), during=lambda h, s, e: events.append(e))
    lines = {line["callId"]: line for line in bench.audit(outcome.session)}
    made = [event.data for event in events if event.type == "tool.result"]
    for command, data in zip(COMMANDS, made, strict=True):
        line = lines.get(data["call_id"])
        assert line is not None
        decision = "ask" if line["by"] == "user" else line["decision"]
        assert decision == found[command][0], (command, folder, line, found[command])


EVERYWHERE = (*FOLDERS, "out", "out/ssl", "..", "/etc", "/", "~", "sub/../..", "", "./sub/", "loop", "a.md", "x" * 300)
BOUND = (
    {"domain": "bash", "pattern": "make", "decision": "allow", "folder": "vault:/sub"},
    {"domain": "bash", "pattern": "./build.sh", "decision": "allow", "contents": {"vault:/sub/build.sh": "absent"}},
    {"domain": "bash", "pattern": "ls", "decision": "deny", "folder": "vault:/private"},
    {"domain": "bash", "pattern": "cat *", "decision": "allow", "folder": "vault:/"},
)


@pytest.mark.parametrize(
    "rules", [(), PRIVATE, BOUND, ({"domain": "bash", "pattern": "*", "decision": "allow"}, *PRIVATE, *BOUND)]
)
async def test_explained_is_judged_in_every_folder(bench, rules):
    """Wherever a command would run, ``permission explain`` says what the gate says: decision, reason, *always* (R34)."""
    from moryflow.cli.contributed import prepared_call
    from moryflow_builtins.permission import tool_gate
    from moryflow_builtins.permission.cli import explain_input

    allow(bench, more=rules)
    (bench.vault / "loop").symlink_to("loop")
    (bench.vault / "a.md").write_text("a")
    async with bench.host() as host, host.read_only(vault=bench.vault) as scope:
        turn = View(scope, "permission")
        for folder in EVERYWHERE:
            for command in COMMANDS:
                said = explain_input(turn, "bash", command, "agent", folder).verdict
                judged = await tool_gate(prepared_call(turn, "bash", {"command": command, "workdir": folder}), turn)
                assert said == judged, (command, folder)
                assert said.decision == "deny" or _inside(bench.vault, folder), (command, folder)


def _inside(vault, folder):
    place = (vault / Path(folder).expanduser()).absolute()
    return folder == "" or os.path.realpath(place).startswith(str(vault))


def _rules_of(bench):
    import json

    return json.loads((bench.home / "config.jsonc").read_text())["agents"]["runtime"]["permission"]["rules"]


def test_explain_takes_the_folder_on_the_command_line(bench):
    """The option is there, and only where it means something (R34)."""
    allow(bench, "echo *", more=PRIVATE)
    explain = ("permission", "explain", "bash", "echo x > a", "--json")
    assert '"decision": "allow"' in bench.cli(*explain).stdout.replace('":"', '": "')
    there = bench.cli(*explain, "--workdir", "private").stdout.replace('":"', '": "')
    assert '"decision": "deny"' in there and '"folder": "vault:/private"' in there
    assert bench.cli("permission", "explain", "read", "a", "--workdir", "sub").returncode == 2


def test_examples_may_name_the_folder(bench):
    """``permission test`` judges a line with ``workdir`` as a call would be (R34)."""
    allow(bench, "echo *", more=PRIVATE)
    line = '{"id": "%s", "tool": "bash", "args": {"command": "echo x > a", "workdir": "%s"}, "expect": "%s"}\n'
    file = bench.home / "examples.jsonl"
    file.write_text(line % ("in", "private", "deny") + line % ("beside", "sub", "allow") + line % ("out", "..", "deny"))
    done = bench.cli("permission", "test", str(file))
    assert done.returncode == 0, done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------
# Judgement is run
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sandboxed", [False, True])
async def test_a_folder_that_is_swapped_is_never_entered(bench, sandboxed):
    """The folder that was judged is used by its descriptor, whatever its name leads to by then (R12, R34)."""
    allow(bench, "touch x")
    if sandboxed:
        bench.config(permission={"rules": [{"domain": "bash", "pattern": "touch x", "decision": "allow"}]})
    outside = bench.vault.parent / "outside"
    outside.mkdir()
    good, name, link = bench.vault / "good", bench.vault / "name", bench.vault / "link"
    name.mkdir()
    link.symlink_to(outside)
    stop = threading.Event()

    def swap():
        while not stop.is_set():
            with suppress(OSError):
                name.rename(good)
                link.rename(name)
                name.rename(link)
                good.rename(name)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        await bench.run(bench.calls(*[call("touch x", "name")] * 8))
    finally:
        stop.set()
        swapping.join()
    assert not list(outside.iterdir())


def test_a_missing_folder_has_no_object(planted):
    """A folder that is not there is judged by its name and cannot be entered when it appears (R12)."""
    files = PathResolver(planted, Path("/home/u"), case_sensitive=True)
    target = command_in(files.resolve("missing"), "ls")
    assert isinstance(target, Target) and target.folder is not None and target.folder.identity is None
