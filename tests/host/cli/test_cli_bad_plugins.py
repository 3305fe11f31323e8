"""What a person sees of a bad plugin, and that none of them ends the program or keeps it from ending (invariant 5)."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

SAYING_HELLO = "from moryflow_sdk import hookimpl\n@hookimpl\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise KeyboardInterrupt\n", "bad.py:1): KeyboardInterrupt"),
        ("import sys\nsys.exit(3)\n", "bad.py:2): it called sys.exit(3) while it was imported"),
        (f"{SAYING_HELLO}def tool_gat(call): ...\n", "unknown hook 'tool_gat'; did you mean 'tool_gate'?"),
        (f"{SAYING_HELLO}def tools(): raise ValueError('no')\n", "bad.py:3: tools: ValueError: no"),
        (
            "from pydantic import BaseModel\nclass config_model(BaseModel):\n    key: str\n",
            "plugins.bad.key: it is needed and is not set; moryflow plugin key set bad key\n",
        ),
    ],
)
def test_a_bad_plugin_is_named_and_the_turn_runs(cli: Any, source: str, said: str) -> None:
    """With file, line and what helps; a Ctrl-C that nobody pressed is a failure like any other (invariant 5, R9)."""
    cli.plugin("bad", source)
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert said in done.stderr
    assert ":0)" not in done.stderr


ESCAPES = {
    "a task": ("async def leave():\n        sys.exit(3)\n    asyncio.ensure_future(leave())", "sys.exit() was called", 3),
    "stop": ("asyncio.get_running_loop().stop()", "Event loop stopped", 1),
    "cancel": ("[task.cancel() for task in asyncio.all_tasks()]", "a plugin may have cancelled tasks", 1),
}


@pytest.mark.parametrize(("line", "said", "code"), ESCAPES.values(), ids=ESCAPES.keys())
def test_a_turn_that_a_plugins_own_task_ends_says_so(cli: Any, line: str, said: str, code: int) -> None:
    """Its tasks and callbacks have no caller in the host; an answer is not lost without a word (invariant 5)."""
    source = f"import asyncio, sys\nfrom moryflow_sdk import hookimpl\n@hookimpl\nasync def chat_params(params):\n    {line}\n"
    cli.plugin("bad", f"{source}    await asyncio.sleep(0.05)\n")
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert said in done.stderr and "Traceback" not in done.stderr
    assert (done.returncode, done.stdout) == (code, "" if code else "fine\n")


def test_a_bad_plugin_is_named_beside_a_result_in_json(cli: Any) -> None:
    """The result has no field for it, so standard error says it; `-q` leaves it out (invariant 5)."""
    cli.plugin("bad", f"{SAYING_HELLO}def chat_params(params):\n    raise ValueError('no such host')\n")
    model = cli.script("fine")
    done = cli("run", "-m", model, "hi", "--output", "json")
    assert json.loads(done.stdout)["text"] == "fine" and done.stdout.count("\n") == 1
    assert "plugin bad failed in chat_params" in done.stderr and "fine" not in done.stderr
    assert cli("run", "-q", "-m", model, "hi", "--output", "json").stderr == ""


def test_a_plugin_that_failed_at_its_settings_is_named_by_the_check_and_where_its_command_is_missing(cli: Any) -> None:
    """Otherwise "there is no command" would be all that its user reads."""
    cli.plugin("bad", "from pydantic import BaseModel\nclass config_model(BaseModel):\n    limit: int = 3\n")
    cli.config(plugins={"bad": {"limit": "many"}})
    said = "plugins.bad.limit: should be a valid integer"
    checked = cli("config", "check")
    assert said in checked.stdout and "plugin bad is not loaded" in checked.stdout
    missing = cli("tally")
    assert missing.returncode == 2 and said in missing.stderr and "there is no command 'tally'" in missing.stderr


@pytest.mark.parametrize(
    "how",
    [
        "raise KeyboardInterrupt",
        "raise SystemExit(3)",
        "raise BaseException('x')",
        "import asyncio; raise asyncio.CancelledError",
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hook_cannot_end_the_program(cli: Any, kind: str, how: str) -> None:
    """Neither by sys.exit() nor by an interrupt that nobody asked for (invariant 3)."""
    cli.plugin("bad", f"{SAYING_HELLO}{kind} chat_params(params):\n    {how}\n")
    done = cli("run", "-m", cli.script("fine"), "hi")
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert "plugin bad failed in chat_params" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_second_signal_ends_a_program_whose_loop_is_blocked(cli: Any, number: signal.Signals) -> None:
    """A plugin that never gives the loop back cannot keep a person from leaving (ARCHITECTURE §4, watchdog)."""
    body = "    import time\n    from pathlib import Path\n    Path('blocked').touch()\n    time.sleep(600)\n"
    cli.plugin("bad", f"{SAYING_HELLO}async def chat_params(params):\n{body}")
    process = cli.start("run", "-m", cli.script("fine"), "hi")
    deadline = time.monotonic() + 200
    while not (cli.vault / "blocked").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(number)
    time.sleep(0.2)
    assert process.poll() is None
    while process.poll() is None:  # two that come while nobody looks are one
        process.send_signal(number)
        time.sleep(0.2)
    assert process.returncode == 130
    process.communicate()


@pytest.mark.parametrize(
    "how",
    [
        "raise KeyboardInterrupt",
        "raise SystemExit(3)",
        "raise BaseException('x')",
        "import asyncio; raise asyncio.CancelledError",
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_tool_cannot_end_the_program(cli: Any, kind: str, how: str) -> None:
    """Its call failed, the model is told, and the turn goes on (invariant 3)."""
    body = f"{kind} leave() -> str:\n    'Leave.'\n    {how}\n"
    cli.plugin("bad", f"from moryflow_sdk import *\n@tool(domain='read')\n{body}\n@hookimpl\ndef tools(): return [leave]\n")
    done = cli("run", "-m", cli.script(cli.calls("leave"), "still here"), "go")
    assert (done.returncode, done.stdout) == (0, "still here\n")
    assert "[leave] error: leave (plugin bad) failed" in cli("session", "show").stdout


def test_what_is_left_out_of_a_plugin_is_said_a_line_each(cli: Any) -> None:
    """By ``tool list``, ``plugin check`` (exit code 3), ``info`` and ``list``, with the place (CONTRACT §1)."""
    file = cli.plugin(
        "bad",
        f"{SAYING_HELLO}def tools():\n    return [tool(one, name='a b'), tool(one, name='BASH!'), tool(one)]\n"
        "from moryflow_sdk import tool\ndef one() -> str:\n    'One.'\n    return 'one'\n",
    )
    said = [f"{file}:6: {name!r} is not a tool name: a letter or _, then up to 63 letters" for name in ("a b", "BASH!")]
    listed = cli("tool", "list")
    assert all(f"moryflow: plugin bad: {each}" in listed.stderr for each in said) and "\none " in listed.stdout
    checked = cli("plugin", "check", "bad")
    assert checked.returncode == 3 and all(f"\n  {each}" in checked.stdout for each in said)
    assert checked.stdout.startswith("bad: loads, but part of it cannot be used")
    assert all(f"left out     {each}" in cli("plugin", "info", "bad").stdout for each in said)
    assert f"2 left out: {said[0]}" in cli("plugin", "list").stdout


def test_what_is_still_being_tried_out_is_said_once_with_what_helps(cli: Any) -> None:
    """A start says who is left out, a tool that is not there yet says why, ``plugin check`` tries all (ARCHITECTURE §4)."""
    heavy = cli.home / "heavy_library_of_a_test.py"
    heavy.write_text("import time\ntime.sleep(1.2)\n")
    cli.environ["PYTHONPATH"] = str(cli.home)
    for number in range(40):
        tool = f"@tool(domain='read')\ndef t{number}() -> str:\n    'T.'\n    return 'x'\n"
        source = f"import heavy_library_of_a_test\nfrom moryflow_sdk import hookimpl, tool\n{tool}"
        cli.plugin(f"p{number:02}", f"{source}@hookimpl\ndef tools():\n    return [t{number}]\n")
    first = cli("tool", "run", "t39")
    assert first.returncode == 2 and first.stderr.count("are not loaded yet") == 1
    assert "there is no tool 't39'; it may be in" in first.stderr and "  next: moryflow plugin check\n" in first.stderr
    checked = cli("plugin", "check")
    assert checked.returncode == 0 and checked.stdout.count(": ok, ") == 41  # with the one of the bench
    assert cli("tool", "run", "t39").stdout == "x\n"


def test_plugin_check_of_everything_leaves_out_what_must_not_run(cli: Any) -> None:
    """What is disabled, or waits for a person, is not tried (R31, D57)."""
    same = "@tool\ndef same() -> str:\n    'S.'\n"
    source = f"from moryflow_sdk import hookimpl, tool\n{same}@hookimpl\ndef tools():\n    return [same]\n"
    for name in ("one", "two", "off", "waits"):
        cli.plugin(name, source)
    cli.config(disabledPlugins=["off", "demo"])
    (cli.home / "consents.json").write_text(json.dumps({"v": 1, "waiting": {"plugins/waits.py": ""}, "given": {}}))
    done = cli("plugin", "check", "--json")
    assert done.returncode == 0
    assert {row["name"]: row["ok"] for row in json.loads(done.stdout)} == {"one": True, "two": True}
    for name in ("one", "two"):
        (cli.home / "plugins" / f"{name}.py").unlink()
    shown = cli("plugin", "check").stdout
    assert "waits: not checked: " in shown and "moryflow plugin enable waits" in shown and "off: not checked: " in shown


def test_a_broken_file_is_named_once_until_it_changes(cli: Any) -> None:
    """In full at the first start, then only where plugins are listed; after a change it is news again (issue 41)."""
    cli.plugin("broken", "def half(:\n")
    assert "plugin broken failed" in cli("tool", "list").stderr
    assert "broken" not in cli("tool", "list").stderr
    assert "broken" in cli("plugin", "list").stdout
    cli.plugin("broken", "import nothing_of_that_name\n")
    assert "plugin broken failed" in cli("tool", "list").stderr
