"""Mistakes in files of a person's own: each is named with file, line, reason and next command, and nothing else is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

TOOL = "from moryflow_sdk import hookimpl, tool\n@tool(domain='read')\ndef {name}() -> str:\n    'Say so.'\n    return 'said'\n"
PLUGIN = TOOL + "@hookimpl\ndef tools():\n    return [{name}]\n"
SILENT = "from moryflow_sdk import hookimpl\n@hookimpl\ndef plugin_start():\n"
STRAY = {
    "a thread": "import threading\n" + SILENT + "    t = threading.Thread(target=lambda: 1/0)\n    t.start()\n    t.join()\n",
    "__del__": "class Bad:\n    def __del__(self): 1/0\n" + SILENT + "    Bad()\n",
    "at exit": "import atexit\n" + SILENT + "    atexit.register(lambda: 1/0)\n",
    "clean-up": SILENT + "    return lambda: 1/0\n",
    "a task": "import asyncio\nasync def bad(): 1/0\n"
    + SILENT.replace("def", "async def")
    + "    asyncio.create_task(bad())\n    await asyncio.sleep(0.02)\n",
}


@pytest.mark.parametrize("where", STRAY)
def test_what_is_raised_where_nobody_waits_is_one_line(cli: Any, where: str) -> None:
    """In a thread, a task, a ``__del__``, a clean-up, at exit: a line with its place and next command, no traceback (R9)."""
    cli.plugin("stray", STRAY[where])
    done = cli("tool", "list")
    said = [line for line in done.stderr.splitlines() if "ZeroDivisionError" in line]
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert len(said) == 1 and said[0].startswith("moryflow: ") and "stray.py:" in said[0]
    assert said[0].endswith("; moryflow plugin info stray")
    if where != "clean-up":
        assert "Traceback" in cli("tool", "list", "-v").stderr


CHECKS = {
    "empty": ("", "it implements no hook", True),
    "unmarked": ("def tool_gate(call): ...\n", "tool_gate: named like a hook but not marked", True),
    "settings": ("config_model = 5\n" + PLUGIN.format(name="a"), "is not a pydantic model", True),
    "two words": (PLUGIN.format(name="a"), "'two words' is not a plugin name", False),
    "a\nb": (PLUGIN.format(name="a"), r"'a\nb' is not a plugin name", False),
    "files": (PLUGIN.format(name="a"), "the name 'files' belongs to a built-in plugin", False),
}


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_of_a_plugin_says_what_a_host_says(cli: Any, name: str) -> None:
    """What a host leaves out or refuses, ``plugin check`` refuses with the same words and exit code 3 (invariant 5)."""
    source, said, loads = CHECKS[name]
    file = cli.home / "plugins" / f"{name}.py"
    file.write_text(source)
    file.chmod(0o600)
    cli.home.joinpath("config.jsonc").write_text("{}")
    told = cli("plugin", "check", name)
    assert told.returncode == 3 and said in told.stdout, told
    assert ("loads, but" in told.stdout) is loads
    started = cli("tool", "list").stderr
    assert said in started and "; " in started
    assert said in cli("doctor").stdout


def test_doctor_names_agents_and_tools_that_are_wrong(cli: Any) -> None:
    """One line per thing that could be wrong: a file of a person's own is one (CONTRACT §1, D41, D57)."""
    for name, text in (("agents/a.md", "---\nnothing: 1\n---\n"), ("tools/t.py", "1/0\n")):
        (cli.home / name).parent.mkdir(mode=0o700, exist_ok=True)
        (cli.home / name).write_text(text)
        (cli.home / name).chmod(0o600)
    cli.config(agents={"runtime": {"tools": {"external": {"enabled": True}}}})
    said = {item["text"]: item for item in json.loads(cli("doctor", "--json").stdout)["findings"]}
    problem = "a.md:2: it needs an id, a text: add a line 'id: a', or a description"
    agent = said[f"{cli.home}/agents/{problem}"]
    assert (agent["state"], agent["next_step"]) == ("warning", "moryflow agent check")
    tool = said[f"{cli.home}/tools/t.py:1: ZeroDivisionError: division by zero"]
    assert (tool["state"], tool["next_step"]) == ("warning", "change t.py, then moryflow tool check")
    started = cli("agent", "list").stderr
    assert f"{problem}; next: moryflow agent check\n" in started
    assert cli("agent", "check").stdout == f"{cli.home}/agents/{problem}\n"  # no next but itself


def test_a_tool_of_a_plugin_that_is_not_loaded_says_so(cli: Any) -> None:
    """A person who switched a plugin off is told why its tool is gone, not that there is none (D71, R9)."""
    cli.plugin("mine", PLUGIN.format(name="mine_says"))
    assert cli("tool", "run", "mine_says").returncode == 0
    said = "there is no tool 'mine_says'; it is one of the plugin mine, which is not loaded: "
    assert f"{said}safe mode loads built-in plugins only" in cli("tool", "run", "mine_says", "--safe-mode").stderr
    assert cli("plugin", "disable", "mine").returncode == 0
    assert f"{said}disabled\n  next: moryflow plugin enable mine\n" in cli("tool", "run", "mine_says").stderr


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("agents.runtime.truncation.maxLines", "many",
         'agents.runtime.truncation.maxLines: should be a valid integer, not "many"'),
        ("agents.runtime.truncation.maxLins", "5", 'unknown key "agents.runtime.truncation.maxLins"'),
        ("agents.runtime.hooks.tool.before", '[{"tool": "read", "mergeInput": 5}]',
         "agents.runtime.hooks.tool.before[0].mergeInput: should be an object, not 5"),
        ("agents.runtime.permission.rules", '[{"domain": "bsh", "pattern": "*", "decision": "deny"}]',
         'agents.runtime.permission.rules: "bsh" is not a domain'),
        ("agents", "5", "agents must be an object, not a number"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_names_its_key_once(cli: Any, key: str, value: str, said: str) -> None:
    """``config set`` says which key and why, once (CONTRACT §1)."""
    done = cli("config", "set", key, value)
    first, step = done.stderr.splitlines()
    assert (done.returncode, first) == (2, f"moryflow: {said}") and step.startswith("  next: ")


def test_a_failing_hook_is_one_line_with_a_next_command(cli: Any) -> None:
    """Whatever a library has to say of it: one line, and the command that shows more (R9)."""
    mutates = "from moryflow_sdk import hookimpl\n@hookimpl\ndef tool_after(result):\n    result.output = 'x'\n"
    cli.plugin("mutates", mutates)
    done = cli("tool", "run", "hello", "--name", "Ada")
    (said,) = done.stderr.splitlines()
    assert done.stdout.strip().startswith("Hello, Ada!")
    assert "mutates.py:4): ValidationError: " in said and said.endswith("; moryflow plugin info mutates")


def test_what_is_wrong_with_agents_is_said_where_they_are_used(cli: Any) -> None:
    """By /agent as by a start with it, and once by what offers all of them: a server, an editor's agent (D41)."""
    folder = cli.home / "agents"
    folder.mkdir()
    for name in ("odd", "odder", "fine"):
        (folder / f"{name}.md").write_text(f"---\ndescription: {name}\n{'' if name == 'fine' else 'tools: Gerp'}\n---\nx\n")
    chat = cli("chat", "-m", cli.script(), stdin="/agent fine\n/agent odd\n")
    before, _, after = chat.stderr.partition("agent: fine")
    assert "Gerp" not in before and "there is no tool 'Gerp'" in after
    assert "Gerp" not in cli("chat", "-q", "-m", cli.script(), stdin="/agent odd\n").stderr
    editor = cli("acp", stdin="").stderr
    serving = cli.start("serve", "--port", "0")
    serving.stdout.readline()
    serving.terminate()
    server = serving.communicate()[1]
    for said in (editor, server):
        assert said.count("Gerp") == 1 and "(and 1 more of this kind); next: moryflow agent check" in said, said
