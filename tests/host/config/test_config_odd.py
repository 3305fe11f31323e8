"""Files and values that a person may end up with: each is named with its place and what to do, and the rest holds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moryflow.config import Config, load_config, nested

REST = '"model": "script:kept"'
DENY = '{"domain": "bash", "pattern": "rm *", "decision": "deny"}'


Read = Callable[[Path], Config]


@pytest.fixture
def read(known: Any) -> Read:
    """Read the configuration of a home."""
    return lambda home: load_config(home, environ={}).checked(known)


def deep(levels: int) -> str:
    return '{"a": ' * levels + "1" + "}" * levels


TORN: dict[str, tuple[str | bytes, str, str]] = {
    "no brace at the end": ('{\n  "a": 1', "2:9", "delimiter"),
    "a comma too many between": ('{"a": 1,, "b": 2}', "1:9", "property name"),
    "no comma": ('{"a": 1 "b": 2}', "1:9", "',' delimiter"),
    "no colon": ('{"a" 1}', "1:6", "':' delimiter"),
    "single quotes that stay open": ("{'a': 'x}", "1:2", "double quotes"),
    "a comment that stays open": ('{"a": 1} /* x', "1:10", "comment"),
    "a hash as a comment": ('# mine\n{"a": 1}', "1:1", "expecting value"),
    "a text over two lines": ('{"a": "x\ny"}', "1:9", "not closed"),
    "two documents": ('{"a": 1}\n{"b": 2}', "2:1", "extra data"),
    "a conflict of git": ('<<<<<<< HEAD\n{"a": 1}\n=======\n{}\n>>>>>>> x', "1:1", "expecting value"),
    "NaN": ('{"a": NaN}', "1:7", "not a number"),
    "Infinity": ('{"Infinity": [-Infinity]}', "1:15", "not a number"),
    "a key twice": ('{"a": 1,\n "a": 2}', "2:2", "stands twice"),
    "a key twice, escaped": ('{"a": 1,\n "\\u0061": 2}', "2:2", "stands twice"),
    "a key twice, deep down": ('{"x": [{"b": {"a": 1, "a": 2}}]}', "1:23", "stands twice"),
    "too deep": (deep(65), "", "deeper than 64"),
    "brackets without end": ("[" * 300_000, "", "deeper than 64"),
    "a list": ("[1]", "1:1", "an object"),
    "a text": ('"x"', "1:1", "an object"),
    "only a number": ("7", "1:1", "an object"),
    "a number of 5,000 digits": ('{"a": ' + "9" * 5000 + "}", "1:1", "too large"),
    "half a character": ('{"a": "\\ud800"}', "1:8", "surrogate"),
    "an unknown escape": ('{"a": "\\x41"}', "1:8", "escape"),
    "Python": ("{'a': True,", "1:2", "double quotes"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "", "UTF-8"),
    "UTF-32": ('{"a": 1}'.encode("utf-32-le"), "", "UTF-8"),
    "Latin-1 in line 3": ('{\n\n"a": "é"}'.encode("latin-1"), "", "line 3"),
    "a compressed file": (b"\x1f\x8b\x08\x00\x00", "", "UTF-8"),
    "fifty megabytes": (b'{"a": "' + b"x" * 50_000_000 + b'"}', "", "larger than 4 MiB"),
}


@pytest.mark.parametrize(("text", "place", "words"), TORN.values(), ids=TORN.keys())
def test_a_file_that_cannot_be_read_is_named_with_its_place(
    read: Read, text: str | bytes, place: str, words: str, tmp_path: Path
) -> None:
    """File, line and column as far as there are any, the reason, what to do; the defaults hold (D26, SECURITY §4)."""
    file = tmp_path / "config.jsonc"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    config = read(tmp_path)
    [problem] = config.problems
    assert problem.fatal and words in problem.message and "until it is fixed" in problem.hint
    assert problem.where.startswith(f"{file}:{place}" if place else str(file))
    assert config.get("") == {} and config.rules() == []


def listening(path: Path) -> None:
    """A socket stays where it was bound."""
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


KINDS: dict[str, Callable[[Path], Any]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": listening,
    "a loop of links": lambda path: path.symlink_to(path),
    "a loop of two links": lambda path: (path.symlink_to(f"{path}2"), Path(f"{path}2").symlink_to(path)),
    "a device": lambda path: path.symlink_to("/dev/full"),
    "a folder behind a link": lambda path: (Path(f"{path}.d").mkdir(), path.symlink_to(f"{path}.d")),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS.keys())
def test_what_is_no_file_holds_nobody_up(read: Read, make: Callable[[Path], Any], tmp_path: Path) -> None:
    """It is named, soon, and the defaults hold (SECURITY §4)."""
    make(tmp_path / "config.jsonc")
    [problem] = read(tmp_path).problems
    assert problem.fatal and problem.code == "config_unreadable" and problem.where == str(tmp_path / "config.jsonc")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_named(read: Read, tmp_path: Path) -> None:
    """Likewise (SECURITY §4)."""
    (tmp_path / "config.jsonc").write_text("{}")
    (tmp_path / "config.jsonc").chmod(0)
    assert [problem.code for problem in read(tmp_path).problems] == ["config_unreadable"]


FINE: dict[str, str | bytes] = {
    "a mark of UTF-8": f"\ufeff{{{REST}}}",
    "line ends of Windows": f"{{\r\n  // mine\r\n  {REST},\r\n}}\r\n",
    "line ends of old Macs": f"{{\r  {REST}\r}}",
    "trailing commas": f'{{{REST}, "limits": {{"maxSteps": 3,}},}}',
    "comments everywhere": f"/**/{{/*a*/{REST}/*b*/,//c\n/***/}}//",
    "a comment that looks like a rule": f"{{// {DENY}\n{REST}}}",
    "a text that looks like a comment": f'{{{REST}, "plugins": {{"x": {{"y": "// no /* no"}}}}}}',
    "64 levels": f'{{{REST}, "plugins": {{"x": {deep(62)}}}}}',
    "a hundred thousand blanks": f"{{{REST}{' ' * 100_000}}}",
    "letters of every script": f'{{{REST}, "plugins": {{"\N{CJK UNIFIED IDEOGRAPH-4E2D}": {{"y": "\U0001f600"}}}}}}',
}


@pytest.mark.parametrize("text", FINE.values(), ids=FINE.keys())
def test_what_is_only_unusual_is_read(read: Read, text: str, tmp_path: Path) -> None:
    """Comments, commas, line ends and marks are a matter of taste (S0.87)."""
    (tmp_path / "config.jsonc").write_bytes(text.encode())
    config = read(tmp_path)
    assert (config.problems, config.get("model")) == ((), "script:kept")


WRONG: dict[str, tuple[str, str]] = {
    '"__proto__": {"x": 1}': ("__proto__", "config show --all"),
    '"constructor": {"prototype": {}}': ("constructor", "config show --all"),
    '"": 1': ('unknown key ""', "config show --all"),
    '"modle": "x"': ("modle", '"model"'),
    '"Model": "x"': ("Model", '"model"'),
    '"disabled_plugins": ["x"]': ("disabled_plugins", '"disabledPlugins"'),
    '"permissions": []': ("permissions", "config show --all"),
    '"agents": {"runtime": {"prompt": {"params": {"temprature": 1}}}}': ("temprature", '"temperature"'),
    '"agents": {"runtime": {"prompt": {"params": {"seed": 1}}}}': ("seed", "config show --all"),
    '"agents": {"runtime": {"prompt": {"params": {"temperature": 1e999}}}}': ("temperature", "temperature"),
    '"agents": {"runtime": {"prompt": {"params": {"temperature": "1"}}}}': ("temperature", "valid number"),
    '"agents": {"runtime": {"truncation": {"maxLines": 1.5}}}': ("maxLines", "integer"),
    '"agents": {"runtime": {"truncation": {"maxLines": 1e30}}}': ("maxLines", "integer"),
    '"agents": {"runtime": {"truncation": 5}}': ("truncation", "must be an object, not a number"),
    '"agents": {"runtime": {"truncation": null}}': ("truncation", "must be an object, not null"),
    '"agents": {"runtime": []}': ("agents.runtime", "must be an object, not a list"),
    '"agents": true': ("agents", "must be an object, not a boolean"),
    '"plugins": "x"': ("plugins", "object"),
    '"plugins": {"x": 5}': ("plugins.x", "should be an object, not 5"),
    '"limits": {"maxCost": "5"}': ("limits.maxCost", "valid number"),
    '"limits": {"maxSteps": 0}': ("limits.maxSteps", "greater than 0"),
    '"profile": "mobile"': ("profile", "'local' or 'remote'"),
    '"onlyPlugins": [5, "x"]': ("onlyPlugins[0]", "left out"),
    '"language": null': ("language", "'en' or 'zh'"),
    '"mcp": []': ("mcp", "must be an object, not a list"),
    '"mcp": {"servers": [{"command": "x"}]}': ("mcp.servers", "must be an object, not a list"),
    '"mcp": {"server": {}}': ("mcp.server", '"servers"'),
    '"mcp": {"servers": {"a": {"comand": "x"}}}': ("MCP server 'a'", "neither command nor url; 'comand' is neither"),
    '"mcp": {"servers": {"a": {"command": ["x"]}}}': ("MCP server 'a'", "command: should be a valid string"),
    '"mcp": {"servers": {"a": {"command": "x", "args": "-y"}}}': ("MCP server 'a'", "args"),
    '"mcp": {"servers": {"a": {"command": "x", "env": {"A": 1}}}}': ("MCP server 'a'", "env.A"),
    '"mcp": {"servers": {"a": {"command": "x", "env": {"A=B": "1"}}}}': ("MCP server 'a'", "name of a variable"),
    '"mcp": {"servers": {"a": {"command": "x", "cwd": "/etc"}}}': ("MCP server 'a'", "outside the vault"),
    '"mcp": {"servers": {"a": {"command": "x", "cwd": "b/../.."}}}': ("MCP server 'a'", "outside the vault"),
    '"mcp": {"servers": {"a": {"command": "x", "url": "https://x"}}}': ("MCP server 'a'", "both command and url"),
    '"mcp": {"servers": {"a": {"url": "file:///etc"}}}': ("MCP server 'a'", "not an http or https address"),
    '"mcp": {"servers": {"a": {"url": "https://u:p@x"}}}': ("MCP server 'a'", "without a password"),
    '"mcp": {"servers": {"a": {"type": "http", "command": "x"}}}': ("MCP server 'a'", "needs url"),
    '"mcp": {"servers": {"a": {"command": "a\\u0000b"}}}': ("MCP server 'a'", "command"),
    '"mcp": {"servers": {"../a": {"command": "x"}}}': ("MCP server '../a'", "a name has"),
    '"mcp": {"servers": {"": {"command": "x"}}}': ("MCP server ''", "a name has"),
    '"mcp": {"servers": {"__proto__": {"command": "x"}}}': ("MCP server '__proto__'", "a name has"),
    '"mcp": {"servers": {"a": null}}': ("MCP server 'a'", "not null"),
}


@pytest.mark.parametrize("entry", WRONG, ids=lambda entry: entry[:70])
def test_a_wrong_entry_is_named_where_it_stands_and_the_rest_holds(read: Read, entry: str, tmp_path: Path) -> None:
    """With line, column, reason and what was meant (S0.87, S0.85)."""
    file = tmp_path / "config.jsonc"
    file.write_text(f"{{{REST},\n  {entry}}}")
    config = read(tmp_path)
    named, words = WRONG[entry]
    problem = next(item for item in config.problems if named in item.message and words in str(item))
    assert problem.where.startswith(f"{file}:2:") and problem.column and problem.column >= 3
    assert config.get("model") == "script:kept"


def test_servers_that_are_written_well_hold(read: Read, tmp_path: Path) -> None:
    """A bad one beside them is left out whole (D7)."""
    (tmp_path / "config.jsonc").write_text('{"mcp": {"servers": {"good": {"command": "x", "args": ["-y"]}, "bad": {}}}}')
    config = read(tmp_path)
    assert list(config.section("mcp.servers")) == ["good"]
    assert len(config.problems) == 1
    (tmp_path / "config.jsonc").write_text("{}")
    assert read(tmp_path).problems == ()


SLIPS: dict[str, tuple[str, Any]] = {
    '"safeMode": "yes"': ("safeMode", True),
    '"safeMode": ["sure"]': ("safeMode", True),
    '"strict": 1': ("strict", True),
    '"profile": "Remote"': ("profile", "remote"),
    '"profile": 7': ("profile", "remote"),
    '"onlyPlugins": 7': ("onlyPlugins", []),
    '"agents": {"runtime": {"mode": "agent"}}': ("agents.runtime.mode.default", "agent"),
    '"agents": {"runtime": {"mode": {"default": "agnet"}}}': ("agents.runtime.mode.default", "agent"),
    '"agents": {"runtime": {"tools": {"external": {"enabled": "off"}}}}': ("agents.runtime.tools.external.enabled", False),
}


@pytest.mark.parametrize("entry", SLIPS, ids=lambda entry: entry[:40])
def test_a_slip_loses_nothing_that_tightens(read: Read, entry: str, tmp_path: Path) -> None:
    """The strictest value holds, and the check fails until it is fixed (D26)."""
    (tmp_path / "config.jsonc").write_text(f"{{{entry}}}")
    config = read(tmp_path)
    key, value = SLIPS[entry]
    assert config.get(key) == value
    assert [problem.fatal for problem in config.problems] == [True]


UNCLEAR: dict[str, str] = {
    "a limit in words": '{"limits": {"maxCost": "five"}}',
    "a limit without its name": '{"limits": 7}',
    "plugins in a text": '{"disabledPlugins": "evil, other"}',
    "a rule that is in no list": f'{{"agents": {{"runtime": {{"permission": {{"rules": {DENY}}}}}}}}}',
    "plugins in an object": '{"disabledPlugins": {"evil": true}}',
    "plugins in a list in the list": '{"disabledPlugins": [["evil"]]}',
    "a limit after fifty other mistakes": f'{{"onlyPlugins": [{"1, " * 60}"x"], "limits": 7}}',
    "an agent that is not in its object": '{"agents": {"runtime": {"agent": "plan"}}}',
    "an agent that is no text": '{"agents": {"runtime": {"agent": {"id": 7}}}}',
    "a torn file with an agent": '{"agents": {"runtime": {"agent": {"id": "plan"}, ',
    "a torn file with a limit": '{"limits": {"maxCost": 5}, ',
    "a torn file with a torn list": '{"disabledPlugins": ["evil"',
    "a torn file whose limit lacks a quote": '{"limits: {"maxCost": 5}}',
    "a torn file whose plugins lack a colon": '{"disabledPlugins" ["evil"]}',
    "a torn file with an agent without quotes": "{agents: {runtime: {agent: {id: plan}, }, x: }}",
    "JSON5 with a slip": "{limits: 7, disabledPlugins: ['evil']}",
}


@pytest.mark.parametrize("text", UNCLEAR.values(), ids=UNCLEAR.keys())
def test_every_call_is_asked_about_while_a_limit_is_not_understood(read: Read, text: str, tmp_path: Path) -> None:
    """The run must not be laxer than the person may have meant; no mode lifts the question (D26, R37)."""
    file = tmp_path / "config.jsonc"
    file.write_text(text)
    config = read(tmp_path)
    assert any(problem.fatal for problem in config.problems)
    assert asks(config)
    file.write_text(
        '{"limits": {"maxCost": 5}, "safeMode": "no", "profile": null, "disabledPlugins": [], "agents": {"runtime": {}}}'
    )
    assert not asks(read(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        '{"disabledPlugins": null, "limits": false, "agents": {"runtime": {"agent": null}}}',
        '{"safemode": false, "limts": {}, "agents": {"runtime": {"agnet": {}}}}',
        '{"provider": {"openai": {}}, "small_model": "x", "files": ["a"], "agents": {"runtime": {"usage": "x"}}}',
        '{"agents": {"runtime": {"mode": {"default": "agent"} "x"}}}',
        '{"model": "agent-7b" "x"',
    ],
)
def test_nothing_is_asked_about_because_of_a_mistake_that_limits_nothing(read: Read, text: str, tmp_path: Path) -> None:
    """Neither an empty value nor a name that only resembles a limit's was meant as one (D26)."""
    (tmp_path / "config.jsonc").write_text(text)
    config = read(tmp_path)
    assert config.problems
    assert not asks(config)
    assert not any(problem.asks for problem in config.problems)


def asks(config: Config) -> bool:
    """Whether a rule makes every call ask, in every mode."""
    return any(rule.problem and (rule.domain, rule.decision) == ("*", "deny") for rule in config.rules())


@pytest.mark.parametrize(
    ("key", "value", "strict"),
    [
        ("memoryBank.guardMode", "blok", "block"),
        ("memoryBank.moreSensitivePaths", "infra/**", ["**"]),
        ("doomLoop.maxToolCalls", "twenty", 1),
        ("skills.claude", "never", False),
    ],
)
def test_a_wrong_value_of_a_plugin_that_restricts_is_taken_as_the_strictest(
    read: Read, key: str, value: Any, strict: Any, tmp_path: Path
) -> None:
    """The default would be laxer than what the person may have meant; the check fails (D26, R37)."""
    dotted = f"agents.runtime.{key}"
    (tmp_path / "config.jsonc").write_text(json.dumps(nested(dotted.split("."), value)))
    config = read(tmp_path)
    assert config.get(dotted) == strict
    assert [problem.fatal for problem in config.problems] == [True]


@pytest.mark.parametrize("text", ["{", "\0", '{"disabledPlugins": ["evil"', "x" * 5_000_000], ids=lambda text: text[:20])
def test_what_was_read_last_holds_while_the_file_cannot_be_read(read: Read, text: str, tmp_path: Path) -> None:
    """Over a restart too: no deny and no disabled plugin is lost by a slip of the pen (D26, D44)."""
    file = tmp_path / "config.jsonc"
    file.write_text(f'{{"disabledPlugins": ["evil"],\n"agents": {{"runtime": {{"permission": {{"rules": [{DENY}]}}}}}}}}')
    read(tmp_path).keep(tmp_path)
    file.write_text(text)
    for _ in range(2):
        config = read(tmp_path)
        config.keep(tmp_path)
        assert config.get("disabledPlugins") == ["evil"]
        assert [(Path(rule.file or "").name, rule.line) for rule in config.rules()] == [("config.good.jsonc", 2)]
        assert "config.good.jsonc" in config.problems[0].hint
    file.write_text("{}")
    read(tmp_path).keep(tmp_path)
    assert not (tmp_path / "config.good.jsonc").exists()


def test_a_copy_that_others_may_write_to_is_not_taken(read: Read, tmp_path: Path) -> None:
    """It would be a way around the checks of the file itself (R17)."""
    file, copy = tmp_path / "config.jsonc", tmp_path / "config.good.jsonc"
    file.write_text("{")
    copy.write_text('{"agents": {"runtime": {"mode": {"default": "full_access"}}}}')
    copy.chmod(0o666)
    assert read(tmp_path).get("agents.runtime.mode.default") is None


def test_each_file_has_a_copy_of_its_own(tmp_path: Path) -> None:
    """``MORYFLOW_CONFIG`` names another one (CONTRACT §1)."""
    other = tmp_path / "other.jsonc"
    environ = {"MORYFLOW_CONFIG": str(other)}
    other.write_text('{"disabledPlugins": ["evil"]}')
    load_config(tmp_path, environ=environ).keep(tmp_path)
    other.write_text("{")
    (tmp_path / "config.jsonc").write_text("{")
    assert load_config(tmp_path, environ=environ).get("disabledPlugins") == ["evil"]
    assert load_config(tmp_path, environ={}).get("disabledPlugins") is None
