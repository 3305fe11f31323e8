"""Checks: its hooks have the right shape, as far as that can be read without calling them."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any, Union, get_args, get_origin, get_type_hints

from moryflow_sdk import HOOKS, hookspecs
from moryflow_sdk.arguments import parameters, type_hints

from .subject import Subject

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
    names = vars(import_module("moryflow_sdk"))
    try:
        return type_hints(function, {**vars(hookspecs), **names})
    except NameError as error:
        subject.fail(f"{hook}: a type hint cannot be read: {error}", "import what it names at module level", function)


def test_its_arguments_have_the_types_of_the_hook(plugin_subject: Subject) -> None:
    """A wrong hint misleads readers and type checkers."""
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
    """What the host does not know it refuses: of a gate that means deny."""
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
    """Yield the members of a union, of nested ones too; generic types by their origin."""
    if get_origin(hint) in (Union, types.UnionType):
        for each in get_args(hint):
            yield from _members(each)
    elif get_origin(hint) in (list, tuple):
        yield from _members(get_type_hints(hookspecs.chat_messages)["messages"])
    else:
        yield get_origin(hint) or hint


def test_its_async_functions_do_not_block(plugin_subject: Subject) -> None:
    """They run on the host's loop, where everything else waits for them."""
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
    """One sentence each: what changes for the person who installs it."""
    for hook, function in plugin_subject.functions():
        if not inspect.getdoc(function):
            plugin_subject.fail(f"{hook} has no docstring", "say in one sentence what it does and why", function)


def test_its_wishes_for_an_order_can_be_met(plugin_subject: Subject) -> None:
    """With the plugins that ``before=`` and ``after=`` name, it stands where it asks to stand, in whatever order they load."""
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
            plugin_subject.fail(f"{hook}: it cannot stand where it asks to: {' → '.join(order)}", "drop one of the wishes")


def _order_with(subject: Subject, hook: str, others: list[str]) -> list[str]:
    """Return the order of `hook` in a host that has plugins of the names in `others` too."""
    taken = ", ".join(parameters(getattr(hookspecs, hook)))
    idle = f'"""Does nothing."""\nfrom moryflow_sdk import hookimpl\n@hookimpl\ndef {hook}({taken}):\n    return None\n'
    with subject.fresh(f"order-{hook}") as host:
        known = {record.name for record in subject.host.host.plugin_set.records}
        for other in others:
            if other not in known and other.isidentifier():
                host.plugin(idle, other)
        return [item.plugin for item in host.host.plugin_set.ordered(hook)]


def _calls(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the dotted names that are called in a function, not those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func), node.lineno
        yield from _calls(node)
