"""The values of the contract: checked when they are made, read-only, compared by content."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moryflow_sdk import (
    Agent,
    Allow,
    Ask,
    Deny,
    Frozen,
    FrozenDict,
    Message,
    Remember,
    Rule,
    Ruling,
    Target,
    ToolCall,
    ToolResult,
    Usage,
    ValidationError,
)  # fmt: skip
from moryflow_sdk.field_types import Between
from pydantic import BaseModel

FILE = {"domain": "read", "kind": "file", "text": "vault:/a"}
WRONG = [
    (Message, {"role": "user", "text": 5}, "Message.text: str expected, not 5 (int)"),
    (Message, {"role": "boss"}, "Message.role: 'system' or 'user' or 'assistant' or 'tool' expected, not 'boss' (str)"),
    (Message, {}, "Message.role: is missing"),
    (Message, {"role": "user", "txt": "x"}, "Message.txt: there is no such field"),
    (Message, {"role": "user", "images": "x"}, "Message.images: a sequence of Image expected, not 'x' (str)"),
    (Message, {"role": "user", "tool_calls": [{"id": "c", "name": 1}]}, "Message.tool_calls.0.name: str expected, not 1 (int)"),
    (
        Agent,
        {"id": "a", "settings": {"temperature": 3}},
        "Agent.settings.temperature: float from 0 to 2 or None expected, not 3 (int)",
    ),
    (Usage, {"input": True}, "Usage.input: int expected, not True (bool)"),
    (ToolCall, {"id": "c", "tool": "t", "args": []}, "ToolCall.args: a mapping expected, not a list"),
    (
        Target,
        {"domain": "read", "kind": "file", "text": "x", "folder": "y"},
        "Target.folder: Target or None expected, not 'y' (str)",
    ),
]


@pytest.mark.parametrize(("kind", "fields", "said"), WRONG)
def test_a_wrong_value_is_named_with_field_and_type(kind: type[Frozen], fields: dict[str, Any], said: str) -> None:
    """A plugin's mistake is told where it was made (D42)."""
    with pytest.raises(ValidationError) as caught:
        kind(**fields)
    assert str(caught.value) == said
    assert ".".join(map(str, caught.value.errors()[0]["loc"])) == said.split(":")[0].partition(".")[2]


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        ToolResult(output=5, truncated="yes")  # pyright: ignore[reportArgumentType]
    assert (
        str(caught.value)
        == "ToolResult.output: str expected, not 5 (int); ToolResult.truncated: bool expected, not 'yes' (str)"
    )


def test_lists_become_tuples_mappings_frozen_ones_and_fields_values() -> None:
    """Nothing of what was given stays changeable (R11)."""
    args: dict[str, Any] = {"deep": {"list": [1]}}
    targets: Any = [dict(FILE)]
    call = ToolCall(id="c", tool="t", args=args, targets=targets)
    args["deep"]["list"].append(2)
    targets.clear()
    assert call.args == {"deep": {"list": (1,)}} and isinstance(call.args["deep"], FrozenDict)
    assert call.targets == (Target(domain="read", kind="file", text="vault:/a"),)


def test_nothing_can_be_set_or_deleted() -> None:
    message = Message(role="user", text="a")
    with pytest.raises(ValidationError, match="this value is frozen"):
        message.text = "b"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValidationError, match="this value is frozen"):
        del message.text
    assert message.text == "a"


def test_a_changed_copy_is_checked_like_a_new_value() -> None:
    message = Message(role="user", text="a")
    assert message.replace(text="b") == Message(role="user", text="b") and message.text == "a"
    with pytest.raises(ValidationError, match=r"Message\.text: str expected"):
        message.replace(text=None)
    with pytest.raises(ValidationError, match=r"Message\.txt: there is no such field"):
        message.replace(txt="b")


def test_values_are_equal_by_class_and_content() -> None:
    assert Allow("x") != Deny("x") and Allow("x") == Allow("x") and len({Deny("x"), Deny("x"), Deny("y")}) == 2
    assert repr(Usage(input=3)) == "Usage(input=3, output=0, cached=0, reasoning=0)"
    call = ToolCall(id="c", tool="t", args={"a": [1, {"b": 2}]})
    assert copy.copy(call) == copy.deepcopy(call) == pickle.loads(pickle.dumps(call)) == call


class Text(str):
    """A text with code of its own."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class Number(int):
    """A number with code of its own."""

    def __add__(self, other: int) -> int:
        return 10**9


def test_texts_and_numbers_with_code_of_their_own_are_copied_as_plain_ones() -> None:
    """What was judged must not decide by itself what it is equal to (R11)."""
    result = ToolResult(output=Text("x"), code=Text("y"))
    usage = Usage(input=Number(3))
    assert [type(item) for item in (result.output, result.code, usage.input)] == [str, str, int]


class Liar:
    """Says that it is a text."""

    @property
    def __class__(self) -> Any:
        return str


def test_what_a_value_says_of_its_class_is_not_believed() -> None:
    with pytest.raises(ValidationError, match=r"ToolResult\.output: str expected, not \(Liar\)"):
        ToolResult(output=Liar())  # pyright: ignore[reportArgumentType]


class Limits(Frozen):
    """A plugin's own value."""

    most: Annotated[int, Between(1, 10)] = 3
    names: list[str] = []
    kind: Literal["a", "b"] | None = None


class Wider(Limits):
    """One with a field more."""

    extra: tuple[str, int] = ("x", 1)


def test_a_plugins_own_value_is_written_as_annotations() -> None:
    """Fields, defaults and bounds come from the class body, those of a base class first."""
    assert repr(Wider()) == "Wider(most=3, names=(), kind=None, extra=('x', 1))"
    assert Wider(most=10, names=["a"], extra=["y", 2]).model_dump(mode="json") == {  # pyright: ignore[reportArgumentType]
        "most": 10, "names": ["a"], "kind": None, "extra": ["y", 2],
    }  # fmt: skip
    with pytest.raises(ValidationError, match=r"Wider\.most: int from 1 to 10 expected, not 11"):
        Wider(most=11)
    with pytest.raises(ValidationError, match=r"Wider\.extra\.1: int expected"):
        Wider(extra=("y", "2"))  # pyright: ignore[reportArgumentType]


RULE = Rule(domain="bash", pattern="ls *", decision="allow", contents={"vault:/a": "sha256:0"})
VALUES: list[Frozen] = [
    RULE,
    Ask("why", remember=(Remember(scope="user", domain="bash", pattern="ls *"),), rule=RULE),
    Agent(id="a", tools=("read",), rules=(RULE,)),
    Ruling(decision="deny", cause="policy", rule=RULE),
    ToolResult(output="x", metadata={"a": [1, {"b": None}]}),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("exclude_defaults", [False, True])
def test_what_is_written_reads_back(value: Frozen, exclude_defaults: bool) -> None:
    """The store, traces and other processes get a value as JSON."""
    written = json.dumps(value.model_dump(mode="json", exclude_defaults=exclude_defaults))
    assert type(value).model_validate(json.loads(written)) == value


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _JSON, max_size=5))
def test_any_json_in_a_mapping_survives(metadata: dict[str, Any]) -> None:
    """Floats stay floats, and order stays."""
    written = ToolResult(metadata=metadata).model_dump(mode="json")["metadata"]
    assert list(written) == list(metadata)
    assert json.loads(json.dumps(written)) == json.loads(json.dumps(metadata))


def test_json_has_text_for_a_path_and_null_for_infinity() -> None:
    result = ToolResult(metadata={"path": Path("a/b"), "far": float("inf")})
    assert result.model_dump(mode="json", include={"metadata"}) == {"metadata": {"path": "a/b", "far": None}}


def test_a_pydantic_model_may_hold_values() -> None:
    """Settings and tools of plugins are pydantic models."""

    class Holder(BaseModel):
        rule: Rule

    held = Holder.model_validate({"rule": {"domain": "bash", "pattern": "ls", "decision": "deny"}})
    assert held.rule == Rule(domain="bash", pattern="ls", decision="deny")
    assert held.model_dump(mode="json")["rule"]["decision"] == "deny"
    with pytest.raises(ValueError, match=r"Rule\.decision"):
        Holder.model_validate({"rule": {"domain": "bash", "pattern": "ls", "decision": "dney"}})


def test_the_contract_is_imported_without_pydantic() -> None:
    """40 % of a start were its models."""
    code = "import sys, moryflow_sdk; print([name for name in sys.modules if name.startswith('pydantic')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    ("agent", "may"),
    [
        (Agent(id="all"), True),
        (Agent(id="named", tools=("read", "grep")), True),
        (Agent(id="glob", tools=("gr*",)), True),
        (Agent(id="none", tools=()), False),
        (Agent(id="other", tools=("Grep",)), False),
        (Agent(id="denied", deny_tools=("gr*",)), False),
        (Agent(id="both", tools=("grep",), deny_tools=("grep",)), False),
    ],
    ids=lambda value: value.id if isinstance(value, Agent) else str(value),
)
def test_an_agent_may_use_what_is_granted_and_not_taken_away(agent, may):
    assert may is agent.may_use("grep")
