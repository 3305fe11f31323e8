"""What *always* stores for a command covers what was shown: the words, the folder, the files that it runs (D5, R18)."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.base.builtins import BUILTINS

NO_SANDBOX = {"domain": "bash", "pattern": "sandbox:commands", "decision": "deny"}


@pytest.fixture
def bench(bench):
    """The bench with every built-in plugin, without the sandbox, in a vault with a few scripts."""
    bench = replace(bench, builtins=BUILTINS)
    bench.config(permission={"rules": [NO_SANDBOX]}, doomLoop={"enabled": False})
    for folder in ("sub", "other", "way-to"):
        (bench.vault / folder).mkdir()
        script(bench, f"{folder}/build.sh", f"echo from {folder}")
    script(bench, "build.sh", "echo one")
    (bench.vault / "way").symlink_to("sub")
    return bench


def script(bench, name, text="echo one"):
    file = bench.vault / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


def bash(command, workdir=None):
    return ("bash", {"command": command, **({"workdir": workdir} if workdir else {})})


def stored(bench):
    return json.loads((bench.home / "config.jsonc").read_text())["agents"]["runtime"]["permission"]["rules"][1:]


async def asked(bench, *calls, replies=None):
    """Make `calls`, each in a session of its own; return for each whether it was asked about."""
    found = []
    for call in calls:
        outcome = await bench.run(bench.calls(call), replies=replies or ["reject"] * 3)
        found.append(bool(outcome.named("permission.asked")))
    return found


# ------------------------------------------------------------------------------------------------
# The folder
# ------------------------------------------------------------------------------------------------


async def test_the_same_words_in_another_folder_ask(bench):
    """`always` covers the folder that was shown, however it is written, and no other (D5, R18)."""
    outcome = await bench.run(bench.calls(bash("pwd", "sub")), replies=["exact"])
    assert outcome.named("permission.asked")[0]["exact"] == "pwd"
    assert stored(bench) == [{"domain": "bash", "pattern": "pwd", "decision": "allow", "folder": "vault:/sub"}]
    same = [bash("pwd", name) for name in ("sub", "./sub/", "way", str(bench.vault / "sub"), "other/../sub")]
    assert await asked(bench, *same) == [False] * len(same)
    others = [bash("pwd"), bash("pwd", "other"), bash("pwd", "."), bash("cd other; pwd", "sub")]
    assert await asked(bench, *others) == [True] * len(others)


async def test_a_rule_for_the_vault_itself_does_not_cover_a_folder_in_it(bench):
    """Without `workdir` the vault was shown, and that is what the rule is about (D5)."""
    await bench.run(bench.calls(bash("pwd")), replies=["exact"])
    assert stored(bench)[0]["folder"] == "vault:/"
    assert await asked(bench, bash("pwd"), bash("pwd", "sub"), bash("cd sub && pwd")) == [False, True, True]


async def test_the_folder_is_where_each_command_runs(bench):
    """After ``cd`` the rule of a command is about the folder that it runs in, and ``workdir`` comes to the same (D5, R9)."""
    await bench.run(bench.calls(bash("cd sub && pwd")), replies=["exact"])
    assert [(rule["pattern"], rule["folder"]) for rule in stored(bench)] == [("cd sub", "vault:/"), ("pwd", "vault:/sub")]
    assert await asked(bench, bash("cd sub && pwd"), bash("pwd", "sub"), bash("pwd")) == [False, False, True]


async def test_a_question_about_another_folder_says_where_it_is_allowed(bench):
    """Who answered *always* before sees why the same words ask again (R22)."""
    await bench.run(bench.calls(bash("pwd", "sub")), replies=["exact"])
    outcome = await bench.run(bench.calls(bash("pwd", "other")), replies=["reject"])
    question = outcome.named("permission.asked")[0]
    assert question["folder"] == "vault:/other" and "it is allowed in vault:/sub only" in question["reason"]


async def test_a_grant_of_this_session_is_bound_too(bench):
    """It holds at once and only there, and in the session's later turns (S0.44, R18)."""
    calls = bench.calls(bash("pwd", "sub"), bash("pwd", "sub"), bash("pwd", "other"))
    outcome = await bench.run(calls, replies=["exact", "reject"])
    assert [tool["status"] for tool in outcome.tools()] == ["ok", "ok", "denied"]


async def test_a_rule_that_a_person_wrote_holds_in_every_folder(bench):
    """What nobody bound is bound to nothing (S0.40)."""
    bench.config(permission={"rules": [NO_SANDBOX, {"domain": "bash", "pattern": "pwd", "decision": "allow"}]})
    assert await asked(bench, bash("pwd"), bash("pwd", "sub"), bash("cd other && pwd")) == [False, False, True]


def test_a_person_may_bind_a_rule_to_a_folder(bench):
    """``permission allow bash … --workdir`` writes the folder, list and explain show it (S0.48, S0.49)."""
    added = bench.cli("permission", "allow", "bash", "make *", "--workdir", "sub")
    assert added.returncode == 0 and "allow bash make * in vault:/sub" in added.stdout, added
    assert stored(bench)[0]["folder"] == "vault:/sub"
    assert "make * in vault:/sub" in bench.cli("permission", "rules", "--domain", "bash").stdout
    explain = ("permission", "explain", "bash", "make all", "--json")
    assert json.loads(bench.cli(*explain, "--workdir", "way").stdout)["decision"] == "allow"
    assert json.loads(bench.cli(*explain).stdout)["decision"] == "ask"
    assert bench.cli("permission", "allow", "bash", "make *", "--workdir", "..").returncode == 2
    assert bench.cli("permission", "allow", "read", "a", "--workdir", "sub").returncode == 2


async def test_a_denial_for_a_folder_holds_there_and_where_the_folder_is_not_known(bench):
    """A rule that forbids is not lost where the folder cannot be told (D26)."""
    rules = [{"domain": "bash", "pattern": "*", "decision": "allow"}]
    rules.append({"domain": "bash", "pattern": "touch *", "decision": "deny", "folder": "vault:/sub"})
    bench.config(permission={"rules": [NO_SANDBOX, *rules]})
    calls = bench.calls(bash("touch a", "sub"), bash("touch a", "other"), bash("popd; touch b"))
    outcome = await bench.run(calls, replies=["once"])
    assert [tool["status"] for tool in outcome.tools()] == ["denied", "ok", "denied"], outcome.tools()


async def test_a_denial_for_a_folder_holds_by_whatever_name_the_folder_has(bench):
    """The vault as a place of the file system, and a link to a folder, are that folder to a rule that forbids (R37, D26)."""
    (bench.vault / "link").symlink_to("sub")
    rules = [{"domain": "bash", "pattern": "*", "decision": "allow"}]
    for pattern, folder in (
        ("touch a*", f"fs:{bench.vault}"),
        ("touch b*", f"fs:{bench.vault}/sub"),
        ("touch c*", "vault:/link"),
    ):
        rules.append({"domain": "bash", "pattern": pattern, "decision": "deny", "folder": folder})
    bench.config(permission={"rules": [NO_SANDBOX, *rules]})
    calls = bench.calls(
        bash("touch a"), bash("touch b", "sub"), bash("touch c", "sub"), bash("touch a", "sub"), bash("touch b")
    )
    outcome = await bench.run(calls)
    assert [tool["status"] for tool in outcome.tools()] == ["denied", "denied", "denied", "ok", "ok"], outcome.tools()


# ------------------------------------------------------------------------------------------------
# What it runs
# ------------------------------------------------------------------------------------------------

RUNS = {
    "./build.sh": "build.sh",
    "./build.sh --fast": "build.sh",
    "sh build.sh": "build.sh",
    "bash ./build.sh x": "build.sh",
    ". ./build.sh": "build.sh",
    "source build.sh": "build.sh",
    "python3 tool.py": "tool.py",
    "python3 -u tool.py x": "tool.py",
    "python3 pack": "pack/__main__.py",
    "perl tool.pl": "tool.pl",
    "node tool.js": "tool.js",
    "awk -f tool.awk a.txt": "tool.awk",
    "sed -f tool.sed a.txt": "tool.sed",
    "make -f rules.mk": "rules.mk",
    "timeout 5 ./build.sh": "build.sh",
    "nice -n 5 sh build.sh": "build.sh",
    "bash -c './build.sh'": "build.sh",
    "cd sub && ./build.sh": "sub/build.sh",
    "true; ./build.sh": "build.sh",
    "uv run tool.py": "tool.py",
    "go run tool.go": "tool.go",
    "link.sh/../build.sh": None,
    "./link.sh": "build.sh",
}
"""A command and the file that it runs."""


@pytest.mark.parametrize("command", [command for command, file in RUNS.items() if file])
async def test_a_changed_script_asks_again_and_says_so(bench, make_policy, command):
    """A stored rule is bound to the content of what it runs, as it was when it was shown (R18)."""
    plant(bench)
    file = bench.vault / RUNS[command]
    rules = remember(make_policy, bench, command)
    assert verdict(make_policy, bench, command, rules).decision == "allow"
    before = file.read_bytes()
    file.write_bytes(before + b"# more\n")
    said = verdict(make_policy, bench, command, rules)
    assert said.decision == "ask" and f"vault:/{RUNS[command]} has changed" in named(said.reason, command), said.reason
    assert said.remember, "who agrees again is asked no more"
    file.write_bytes(before)
    assert verdict(make_policy, bench, command, rules).decision == "allow"
    file.unlink()
    assert verdict(make_policy, bench, command, rules).decision == "ask"


def named(reason, command):
    """Return `reason` with the names that a command gives to the same file."""
    for name, meant in (("link.sh", "build.sh"), ("vault:/pack has", "vault:/pack/__main__.py has")):
        reason = reason.replace(name, meant) if name.split()[0].removeprefix("vault:/") in command else reason
    return reason


def plant(bench):
    script(bench, "sub/Makefile", "all:\n\techo sub")
    for name in ("tool.py", "tool.pl", "tool.js", "tool.awk", "tool.sed", "tool.go", "pack/__main__.py", "pack/__init__.py"):
        script(bench, name)
    for name in ("Makefile", "rules.mk", "justfile", "package.json", "a.txt"):
        script(bench, name)
    (bench.vault / "link.sh").symlink_to("build.sh")


def judge(make_policy, bench, command, rules, folder="."):
    from moryflow.services.paths import PathResolver
    from moryflow_builtins.permission.verdict import judge_target
    from moryflow_sdk.calls import command_in

    policy = make_policy(rules, vault=bench.vault)
    files = PathResolver(bench.vault, Path("/home/u"), case_sensitive=True)
    return judge_target(policy, command_in(files.resolve(folder), command))


def verdict(make_policy, bench, command, rules, folder="."):
    return judge(make_policy, bench, command, rules, folder).verdict


def remember(make_policy, bench, command, folder="."):
    """Return the rules that *always* stores for `command`."""
    said = verdict(make_policy, bench, command, (), folder)
    assert said.decision == "ask" and said.remember, said
    keys = ("domain", "pattern", "folder", "contents")
    return [{"decision": "allow", **{key: getattr(item, key) for key in keys}} for item in said.remember]


APPEARS = {
    "./new.sh": "new.sh",
}


@pytest.mark.parametrize("command", APPEARS)
def test_what_would_run_in_its_place_asks_when_it_appears(bench, make_policy, command):
    """A file that was not there, and is found first once it is, changes what runs (R18)."""
    plant(bench)
    rules = remember(make_policy, bench, command, "sub")
    assert verdict(make_policy, bench, command, rules, "sub").decision == "allow"
    script(bench, f"sub/{APPEARS[command].removeprefix('sub/')}", "all:\n\techo other")
    said = verdict(make_policy, bench, command, rules, "sub")
    assert said.decision == "ask" and "did not exist before" in said.reason


def test_a_link_to_a_script_may_not_be_turned(bench, make_policy):
    """The content counts that is behind the name, not the name (R12, R18)."""
    script(bench, "evil.sh", "echo evil")
    (bench.vault / "go.sh").symlink_to("build.sh")
    rules = remember(make_policy, bench, "./go.sh")
    assert verdict(make_policy, bench, "./go.sh", rules).decision == "allow"
    (bench.vault / "go.sh").unlink()
    (bench.vault / "go.sh").symlink_to("evil.sh")
    assert verdict(make_policy, bench, "./go.sh", rules).decision == "ask"


def test_an_older_answer_holds_again_for_what_it_was_about(bench, make_policy):
    """A person who agreed to two versions of a script has agreed to both (S0.44)."""
    first = remember(make_policy, bench, "./build.sh")
    script(bench, "build.sh", "echo two")
    both = [*first, *remember(make_policy, bench, "./build.sh")]
    assert verdict(make_policy, bench, "./build.sh", both).decision == "allow"
    script(bench, "build.sh", "echo one")
    assert verdict(make_policy, bench, "./build.sh", both).decision == "allow"
    script(bench, "build.sh", "echo three")
    assert verdict(make_policy, bench, "./build.sh", both).decision == "ask"


@pytest.mark.parametrize("kind", ["large", "pipe", "hidden"])
def test_no_rule_is_offered_for_a_script_that_cannot_be_compared(bench, make_policy, monkeypatch, kind):
    """What is not known cannot be promised (R18)."""
    file = bench.vault / "build.sh"
    if kind == "large":
        monkeypatch.setattr("moryflow_builtins.permission.shell.remember.MAX_BYTES", 3)
    elif kind == "pipe":
        file.unlink()
        os.mkfifo(file)
    command = "./build.sh" if kind != "hidden" else "source ./other/build.sh && ./build.sh"
    said = verdict(make_policy, bench, command, ())
    assert said.decision == "ask" and not said.remember


def test_programs_of_the_system_are_bound_by_their_place(bench, make_policy):
    """An update of the system is no reason to ask again (D4)."""
    (remembered,) = remember(make_policy, bench, "/usr/bin/env true")[:1]
    assert not remembered["contents"]
    (bench.vault / "tool").symlink_to("/usr/bin/env")
    (remembered,) = remember(make_policy, bench, "./tool true")[:1]
    assert remembered["contents"] == {"vault:/tool": f"is:{os.path.realpath('/usr/bin/env')}"}


async def test_the_rule_in_the_file_holds_until_the_script_changes(bench):
    """Stored, read again from the file, and held against the file of today (R18, S0.44)."""
    outcome = await bench.run(bench.calls(bash("./build.sh")), replies=["always"])
    assert outcome.named("permission.asked")[0]["always"] == "./build.sh"
    assert list(stored(bench)[0]["contents"]) == ["vault:/build.sh"]
    assert await asked(bench, bash("./build.sh")) == [False]
    script(bench, "build.sh", "echo two")
    outcome = await bench.run(bench.calls(bash("./build.sh")), replies=["always"])
    assert "vault:/build.sh has changed since it was allowed" in outcome.named("permission.asked")[0]["reason"]
    assert await asked(bench, bash("./build.sh")) == [False]


@pytest.mark.parametrize("reply", ["once", "always"])
async def test_a_script_that_changes_while_the_question_stands_does_not_run(bench, reply):
    """What was shown is compared before it runs, however soon the answer came (R18)."""
    changed = []

    def change(_host, _session, event):
        if event.type == "permission.asked" and not changed:
            changed.append(script(bench, "build.sh", "echo evil"))

    outcome = await bench.run(bench.calls(bash("./build.sh")), replies=[reply, "reject"], during=change)
    assert len(outcome.named("permission.asked")) == 1
    assert outcome.tools()[0]["status"] == "denied" and "has changed since" in outcome.tools()[0]["output"]
    assert await asked(bench, bash("./build.sh")) == [True], "the rule is about what was shown"


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"domain": "read", "folder": "vault:/"}, 'only a rule of bash has "folder"'),
        ({"folder": "sub"}, "is not a folder"),
        ({"folder": 3}, "is not a folder"),
        ({"folder": "vault:/../.."}, "is not a folder"),
        ({"folder": "vault://"}, "is not a folder"),
        ({"folder": "fs:/tmp/x/"}, "is not a folder"),
        ({"folder": "vault:/sub/../x"}, "is not a folder"),
        ({"folder": "vault:/x\u200b", "decision": "deny"}, "is not a folder"),
        ({"contents": {"x": "y"}}, '"contents" names files'),
        ({"contents": {"vault:/x": "md5:1"}}, '"contents" names files'),
        ({"contents": {"vault:/x": "absent"}, "decision": "deny"}, 'only a rule that allows has "contents"'),
    ],
)
def test_a_rule_that_is_bound_to_nonsense_is_named(bench, rule, problem):
    """It gives nothing, and ``config check`` says what to write (D26)."""
    bench.config(permission={"rules": [{"domain": "bash", "pattern": "ls", "decision": "allow", **rule}]})
    done = bench.cli("config", "check")
    assert problem in done.stdout + done.stderr, done


# ------------------------------------------------------------------------------------------------
# Never wider than what was shown
# ------------------------------------------------------------------------------------------------

COMMANDS = (
    "pwd",
    "ls -la",
    "./build.sh",
    "cd sub && ./build.sh",
    "make",
    "cd way && ls",
    "sh build.sh; pwd",
    "cd sub; cd ..; pwd",
)
FOLDERS = (".", "sub", "way", "other", "sub/deep", "missing")


@settings(max_examples=200)
@given(
    shown=st.tuples(st.sampled_from(COMMANDS), st.sampled_from(FOLDERS)),
    then=st.tuples(st.sampled_from(COMMANDS), st.sampled_from(FOLDERS)),
)
def test_an_answer_allows_the_same_there_and_nothing_elsewhere(bench, make_policy, shown, then):
    """The words that were shown run again where they were shown; equal words ask in every other folder (D5)."""
    said = verdict(make_policy, bench, shown[0], (), shown[1])
    if said.decision != "ask" or not said.remember:
        return
    rules = remember(make_policy, bench, *shown)
    assert verdict(make_policy, bench, shown[0], rules, shown[1]).decision == "allow"
    if then[0] == shown[0] and {then[1], shown[1]} not in ({"sub"}, {"way"}, {"sub", "way"}) and then[1] != shown[1]:
        assert verdict(make_policy, bench, then[0], rules, then[1]).decision != "allow"


OTHERS = {
    "echo hi": "echo hi; make | echo hi && make | echo hi§make | echo hi > .mcp.json | echo hi > /etc/x | X=1 echo hi"
    " | ./echo hi | PATH=. echo hi | /tmp/echo hi | echo 'hi ' | echo 'hi x' | echo h* | echo $hi",
    "echo 'a b'": "echo a b",
    "echo a b": "echo 'a b'",
    "echo 'a;b'": "echo a;b",
    "ls sub": "ls sub .env | ls sub $(make) | cd other && ls sub | env -C other ls sub | ls 'sub ' | 'ls sub' | ls${IFS}sub",
    "make": "make SHELL=./x | make -C sub | SHELL=./x make | make -f - < x | cd sub; make | echo x > Makefile; make"
    " | cp a.txt Makefile && make | cp a.txt GNUmakefile; make | python3 x.py; make",
    "sh build.sh": "sh build.sh x | sh -x build.sh | ENV=x sh build.sh | echo x > build.sh; sh build.sh"
    " | mv sub/build.sh .; sh build.sh | tee build.sh < a.txt; sh build.sh",
    "cat <<E§a§E": "cat <<E§$(make)§E",
    "git commit -m x": "git commit -m x -n | git -c core.hooksPath=x commit -m x | export GIT_DIR=sub; git commit -m x",
    "npm test": "npm test -- --x | npm --prefix sub test | npm_config_script_shell=./x npm test",
    "FOO=1 make": "FOO=2 make | FOO=1 BAR=2 make | BAR=2 FOO=1 make | FOO=$(id) make",
    "timeout 5 make": "timeout 6 make | timeout 5 make x",
}
"""What was agreed to, and what looks like it; ``§`` is the end of a line."""


@pytest.mark.parametrize("command", OTHERS)
def test_what_looks_like_what_was_agreed_to_asks(bench, make_policy, command):
    """Other words, joins, redirections, variables, folders and texts that are fed in are another command (D5, R18)."""
    plant(bench)
    agreed = command.replace("§", "\n")
    rules = remember(make_policy, bench, agreed)
    assert verdict(make_policy, bench, agreed, rules).decision == "allow"
    for other in OTHERS[command].replace("§", "\n").split(" | "):
        assert verdict(make_policy, bench, other, rules).decision != "allow", other
