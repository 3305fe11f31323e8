"""Objects of a plugin that break when they are looked at cost that plugin or that item, and nothing else (invariant 5)."""

from __future__ import annotations

import os
from typing import Any

import pytest

HEAD = "from moryflow_sdk import hookimpl, tool\nimport moryflow_sdk as S\n"
ITEM = "@hookimpl\ndef tools(): return [X()]\n"
REGISTERED = {
    "a hook's name that is a number": "@hookimpl(specname=5)\ndef x(call): ...\n",
    "a module that answers with an exit": "def __getattr__(name): raise SystemExit(name)\n",
    "a module that answers with Ctrl-C": "def __getattr__(name): raise KeyboardInterrupt\n",
    "an error whose class has no name": (
        "class M(type):\n    @property\n    def __name__(cls): raise ValueError\n"
        "class E(Exception, metaclass=M): pass\nraise E('odd')\n"
    ),
    "a module that cannot be listed": "def __dir__(): raise RuntimeError('dir')\n",
    "a module that lists what has no order": "def __dir__(): return [5, None]\n",
}
CONTRIBUTED = {
    "raises at its class": "class X:\n    @property\n    def __class__(self): raise ValueError('cls')\n",
    "says it is a tool": "class X:\n    @property\n    def __class__(self): return S.Tool\n",
    "raises Ctrl-C at any name": "class X:\n    def __getattr__(self, name): raise KeyboardInterrupt\n",
    "exits when it is shown": "class X:\n    def __repr__(self): raise SystemExit\n",
    "is a tool without a field": (
        "class N(S.Tool):\n    def __getattribute__(self, name): raise ValueError('no')\ndef X(): return object.__new__(N)\n"
    ),
}


@pytest.mark.parametrize("source", REGISTERED.values(), ids=REGISTERED)
def test_a_module_that_breaks_when_it_is_registered_is_one_failed_plugin(cli: Any, source: str) -> None:
    """The others load, and it is named with its file (invariant 5)."""
    cli.plugin("bad", HEAD + source)
    done = cli("tool", "list")
    assert done.returncode == 0, done.stderr
    assert "plugin bad failed" in done.stderr and "bad.py" in done.stderr
    assert "run the same command with -v" not in done.stderr


@pytest.mark.parametrize("source", CONTRIBUTED.values(), ids=CONTRIBUTED)
def test_an_item_that_breaks_when_it_is_looked_at_is_left_out(cli: Any, source: str) -> None:
    """Whatever it raises; the plugin's file and line are named (invariant 5)."""
    cli.plugin("bad", HEAD + source + ITEM)
    done = cli("tool", "list")
    assert done.returncode == 0, done.stderr
    assert "bad.py:" in done.stderr and "next: moryflow plugin check bad" in done.stderr


def test_arguments_that_break_their_own_check_cost_that_call(cli: Any) -> None:
    """The call has an error as its result, with the tool and the plugin; the turn goes on (invariant 5)."""
    lines = ["from typing import Annotated", "from pydantic import Field", "@tool(domain='read')"]
    lines += [
        "def odd(a: Annotated[str, Field(ge=5)]) -> str:",
        "    'd'",
        "    return a",
        "@hookimpl",
        "def tools(): return [odd]",
    ]
    cli.plugin("bad", HEAD + "\n".join(lines))
    done = cli("tool", "run", "odd", "--a", "x")
    assert done.returncode == 1
    assert "odd (plugin bad) could not check its arguments: TypeError" in done.stderr


def test_a_plugin_that_is_gone_after_its_check_ends_no_check(cli: Any) -> None:
    """One that removes its own file is told of like the others (invariant 5)."""
    cli.plugin("bad", HEAD + "import os\nos.remove(__file__)\n")
    done = cli("plugin", "check", "--json")
    assert done.returncode in (0, 3), done.stderr
    assert '"name": "bad"' in done.stdout


def test_names_of_pydantic_are_names_of_arguments(cli: Any) -> None:
    """``copy``, ``json`` and ``schema`` are, and nobody is warned of it at every command (invariant 5)."""
    body = "@tool(domain='read')\ndef odd(copy: str, json: str) -> str:\n    'd'\n    return copy + json\n"
    cli.plugin("good", HEAD + body + "@hookimpl\ndef tools(): return [odd]\n")
    done = cli("tool", "run", "odd", "--copy", "a", "--json", '{"copy": "a", "json": "b"}')
    assert "Warning" not in done.stderr


def test_a_plugin_to_be_off_that_there_is_not_is_named(cli: Any) -> None:
    """One that was mistyped is on, and nothing said so (invariant 5)."""
    cli.config(disabledPlugins=["demmo"])
    done = cli("config", "check")
    assert "config.jsonc:" in done.stdout
    assert "there is no plugin 'demmo', so nothing is switched off (did you mean 'demo'?)" in done.stdout


def test_a_file_larger_than_the_memory_is_no_plugin(cli: Any) -> None:
    """It is named, and read no further than code is long; all commands ended with a MemoryError (invariant 5)."""
    file = cli.home / "plugins" / "huge.py"
    file.touch(mode=0o600)
    os.truncate(file, 1 << 40)
    done = cli("tool", "list")
    assert done.returncode == 0, done.stderr
    assert "larger than 8 MiB, so it is not run" in done.stderr


def test_a_module_beside_a_file_is_not_to_be_installed(cli: Any) -> None:
    """The hint says what helps (invariant 5)."""
    cli.plugin("bad", "import other\n")
    cli.plugin("other", HEAD)
    assert "a file cannot import one beside it" in cli("tool", "list").stderr


@pytest.mark.parametrize(
    "tools",
    [
        "class X:\n    @property\n    def __class__(self): raise ValueError('c')\ntools = [X()]\n",
        "class X(list):\n    def __iter__(self): raise KeyboardInterrupt\ntools = X()\n",
        "import itertools\ntools = itertools.repeat(5)\n",
    ],
)
def test_what_a_file_with_tools_exports_costs_that_file(cli: Any, tools: str) -> None:
    """The tools of all files were lost with it, or the memory of the machine (invariant 5, S0.92)."""
    cli.config(agents={"runtime": {"tools": {"external": {"enabled": True}}}})
    folder = cli.home / "tools"
    folder.mkdir(mode=0o700, exist_ok=True)
    (folder / "bad.py").write_text(tools)
    (folder / "good.py").write_text("from moryflow_sdk import tool\n@tool\ndef fine() -> str:\n    'd'\n    return 'x'\n")
    os.mkfifo(folder / "pipe.py")
    done = cli("tool", "check")
    assert done.returncode == 3
    assert "good.py: ok (fine)" in done.stdout
    assert "bad.py: it cannot be used" in done.stdout
    assert "there is no tool 'nobody'" in cli("tool", "run", "nobody").stderr


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("a = 1\nb = '\0'\n", "bad.py:2"),
        ("# coding: nosuch\n", "bad.py:1"),
        ("#!/usr/bin/python\n# coding: nosuch\n", "bad.py:2"),
    ],
)
def test_a_file_that_python_cannot_decode_has_a_line(cli: Any, source: str, said: str) -> None:
    """Python itself names none (invariant 5)."""
    cli.plugin("bad", source)
    assert f"{said})" in cli("tool", "list").stderr
