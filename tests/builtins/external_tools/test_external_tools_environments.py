"""Files with dependencies of their own: PEP 723, in a process and an environment apart (S0.92)."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys

import pytest
from moryflow_builtins.external_tools.environment import environment_of, requirements
from moryflow_sdk import ToolError

ALLOW = {"domain": "tool", "pattern": "*", "decision": "allow"}
GREETING = "def hi(name):\n    return f'Hi {name}!'\n"
GREET = """# /// script
# dependencies = [{dependency!r}]
# ///
import os, subprocess, sys
import greeting, pydantic
from moryflow_sdk import ToolContext, ToolError, ToolResult, file_target, tool

@tool
def greet(name: str, ctx: ToolContext, times: int = 1) -> str:
    "Greet NAME."
    print("noise on standard output")
    ctx.progress("working")
    ctx.metadata(vault=str(ctx.vault))
    return greeting.hi(name) * times

@tool(domain="read")
async def where() -> dict:
    "Say where it runs."
    return {{"pid": os.getpid(), "prefix": sys.prefix, "yours": "moryflow" in sys.modules}}

@tool
def fail(how: str) -> str:
    "Fail."
    if how == "said":
        raise ToolError("no luck", code="unlucky")
    if how == "exit":
        os._exit(3)
    if how == "system exit":
        sys.exit(3)
    raise ValueError("boom")

@tool
def wait(pids: str) -> str:
    "Wait, with a child."
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    with open(pids, "w") as file:
        file.write(f"{{os.getpid()}} {{child.pid}}")
    child.wait()
    return "done"

@tool(domain="edit", targets=lambda args: [file_target("x")])
def sly() -> str:
    "Targets that nobody can ask for."
    return "sly"

@tool
def result() -> ToolResult:
    "Make a result."
    return ToolResult(output="made", title="A title")
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Environments that were made once: making one takes a second."""
    return tmp_path_factory.mktemp("made")


@pytest.fixture
def greet(box, wheel, made, monkeypatch):
    """A file that depends on a package that the host does not have; its environment is there."""
    box.enable(ALLOW)
    dependency = wheel("greeting", GREETING)
    file = box.write("greet", GREET.format(dependency=dependency))
    place = box.bench.home / "data" / "external_tools"
    place.mkdir(parents=True)
    ready = made / "environment"
    found = environment_of(file, place)
    if not ready.exists():
        found.install()
        found.folder.rename(ready)
    found.folder.parent.mkdir(exist_ok=True)
    found.folder.symlink_to(ready)
    return file


def test_it_is_installed_when_a_person_says_so(box, wheel):
    """Not before, and never by itself: `tool install`, with a question that -y answers (CONTRACT §1)."""
    file = box.write("greet", GREET.format(dependency=wheel("greeting", GREETING)))
    box.enable(ALLOW)
    listed = box.bench.cli("tool", "list")
    assert (
        "greet.py: it needs packages that are not installed yet: greeting" in listed.stderr
        and "moryflow tool install greet.py" in listed.stderr
    )
    refused = box.bench.cli("tool", "install", "greet.py")
    assert refused.returncode == 2 and "Nobody can be asked" in refused.stderr
    assert not environment_of(file, box.bench.home / "data" / "external_tools").installed()
    done = box.bench.cli("tool", "install", "greet.py", "-y")
    assert done.returncode == 0 and "installing greeting" in done.stderr
    assert box.bench.cli("tool", "run", "greet", "--name", "Ada").stdout == "Hi Ada!\n"
    again = box.bench.cli("tool", "install", "greet.py", "-y", "--json")
    assert json.loads(again.stdout)["installed"] is False


async def test_its_tools_are_listed_with_their_schemas(box, greet):
    """The schema comes from the file's own process (S0.92)."""
    tools, notes = await box.loaded()
    assert (sorted(tools), notes) == (["fail", "greet", "result", "sly", "wait", "where"], ())
    assert tools["greet"].description == "Greet NAME."
    assert list(tools["greet"].parameters["properties"]) == ["name", "times"]
    assert tools["greet"].source == str(greet)


async def test_calls_run_in_a_process_of_their_own(box, greet):
    """The host has neither the package nor the process; progress, metadata and prints go where they belong (S0.92)."""
    events = []
    async with box.bench.host() as host:
        host.bus.subscribe(events.append)
        done = await host.call_tool("greet", {"name": "Ada", "times": 2}, vault=box.bench.vault)
        where = await host.call_tool("where", {}, vault=box.bench.vault)
    assert done.result.output == "Hi Ada!Hi Ada!"
    assert dict(done.result.metadata) == {"vault": str(box.bench.vault)}
    assert [event.data["text"] for event in events if event.type == "tool.delta"] == ["working"]
    answer = json.loads(where.result.output)
    assert where.result.format == "json" and answer["pid"] != os.getpid() and answer["prefix"] != sys.prefix
    assert answer["yours"] is False and importlib.util.find_spec("greeting") is None


@pytest.mark.parametrize(
    ("how", "code", "text"),
    [
        ("said", "unlucky", "no luck"),
        ("raise", "tool_failed", "ValueError: boom (line 30)"),
        ("exit", "tool_failed", "its process ended with exit code 3"),
        ("system exit", "tool_failed", "it called sys.exit(3)"),
    ],
)
async def test_a_tool_that_fails_breaks_nothing(box, greet, how, code, text):
    """Whatever it does, the host goes on and says what happened (S0.92)."""
    result = await box.call("fail", how=how)
    assert (result.status, result.code) == ("error", code) and text in result.output


async def test_wrong_arguments_are_refused_there(box, greet):
    """The file's own types hold (S0.92)."""
    result = await box.call("greet", name="x", times="many")
    assert (result.status, result.code) == ("error", "invalid_args") and "times" in result.output


async def test_a_result_of_its_own_arrives_whole(box, greet):
    """Also what is not text (S0.92)."""
    result = await box.call("result")
    assert (result.output, result.title) == ("made", "A title")


async def test_targets_that_cannot_be_asked_for_mean_a_question(box, greet):
    """A tool outside the host is never judged by less than its name (invariant 1)."""
    tools, _ = await box.loaded()
    assert (tools["sly"].domain, tools["where"].domain) == ("tool", "read")


async def test_cancelling_ends_the_process_and_its_children(box, greet, tmp_path):
    """Nothing of a stopped call lives on (S4.9)."""
    pids = tmp_path / "pids"
    async with box.bench.host() as host:
        call = asyncio.ensure_future(host.call_tool("wait", {"pids": str(pids)}, vault=box.bench.vault))
        await box.until(lambda: pids.exists() and " " in pids.read_text())
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        for pid in pids.read_text().split():
            await box.expect_gone(pid)


async def test_a_file_that_cannot_be_imported_there_is_named(box, greet):
    """With what its process said (D57)."""
    greet.write_text(
        greet.read_text(encoding="utf-8").replace("import os,", "import nothing_here\nimport os,"), encoding="utf-8"
    )
    tools, [note] = await box.loaded()
    assert tools == {} and "greet.py" in note and "nothing_here" in note and "(line 4)" in note


async def test_other_dependencies_are_another_environment(box, greet):
    """A changed list is asked about again (R18)."""
    text = greet.read_text(encoding="utf-8")
    greet.write_text(text.replace("# dependencies = [", "# dependencies = ['another',"), encoding="utf-8")
    tools, [note] = await box.loaded()
    assert tools == {} and "not installed yet: another, greeting" in note


def test_what_cannot_be_installed_is_said(box, tmp_path):
    """The installer's own words, and nothing half-made stays (D57)."""
    box.write("mine", f"# /// script\n# dependencies = ['nothing @ {(tmp_path / 'none.whl').as_uri()}']\n# ///\n")
    box.enable()
    done = box.bench.cli("tool", "install", "mine", "-y")
    assert done.returncode != 0 and "could not be installed" in done.stderr
    assert not any((box.bench.home / "data" / "external_tools" / "environments").iterdir())


def test_a_block_that_cannot_be_read_names_the_file_to_mend(box):
    """Not as a fault of ours: exit code 2, the file, and the command that opens it (D57, CONTRACT 1)."""
    path = box.write("mine", "# /// script\n# dependencies = ['x'\n# ///\ndef size(): ...\n")
    box.enable()
    done = box.bench.cli("tool", "install", str(path))
    assert done.returncode == 2 and f'{path}: the "# /// script" block in line 1: not valid TOML' in done.stderr
    assert f"  next: $EDITOR {path}" in done.stderr


@pytest.mark.parametrize(
    ("block", "dependencies"),
    [
        ("", ()),
        ("# /// script\n# dependencies = []\n# ///\n", ()),
        ("# /// script\n# requires-python = '>=3.8'\n# ///\n", ()),
        ("# /// script\n# dependencies = [\n#   'a>=1',\n#\n#   'b[c]',\n# ]\n# ///\n", ("a>=1", "b[c]")),
        ("# /// script\r\n# dependencies = ['a']\r\n# ///\r\n", ("a",)),
        ("# /// other\n# dependencies = ['a']\n# ///\n", ()),
        ("# /// script\n# dependencies = ['a']\n", ()),
        ("x = '''\n# /// script\n'''\n", ()),
    ],
)
def test_the_block_is_read_as_the_standard_says(block, dependencies):
    """PEP 723, read and never run (S0.92)."""
    assert requirements(f"#!/usr/bin/env python\n{block}\nprint()\n".encode()).dependencies == dependencies


@pytest.mark.parametrize(
    "block",
    [
        "# /// script\n# dependencies = [\n# ///\n",
        "# /// script\n# dependencies = 'a'\n# ///\n",
        "# /// script\n# dependencies = ['--index-url=x']\n# ///\n",
        "# /// script\n# dependencies = [5]\n# ///\n",
        "# /// script\n# requires-python = 3\n# ///\n",
        "# /// script\n# x = 1\n# ///\n\n# /// script\n# dependencies = ['a']\n# ///\n",
    ],
)
def test_a_block_that_is_wrong_is_said_with_its_line(block):
    """A dependency never becomes an option (R26, D57)."""
    with pytest.raises(ToolError, match=r"block in line \d"):
        requirements(f"{block}\nprint()\n".encode())


@pytest.mark.parametrize(
    ("specifier", "fits"),
    [(">=3.8", True), (">=3.8,<4", True), (">=99", False), ("<3", False), ("==3.*", True), ("~=3.8", True), ("!=3.*", False)],
)
def test_a_python_it_does_not_run_on_is_said(specifier, fits):
    """Both versions are named (S0.92)."""
    needs = requirements(f"# /// script\n# requires-python = '{specifier}'\n# ///\n".encode())
    if fits:
        needs.check_python()
    else:
        with pytest.raises(ToolError, match="it needs Python"):
            needs.check_python()
