"""Edits of config.jsonc: what was asked for changes, and nothing else."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.config import load_config
from moryflow.config.jsonc import parse
from moryflow.config.values import append_rule, remove_rule, set_value, unset
from moryflow_sdk import ConfigError

RULE = {"domain": "read", "pattern": "fs:/etc/hosts", "decision": "allow"}

SAMPLE = """\
// mine
{
  "agents": {
    "runtime": {
      "permission": {
        // the order matters
        "rules": [
          { "domain": "bash", "pattern": "rm *", "decision": "deny" }, // never
          /* last */ { "domain": "bash", "pattern": "git status", "decision": "allow" } // fine
          // the end
        ],
      },
    },
  },
  "model": "openai/gpt-5", // big
}
"""


def is_subsequence(short: str, long: str) -> bool:
    rest = iter(long)
    return all(character in rest for character in short)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.jsonc"


def test_an_appended_rule_follows_the_last_one_and_its_remark(file: Path) -> None:
    """A rule is appended on a line of its own, with every comment where it was (D45)."""
    file.write_text(SAMPLE)
    assert append_rule(file, RULE)
    expected = SAMPLE.replace(
        '"allow" } // fine\n',
        '"allow" }, // fine\n          { "domain": "read", "pattern": "fs:/etc/hosts", "decision": "allow" }\n',
    )
    assert file.read_text() == expected


def test_a_rule_that_is_in_force_is_not_written_twice(file: Path) -> None:
    """The same rule again changes nothing; one that a later rule overrules is written (D5, D4)."""
    append_rule(file, RULE)
    before = file.read_bytes()
    assert not append_rule(file, RULE)
    assert file.read_bytes() == before
    append_rule(file, {**RULE, "pattern": "**", "decision": "ask"})
    assert append_rule(file, RULE)


def test_missing_keys_and_a_missing_file_are_created(tmp_path: Path) -> None:
    """A new file is 0600 and holds what was asked for (D46)."""
    file = tmp_path / "new" / "config.jsonc"
    append_rule(file, RULE)
    set_value(file, "agents.runtime.mode.default", "agent")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    runtime = parse(file.read_text())["agents"]["runtime"]
    assert runtime == {"permission": {"rules": [RULE]}, "mode": {"default": "agent"}}


def test_line_ends_and_byte_order_mark_stay(file: Path) -> None:
    """A file saved on Windows stays one (D45)."""
    file.write_bytes(b"\xef\xbb\xbf" + SAMPLE.replace("\n", "\r\n").encode())
    append_rule(file, RULE)
    set_value(file, "language", "zh")
    data = file.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf//")
    assert data.count(b"\n") == data.count(b"\r\n")
    assert load_config(file.parent, environ={}).get("language") == "zh"


@pytest.mark.parametrize("what", ["the file", "its folder"])
def test_a_link_that_leads_nowhere_is_not_filled(tmp_path: Path, what: str) -> None:
    """What is lost, perhaps for a while, is not begun anew at the place that the link names (D44, D46)."""
    lost = tmp_path / "not mounted" / "deep"
    link = tmp_path / ("config.jsonc" if what == "the file" else "home")
    link.symlink_to(lost)
    file = link if what == "the file" else link / "config.jsonc"
    with pytest.raises(ConfigError, match="leads nowhere"):
        set_value(file, "language", "en")
    assert link.is_symlink() and not lost.parent.exists()


def test_mode_bits_and_a_symbolic_link_survive(tmp_path: Path) -> None:
    """A config kept in a dotfiles folder stays a link, with its mode (D46)."""
    real = tmp_path / "dotfiles" / "moryflow.jsonc"
    real.parent.mkdir()
    real.write_text(SAMPLE)
    real.chmod(0o640)
    link = tmp_path / "config.jsonc"
    link.symlink_to(real)
    append_rule(link, RULE)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert RULE in parse(real.read_text())["agents"]["runtime"]["permission"]["rules"]


@pytest.mark.parametrize("text", ['{"a": 1,,}', "{agents: {}}", "[]", '{"a": 1, "a": 2}', "{} /* open"])
def test_a_file_that_does_not_parse_is_never_written_to(file: Path, text: str) -> None:
    """The error names the file, and the bytes stay as they were (D44)."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        append_rule(file, RULE)
    assert str(file) in caught.value.where
    assert file.read_text() == text


def test_a_file_that_was_emptied_is_never_written_to(file: Path) -> None:
    """An editor, or a full disk, left it so; written to, the rules that still hold from its copy would be gone (D45)."""
    file.write_text("")
    file.with_name("config.good.jsonc").write_text(SAMPLE)
    with pytest.raises(ConfigError, match="the file is empty, and was not before"):
        append_rule(file, RULE)
    assert file.read_text() == ""


def test_something_on_the_way_that_is_no_object_is_refused(file: Path) -> None:
    """Nothing is set inside a list (S0.88)."""
    file.write_text('{"agents": []}')
    with pytest.raises(ConfigError, match="agents is not an object"):
        set_value(file, "agents.runtime.mode.default", "agent")
    assert file.read_text() == '{"agents": []}'


def test_setting_a_value_replaces_only_its_text(file: Path) -> None:
    """The rest of the line stays, remark included (D45)."""
    file.write_text(SAMPLE)
    assert set_value(file, "model", "local")
    assert file.read_text() == SAMPLE.replace('"openai/gpt-5"', '"local"')
    assert not set_value(file, "model", "local")


def test_unsetting_removes_the_line_and_keeps_remarks(file: Path) -> None:
    """What is removed leaves neither an empty line nor a stray comma; its comment stays (D45, S0.84)."""
    file.write_text('{\n  "a": 1, // one\n  "b": 2,\n  "c": 3\n}\n')
    assert unset(file, "b")
    assert unset(file, "c")
    assert unset(file, "a")
    assert not unset(file, "a")
    assert file.read_text() == "{\n   // one\n}\n"


WITH_NO_ROOM = """
import resource, signal, sys
from pathlib import Path
from moryflow.config.values import append_rule
from moryflow_sdk import ConfigError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
try:
    append_rule(Path(sys.argv[1]), {"domain": "bash", "pattern": "x", "decision": "ask"})
except ConfigError as error:
    print(error)
"""


def test_a_write_that_fails_leaves_the_old_content(file: Path) -> None:
    """A disk without room: a sentence that names the file, no temporary file, and the old text stands (S0.88)."""
    file.write_text(SAMPLE)
    command = [sys.executable, "-c", WITH_NO_ROOM, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"{file}: the configuration cannot be written: File too large" in done.stdout
    assert file.read_text() == SAMPLE
    assert sorted(path.name for path in file.parent.iterdir()) == [".config.jsonc.lock", "config.jsonc"]


def test_writers_take_turns(file: Path) -> None:
    """Eight writers at once lose no rule: each re-reads under the lock (D46)."""
    rules = [{**RULE, "pattern": f"fs:/{number}"} for number in range(8)]
    threads = [threading.Thread(target=append_rule, args=(file, rule)) for rule in rules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = parse(file.read_text())["agents"]["runtime"]["permission"]["rules"]
    assert sorted(rule["pattern"] for rule in written) == [f"fs:/{number}" for number in range(8)]


# ---------------------------------------------------------------- any document

NAMES = st.sampled_from(["a", "b", "agents", "runtime", "permission", "é", 'quo"te', "x y"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(st.characters(codec="utf-8"), max_size=6))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
GAPS = st.sampled_from(["", " ", "\n", "\n  ", "\t", " // note, [x] {\n", "/* block */", "\n\n    ", " /* two\nlines */ "])


@st.composite
def documents(draw: Any) -> tuple[str, dict[str, Any]]:
    """A JSONC text with comments and trailing commas anywhere, and its value."""
    value = draw(st.dictionaries(NAMES, VALUES, max_size=4))
    if draw(st.booleans()):
        rules = draw(st.lists(st.just({"domain": "bash", "pattern": "x*", "decision": "ask"}), max_size=3))
        value["agents"] = {"runtime": {"permission": {"rules": rules}}}
    text = draw(GAPS) + _written(draw, value) + draw(GAPS)
    return (text.replace("\n", "\r\n") if draw(st.booleans()) else text), value


def _written(draw: Any, value: Any) -> str:
    def gap() -> str:
        return draw(GAPS)

    if isinstance(value, dict):
        inner = [f"{gap()}{json.dumps(name)}{gap()}:{gap()}{_written(draw, item)}{gap()}" for name, item in value.items()]
        opening, closing = "{", "}"
    elif isinstance(value, list):
        inner = [f"{gap()}{_written(draw, item)}{gap()}" for item in value]
        opening, closing = "[", "]"
    else:
        return json.dumps(value, ensure_ascii=draw(st.booleans()))
    comma = f",{gap()}" if inner and draw(st.booleans()) else ""
    return f"{opening}{','.join(inner) or gap()}{comma}{closing}"


@settings(max_examples=150)
@given(documents())
def test_any_document_takes_a_rule_and_loses_nothing(
    tmp_path_factory: pytest.TempPathFactory, document: tuple[str, Any]
) -> None:
    """The old text is a subsequence of the new one, and the new one reads as expected (D45)."""
    text, value = document
    file = tmp_path_factory.mktemp("edit") / "config.jsonc"
    file.write_bytes(text.encode())
    before = file.read_bytes().decode()
    assert parse(before) == value
    try:
        append_rule(file, RULE)
    except ConfigError as error:
        assert "not an object" in error.message or "not a list" in error.message
        assert file.read_bytes().decode() == before
        return
    after = file.read_bytes().decode()
    assert is_subsequence(before, after)
    assert parse(after)["agents"]["runtime"]["permission"]["rules"][-1] == RULE
    assert {key: item for key, item in parse(after).items() if key != "agents"} == {
        key: item for key, item in value.items() if key != "agents"
    }


@settings(max_examples=150)
@given(documents(), NAMES, VALUES)
def test_set_then_unset_keeps_every_comment(
    tmp_path_factory: pytest.TempPathFactory, document: tuple[str, Any], name: str, new: Any
) -> None:
    """Setting adds, unsetting removes; comments outside the value are all still there (D45)."""
    text, value = document
    file = tmp_path_factory.mktemp("edit") / "config.jsonc"
    file.write_bytes(text.encode())
    set_value(file, name, new)
    after_set = file.read_bytes().decode()
    assert parse(after_set) == {**value, name: new}
    if name not in value:
        assert is_subsequence(text, after_set)
    unset(file, name)
    after = file.read_bytes().decode()
    assert parse(after) == {key: item for key, item in value.items() if key != name}
    if name not in value:
        assert after.count("//") + after.count("/*") >= text.count("//") + text.count("/*")


def test_a_rule_that_has_moved_meanwhile_is_removed_where_it_stands_now(tmp_path: Path) -> None:
    """Two commands may remove rules at once; one that is gone is not taken for another (S0.48, D45)."""
    file = tmp_path / "config.jsonc"
    file.write_text(SAMPLE)
    first, second = load_config(tmp_path).rules()
    remove_rule(file, first)
    remove_rule(file, second)
    assert load_config(tmp_path).rules() == [] and "// the order matters" in file.read_text()
    with pytest.raises(ConfigError, match="does not hold this rule"):
        remove_rule(file, second)
