"""Hooks from the configuration: S0.96 to S0.102 clause by clause, through a real host."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_builtins.config_hooks import HookSettings, tool_before
from moryflow_sdk import ToolCall

SHOUT = """
from moryflow_sdk import hookimpl, tool, ToolResult, ToolError, SystemBlock

@tool(domain="read")
def say(text: str = "", times: int = 1) -> str:
    "Say it."
    return text * times

@tool(domain="read")
def count(text: str = "") -> dict:
    "Count."
    return {"n": len(text)}

@tool(domain="read")
def fail() -> str:
    "Fail."
    raise ToolError("no luck")

@hookimpl
def tools():
    return [say, count, fail]
"""


@pytest.fixture
def hooks(moryflow):
    """Install the stub tools, and hooks as the configuration would give them."""
    moryflow.plugin(SHOUT, "stubs")

    def configure(**given):
        moryflow.configure({"agents": {"runtime": {"hooks": given}}})

    return configure


def system_of(moryflow) -> str:
    moryflow.run("hi", ["hello"])
    first = moryflow.model.requests[-1].messages[0]
    return first.text if first.role == "system" else ""


def output_of(moryflow, tool: str, **args) -> str:
    return moryflow.call_tool(tool, **args).result.output


@pytest.mark.parametrize("mode", [None, "append"])
def test_text_is_appended_unless_said_otherwise(moryflow, hooks, mode):
    """`chat.system` appends by default (S0.96)."""
    hooks(chat={"system": {"text": " Be short.\n", **({"mode": mode} if mode else {})}})
    text = system_of(moryflow)
    assert text.startswith("You are") and "\n\n Be short.\n\n\n" in text.partition("Working folder:")[0]


def test_text_is_prepended(moryflow, hooks):
    """`chat.system` with mode prepend comes first (S0.96)."""
    hooks(chat={"system": {"mode": "prepend", "text": "Be short."}})
    assert system_of(moryflow).startswith("Be short.\n\nYou are")


def test_text_replaces_all_but_what_must_stay(moryflow, hooks):
    """`chat.system` may replace the prompt; blocks from `system_blocks` are added after it (S0.96, D52)."""
    safety = '@hookimpl\ndef system_blocks():\n    return [SystemBlock(id="s", text="Stay safe.")]\n'
    moryflow.plugin("from moryflow_sdk import hookimpl, SystemBlock\n" + safety, "safety")
    hooks(chat={"system": {"mode": "replace", "text": "Only this."}})
    text = system_of(moryflow)
    assert text.startswith("Only this.\n\n") and "\n\nStay safe." in text and "You are Moryflow" not in text


def test_hooks_may_be_named_in_one_word(moryflow, hooks):
    """`"chat.params"` is `chat: {params}`, and `tool.execute.before` is `tool: {before}` (S0.94, S2.11)."""
    hooks(
        **{
            "chat.params": {"temperature": 0.2},
            "tool.execute.before": [{"tool": "say", "mergeInput": {"text": "x"}}],
            "tool": {"after": [{"tool": "say", "appendText": "!"}]},
        }
    )
    assert output_of(moryflow, "say", times=2) == "xx!"
    moryflow.run("hi", ["hello"])
    assert moryflow.model.requests[0].params.temperature == 0.2


def test_entries_of_both_spellings_hold(moryflow, hooks):
    """One below the other, as they are written; the second list took the place of the first (S0.94)."""
    one, two, three = ({"tool": "say", "appendText": text} for text in "abc")
    hooks(**{"tool.after": [one], "tool": {"after": [two]}, "tool.execute.after": [three]})
    assert moryflow.call_tool("say", text="x").result.output == "xabc"


def test_parameters_override_the_agents(moryflow, hooks):
    """`chat.params` overrides the model settings of agent and prompt, and only what it names (S0.97)."""
    (moryflow.home / "agents").mkdir()
    agent = "---\n{'id': 'w', 'modelSettings': {'temperature': 1.5, 'topP': 0.5}}\n---\nWrite.\n"
    (moryflow.home / "agents" / "w.md").write_text(agent, encoding="utf-8")
    hooks(chat={"params": {"temperature": 0.2, "maxTokens": 512}})
    moryflow.run("hi", ["hello"], session=moryflow.session(agent="w"))
    params = moryflow.model.requests[0].params
    assert (params.temperature, params.top_p, params.max_tokens, params.extra) == (0.2, 0.5, 512, {})


def test_only_known_parameters_are_accepted(moryflow, hooks):
    """An unknown or wrong field is left out, the others hold (S0.97)."""
    hooks(chat={"params": {"temperature": 9, "topP": True, "seed": 7, "maxTokens": 10}})
    moryflow.run("hi", ["hello"])
    params = moryflow.model.requests[0].params
    assert (params.temperature, params.top_p, params.max_tokens, params.extra) == (None, None, 10, {})


def test_merged_input_is_a_default(moryflow, hooks):
    """`mergeInput` adds what is missing and never overwrites what was given (S0.98)."""
    hooks(tool={"before": [{"tool": "say", "mergeInput": {"text": "ab", "times": 2}}]})
    assert output_of(moryflow, "say") == "abab"
    assert output_of(moryflow, "say", text="x") == "xx"
    assert output_of(moryflow, "say", text="", times=3) == ""


def test_of_two_defaults_the_first_holds(moryflow, hooks):
    """What an earlier entry merged counts as given (S0.98)."""
    entries = [{"tool": "say", "mergeInput": {"text": "a"}}, {"tool": "s*", "mergeInput": {"text": "b", "times": 2}}]
    hooks(tool={"before": entries})
    assert output_of(moryflow, "say") == "aa"


@pytest.mark.parametrize("arguments", ["[1]", '"text"', "7", "null", "{broken"])
def test_input_that_is_no_object_is_not_merged(moryflow, hooks, arguments):
    """`mergeInput` applies only to input that parses to a JSON object; anything else is refused as it is (S0.98)."""
    hooks(tool={"before": [{"tool": "say", "mergeInput": {"text": "ab"}}]})
    moryflow.run("hi", [{"calls": [{"name": "say", "arguments": arguments}]}, "done"])
    assert "ab" not in moryflow.model.requests[1].messages[-1].text


ARGS = st.dictionaries(st.text(max_size=3), st.integers())


@given(given_args=ARGS, merged=ARGS)
def test_merging_keeps_every_given_argument(given_args, merged):
    """For any arguments: what was given stays, what was missing is added, nothing else (S0.98)."""

    settings = HookSettings.model_validate({"tool": {"before": [{"tool": "t", "mergeInput": merged}]}})
    call = ToolCall(id="1", tool="t", args=given_args)
    changed = tool_before(call, SimpleNamespace(config=settings)) or call
    assert dict(changed.args) == {**merged, **given_args}


def test_text_goes_around_the_output_as_it_is(moryflow, hooks):
    """`prependText` and `appendText` are taken as they are, white space included, in the order written (S0.99, D53)."""
    after = [{"tool": "say", "prependText": " [\n", "appendText": "]  "}, {"tool": "*", "appendText": "\t!"}]
    hooks(tool={"after": after})
    assert output_of(moryflow, "say", text="x") == " [\nx]  \t!"


def test_only_text_is_wrapped(moryflow, hooks):
    """An output that is not text, and an error, stay as they are (S0.99)."""
    hooks(tool={"after": [{"tool": "*", "prependText": "<", "appendText": ">"}]})
    assert output_of(moryflow, "say", text="x") == "<x>"
    assert json.loads(output_of(moryflow, "count", text="abc")) == {"n": 3}
    assert "<" not in output_of(moryflow, "fail")


def test_the_selector_names_tools(moryflow, hooks):
    """An entry applies to the tool it names, or to those a glob covers, and to no other (S0.100)."""
    hooks(tool={"after": [{"tool": tool, "appendText": tool} for tool in ("say", "s?y", "sa", "SAY")]})
    assert output_of(moryflow, "say", text="x") == "xsays?y"


ADDS = """
from moryflow_sdk import hookimpl

@hookimpl
def tool_after(result):
    return result.replace(output=result.output + "{}")
"""


def test_they_are_called_after_built_in_and_installed_plugins(moryflow, hooks):
    """Built-in, then user: the configuration's hooks stand among the user's, by name (S0.95)."""
    for name in ("aa", "zz"):
        moryflow.plugin(ADDS.format(name), name)
    hooks(tool={"after": [{"tool": "say", "appendText": "-mine-"}]})
    assert output_of(moryflow, "say", text="x") == "xaa-mine-zz"
    order = [item.plugin for item in moryflow.host.plugin_set.ordered("tool_after")]
    mine = order.index("aa")
    assert order[mine:] == ["aa", "claude_hooks", "config_hooks", "zz", "truncation"]


BAD = """{
  "agents": { "runtime": { "hooks": {
    "chat": { "system": { "mode": "sideways", "text": "Be short." }, "params": 5 },
    "tool": {
      "before": [
        { "tool": "say", "mergeInput": 5 },
        { "tool": "say", "mergeInput": { "text": "ab" } }
      ],
      "after": [
        7,
        { "tool": "say", "prependText": null },
        { "appendText": "!" },
        { "tool": "say", "appendTxt": "?", "prependText": "<" }
      ]
    }
  } } }
}"""


def test_a_bad_entry_is_named_with_its_line_and_the_rest_works(moryflow, hooks):
    """A hook that fails never interrupts; what is wrong is said with file, line and suggestion (S0.102)."""
    (moryflow.home / "config.jsonc").write_text(BAD, encoding="utf-8")
    assert output_of(moryflow, "say") == "<ab"
    assert system_of(moryflow).count("\n\nBe short.\n\n") == 1
    from moryflow.plugins.manifest import settings_of_plugins

    problems = moryflow.host.config.checked(settings_of_plugins(moryflow.host.plugin_set)).problems
    hooks_at = "agents.runtime.hooks."
    assert sorted((problem.line, problem.message.split(hooks_at)[1].split(":")[0].rstrip('"')) for problem in problems) == [
        (3, "chat.params"),
        (3, "chat.system.mode"),
        (6, "tool.before[0].mergeInput"),
        (10, "tool.after[0]"),
        (11, "tool.after[1].prependText"),
        (12, "tool.after[2].tool"),
        (13, "tool.after[3].appendTxt"),
    ]
    assert any(problem.hint == 'did you mean "appendText"?' for problem in problems)
