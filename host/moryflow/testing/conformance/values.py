"""Checks: its hooks take whatever arrives, change nothing in place, and answer the same question the same way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib import import_module
from typing import Any, cast

import pytest
from moryflow_sdk import HOOKS, Allow, Event, SystemPrompt

from .samples import KINDS, Given, inputs
from .subject import Called, Subject

CALLED = (*(name for name, info in HOOKS.items() if info.kind in ("transform", "gate", "observe")), "system_blocks")
SHARE = 0.5
"""Of its deadline, what an ordinary call may take: the machine of somebody else is slower."""


def _given(subject: Subject, hook: str, kind: str) -> Sequence[Given]:
    return inputs(hook, kind, [tool.name for tool in subject.tools])


def _called(subject: Subject, hook: str, kind: str, times: int = 1) -> list[Called]:
    """Call the hook with every input of `kind`; a failure fails the check.

    It is the plugin's own deadline and the host's own checks of the result that are applied.
    """
    given = _given(subject, hook, kind)
    called = subject.call(hook, [each for each in given for _ in range(times)])
    for each in called:
        if each.failures:
            failure = each.failures[0]
            place = f"{failure.file}:{failure.line}" if failure.line else failure.file
            subject.fail(f"{hook} fails with {_article(kind)} input: {failure.error}", _remedy(hook, kind), place)
    return called


def _article(kind: str) -> str:
    return {"ordinary": "ordinary", "empty": "empty", "unicode": "unusual Unicode", "huge": "1 MB of"}.get(kind, f"a {kind}")


def _remedy(hook: str, kind: str) -> str:
    if kind == "failed" and hook in ("tool_after", "tool_decided"):
        return "look at result.status (or the ruling) first: errors pass through the hook as well"
    if kind in ("empty", "sparse", "failed"):
        return 'expect fields to be missing: call.args.get("path"), not call.args["path"]; a model writes what it likes'
    return "return None for what is not yours, and keep the work small"


@pytest.mark.parametrize("kind", KINDS)
def test_its_hooks_take_what_arrives(plugin_subject: Subject, kind: str) -> None:
    """Ordinary, empty, odd Unicode, a megabyte, missing fields, errors and broken arguments; also tools it does not know."""
    for hook in _hooks(plugin_subject):
        _called(plugin_subject, hook, kind)


def test_its_hooks_change_nothing_in_place(plugin_subject: Subject) -> None:
    """It is given copies, so what it changes in one is lost; a new value is returned."""
    for hook in _hooks(plugin_subject):
        for kind in ("ordinary", "failed"):
            given = _given(plugin_subject, hook, kind)
            before = [_dump(each) for each in given]
            plugin_subject.call(hook, given, shared=True)
            for each, was in zip(given, before, strict=True):
                if _dump(each) != was:
                    plugin_subject.fail(
                        f"{hook} changes the value it is given", "build a new one with .replace(...) and return it"
                    )


def test_the_same_question_gets_the_same_answer(plugin_subject: Subject) -> None:
    """A hook called twice with one value gives one result: prompt caches live on it (``chat_*``), and people do, too."""
    for hook in _hooks(plugin_subject):
        if HOOKS[hook].kind == "observe" or hook == "chat_system":
            continue
        called = _called(plugin_subject, hook, "ordinary", times=2)
        for first, second in zip(called[::2], called[1::2], strict=True):
            if _answer(first) != _answer(second):
                to_do = "leave out clocks, counters and random numbers, or keep them in turn.state"
                plugin_subject.fail(f"{hook} gives two answers to one question", to_do, _function(plugin_subject, hook))


def test_its_system_prompt_is_the_same_text_twice(plugin_subject: Subject) -> None:
    """The same turn must get the same text, or every request is paid in full."""
    if "chat_system" not in _hooks(plugin_subject):
        return
    for kind in ("ordinary", "empty"):
        first, second = (called.value for called in _called(plugin_subject, "chat_system", kind, times=2))
        if isinstance(first, SystemPrompt) and first.text != second.text:
            to_do = "put what changes into a block with stable=False once per turn, or into turn.state"
            plugin_subject.fail("chat_system gives two texts in one turn", to_do, _function(plugin_subject, "chat_system"))


def test_its_answers_come_within_the_budget(plugin_subject: Subject) -> None:
    """Every call of every tool waits for it."""
    for implementation in plugin_subject.implementations():
        if implementation.hook not in CALLED:
            continue
        times = sorted(called.us for called in _called(plugin_subject, implementation.hook, "ordinary", times=3))
        spent, limit = times[len(times) // 2] / 1e6 if times else 0.0, implementation.timeout * SHARE
        if spent > limit:
            text = f"{implementation.hook} takes {spent:.2f} s, more than half of its {implementation.timeout:g} s"
            plugin_subject.fail(text, "do less, or do it once in plugin_start", _function(plugin_subject, implementation.hook))


def test_its_verdicts_say_why(plugin_subject: Subject) -> None:
    """The model reads a denial and the person a question; both need the reason."""
    for hook in ("tool_gate", "tool_decided"):
        for kind in KINDS if hook in _hooks(plugin_subject) else ():
            for called in _called(plugin_subject, hook, kind):
                for _, verdict in called.value or ():
                    if not isinstance(verdict, Allow) and not verdict.reason.strip():
                        to_do = f'{type(verdict).__name__}("what is wrong with this call")'
                        plugin_subject.fail(f"{hook} gives no reason", to_do, _function(plugin_subject, hook))


def test_a_redactor_finds_nothing_more_in_what_it_returned(plugin_subject: Subject) -> None:
    """Called again on its own result, a transform that withholds changes nothing: it may stand anywhere in the order."""
    for item in plugin_subject.implementations("tool_after"):
        if not item.withholds:
            continue
        for kind in ("ordinary", "unicode", "failed"):
            for given, once in zip(
                _given(plugin_subject, item.hook, kind), _called(plugin_subject, item.hook, kind), strict=True
            ):
                (twice,) = plugin_subject.call(item.hook, [{**given, "result": once.value}])
                if twice.value != once.value:
                    to_do = "let the replacement not match the pattern"
                    plugin_subject.fail("tool_after changes its own result again", to_do, _function(plugin_subject, item.hook))


def test_its_blocks_have_names_of_their_own(plugin_subject: Subject) -> None:
    """``system_blocks`` gives each block an id and a text, and the same ones all through a turn."""
    for called in _called(plugin_subject, "system_blocks", "ordinary") if "system_blocks" in _hooks(plugin_subject) else ():
        blocks = [block for _, block in called.value]
        ids = [block.id for block in blocks]
        if len(set(ids)) != len(ids) or not all(block.id and block.text for block in blocks):
            to_do = "give every block its own id and a text, or leave it out"
            plugin_subject.fail(f"its blocks are {ids}", to_do, _function(plugin_subject, "system_blocks"))


def test_what_it_keeps_is_json(plugin_subject: Subject) -> None:
    """``turn.state`` and ``turn.session_state`` are stored with the node; what is no JSON is lost on resume."""
    for hook in _hooks(plugin_subject):
        for given in _given(plugin_subject, hook, "ordinary"):
            (called,) = plugin_subject.call(hook, [given])
            for place, states in called.state.items():
                try:
                    json.dumps(states)
                except (TypeError, ValueError) as error:
                    to_do = "keep text, numbers, lists and objects"
                    plugin_subject.fail(f"{hook} keeps what is no JSON in {place}: {error}", to_do)


def test_its_observer_works_outside_a_turn(plugin_subject: Subject) -> None:
    """Some events belong to no turn; ``turn`` is ``None`` then."""
    for _, function in plugin_subject.functions("event"):
        error = plugin_subject.host.wait(_observed(plugin_subject))
        if error:
            plugin_subject.fail(f"event fails outside a turn: {error}", "if turn is None: return", function)


async def _observed(subject: Subject) -> str:
    call = import_module("moryflow.hooks.dispatcher").call
    for item in subject.implementations("event"):
        outcome = await call(item, {"event": Event(type="reload", session=""), "turn": None})
        if outcome.error is not None:
            return f"{type(outcome.error).__name__}: {outcome.error}"
    return ""


def _hooks(subject: Subject) -> list[str]:
    return [hook for hook in CALLED if subject.implementations(hook)]


def _function(subject: Subject, hook: str) -> Any:
    return next((function for _, function in subject.functions(hook)), None)


def _answer(called: Called) -> Any:
    return _dump({"value": called.value})


def _dump(given: Given) -> str:
    def plain(value: Any) -> Any:
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        return [plain(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else value

    return json.dumps({name: plain(value) for name, value in given.items()}, default=str, sort_keys=True)
