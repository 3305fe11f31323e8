"""Layers, origins, and what a file may say."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import pytest
from moryflow.config import Origin, config_file, load_config
from moryflow.config.schema import LimitSettings, defaults, host_models, json_schema
from moryflow_sdk import ConfigError
from moryflow_sdk.support.settings import Meta, Settings


def put(home: Path, text: str) -> Path:
    file = home / "config.jsonc"
    file.write_text(text)
    return file


def rules(*given: tuple[str, str, str]) -> dict[str, Any]:
    listed = [dict(zip(("domain", "pattern", "decision"), rule, strict=True)) for rule in given]
    return {"agents": {"runtime": {"permission": {"rules": listed}}}}


def test_flag_beats_inline_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """The strongest layer wins and every layer can be named, with file and line (S0.85, CONTRACT §1)."""
    file = put(tmp_path, '{\n  // mine\n  "model": "from-file",\n}\n')
    environ: dict[str, str] = {}
    inline: str | None = None
    flags: dict[str, Any] = {"model": None}

    def winner() -> tuple[str, Origin]:
        config = load_config(tmp_path, inline=inline, environ=environ, flags=flags)
        return config.get("model"), config.origin("model")

    assert winner() == ("from-file", Origin("user", str(file), 3))
    environ = {"MORYFLOW_MODEL": "from-variable"}
    assert winner() == ("from-variable", Origin("environment", "MORYFLOW_MODEL", None))
    inline = '{"model": "from-inline"}'
    assert winner() == ("from-inline", Origin("inline", "--config", 1))
    flags = {"model": "from-flag"}
    assert winner() == ("from-flag", Origin("flag", "flag", None))
    found = load_config(tmp_path, inline=inline, environ=environ, flags=flags).setters("model")
    assert [value for value, _ in found] == ["from-flag", "from-inline", "from-variable", "from-file"]
    assert load_config(tmp_path / "none", environ={}).origin("model") == Origin("default")


def test_inline_rules_come_after_the_users(tmp_path: Path) -> None:
    """Scalars replace, rules are appended, so that the last match is the inline one (D56)."""
    put(tmp_path, json.dumps(rules(("read", "vault:**", "allow"), ("bash", "*", "ask")), indent=1))
    config = load_config(tmp_path, inline=json.dumps(rules(("bash", "git status", "allow"))), environ={})
    found = [(rule.source, rule.pattern, rule.index, rule.line) for rule in config.rules()]
    assert found == [("user", "vault:**", 0, 6), ("user", "*", 1, 11), ("inline", "git status", 0, 1)]
    assert [rule["pattern"] for rule in config.get("agents.runtime.permission.rules")] == ["vault:**", "*", "git status"]


def test_inline_may_be_a_file(tmp_path: Path) -> None:
    """--config takes JSON text or a path; a wrong one is the caller's error, not a report (CONTRACT §1)."""
    other = tmp_path / "other.jsonc"
    other.write_text('{"language": "zh"} // inline')
    config = load_config(tmp_path, inline=str(other), environ={})
    assert config.origin("language") == Origin("inline", str(other), 1)
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path, inline="nowhere.json", environ={})
    with pytest.raises(ConfigError, match="not JSON") as caught:
        load_config(tmp_path, inline='{"model": }', environ={})
    assert caught.value.where == "--config:1:11"


def test_there_is_no_project_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vault's own config.jsonc or .moryflow folder sets nothing (S0.10, D56)."""
    vault = tmp_path / "vault"
    (vault / ".moryflow").mkdir(parents=True)
    put(vault, '{"model": "evil"}')
    put(vault / ".moryflow", '{"model": "evil"}')
    monkeypatch.chdir(vault)
    assert load_config(tmp_path / "home", environ={}).get("model") is None


def test_the_environment_may_name_another_file(tmp_path: Path) -> None:
    """MORYFLOW_CONFIG stands in for the file in the home; of one that is not there what was read last holds (S0.86, D26)."""
    put(tmp_path, '{"model": "home"}')
    other = tmp_path / "elsewhere.jsonc"
    other.write_text('{"model": "elsewhere"}')
    assert load_config(tmp_path, environ={"MORYFLOW_CONFIG": str(other)}).get("model") == "elsewhere"
    load_config(tmp_path, environ={"MORYFLOW_CONFIG": str(other)}).keep(tmp_path)
    for name, model in (("no", None), ("elsewhere.jsonc", "elsewhere")):
        other.unlink(missing_ok=True)
        missing = load_config(tmp_path, environ={"MORYFLOW_CONFIG": str(tmp_path / name)})
        missing.keep(tmp_path)
        assert [(problem.code, problem.fatal) for problem in missing.problems] == [("config_missing", True)]
        assert missing.get("model") == model
    assert config_file(tmp_path, {}) == tmp_path / "config.jsonc"


def test_variables_become_settings(tmp_path: Path) -> None:
    """Each variable of CONTRACT §1 sets its key; an empty MORYFLOW_PLUGINS means built-ins only."""
    environ = {"MORYFLOW_PLUGINS": "", "MORYFLOW_SAFE_MODE": "1", "MORYFLOW_STRICT": "no", "MORYFLOW_MODEL": " "}
    config = load_config(tmp_path, environ=environ)
    assert (config.get("onlyPlugins"), config.get("safeMode"), config.get("strict")) == ([], True, False)
    assert config.get("model") is None
    assert config.problems == ()


@pytest.mark.usefixtures("shared_group")
@pytest.mark.parametrize(("mode", "used"), [(0o600, True), (0o644, True), (0o664, False), (0o666, False)])
def test_a_file_others_can_write_is_not_used(mode: int, used: bool, tmp_path: Path) -> None:
    """Group- or world-writable: its last good version holds, without one every call asks, and it is said (R17)."""
    file = put(tmp_path, json.dumps({**rules(("bash", "rm *", "deny")), "language": "zh"}))
    load_config(tmp_path, environ={}).keep(tmp_path)
    put(tmp_path, json.dumps(rules(("bash", "*", "allow"))))
    file.chmod(mode)
    for kept in (True, False):
        config = load_config(tmp_path, environ={}).checked(())
        assert [problem.code for problem in config.problems] == ([] if used else ["config_permissions"])
        decisions = [(rule.domain, rule.decision) for rule in config.rules()]
        assert decisions == [("bash", "allow") if used else ("bash", "deny") if kept else ("*", "deny")]
        (tmp_path / "config.good.jsonc").unlink(missing_ok=True)


def test_a_home_or_a_linked_file_that_others_can_write_gives_no_allow_rules(tmp_path: Path) -> None:
    """Each folder on the way counts, links followed; the sentence names the folder and the command (R17)."""
    text = json.dumps(rules(("bash", "*", "allow"), ("bash", "rm *", "deny")))
    home, dotfiles = tmp_path / "home", tmp_path / "dotfiles"
    for folder in (home, dotfiles):
        folder.mkdir(mode=0o755)
    put(dotfiles, text)
    (home / "config.jsonc").symlink_to(dotfiles / "config.jsonc")
    assert [rule.decision for rule in load_config(home, environ={}).rules()] == ["allow", "deny"]
    for folder in (home, dotfiles, tmp_path):
        folder.chmod(0o777)
        config = load_config(home, environ={})
        assert [(rule.domain, rule.decision) for rule in config.rules()] == [("*", "deny")]
        (problem,) = config.problems
        assert problem.code == "config_permissions" and f"the folder {folder}" in problem.message
        assert problem.hint.startswith(f"chmod go-w {folder}")
        folder.chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_gives_no_allow_rules(tmp_path: Path) -> None:
    """Foreign-owned counts like writable by others (R17)."""
    file = put(tmp_path, json.dumps(rules(("bash", "*", "allow"))))
    os.chown(file, 12345, 12345)
    config = load_config(tmp_path, environ={})
    assert "allow" not in [rule.decision for rule in config.rules()]
    assert "belongs to another user" in config.problems[0].message


def test_what_is_no_regular_file_is_named_and_does_not_hang(tmp_path: Path) -> None:
    """A folder, a pipe, a device, a link to nowhere, a link in a circle: defaults, and soon (SECURITY §4)."""
    file = tmp_path / "config.jsonc"
    makers = {
        "folder": lambda: file.mkdir(),
        "pipe": lambda: os.mkfifo(file),
        "device": lambda: file.symlink_to("/dev/zero"),
        "circle": lambda: file.symlink_to(file),
        "nowhere": lambda: file.symlink_to(tmp_path / "nowhere"),
        "through a file": lambda: file.symlink_to(Path(__file__) / "x"),
    }
    for name, make in makers.items():
        make()
        config = load_config(tmp_path, environ={})
        assert [problem.code for problem in config.problems] == ["config_unreadable"], name
        assert config.layers == ()
        file.rmdir() if file.is_dir() else file.unlink()
    assert load_config(tmp_path, environ={}).problems == ()


def test_of_a_link_that_leads_nowhere_what_was_read_last_holds(tmp_path: Path) -> None:
    """A disk that is not mounted takes no deny rule along: the file is lost, and not one that was never there (D26, D44)."""
    real, file = tmp_path / "dotfiles.jsonc", tmp_path / "config.jsonc"
    real.write_text(json.dumps(rules(("bash", "*", "deny"))))
    file.symlink_to(real)
    load_config(tmp_path, environ={}).keep(tmp_path)
    real.unlink()
    for _ in range(2):
        config = load_config(tmp_path, environ={})
        config.keep(tmp_path)
        assert [rule.decision for rule in config.rules()] == ["deny"]
        [problem] = config.problems
        assert problem.fatal and "leads nowhere" in problem.message and str(real) in problem.message


def test_unknown_keys_are_named_with_what_was_meant(tmp_path: Path) -> None:
    """The rest still loads, and the line is right (CONTRACT §1)."""
    put(tmp_path, '{\n  "modle": "x",\n  "language": "zh",\n  "agents": { "runtime": {\n    "tool": {} } }\n}')
    config = load_config(tmp_path, environ={}).checked(())
    found = [(problem.line, problem.message, problem.hint) for problem in config.problems]
    assert found == [
        (2, 'unknown key "modle"', 'did you mean "model"?'),
        (5, 'unknown key "agents.runtime.tool"', 'did you mean "tools"?'),
    ]
    assert config.get("language") == "zh"


class Limits(Settings):
    max_lines: Annotated[int, Meta(gt=0, strict=True)] = 2000
    direction: str = "head"


def test_a_wrong_value_is_dropped_alone(tmp_path: Path) -> None:
    """Zero, a text in place of a number: named with the line, the default holds, its neighbours too (D40)."""
    put(tmp_path, '{"agents": {"runtime": {\n"mode": {"default": 7},\n"truncation": {"maxLines": 0, "direction": "tail"}}}}')
    config = load_config(tmp_path, environ={}).checked([("agents.runtime.truncation", Limits)])
    assert config.section("agents.runtime.truncation") == {"direction": "tail"}
    assert config.get("agents.runtime.mode.default", "agent") == "agent"
    assert [(problem.code, problem.line) for problem in config.problems] == [("config_value", 2), ("config_value", 3)]
    assert "the default is used" in config.problems[1].message


def test_ask_is_an_alias_of_agent(tmp_path: Path) -> None:
    """`mode.default: "ask"` reads as `agent` (D1)."""
    put(tmp_path, '{"agents": {"runtime": {"mode": {"default": "ask"}}}}')
    config = load_config(tmp_path, environ={})
    assert config.get("agents.runtime.mode.default") == "agent"
    assert config.problems == ()


def test_an_unknown_agent_is_kept_as_data(tmp_path: Path) -> None:
    """Which agents exist is not the configuration's business (D43, S0.89)."""
    put(tmp_path, '{"agents": {"runtime": {"agent": {"id": "writer"}}}}')
    assert load_config(tmp_path, environ={}).get("agents.runtime.agent.id") == "writer"


SAMPLES = (
    """{
  // 用户级配置
  "agents": {
    "runtime": {
      "mode": { "default": "agent" },
      "agent": { "id": "writer" },
      "tools": { "external": { "enabled": true } },
      "hooks": {
        "chat": {
          "system": { "mode": "append", "text": "You must reply in short bullet points." },
          "params": { "temperature": 0.2, "maxTokens": 512 },
        },
        "tool": {
          "before": [{ "tool": "read", "mergeInput": { "encoding": "utf-8" } }],
          "after": [{ "tool": "read", "prependText": "[preview]\\\\n" }],
        },
      },
    },
  },
}""",
    """{
  "agents": {
    "runtime": {
      "agent": { "id": "writer" },
      "mode": { "default": "agent" },
      "compaction": { "fallbackCharLimit": 120000, "protectedTurns": 3 },
      "truncation": { "maxLines": 2000, "maxBytes": 51200, "ttlDays": 7 },
      "doomLoop": { "maxAttempts": 3, "maxToolCalls": 60, "sameToolThreshold": 5 },
      "tools": { "external": { "enabled": true } },
      "hooks": {
        "chat": {
          "system": { "mode": "append", "text": "You must reply in Markdown." },
          "params": { "temperature": 0.2, "maxTokens": 2048 },
        },
        "tool": {
          "before": [{ "tool": "read", "mergeInput": { "offset": 1 } }],
          "after": [{ "tool": "read", "appendText": "\\\\n[read completed]" }],
        },
      },
      "permission": {
        "rules": [
          { "domain": "read", "pattern": "vault:**/*.md", "decision": "allow" },
          { "domain": "read", "pattern": "fs:**/*.env*", "decision": "ask" },
          { "domain": "bash", "pattern": "*", "decision": "ask" },
        ],
      },
    },
  },
}""",
)


@pytest.mark.parametrize("text", SAMPLES, ids=["quick start", "reference"])
def test_the_samples_load_as_they_stand(text: str, tmp_path: Path) -> None:
    """Both configurations of the source document, byte for byte (D74, S0.87, S0.43)."""
    put(tmp_path, text)
    config = load_config(tmp_path, environ={})
    assert config.problems == ()
    assert config.get("agents.runtime.agent.id") == "writer"
    assert config.get("agents.runtime.tools.external.enabled") is True
    assert len(config.rules()) == text.count('"decision"')
    assert config.get("agents.runtime.hooks.tool.before")[0]["tool"] == "read"


def test_the_schema_covers_every_setting() -> None:
    """`config schema` is one JSON Schema with the host's settings and the plugins' at their paths (S0.87)."""
    schema = json_schema([("agents.runtime.truncation", Limits), ("plugins.extra", Limits)])
    runtime = schema["properties"]["agents"]["properties"]["runtime"]["properties"]
    assert sorted(runtime) == ["agent", "compaction", "mode", "permission", "prompt", "tools", "truncation"]
    assert runtime["truncation"]["properties"]["maxLines"]["default"] == 2000
    assert runtime["permission"]["properties"]["rules"]["items"]["required"] == ["domain", "pattern", "decision"]
    assert "extra" in schema["properties"]["plugins"]["properties"]
    references = re.findall(r"#/\$defs/(\w+)", json.dumps(schema))
    assert set(references) <= set(schema["$defs"])


def test_defaults_come_from_the_models() -> None:
    """What `config get` prints for a key nobody sets is what the program uses (S0.70)."""
    found = defaults([*host_models(), ("agents.runtime.truncation", Limits)])
    assert found["agents"]["runtime"]["mode"] == {"default": "agent"}
    assert found["agents"]["runtime"]["truncation"] == {"maxLines": 2000, "direction": "head"}
    assert found["limits"] == {"maxSteps": None, "maxCost": None}


def test_an_unknown_setting_of_a_plugin_is_named_and_those_of_unknown_plugins_are_not(tmp_path: Path) -> None:
    """The section of plugins is open, the settings of one that declares them are not (S0.87)."""
    put(tmp_path, '{"plugins": {"weather": {"maxSteps": 1, "maxStep": 1}, "other": {"anything": 1}}}')
    problems = load_config(tmp_path, environ={}).checked([("plugins.weather", LimitSettings)]).problems
    assert [problem.message for problem in problems] == ['unknown key "plugins.weather.maxStep"']
