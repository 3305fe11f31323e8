"""The example cases of malformed configurations: the host stays up, the fault is named, nothing is looser."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from moryflow.config import Config, Problem, load_config
from moryflow.config.jsonc import parse
from moryflow.config.load import good_copy, keep
from moryflow_sdk.support.settings import Meta, Settings

CASES = [
    case
    for line in (Path(__file__).parents[2] / "data/corpus/extensions.jsonl").read_text("utf-8").splitlines()
    if (case := json.loads(line))["target"] == "config" and "steps" not in case
]


class Truncation(Settings):
    """Stands for the truncation plugin's settings."""

    max_lines: Annotated[int, Meta(gt=0, strict=True)] = 2000
    max_bytes: Annotated[int, Meta(gt=0, strict=True)] = 51200


class After(Settings):
    tool: str
    prepend_text: str = ""


class ToolHooks(Settings):
    after: tuple[After, ...] = ()


class Hooks(Settings):
    """Stands for the declarative hooks' settings."""

    tool: ToolHooks = ToolHooks()


KNOWN = (("agents.runtime.truncation", Truncation), ("agents.runtime.hooks", Hooks))


def written(case: dict[str, Any], home: Path) -> Path:
    file = home / case["filename"]
    fs = case.get("fs", {})
    if "b64" in case:
        file.write_bytes(base64.b64decode(case["b64"]))
    elif "gen" in case:
        gen = case["gen"]
        body = gen.get("join", "").join([gen["repeat"]] * gen["n"])
        file.write_text(gen["prefix"] + body + gen.get("tail", "") + gen.get("close", "") * gen["n"])
    elif "text" in case or fs.get("make") == "file":
        file.write_text(case.get("text", fs.get("text")), "utf-8")
    if "mode" in fs:
        file.chmod(int(fs["mode"], 8))
    return file


def load(home: Path) -> Config:
    return load_config(home, environ={}).checked(KNOWN)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['name']}")
def test_each_case_is_named_and_loosens_nothing(case: dict[str, Any], tmp_path: Path) -> None:
    """Every malformed file: loaded, the class of the fault named with its file, no allow rule taken (SECURITY §4)."""
    file, expect = written(case, tmp_path), case["expect"]
    config = load(tmp_path)
    if expect["item"] == "loaded":
        assert config.problems == ()
        return
    if case["name"] != "mcp_fifty":  # which servers do not work is seen when they are started
        assert expect.get("report", "config_unknown_key") in {problem.code for problem in config.problems}
    assert all(problem.file == str(file) for problem in config.problems)
    assert [rule for rule in config.rules() if rule.decision == "allow"] == []
    assert config.get("agents.runtime.tools.external.enabled", False) is False


def test_a_good_deny_stands_beside_a_bad_rule(tmp_path: Path) -> None:
    """CF090: one bad rule does not take the good one with it (D26)."""
    case = next(case for case in CASES if case["name"] == "good_deny_beside_bad_rule")
    written(case, tmp_path)
    read = [rule for rule in load(tmp_path).rules() if not rule.problem]
    assert [(rule.pattern, rule.decision) for rule in read] == [("rm *", "deny")]


DENY = '{"domain": "bash", "pattern": "rm {a,b}*", "decision": "deny"}'
BROKEN = {
    "no closing brace": f'{{"agents": {{"runtime": {{"permission": {{"rules": [\n{DENY},',
    "a key twice": f'{{"model": "a", "model": "b",\n"agents": {{"runtime": {{"permission": {{"rules": [{DENY}]}}}}}}}}',
    "JSON5": f"{{agents: {{runtime: {{permission: {{rules: [\n{DENY}]}}, mode: {{default: 'full_access'}}}}}}}}",
    "decision twice": '{"agents": {"runtime": {"permission": {"rules": [\n'
    '{"domain": "bash", "pattern": "rm {a,b}*", "decision": "deny", "decision": "allow"}]}}}}',
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_every_call_is_asked_about_while_a_file_with_rules_does_not_parse(text: str, tmp_path: Path) -> None:
    """Nothing is picked out of it; with an earlier version, that one applies (D26, SECURITY §4)."""
    (tmp_path / "config.jsonc").write_text(text)
    config = load(tmp_path)
    assert [(rule.domain, rule.decision) for rule in config.rules() if rule.problem] == [("*", "deny")]
    assert config.get("agents.runtime.mode.default") is None
    [problem] = config.problems
    assert (problem.code, problem.fatal, problem.asks) == ("config_syntax", True, True)
    assert problem.line


DAMAGED = {
    "Latin-1": f'{{"agents": {{"runtime": {{"permission": {{"rules": [\n{DENY}]}}}}}}, "x": "é"}}'.encode("latin-1"),
    "NULs at the end": f'{{"agents": {{"runtime": {{"permission": {{"rules": [\n{DENY}]}}}}}}}}'.encode() + bytes(512),
    "UTF-16": f'{{"agents": {{"runtime": {{"permission": {{"rules": [\n{DENY}]}}}}}}}}'.encode("utf-16"),
    "five megabytes": f'{{"agents": {{"runtime": {{"permission": {{"rules": [\n{DENY}]}}}}}}}}'.encode() + b" " * 5_000_000,
}


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_every_call_is_asked_about_while_a_file_with_rules_is_no_text(data: bytes, writable: bool, tmp_path: Path) -> None:
    """An editor's encoding or a power cut makes nothing laxer, whoever can write to the file (D26, SECURITY §4)."""
    file = tmp_path / "config.jsonc"
    file.write_bytes(data)
    file.chmod(0o666 if writable else 0o600)
    config = load(tmp_path)
    assert [(rule.domain, rule.decision) for rule in config.rules() if rule.problem] == [("*", "deny")]
    assert [problem.asks for problem in config.problems] == [True]


FATAL: dict[str, dict[str, Any] | str] = {
    "a typo in the decision": {"domain": "bash", "pattern": "rm *", "decision": "dney"},
    "a typo in a key": {"domain": "bash", "patern": "rm *", "decision": "deny"},
    "an unknown domain": {"domain": "shell", "pattern": "rm *", "decision": "deny"},
    "a broken expression": {"domain": "bash", "pattern": "regex:([", "decision": "deny"},
    "an expression that may run for ever": {"domain": "bash", "pattern": r"regex:(a)\1", "decision": "deny"},
    "a bomb of braces": {"domain": "read", "pattern": "{a,b}" * 20, "decision": "deny"},
    "targets of another domain": {"domain": "read", "pattern": "shell:rm *", "decision": "deny"},
    "a text": "deny bash rm *",
    "no pattern": {"domain": "bash", "pattern": "", "decision": "deny"},
}


@pytest.mark.parametrize("rule", FATAL.values(), ids=FATAL.keys())
def test_a_deny_with_a_mistake_is_never_silently_dropped(rule: Any, tmp_path: Path) -> None:
    """It is a fatal problem: `config check` fails and runs say so (D26, D6)."""
    text = json.dumps({"agents": {"runtime": {"permission": {"rules": [rule]}}}}, indent=1)
    (tmp_path / "config.jsonc").write_text(text)
    problems: tuple[Problem, ...] = load(tmp_path).problems
    assert [problem.fatal for problem in problems] == [True]
    assert problems[0].line == 6


@pytest.mark.parametrize("pattern", ["regex:([", r"regex:(a)\1", "regex:(?=a)b"])
def test_a_deny_that_no_engine_takes_stays_in_the_list(pattern: str, tmp_path: Path) -> None:
    """Its gate then knows that one is missing and asks; an allow like it allows nothing (D6, D26)."""
    rules = [{"domain": "bash", "pattern": pattern, "decision": decision} for decision in ("deny", "allow")]
    (tmp_path / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": rules}}}}))
    config = load(tmp_path)
    assert [rule.decision for rule in config.rules()] == ["deny", "deny"] and all(rule.problem for rule in config.rules())
    assert config.problems[0].fatal
    assert "meanwhile every call of its domain is asked about" in config.problems[0].message


def test_an_allow_in_no_domain_is_a_warning(tmp_path: Path) -> None:
    """An unknown domain is named and ignored where that cannot loosen anything (D26)."""
    rule = {"domain": "teleport", "pattern": "*", "decision": "allow"}
    (tmp_path / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": [rule]}}}}))
    [problem] = load(tmp_path).problems
    assert not problem.fatal
    assert '"teleport" is not a domain' in problem.message
    assert load(tmp_path).rules() == []


LIMITS = {
    "deep": "[" * 100_000,
    "deep and closed": '{"a":' * 5000 + "1" + "}" * 5000,
    "a number of 5,000 digits": '{"a": ' + "9" * 5000 + "}",
    "not a number": '{"a": NaN}',
    "half a character": '{"model": "\\ud800"}',
    "NUL": '{"a": 1}\0',
    "many comments": "/*" * 200_000,
    "many braces": "{" * 200_000,
    "many quotes": '"' * 200_001,
    "many backslashes": '"' + "\\" * 200_001,
    "five megabytes": "{" + " " * 5_000_000 + "}",
}


@pytest.mark.parametrize("text", LIMITS.values(), ids=LIMITS.keys())
def test_no_text_stops_or_slows_the_host(text: str, tmp_path: Path, expect_linear_growth: Any) -> None:
    """Depth, size and odd characters end in a report; the work grows with the text, not with its square (SECURITY §4)."""

    def work(eighths: int) -> Callable[[], object]:
        (tmp_path / "config.jsonc").write_text(text[: len(text) * eighths // 8])
        return lambda: load(tmp_path)

    expect_linear_growth(work, 1)
    assert load(tmp_path).problems


@pytest.mark.parametrize("written", ["Deny", " deny ", "DENY"])
def test_a_deny_that_is_oddly_written_is_a_deny(written: str, tmp_path: Path) -> None:
    """It holds, and it is a mistake that must be mended (D26)."""
    rule = {"domain": "bash", "pattern": "rm *", "decision": written}
    (tmp_path / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": [rule]}}}}))
    config = load(tmp_path)
    assert [rule.decision for rule in config.rules()] == ["deny"]
    assert [problem.fatal for problem in config.problems] == [True]


@pytest.mark.parametrize(("depth", "reported"), [(64, False), (65, True)])
def test_depth_has_a_limit(depth: int, reported: bool, tmp_path: Path) -> None:
    """64 levels are enough for anybody; the place of the 65th is named."""
    (tmp_path / "config.jsonc").write_text('{"plugins": {"x": {"y": ' + "[" * (depth - 3) + "]" * (depth - 3) + "}}}")
    assert [problem.code for problem in load(tmp_path).problems] == (["config_syntax"] if reported else [])


def test_half_a_character_is_refused_where_nobody_checks_it(tmp_path: Path) -> None:
    """It could be neither printed nor stored later."""
    (tmp_path / "config.jsonc").write_text('{"plugins": {"x": {"y": ["\\ud800"]}}}')
    assert [problem.code for problem in load(tmp_path).problems] == ["config_syntax"]
    (tmp_path / "config.jsonc").write_text('{"plugins": {"x": {"y": ["\\ud83d\\ude00"]}}}')
    assert load(tmp_path).get("plugins.x.y") == ["\U0001f600"]


def test_a_thousand_bad_rules_are_counted_not_listed(tmp_path: Path) -> None:
    """The report stays readable, and stays fatal when a deny is among the rest."""
    rules = [*([1] * 1000), {"domain": "x", "pattern": "y", "decision": "deny"}]
    (tmp_path / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": rules}}}}))
    problems = load(tmp_path).problems
    assert len(problems) == 51
    assert "951 more" in problems[-1].message
    assert problems[-1].fatal


def test_thousands_of_rules_are_read_soon(tmp_path: Path, expect_linear_growth: Any) -> None:
    """Each rule knows its line, and the time grows with the file, not with its square (SECURITY §4)."""

    def work(count: int) -> Callable[[], object]:
        rules = [{"domain": "bash", "pattern": f"x{number}", "decision": "allow"} for number in range(count)]
        (tmp_path / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": rules}}}}, indent=1))
        return lambda: load(tmp_path).rules()

    expect_linear_growth(work, 2_500)
    read = load(tmp_path).rules()
    assert [rule.line for rule in read[:2]] == [6, 11] and len(read) == 20_000


def test_a_good_file_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last good copy is read only if the file is bad: of 20,000 rules that takes half a second."""
    parsed: list[str] = []

    def counted(text: str) -> Any:
        parsed.append(text)
        return parse(text)

    file = tmp_path / "config.jsonc"
    file.write_text('{"language": "zh"}')
    keep(good_copy(tmp_path, file), file.read_text())
    monkeypatch.setattr("moryflow.config.load.parse", counted)
    assert load(tmp_path).get("language") == "zh" and len(parsed) == 1
    file.write_text("")
    assert load(tmp_path).get("language") == "zh" and len(parsed) == 2
