"""Hooks of Claude Code run as they are: they may refuse, ask, change arguments and add text, and allow nothing (issue F)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow.testing import IsolatedHost
from moryflow_builtins.claude_hooks.commands import read_hooks


class Hooks:
    """A host with the hooks of one plugin's folder."""

    def __init__(self, host: IsolatedHost, folder: Path) -> None:
        self.host, self.folder = host, folder
        self.events: dict[str, Any] = {}

    def add(self, event: str, code: str, matcher: str = "", **more: Any) -> None:
        """Have a hook run `code` in Python; `given` is what it got on standard input."""
        (self.folder / "hooks").mkdir(parents=True, exist_ok=True)
        file = self.folder / "hooks" / f"{event}{len(self.events.get(event, ()))}.py"
        file.write_text(f"import json, os, sys\ngiven = json.load(sys.stdin)\n{dedent(code)}", encoding="utf-8")
        command = f'{sys.executable} "${{CLAUDE_PLUGIN_ROOT}}/hooks/{file.name}"'
        self.events.setdefault(event, []).append({"matcher": matcher, "hooks": [{"command": command, **more}]})
        (self.folder / "hooks" / "hooks.json").write_text(json.dumps({"hooks": self.events}), encoding="utf-8")
        self.host.configure({"agents": {"runtime": {"claudeHooks": {"paths": [str(self.folder)]}}}})


@pytest.fixture
def hooks(moryflow: IsolatedHost, tmp_path: Path) -> Hooks:
    """No hooks yet."""
    return Hooks(moryflow, tmp_path / "plugin")


def test_a_hook_refuses_with_exit_code_2_and_gets_the_names_it_knows(hooks: Hooks) -> None:
    """The reason is its standard error; tool and fields are Claude Code's."""
    hooks.add("PreToolUse", """
        assert given["hook_event_name"] == "PreToolUse" and given["cwd"] == os.getcwd() == os.environ["CLAUDE_PROJECT_DIR"]
        if given["tool_name"] == "Write" and given["tool_input"]["file_path"].endswith(".lock"):
            print("lock files are generated", file=sys.stderr)
            sys.exit(2)
    """, "Write|Edit")  # fmt: skip
    denied = hooks.host.call_tool("write", path="a.lock", content="x").result
    assert denied.status == "denied" and "lock files are generated" in denied.output
    assert not (hooks.host.vault / "a.lock").exists()
    assert hooks.host.call_tool("write", path="a.txt", content="x").result.status == "ok"


@pytest.mark.parametrize(
    ("printed", "status"),
    [
        ({"hookSpecificOutput": {"permissionDecision": "deny", "permissionDecisionReason": "no"}}, "denied"),
        ({"decision": "block", "reason": "no"}, "denied"),
        ({"hookSpecificOutput": {"permissionDecision": "ask"}}, "denied"),  # nobody can be asked
        ({"hookSpecificOutput": {"permissionDecision": "allow"}}, "ok"),
        ({"suppressOutput": True}, "ok"),
    ],
)
def test_the_json_of_a_hook_decides(hooks: Hooks, printed: dict[str, Any], status: str) -> None:
    """As the documentation of Claude Code says it."""
    hooks.add("PreToolUse", f"print({json.dumps(printed)!r})")
    assert hooks.host.call_tool("write", path="a.txt", content="x").result.status == status


def test_what_a_hook_allows_lifts_nothing(hooks: Hooks) -> None:
    """It may only tighten: a command that is asked about is still asked about."""
    allow = {"hookSpecificOutput": {"permissionDecision": "allow"}}
    hooks.add("PreToolUse", f"print({json.dumps(allow)!r})")
    assert hooks.host.call_tool("bash", command="make it").result.status == "denied"


def test_changed_arguments_are_judged(hooks: Hooks) -> None:
    """``updatedInput`` comes before the gates: a path outside is refused although the model named one inside."""
    new = {"hookSpecificOutput": {"updatedInput": {"file_path": "b.txt"}}}
    hooks.add("PreToolUse", f"print({json.dumps(new)!r})", "Write")
    assert hooks.host.call_tool("write", path="a.txt", content="x").result.status == "ok"
    assert (hooks.host.vault / "b.txt").read_text("utf-8") == "x" and not (hooks.host.vault / "a.txt").exists()
    outside = {"hookSpecificOutput": {"updatedInput": {"file_path": "/etc/x"}}}
    hooks.add("PreToolUse", f"print({json.dumps(outside)!r})", "Write")
    assert hooks.host.call_tool("write", path="a.txt", content="x").result.status == "denied"


@pytest.mark.parametrize("code", ["sys.exit(1)", "raise SystemExit(127)", "print('{ torn')", "import time; time.sleep(60)"])
def test_a_hook_that_fails_refuses_nothing(hooks: Hooks, code: str) -> None:
    """Nor does one that hangs, and a script that is missing is no exit code 2."""
    hooks.add("PreToolUse", code, timeout=1)
    assert hooks.host.call_tool("write", path="a.txt", content="x").result.status == "ok"
    for file in (hooks.folder / "hooks").glob("*.py"):
        file.unlink()
    assert hooks.host.call_tool("write", path="b.txt", content="x").result.status == "ok"


def test_results_and_prompts_get_what_hooks_add(hooks: Hooks) -> None:
    """``PostToolUse`` below the output; ``SessionStart`` once, ``UserPromptSubmit`` with the prompt."""
    hooks.add("PostToolUse", "print('format it', file=sys.stderr); sys.exit(2)", "Write")
    hooks.add("SessionStart", "print('It is Monday.')")
    hooks.add("UserPromptSubmit", "print('They said ' + given['prompt'])")
    session = hooks.host.session()
    call = {"calls": [{"name": "write", "arguments": {"path": "a.txt", "content": "x"}}]}
    hooks.host.run("hello", [call, "done"], session=session)
    request = str(hooks.host.model.requests[-1])
    assert "format it" in request and "It is Monday." in request and "They said hello" in request


def test_safe_mode_runs_no_hook(hooks: Hooks) -> None:
    """Safe mode runs built-in plugins only, and none of the user's own programs."""
    hooks.add("PreToolUse", "sys.exit(2)")
    hooks.host.configure({"safeMode": True})
    turn = hooks.host.run("go", [{"calls": [{"name": "ls", "arguments": {}}]}, "done"])
    assert "refused it" not in str(hooks.host.model.requests[-1]) and turn.end_reason == "completed"


def test_what_cannot_be_run_is_named(tmp_path: Path) -> None:
    """Other kinds of hooks, other events, broken files: each with its file."""
    for name, content in {
        "a.json": '{"hooks": {"PreToolUse": [{"hooks": [{"type": "prompt"}]}], "Later": [{"hooks": []}]}}',
        "b.json": "{",
        "c.json": "[]",
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    found, problems = read_hooks([str(tmp_path / name) for name in ("a.json", "b.json", "c.json", "none")])
    assert found == [] and len(problems) == 5
    assert problems[0][1].startswith("PreToolUse: only hooks of the type command")


def test_a_stop_hook_lets_the_model_go_on_until_it_is_content(hooks: Hooks) -> None:
    """Its reason is what the model reads next; `stop_hook_active` says that it did so before (issue F)."""
    hooks.add("Stop", """
        seen = os.path.join(os.environ["CLAUDE_PLUGIN_ROOT"], "seen")
        open(seen, "a").write(f"{given['stop_hook_active']}\\n")
        if not os.path.exists("notes.md"):
            print("notes.md is missing", file=sys.stderr)
            sys.exit(2)
    """)  # fmt: skip
    wrote = {"calls": [{"name": "write", "arguments": {"path": "notes.md", "content": "x"}}]}
    run = hooks.host.run("make notes", ["Done.", wrote, "Now it is there."])
    assert (run.end_reason, run.text, run.steps) == ("completed", "Now it is there.", 3)
    assert "notes.md is missing" in hooks.host.model.requests[1].messages[-1].text
    assert (hooks.folder / "seen").read_text().split() == ["False", "True"]


def test_a_stop_hook_that_is_never_content_ends_after_five_turns(hooks: Hooks) -> None:
    """A cap, so that no hook keeps a model busy for ever (issue F)."""
    hooks.add("Stop", """print(json.dumps({"decision": "block", "reason": "again"}))""")
    run = hooks.host.run("hi", [f"answer {number}" for number in range(9)])
    assert (run.text, run.steps) == ("answer 5", 6)


def test_a_stop_hook_that_says_stop_or_fails_ends_the_turn(hooks: Hooks) -> None:
    """`continue: false` counts before a refusal; a script that fails refuses nothing (issue F)."""
    hooks.add("Stop", """print(json.dumps({"continue": False, "decision": "block", "reason": "again"}))""")
    hooks.add("Stop", "sys.exit(1)")
    assert hooks.host.run("hi", ["one", "two"]).text == "one"


def test_the_turns_that_follow_share_the_limits_of_the_first(hooks: Hooks) -> None:
    """Steps are counted over all of them, once (issue F)."""
    hooks.add("Stop", """print(json.dumps({"decision": "block", "reason": "again"}))""")
    run = hooks.host.run("hi", [f"answer {number}" for number in range(9)], max_steps=4)
    assert run.steps == 4


def test_a_direct_call_and_a_failed_turn_run_no_stop_hook(hooks: Hooks) -> None:
    """It is asked when an answer is complete (issue F)."""
    hooks.add("Stop", """open(os.path.join(os.environ["CLAUDE_PLUGIN_ROOT"], "seen"), "a").write("x")""")
    hooks.host.call_tool("ls")
    hooks.host.run("hi", [{"error": {"code": "auth", "message": "no"}}])
    assert not (hooks.folder / "seen").exists()
