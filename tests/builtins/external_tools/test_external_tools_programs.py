"""Tools in other languages: programs with a description, asked about by content, ended with their call."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow.plugins.consent import Consents, items
from moryflow.plugins.file_states import is_source
from moryflow_builtins.external_tools import programs
from moryflow_builtins.external_tools.programs import MAX_VARIABLE, Description, argument_variables, description_in
from moryflow_sdk import PluginError

BASH = shutil.which("bash") or "/bin/bash"
HEADER = '# /// moryflow\n# description = "Say it."\n# [parameters.properties.text]\n# type = "string"\n# ///\n'


def script(body: str, header: str = HEADER) -> str:
    return f"#!{BASH}\n{header}{body}\n"


ECHO = script("cat")
TABLE = 'description = "Say it."\nname = "said"\n'


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"say": ECHO}, "say"),
        ({"say.sh": ECHO}, "say"),
        ({"say.sh": ECHO.replace("\n", "\r\n").replace("bash\r", "bash").replace("cat\r", "cat")}, "say"),
        ({"say": script("cat", '# /// moryflow\n# {"description": "Say it.",\n#  "name": "said"}\n# ///\n')}, "said"),
        ({"say": script("cat", ""), "say.toml": TABLE}, "said"),
        ({"say.bin": script("cat", ""), "say.json": '{"description": "Say it.", "name": "said"}'}, "said"),
    ],
)
async def test_a_program_says_in_a_block_or_beside_it_what_it_is(box, files, name):
    """TOML or JSON, in comments of any language or a file of its own."""
    paths = [box.program(file, text, mode=0o700 if text.startswith("#!") else 0o600) for file, text in files.items()]
    box.enable()
    tools, notes = await box.loaded()
    assert (list(tools), notes) == ([name], ())
    assert (tools[name].description, tools[name].source) == ("Say it.", str(paths[0]))
    request = json.loads((await box.call(name)).output)
    assert (request["v"], request["tool"], request["args"], request["vault"]) == (1, name, {}, str(box.bench.vault))


@pytest.mark.parametrize("prefix", ["# ", "// ", "-- ", "; ", "% ", "", "//", "dnl ", "REM "])
def test_a_block_stands_in_the_comments_of_any_language(prefix):
    """The prefix of the first line is taken off all of them."""
    text = (
        f"first\n{prefix}/// moryflow\n{prefix}a = 1\n{prefix.rstrip()}\n{prefix}b = '''\n{prefix}  c'''\n{prefix}///\nrest\n"
    )
    found = description_in(Path("x"), text.encode())
    assert found == Description(Path("x"), "a = 1\n\nb = '''\n  c'''", 2)


OK = "description = 'x'"
WRONG = {
    "nothing": (script("cat", ""), None, "it does not say which tool it is"),
    "no end": (script("cat", "# /// moryflow\n# description = 'x'\n"), 2, "has no end"),
    "1 MB": (script("cat", "# /// moryflow\n" + "# # x\n" * 170_000 + "# ///\n"), 2, "has no end"),
    "toml": (script("cat", "# /// moryflow\n# description = 'x'\n# name = \n# ///\n"), 4, "not valid TOML"),
    "json": (script("cat", '# /// moryflow\n# {"description": "x",\n# "name" 5}\n# ///\n'), 4, "not valid JSON"),
    "not an object": (script("cat", "# /// moryflow\n# [1]\n# ///\n"), 3, "'1' is not one of"),
    "twice": (
        script("cat", '# /// moryflow\n# {"description": "x",\n# "domain": "bash", "domain": "read"}\n# ///\n'),
        3,
        "twice",
    ),
    "deep": (script("cat", "# /// moryflow\n# a = " + "[" * 5000 + "]" * 5000 + "\n# ///\n"), 3, "not valid TOML"),
    "date": (script("cat", "# /// moryflow\n# description = 'x'\n# name = 2020-01-01\n# ///\n"), 3, "not JSON serializable"),
    "infinite": (script("cat", f"# /// moryflow\n# {OK}\n# timeout = inf\n# ///\n"), 3, "not JSON compliant"),
    "no description": (script("cat", "# /// moryflow\n# name = 'x'\n# ///\n"), 3, "it has no description"),
    "empty": (script("cat", "# /// moryflow\n# description = ' '\n# ///\n"), 3, "description must be"),
    "field": (script("cat", f"# /// moryflow\n# {OK}\n# domian = 'read'\n# ///\n"), 4, "'domian' is not one of name"),
    "domain": (script("cat", f"# /// moryflow\n# {OK}\n# domain = 'reed'\n# ///\n"), 4, "domain must be one of read"),
    "timeout": (script("cat", f"# /// moryflow\n# {OK}\n# timeout = 0\n# ///\n"), 4, "timeout must be"),
    "schema": (script("cat", f"# /// moryflow\n# {OK}\n# parameters = 5\n# ///\n"), 4, "parameters must be"),
    "schema of a text": (script("cat", f"# /// moryflow\n# {OK}\n# parameters.type = 'string'\n# ///\n"), 4, "of an object"),
    "schema of nothing": (script("cat", f"# /// moryflow\n# {OK}\n# parameters.required = 5\n# ///\n"), None, "schema of"),
    "targets": (script("cat", f"# /// moryflow\n# {OK}\n# targets = ['path']\n# ///\n"), 4, "targets names 'path'"),
    "targets that are no schema": (
        script("cat", f"# /// moryflow\n# {OK}\n# targets = ['a']\n# parameters.properties.a = 5\n# ///\n"),
        4,
        "targets names 'a'",
    ),
    "name": (script("cat", f"# /// moryflow\n# {OK}\n# name = 'a b'\n# ///\n"), None, "'a b' is not a tool name"),
    "built-in": (script("cat", f"# /// moryflow\n# {OK}\n# name = 'bash'\n# ///\n"), None, "the name 'bash' is taken"),
    "binary": (b"\x7fELF\0\xff" * 1000, None, "it does not say which tool it is"),
}


async def test_each_mistake_is_named_with_file_and_line_and_the_rest_works(box):
    """One bad program costs no other tool; what to do next is said."""
    for number, (text, _, _) in enumerate(WRONG.values()):
        box.program(f"bad{number:02}.sh", text)
    box.program("good", ECHO)
    box.enable()
    tools, notes = await box.loaded()
    assert list(tools) == ["good"]
    for number, (case, (_, line, text)) in enumerate(WRONG.items()):
        [said] = [note for note in notes if f"bad{number:02}.sh" in note.split(" ")[0]]
        assert text in said and "next: " in said, (case, said)
        assert line is None or f"bad{number:02}.sh:{line}:" in said, (case, said)


async def test_what_cannot_be_run_is_named(box):
    """Not executable, described twice, a link to nowhere, a name that nobody can read, two of one name."""
    box.program("closed.sh", ECHO, mode=0o600)
    box.program("double.sh", ECHO)
    box.program("double.toml", TABLE, mode=0o600)
    lost = box.program("lost", "").with_name("gone")
    lost.with_name("lost").unlink()
    lost.symlink_to("nowhere")
    Path(os.fsdecode(os.fsencode(lost.parent) + b"/odd\xff")).write_text("x", encoding="utf-8")
    Path(os.fsdecode(os.fsencode(lost.parent) + b"/odd\xff")).chmod(0o700)
    box.program("same.sh", ECHO)
    box.program("same.zsh", ECHO)
    box.program("notes.txt", "not a tool", mode=0o600)
    box.program("data.json", "[]", mode=0o600)
    box.program("old.sh~", ECHO)
    box.program("open.sh", ECHO, mode=0o722)
    box.enable()
    tools, notes = await box.loaded()
    assert list(tools) == ["same"]
    for text in (
        "closed.sh: it cannot be run: it is not executable; next: chmod u+x",
        "double.sh: it is described twice",
        "gone: this is a link that leads nowhere",
        "odd\\xff: its name holds characters that cannot be shown",
        "same.zsh: the name 'same' is taken by",
        "open.sh: everybody can write to it",
    ):
        assert sum(text in note for note in notes) == 1, (text, notes)
    assert len(notes) == 6
    checked = box.bench.cli("tool", "check", "--json")
    rows = {Path(row["file"]).name: row["ok"] for row in json.loads(checked.stdout)}
    assert checked.returncode == 3 and rows["same.sh"] and not rows["closed.sh"] and "notes.txt" not in rows


ENDINGS = {
    "text": ("echo a; echo b", "ok", "a\nb"),
    "nothing": ("true", "ok", ""),
    "an output": ("""echo '{"output": "done", "title": "t", "metadata": {"n": 1}}'""", "ok", "done"),
    "an output of JSON": ("""echo '{"output": {"n": [1, null]}}'""", "ok", '{"n": [1, null]}'),
    "JSON of its own": ("""echo '{"output": 1, "more": 2}'""", "ok", '{"output": 1, "more": 2}'),
    "invalid JSON": ("""echo '{"output": '""", "ok", '{"output": '),
    "deep JSON": ("""printf '{"output":%s' "$(head -c 200000 /dev/zero | tr '\\0' '[')" """, "ok", None),
    "an error": ("""echo '{"error": "no such place"}'""", "error", "no such place"),
    "an error with a code": ("""echo '{"error": {"message": "no", "code": "absent"}}'; exit 3""", "error", "no"),
    "an exit code": ("echo out; echo 'it is broken' >&2; exit 3", "error", "it ended with exit code 3: it is broken"),
    "an exit code alone": ("exit 3", "error", "it ended with exit code 3"),
    "a signal": ("kill -KILL $$", "error", "it ended with signal SIGKILL"),
    "binary": (r"printf '\xff\x00\x1b[31m'", "ok", "\ufffd\0\x1b[31m"),
    "a lone surrogate": (r"""echo '{"output": "\ud800"}'""", "ok", None),
    "standard output closed": ("exec 1>&-; sleep 0.01", "ok", ""),
    "standard input unread": ("exec 0<&-; echo fine", "ok", "fine"),
    "a child that stays": ("sleep 3600 & echo fine", "ok", "fine"),
    "a child in a group of its own": ("setsid sleep 3600 & echo fine", "ok", "fine"),
    "a flood of complaints": ("head -c 5000000 /dev/zero >&2; echo fine", "ok", "fine"),
}


@pytest.mark.parametrize(("body", "status", "output"), ENDINGS.values(), ids=ENDINGS.keys())
async def test_what_a_program_prints_is_its_answer(box, body, status, output):
    """JSON with `output` or `error`, or plain text; an exit code other than 0 is an error with the last words."""
    box.program("say", script(body))
    box.enable()
    result = await box.call("say", text="x" * 100_000)
    assert result.status == status, result.output
    assert output is None or output in result.output
    if body == ENDINGS["an output"][0]:
        assert (result.title, dict(result.metadata)) == ("t", {"n": 1})


async def test_large_metadata_and_a_long_title_are_not_stored(box):
    """They are written into the session and sent to its clients (S0.50)."""
    body = """printf '{"output": "done", "title": "'; printf 'x%.0s' $(seq 300); printf '", "metadata": {"n": "'
head -c 1000000 /dev/zero | tr '\\0' x; echo '"}}'"""
    box.program("say", script(body))
    box.enable()
    result = await box.call("say")
    assert (result.status, result.output, result.title) == ("ok", "done", "x" * 200)
    assert list(result.metadata) == ["left_out"] and "more than 256 KiB" in result.metadata["left_out"]


async def test_a_program_is_told_its_folder(box, monkeypatch):
    """What is not a shell reads ``PWD``, which would else be the folder in which the host was started."""
    monkeypatch.setenv("PWD", "/")
    box.program(
        "say", b"#!/usr/bin/env python3\n# /// moryflow\n# description = 'x'\n# ///\nimport os\nprint(os.environ['PWD'])\n"
    )
    box.enable()
    assert (await box.call("say")).output.strip() == str(box.bench.vault)


def test_arguments_are_variables_where_a_variable_can_hold_them():
    """A shell reads no JSON: texts as they are, the rest as JSON; the judged path; nothing too long or with a NUL."""
    given = {"name": "Ada \u00e9", "count": 3, "on": True, "foo-bar": "x", "nul": "a\0b", "long": "x" * MAX_VARIABLE}
    assert argument_variables(given, [{"text": "vault:/a", "path": "/v/a"}]) == {
        "MORYFLOW_ARG_name": "Ada \u00e9",
        "MORYFLOW_ARG_count": "3",
        "MORYFLOW_ARG_on": "true",
        "MORYFLOW_TARGET": "/v/a",
    }
    assert argument_variables({}, [{"text": "https://x", "path": None}]) == {}


async def test_a_child_in_a_group_of_its_own_ends_with_the_call(box):
    """As everything that the program has started does."""
    pids = box.bench.vault / "pids"
    box.program("say", script(f"setsid sleep 3600 & echo $! > {pids}"))
    box.enable()
    assert (await box.call("say")).status == "ok"
    await box.expect_gone(pids.read_text(encoding="utf-8").strip())


async def test_progress_is_shown_and_taken_out(box):
    """Lines of progress reach the person while the program runs; all other lines are the answer."""
    body = """echo '{"progress": "one"}'; echo a; echo '{"progress": "two", "x": 1}'; printf '{"progress": "three"}'"""
    box.program("say", script(body))
    box.enable()
    events = []
    async with box.bench.host() as host:
        host.bus.subscribe(events.append)
        done = await host.call_tool("say", {}, vault=box.bench.vault, mode="full_access")
    assert done.result.output.rstrip("\n") == 'a\n{"progress": "two", "x": 1}'
    shown = "".join(event.data["text"] for event in events if event.type == "tool.delta")
    assert "one" in shown and "three" in shown


@given(st.binary(max_size=300), st.lists(st.integers(1, 60), max_size=20))
def test_the_answer_does_not_depend_on_how_it_arrives(printed, sizes):
    """Whatever a program prints, in pieces or at once: the same answer, the same progress."""
    line = b'{"progress": "p"}\n'
    data = line + printed.replace(b"p", line) + b"\n" + line
    found = []
    for cuts in ((), sizes):
        shown, rest = [], data
        conversation = programs._Conversation(shown.append)
        for size in cuts:
            conversation.pipe_data_received(1, rest[:size])
            rest = rest[size:]
        conversation.pipe_data_received(1, rest)
        conversation.take_progress(len(conversation.answer))
        found.append((bytes(conversation.answer), shown))
    assert found[0] == found[1]


@given(st.text(max_size=300))
def test_no_description_makes_more_than_a_named_mistake(text):
    """Either the fields are right or there is an error with its line."""
    try:
        assert set(Description(Path("x"), text).values()) <= set(programs._FIELDS)
    except PluginError as error:
        assert error.where.startswith("x:")


async def test_too_much_output_ends_the_program(box, monkeypatch):
    """A flood is neither kept nor waited for."""
    monkeypatch.setattr(programs, "OUTPUT_LIMIT", 1_000_000)
    box.program("say", script("yes"))
    box.enable()
    result = await box.call("say")
    assert (result.status, result.code) == ("error", "too_large")


async def test_long_output_is_cut_as_for_other_tools(box):
    """Truncation keeps the whole of it."""
    box.program("say", script("seq 100000"))
    box.enable()
    result = await box.call("say")
    assert result.truncated and result.output_id


async def test_a_program_that_hangs_is_ended(box):
    """With its timeout, and with everything that it started."""
    pids = box.bench.vault / "pids"
    header = HEADER.replace("# [", "# timeout = 1\n# [")
    box.program("say", script(f"trap '' TERM; sleep 3600 & echo $$ $! > {pids}; wait", header))
    box.enable()
    result = await box.call("say")
    assert (result.status, result.code) == ("error", "timeout")
    assert "to allow more time, set timeout = SECONDS in the description of say" in result.output
    for pid in pids.read_text(encoding="utf-8").split() if pids.exists() else ():  # a slow machine may not get that far
        await box.expect_gone(pid)


def hold_up(seconds: float) -> None:
    """Keep the loop from running, as a busy machine does."""
    time.sleep(seconds)


@pytest.mark.parametrize("soon", [False, True])
async def test_cancelling_ends_the_program(box, soon):
    """Nothing of a stopped call lives on, and no copy of it either; also where the program runs before its start is known."""
    pids = box.bench.vault / "pids"
    box.program("say", script(f"sleep 3600 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait"))
    box.enable()
    async with box.bench.host() as host:
        call = asyncio.ensure_future(host.call_tool("say", {}, vault=box.bench.vault, mode="full_access"))
        while not pids.exists() and not call.done():
            await asyncio.sleep(0 if soon else 0.02)
            hold_up(0.02 if soon else 0)
        assert pids.exists(), call.result()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    for pid in pids.read_text(encoding="utf-8").split():
        await box.expect_gone(pid)
    assert not list((box.bench.home / "data" / "external_tools").glob("program-*"))


async def test_what_was_agreed_to_is_what_runs(box):
    """The file is replaced after it was read: the call still runs the content that the question was about."""
    file = box.program("say", script("echo old"))
    box.enable()
    async with box.bench.host() as host:
        file.write_text(script("echo new"), encoding="utf-8")
        one = await host.call_tool("say", {}, vault=box.bench.vault, mode="full_access")
        assert one.result.output == "old"
        assert await host.refresh()
        two = await host.call_tool("say", {}, vault=box.bench.vault, mode="full_access")
        assert two.result.output == "new"


async def test_consent_covers_the_program_and_its_description(box):
    """If either changes, it is left out until it is allowed again."""
    file = box.program("say", script("echo 1", ""))
    about = box.program("say.toml", TABLE.replace("said", "say"), mode=0o600)
    for path, text in ((file, script("echo 1", "")), (file, script("echo 2", "")), (about, TABLE + "timeout = 5\n")):
        path.write_text(text, encoding="utf-8")
        assert (await box.loaded())[0] == {}
        Consents(box.bench.home).give(file)
        assert len((await box.loaded())[0]) == 1
    file.write_text(script("echo 3", ""), encoding="utf-8")
    tools, [note] = await box.loaded()
    assert tools == {} and f"{file}: it has changed since you allowed it" in note


async def test_what_appears_while_moryflow_runs_waits(box):
    """An agent that gets a program, or a description of one, into the folder gets nothing run."""
    file = box.program("say", script("cat", ""))
    before = items(box.bench.home)
    about = box.program("say.toml", TABLE, mode=0o600)
    box.program("notes.txt", "x", mode=0o600)
    assert (before, items(box.bench.home)) == ({"tools/say"}, {"tools/say", "tools/say.toml"})
    Consents(box.bench.home).hold(about)
    box.enable()
    tools, [note] = await box.loaded()
    assert tools == {} and f"{about}: it appeared" in note and "moryflow tool allow say.toml" in note
    assert box.bench.cli("tool", "allow", "say.toml").returncode == 0
    assert list((await box.loaded())[0]) == ["said"]
    assert is_source(str(file)) and not is_source(str(file.parent.parent / "data" / "say"))


async def test_a_program_is_given_no_secrets_that_it_does_not_name(box, monkeypatch):
    """What looks like a secret stays with the host, but for the variables that the description names."""
    monkeypatch.setenv("WEATHER_TOKEN", "w")
    monkeypatch.setenv("OTHER_API_KEY", "o")
    monkeypatch.setenv("PLAIN", "p")
    header = HEADER.replace("# [", "# environment = ['WEATHER_TOKEN']\n# [")
    box.program("say", script('echo "$WEATHER_TOKEN,$OTHER_API_KEY,$PLAIN,$PWD"', header))
    box.enable()
    assert (await box.call("say")).output == f"w,,p,{box.bench.vault}"


async def test_its_arguments_and_targets_are_judged(box):
    """Arguments that do not fit the schema never reach it, and what it touches is matched against rules."""
    header = HEADER.replace("# [", "# domain = 'edit'\n# targets = ['text']\n# [")
    box.program("say", script("cat", header))
    box.enable(
        {"domain": "tool", "pattern": "*", "decision": "allow"}, {"domain": "edit", "pattern": "*.lock", "decision": "deny"}
    )
    assert (await box.call("say", text=5)).code == "invalid_args"
    assert (await box.call("say", text="uv.lock")).status == "denied"
    (box.bench.vault / "link").symlink_to("uv.lock")
    assert (await box.call("say", text="link")).status == "denied"
    request = json.loads((await box.call("say", text="é")).output)
    assert request["targets"] == [{"text": "vault:/é", "path": str(box.bench.vault / "é")}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/nowhere/sh\n" + HEADER, "install what #!/nowhere/sh names"),
        (HEADER + "echo x\n", "begin it with a line such as #!/bin/sh"),
    ],
)
async def test_a_program_that_cannot_be_started_says_what_to_do(box, text, said):
    """No interpreter, or none named."""
    box.program("say", text)
    box.enable()
    result = await box.call("say")
    assert result.status == "error" and "it cannot be started" in result.output and said in result.output


def test_a_program_is_found_before_it_is_allowed(box):
    """As for Python files: the next command allows it."""
    box.program("say.sh", ECHO)
    done = box.bench.cli("tool", "run", "say")
    assert done.returncode == 2 and "moryflow tool allow say.sh" in done.stderr


def test_doctor_names_a_program_that_cannot_be_used(box):
    """With its line and what to do; the configuration is not to blame."""
    file = box.program("say", "#!/bin/sh\n# /// moryflow\n# description = 3\n# ///\n")
    box.enable()
    said = box.bench.cli("doctor").stdout
    assert f"warn  external_tools: {file}:3: description must be a text that is not empty, not 3\n" in said
    assert "next: change say, then moryflow tool check\n" in said
    checked = box.bench.cli("config", "check")
    assert (checked.returncode, checked.stdout) == (0, f"{box.bench.home / 'config.jsonc'}: no problems found\n")
    listed = box.bench.cli("tool", "check")
    assert listed.returncode == 3 and f"{file}: it cannot be used" in listed.stdout
