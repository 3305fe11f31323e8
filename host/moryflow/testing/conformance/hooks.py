"""Checks of the plugin's hooks: first their signatures and code, then what they do when they are called.

A hook must accept every input, change nothing in place, and give the same answer to the same question. The inputs are at the
end of this file: ordinary ones, and the unusual ones that arrive sooner or later.
"""

from __future__ import annotations

import ast
import inspect
import json
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import moryflow_sdk
import pytest
from moryflow_sdk import (
    HOOKS,
    Allow,
    ChatParams,
    CompactionPlan,
    Event,
    Message,
    Ruling,
    SystemBlock,
    SystemPrompt,
    ToolCall,
    ToolRequest,
    ToolResult,
    file_target,
    hookspecs,
)
from moryflow_sdk.arguments import parameters, type_hints
from moryflow_sdk.calls import Target

from moryflow.hooks.dispatcher import call

from . import Called, Subject

_BLOCKING = frozenset(
    {
        "time.sleep",
        "input",
        "subprocess.run",
        "subprocess.call",
        "subprocess.check_output",
        "subprocess.check_call",
        "os.system",
    }
)
_NETWORK = ("requests.", "urllib.request.", "httpx.get", "httpx.post", "httpx.request")


def _hints(subject: Subject, hook: str, function: Callable[..., Any]) -> dict[str, Any]:
    names = vars(moryflow_sdk)
    try:
        return type_hints(function, {**vars(hookspecs), **names})
    except NameError as error:
        subject.fail(f"{hook}: a type hint cannot be read: {error}", "import what it names at module level", function)


def test_its_arguments_have_the_types_of_the_hook(plugin_subject: Subject) -> None:
    """A wrong type hint misleads readers and type checkers."""
    for hook, function in plugin_subject.functions():
        given = get_type_hints(getattr(hookspecs, hook))
        for name, hint in _hints(plugin_subject, hook, function).items():
            expected = given.get(name)
            if name == "return" or expected is None or hint is Any or not inspect.isclass(hint):
                continue
            members = get_args(expected) if get_origin(expected) in (Union, types.UnionType) else (expected,)
            if hint not in members:
                wanted = getattr(expected, "__name__", str(expected))
                plugin_subject.fail(f"{hook}: {name} is a {wanted}, not a {hint.__name__}", f"write {name}: {wanted}", function)


def test_its_results_have_the_types_of_the_hook(plugin_subject: Subject) -> None:
    """The host refuses results of other types; for a gate, that denies the call."""
    for hook, function in plugin_subject.functions():
        if HOOKS[hook].kind not in ("transform", "gate"):
            continue
        hint = _hints(plugin_subject, hook, function).get("return", Any)
        allowed = set(_members(get_type_hints(getattr(hookspecs, hook))["return"]))
        wrong = [each for each in _members(hint) if each is not Any and each not in allowed and inspect.isclass(each)]
        if wrong:
            may = " | ".join(sorted(getattr(each, "__name__", str(each)) for each in allowed))
            plugin_subject.fail(f"{hook}: it says it returns {wrong[0].__name__}", f"return {may}", function)


def _members(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, also of nested unions; for a generic type, its origin."""
    if get_origin(hint) in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _members(each)
    elif get_origin(hint) in (list, tuple):
        yield from _members(get_type_hints(hookspecs.chat_messages)["messages"])
    else:
        yield get_origin(hint) or hint


def test_its_async_functions_do_not_block(plugin_subject: Subject) -> None:
    """Async functions run on the host's loop: while one of them blocks, everything else waits."""
    for path, tree in plugin_subject.trees.items():
        for function in ast.walk(tree):
            if isinstance(function, ast.AsyncFunctionDef):
                for name, line in _calls(function):
                    if name in _BLOCKING or name.startswith(_NETWORK):
                        to_do = "await asyncio.to_thread(...), or make it a plain def, which runs on a thread of the plugin"
                        plugin_subject.fail(f"async {function.name} blocks with {name}()", to_do, f"{path}:{line}")


def test_its_hooks_do_not_print(plugin_subject: Subject) -> None:
    """Standard output carries the answer, and in some commands a protocol."""
    names = {function.__name__ for _, function in plugin_subject.functions()}
    for path, tree in plugin_subject.trees.items():
        for function in tree.body:
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name in names:
                line = next((line for name, line in _calls(function) if name == "print"), None)
                if line is not None:
                    plugin_subject.fail(f"{function.name} prints", "use turn.log", f"{path}:{line}")


def test_its_hooks_say_what_they_do(plugin_subject: Subject) -> None:
    """Each hook has a docstring that says what changes for the person who installs the plugin."""
    for hook, function in plugin_subject.functions():
        if not inspect.getdoc(function):
            plugin_subject.fail(f"{hook} has no docstring", "say in one sentence what it does and why", function)


def test_its_wishes_for_an_order_can_be_met(plugin_subject: Subject) -> None:
    """With the plugins in its ``before=`` and ``after=``, the plugin gets the place it asks for, in any order of loading."""
    name, tier = plugin_subject.plugin.name, plugin_subject.plugin.tier
    for hook, options in ((item.hook, item.options) for item in plugin_subject.implementations()):
        wishes = (*options.before, *options.after)
        others = list(wishes) if tier == "user" else []
        if not others:
            continue
        order = _order_with(plugin_subject, hook, others)
        early = [other for other in options.after if other in order and order.index(other) > order.index(name)]
        late = [other for other in options.before if other in order and order.index(other) < order.index(name)]
        if early or late or name not in order:
            plugin_subject.fail(
                f"{hook}: it cannot stand where it asks to: {' → '.join(order)}", "drop one of its before= and after="
            )


def _order_with(subject: Subject, hook: str, others: list[str]) -> list[str]:
    """Return the order of `hook` in a host that also has plugins with the names in `others`."""
    parameter_names = ", ".join(parameters(getattr(hookspecs, hook)))
    idle = (
        f'"""Does nothing."""\nfrom moryflow_sdk import hookimpl\n@hookimpl\ndef {hook}({parameter_names}):\n    return None\n'
    )
    with subject.fresh(f"order-{hook}") as host:
        known = {record.name for record in subject.host.host.plugin_set.records}
        for other in others:
            if other not in known and other.isidentifier():
                host.plugin(idle, other)
        return [item.plugin for item in host.host.plugin_set.ordered(hook)]


def _calls(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the dotted names that a function calls, without those that inner functions call."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func), node.lineno
        yield from _calls(node)


Given = Mapping[str, Any]
KINDS = ("ordinary", "empty", "unicode", "huge", "sparse", "failed")


CALLED = (*(name for name, info in HOOKS.items() if info.kind in ("transform", "gate", "observe")), "system_blocks")
SHARE = 0.5
"""The part of its deadline that an ordinary call may take: other people's machines are slower."""


def _inputs_for(subject: Subject, hook: str, kind: str) -> Sequence[Given]:
    return inputs(hook, kind, [tool.name for tool in subject.tools])


def _called(subject: Subject, hook: str, kind: str, times: int = 1) -> list[Called]:
    """Call the hook with every input of `kind`; a failure fails the check.

    As in a turn, the hook's deadline and the host's checks of its result apply.
    """
    given = _inputs_for(subject, hook, kind)
    called = subject.call(hook, [each for each in given for _ in range(times)])
    for each in called:
        if each.failures:
            failure = each.failures[0]
            place = f"{failure.file}:{failure.line}" if failure.line else failure.file
            what = f"{hook} fails with {_article(kind)} input: {failure.error}"
            subject.fail(what, _remedy(hook, kind), place)
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
    """Hooks accept ordinary and empty input, odd Unicode, a megabyte, missing fields, errors, bad arguments, unknown tools."""
    for hook in _hooks(plugin_subject):
        _called(plugin_subject, hook, kind)


def test_its_hooks_change_nothing_in_place(plugin_subject: Subject) -> None:
    """A hook receives copies, so that changes in place are lost; it must return a new value."""
    for hook in _hooks(plugin_subject):
        for kind in ("ordinary", "failed"):
            given = _inputs_for(plugin_subject, hook, kind)
            before = [_dump(each) for each in given]
            plugin_subject.call(hook, given, shared=True)
            for each, was in zip(given, before, strict=True):
                if _dump(each) != was:
                    plugin_subject.fail(
                        f"{hook} changes the value it is given", "build a new one with .replace(...) and return it"
                    )


def test_the_same_question_gets_the_same_answer(plugin_subject: Subject) -> None:
    """A hook that is called twice with the same value returns the same: prompt caches (``chat_*``) and people rely on it."""
    for hook in _hooks(plugin_subject):
        if HOOKS[hook].kind == "observe" or hook == "chat_system":
            continue
        called = _called(plugin_subject, hook, "ordinary", times=2)
        for first, second in zip(called[::2], called[1::2], strict=True):
            if _dump({"value": first.value}) != _dump({"value": second.value}):
                to_do = "leave out clocks, counters and random numbers, or keep them in turn.state"
                plugin_subject.fail(f"{hook} gives two answers to one question", to_do, _function(plugin_subject, hook))


def test_its_system_prompt_is_the_same_text_twice(plugin_subject: Subject) -> None:
    """The same turn must get the same text, or no request can use the prompt cache."""
    if "chat_system" not in _hooks(plugin_subject):
        return
    for kind in ("ordinary", "empty"):
        first, second = (called.value for called in _called(plugin_subject, "chat_system", kind, times=2))
        if isinstance(first, SystemPrompt) and first.text != second.text:
            to_do = "put what changes into a block with stable=False once per turn, or into turn.state"
            plugin_subject.fail("chat_system gives two texts in one turn", to_do, _function(plugin_subject, "chat_system"))


def test_its_answers_come_within_the_budget(plugin_subject: Subject) -> None:
    """A hook takes at most half of its deadline for ordinary input, because turns wait for it."""
    for implementation in plugin_subject.implementations():
        if implementation.hook not in CALLED:
            continue
        times = sorted(called.us for called in _called(plugin_subject, implementation.hook, "ordinary", times=3))
        spent, limit = times[len(times) // 2] / 1e6 if times else 0.0, implementation.timeout * SHARE
        if spent > limit:
            text = f"{implementation.hook} takes {spent:.2f} s, more than half of its {implementation.timeout:g} s"
            plugin_subject.fail(text, "do less, or do it once in plugin_start", _function(plugin_subject, implementation.hook))


def test_its_verdicts_say_why(plugin_subject: Subject) -> None:
    """Every verdict but ``Allow`` has a reason: the model reads that of a denial, the person that of a question."""
    for hook in ("tool_gate", "tool_decided"):
        for kind in KINDS if hook in _hooks(plugin_subject) else ():
            for called in _called(plugin_subject, hook, kind):
                for _, verdict in called.value or ():
                    if not isinstance(verdict, Allow) and not verdict.reason.strip():
                        to_do = f'{type(verdict).__name__}("what is wrong with this call")'
                        plugin_subject.fail(f"{hook} gives no reason", to_do, _function(plugin_subject, hook))


def test_a_redactor_finds_nothing_more_in_what_it_returned(plugin_subject: Subject) -> None:
    """A redactor (``on_failure="withhold"``) leaves its own result unchanged, so its place in the order does not matter."""
    for item in plugin_subject.implementations("tool_after"):
        if not item.withholds:
            continue
        for kind in ("ordinary", "unicode", "failed"):
            for given, once in zip(
                _inputs_for(plugin_subject, item.hook, kind), _called(plugin_subject, item.hook, kind), strict=True
            ):
                (twice,) = plugin_subject.call(item.hook, [{**given, "result": once.value}])
                if twice.value != once.value:
                    to_do = "let the replacement not match the pattern"
                    plugin_subject.fail("tool_after changes its own result again", to_do, _function(plugin_subject, item.hook))


def test_its_blocks_have_names_of_their_own(plugin_subject: Subject) -> None:
    """``system_blocks`` gives each block a unique id and a text."""
    for called in _called(plugin_subject, "system_blocks", "ordinary") if "system_blocks" in _hooks(plugin_subject) else ():
        blocks = [block for _, block in called.value]
        ids = [block.id for block in blocks]
        if len(set(ids)) != len(ids) or not all(block.id and block.text for block in blocks):
            to_do = "give every block its own id and a text, or leave it out"
            plugin_subject.fail(f"its blocks are {ids}", to_do, _function(plugin_subject, "system_blocks"))


def test_what_it_keeps_is_json(plugin_subject: Subject) -> None:
    """``turn.state`` and ``turn.session_state`` are stored with the node; values that are not JSON are lost on resume."""
    for hook in _hooks(plugin_subject):
        for given in _inputs_for(plugin_subject, hook, "ordinary"):
            (called,) = plugin_subject.call(hook, [given])
            for place, states in called.state.items():
                try:
                    json.dumps(states)
                except (TypeError, ValueError) as error:
                    to_do = "keep text, numbers, lists and objects"
                    plugin_subject.fail(f"{hook} keeps something that is not JSON in {place}: {error}", to_do)


def test_its_observer_works_outside_a_turn(plugin_subject: Subject) -> None:
    """Some events belong to no turn; for these, ``turn`` is ``None``."""
    for item in plugin_subject.implementations("event"):
        error = plugin_subject.host.wait(call(item, {"event": Event(type="reload", session=""), "turn": None})).error
        if error is not None:
            what = f"event fails outside a turn: {type(error).__name__}: {error}"
            plugin_subject.fail(what, "if turn is None: return", inspect.unwrap(item.function))


def _hooks(subject: Subject) -> list[str]:
    return [hook for hook in CALLED if subject.implementations(hook)]


def _function(subject: Subject, hook: str) -> Any:
    return next((function for _, function in subject.functions(hook)), None)


def _dump(given: Given) -> str:
    def plain(value: Any) -> Any:
        if hasattr(value, "model_dump"):
            return value.model_dump(mode="json")
        return [plain(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else value

    return json.dumps({name: plain(value) for name, value in given.items()}, default=str, sort_keys=True)


_UNICODE = "naïve café \U0001f469‍\U0001f4bb עברית 你好 e\u0301 \u202e \u200b\ufeff line\u2028end\r\n\ttab"


_TEXTS = {"ordinary": "hello world\nsecond line", "empty": "", "unicode": _UNICODE, "huge": "lorem ipsum 123\n" * 65_536}


def inputs(hook: str, kind: str, tools: Sequence[str] = ()) -> list[Given]:
    """Return the inputs of `kind` with which to call `hook`.

    :param tools: the plugin's own tools; its hooks are called for them too.
    """
    text = _TEXTS.get(kind, "")
    match hook:
        case "chat_messages":
            return [{"messages": _messages(kind, text)}]
        case "chat_system":
            return [{"system": _system(kind, text)}]
        case "chat_params":
            return [{"params": ChatParams() if kind != "ordinary" else ChatParams(temperature=0.2, top_p=0.9, max_tokens=64)}]
        case "tool_before" | "tool_gate" | "tool_decided" | "tool_after":
            names = ("read", "bash", "no_such_tool", *tools)
            return [_tool(hook, kind, text, name) for name in names]
        case "compaction":
            return [{"plan": _plan(kind, text)}]
        case "event":
            return [{"event": event} for event in _events(text)]
        case "system_blocks":
            return [{}]
        case _:
            return []


def _messages(kind: str, text: str) -> tuple[Message, ...]:
    if kind == "empty":
        return ()
    if kind == "sparse":
        return (Message(role="user"), Message(role="assistant"))
    call = ToolRequest(id="call_1", name="read", arguments='{"path": "a.md"}' if kind != "failed" else "{broken")
    exchange = (
        Message(role="user", text=text),
        Message(role="assistant", tool_calls=(call,)),
        Message(role="tool", call_id="call_1", text=text),
        Message(role="assistant", text="done"),
    )
    return exchange if kind != "huge" else exchange[:1] * 2 + exchange


def _system(kind: str, text: str) -> SystemPrompt:
    if kind in ("empty", "sparse"):
        return SystemPrompt()
    return SystemPrompt(blocks=(SystemBlock(id="base", text=text), SystemBlock(id="place", text="", stable=False)))


def _tool(hook: str, kind: str, text: str, name: str) -> dict[str, Any]:
    args: dict[str, Any] = {"path": "a.md", "command": "echo hi", "name": text, "content": text}
    if kind in ("empty", "sparse"):
        args = {}
    elif kind == "failed":
        args = {"path": None, "command": 7, "nested": [{"a": [1, 2.5, None, True]}]}
    call = ToolCall(id="call_1", tool=name, args=args, step=1)
    given: dict[str, Any] = {"call": call}
    if hook == "tool_before":
        return given
    given["call"] = call.replace(targets=_targets(kind), hash="0" * 64)
    if hook == "tool_decided":
        given["ruling"] = Ruling(decision="deny" if kind == "failed" else "allow", reason=text[:200])
    if hook == "tool_after":
        given["result"] = _result(kind, text)
    return given


def _targets(kind: str) -> tuple[Target, ...]:
    if kind in ("empty", "sparse"):
        return ()
    request = file_target("a.md")
    return (Target(kind="file", domain="read", given=request.value, text="vault:/a.md"),)


def _result(kind: str, text: str) -> ToolResult:
    if kind == "failed":
        return ToolResult(status="error", code="not_found", output="there is no such file")
    return ToolResult() if kind == "sparse" else ToolResult(output=text, title=text[:40])


def _plan(kind: str, text: str) -> CompactionPlan:
    covered = () if kind in ("empty", "sparse") else ("n1", "n2")
    return CompactionPlan(covered=covered, first_kept="n3", tokens_before=1000, instructions=text[:4000])


def _events(text: str) -> list[Event]:
    """Return an event of each type with the fields that it always has, one of an unknown type, and one without a session."""
    text = text[:2000]
    call = {"call_id": "call_1", "tool": "read"}
    usage = {"input": 10, "output": 1, "cached": 0}
    asked = {
        "approval_id": "a1",
        "call_id": "call_1",
        "domain": "edit",
        "targets": ["vault:/a.md"],
        "reason": text,
        "remember": [],
    }
    kinds: dict[str, dict[str, Any]] = {
        "turn.start": {"purpose": "main", "plugin_set": "0" * 16},
        "session.status": {"status": "busy"},
        "step.start": {},
        "text.delta": {"text": text},
        "tool.start": {**call, "args": {"path": "a.md"}, "state": "pending"},
        "permission.asked": asked,
        "permission.replied": {"approval_id": "a1", "call_id": "call_1", "reply": "once", "by": "user"},
        "permission.rule": {"change": "stored", "scope": "user", "domain": "edit", "pattern": "*", "decision": "allow"},
        "tool.result": {**call, "state": "completed", "status": "ok", "output": text, "truncated": False, "ms": 1},
        "step.finish": {"usage": usage, "cost": None, "node": "n1"},
        "compaction": {"kind": "compact", "state": "done", "tokens_before": 1000, "tokens_after": 100, "dropped": {}},
        "turn.finish": {"end_reason": "completed", "steps": 1, "cost": None},
        "unknown.kind": {},
    }
    events = [Event(type=kind, session="s", turn="t", data=data) for kind, data in kinds.items()]
    return [*events, Event(type="error", session="", data={"code": "io", "message": text, "where": "", "next": ""})]
