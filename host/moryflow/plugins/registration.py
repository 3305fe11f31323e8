"""Register plugins with pluggy, all hooks of a plugin or none, and name the line of every mistake.

Also check each item that a plugin contributes, above all tools: name, function, schema, description and timeout.
"""

from __future__ import annotations

import inspect
import json
import math
import re
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pluggy
from moryflow_sdk import HOOKS, Agent, Command, HookOptions, ModelProvider, Tool, hookspecs
from moryflow_sdk.arguments import parameters
from moryflow_sdk.calls import DOMAINS
from moryflow_sdk.hookspecs import PROJECT
from moryflow_sdk.support.texts import first_unseen, without_unseen
from moryflow_sdk.support.tool_schemas import CheckedSchema, can_be_sent, plain_schema

from moryflow.base.foreign_errors import class_name, text_of
from moryflow.hooks.plugin_set import Implementation, LoadFailure, Plugin

from .manifest import nearest_or_all

_ORDERING = ("tryfirst", "trylast", "hookwrapper", "wrapper", "optionalhook")
_HOOKABLE = (FunctionType, MethodType, staticmethod, classmethod)
# The longest timeout, in seconds, that an implementation may ask for: nothing waits forever.
LONGEST = 600.0
# The timeout of a built-in that names none: one that waits for a busy processor has done nothing wrong.
BUILTIN_TIMEOUT = 60.0


class Registry(pluggy.PluginManager):
    """pluggy with our hook specifications, and with errors that say where the mistake is.

    pluggy asks for the options of every attribute of a plugin; there we check the functions.
    """

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(hookspecs)
        self._seen: list[tuple[str, Any]] = []
        self._unmarked: list[str] = []
        self._counts = self._ours = False

    def add(self, plugin: Plugin) -> tuple[Implementation, ...]:
        """Register `plugin` and return its implementations.

        :raises LoadFailure: a hook is unknown, takes unknown arguments, or uses an option that the host does not offer.
        """
        self._seen, self._unmarked, self._ours = [], [], plugin.tier == "builtin"
        self._counts = callable(getattr(plugin.object, "count_tokens", None))
        try:
            self._register(plugin)
        except pluggy.PluginValidationError as error:
            where = _place(self._seen[-1][1]) if self._seen else {}
            raise LoadFailure("register", _one_line(str(error), self._seen), **where) from error
        except ValueError as error:
            raise LoadFailure("register", f"the same object is registered already: {error}".splitlines()[0]) from error
        hooks = dict.fromkeys(hook for hook, _ in self._seen)
        implementations = tuple(
            [
                _implementation(found, hook, plugin)
                for hook in hooks
                for found in getattr(self.hook, hook).get_hookimpls()
                if found.plugin_name == plugin.name
            ]
        )
        if plugin.tier == "builtin":  # ours: the tests check it
            return implementations
        try:
            _check_order(plugin.name, implementations)
            for hook, function in self._seen:
                _check_result(hook, function)
        except LoadFailure:
            self.unregister(name=plugin.name)
            raise
        return implementations

    def _register(self, plugin: Plugin) -> None:
        try:
            is_ours = plugin.tier == "builtin" and isinstance(plugin.object, ModuleType)
            self.register(_Marked(plugin.object) if is_ours else plugin.object, plugin.name)
        except BaseException:
            if self.has_plugin(plugin.name):  # some versions of pluggy fail after they have registered it
                self.unregister(name=plugin.name)
            raise

    @property
    def remark(self) -> str:
        """What looks like a mistake in the last registered plugin but is not an error; empty if nothing does."""
        if self._unmarked:
            names = ", ".join(self._unmarked)
            return f"{names}: named like a hook but not marked; add @hookimpl, or rename it"
        return "" if self._seen or self._counts else "it implements no hook; mark its functions with @hookimpl"

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), _HOOKABLE):
            return None  # most names of a module are imported classes; pluggy takes 6 µs to see that each is not a hook
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None:
            own = getattr(plugin, name, None) if name in HOOKS else None
            if inspect.isfunction(own) and own.__module__ == getattr(plugin, "__name__", None):
                self._unmarked.append(name)
            return None
        function = getattr(plugin, name)
        hook = options.get("specname") or name
        self._seen.append((hook, function))
        if not self._ours:
            _check(hook, function, cast("Mapping[str, Any]", options))
        return options


class _Marked:
    """A built-in module as pluggy sees it: only its marked functions, so that it does not ask about every name."""

    def __init__(self, module: Any) -> None:
        vars(self).update({name: value for name, value in vars(module).items() if hasattr(value, "moryflow_options")})

    def __dir__(self) -> Iterable[str]:
        return vars(self)


def _check(hook: str, function: Any, options: Mapping[str, Any]) -> None:
    def refuse(text: str, hint: str = "") -> None:
        raise LoadFailure("register", text, hint=hint, **_place(function))

    if not isinstance(cast("object", hook), str):
        refuse(f"specname={hook!r} is not the name of a hook")
    info = HOOKS.get(hook)
    if info is None:
        refuse(f"unknown hook {hook!r}", nearest_or_all(hook, HOOKS))
        return
    if used := [option for option in _ORDERING if options.get(option)]:
        refuse(
            f"{hook}: {', '.join(used)} is pluggy's way of ordering, which this host does not use",
            "use hookimpl of moryflow_sdk, with before= and after=",
        )
    wishes = _options(function)
    timeout = wishes.timeout
    if timeout is not None and not (_is_number(timeout) and 0 < timeout <= LONGEST and math.isfinite(timeout)):
        refuse(f"{hook}: timeout={timeout!r} is not a number of seconds above 0 and up to {LONGEST:g}")
    if odd := [each for each in (*wishes.before, *wishes.after, *wishes.events) if not isinstance(cast("object", each), str)]:
        refuse(f"{hook}: before=, after= and events= take names, not {odd[0]!r}")
    if needed := _by_keyword_only(function):
        refuse(f"{hook}: takes {', '.join(needed)} by keyword only; hooks are called with positional arguments", "drop the *")
    if wishes.events and hook != "event":
        refuse(f"{hook}: events= is for the hook event; this hook receives no events")
    if wishes.on_failure not in ("skip", "withhold"):
        refuse(f"{hook}: on_failure={wishes.on_failure!r} must be 'skip' or 'withhold'")
    if wishes.on_failure == "withhold" and info.kind != "transform":
        refuse(f'{hook}: on_failure="withhold" is for transforms; this hook is of the kind {info.kind}')
    if inspect.isasyncgenfunction(function) or (inspect.isgeneratorfunction(function) and info.kind != "contribute"):
        refuse(f"{hook}: a generator cannot be a hook of the kind {info.kind}", "return the value")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _by_keyword_only(function: Any) -> list[str]:
    """Return the keyword-only parameters of a function that have no default: hooks are called by position."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if name not in (function.__kwdefaults__ or {})]


def _check_order(name: str, implementations: Iterable[Implementation]) -> None:
    wishes: dict[str, tuple[set[str], set[str]]] = {}
    for item in implementations:
        before, after = wishes.setdefault(item.hook, (set(), set()))
        before.update(item.options.before)
        after.update(item.options.after)
        place = _place(item.function)
        if name in before | after:
            text = f"{item.hook}: it asks to come before or after itself ({name!r})"
            raise LoadFailure("register", text, hint="name other plugins in before= and after=", **place)
        if both := sorted(before & after):
            text = f"{item.hook}: it asks to come both before and after {' and '.join(map(repr, both))}"
            raise LoadFailure("register", text, hint="drop one of the two", **place)


def _check_result(hook: str, function: Any) -> None:
    """Refuse a function whose return annotation does not fit the hook; for hooks of the kind ``observe`` any fits."""
    accepted = _accepted_types(hook)
    odd = [kind for kind in _results(function) if not any(_related(kind, one) for one in accepted)]
    if odd and HOOKS[hook].kind != "observe":
        text = f"{hook}: its return type is {_type_names(odd)}, but the hook takes {_type_names(accepted)}"
        raise LoadFailure("register", text, hint="change the type behind ->, and what it returns", **_place(function))


@cache
def _accepted_types(hook: str) -> tuple[type, ...]:
    return tuple(dict.fromkeys((*_results(getattr(hookspecs, hook)), NoneType)))


def _results(function: Any) -> tuple[type, ...]:
    plain = inspect.unwrap(function)
    try:
        annotated = SimpleNamespace(__annotations__={"return": plain.__annotations__["return"]})
        hint = get_type_hints(annotated, plain.__globals__)["return"]
    except Exception:  # the annotation runs code of the plugin, or needs a name that only type checkers import
        return ()
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(kind for member in members if isinstance(kind := get_origin(member) or member, type))


def _related(annotated: type, accepted: type) -> bool:
    try:
        return issubclass(annotated, (accepted, Awaitable)) or issubclass(accepted, annotated)
    except TypeError:  # a protocol that issubclass does not support
        return True


def _type_names(kinds: Iterable[type]) -> str:
    return ", ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)


def _implementation(found: Any, hook: str, plugin: Plugin) -> Implementation:
    options = _options(found.function)
    usual = HOOKS[hook].timeout if plugin.tier != "builtin" else max(HOOKS[hook].timeout, BUILTIN_TIMEOUT)
    function, is_async = found.function, inspect.iscoroutinefunction(inspect.unwrap(found.function))
    if HOOKS[hook].kind == "contribute":
        function = _collect_items(function, is_async)
    return Implementation(
        plugin=plugin.name,
        tier=plugin.tier,
        hook=hook,
        function=function,
        arguments=_arguments(found, hook),
        options=options,
        is_async=is_async,
        timeout=float(options.timeout or usual),
        life=plugin.life,
        plugin_hash=plugin.hash,
        inline=plugin.tier == "builtin" and not is_async and not options.blocking,
    )


def _arguments(found: Any, hook: str) -> tuple[str, ...]:
    """Return the hook's arguments that the function takes, including those with defaults, which pluggy leaves out."""
    given = parameters(getattr(hookspecs, hook))
    names = list(found.argnames)
    for name in found.kwargnames:
        if name not in given:
            break
        names.append(name)
    return tuple(names)


def _collect_items(function: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
    """Wrap a contribute hook so that its result is read to the end inside the call: a generator runs plugin code."""

    def run(*arguments: Any) -> tuple[Any, ...]:
        return _items(function(*arguments))

    async def run_async(*arguments: Any) -> tuple[Any, ...]:
        return _items(await function(*arguments))

    return wraps(function)(run_async if is_async else run)


def _items(returned: Any) -> tuple[Any, ...]:
    if returned is None:
        return ()
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise TypeError(f"a list of items is expected, not {class_name(returned)}")
    return tuple(cast("Iterable[Any]", returned))


def _options(function: Any) -> HookOptions:
    return getattr(function, "moryflow_options", HookOptions())


def _place(function: Any) -> dict[str, Any]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return {"file": code.co_filename, "line": code.co_firstlineno} if code else {}


def _one_line(message: str, seen: list[tuple[str, Any]]) -> str:
    hook = seen[-1][0] if seen else ""
    if "can not be found in the hookspec" not in message or hook not in HOOKS:
        return " ".join(message.split())
    given, taken = parameters(getattr(hookspecs, hook)), parameters(seen[-1][1])
    unknown = [name for name in taken if name not in given]
    return f"{hook}: unknown argument {', '.join(unknown)}; the hook gives {', '.join(given)}"


# The most tools of one plugin, or of one file. Every request to a model lists all of them.
MAX_TOOLS = 256
MAX_DESCRIPTION = 16_384
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_-]{0,63}")
_RULE = "a letter or _, then up to 63 letters, digits, _ and -"


class Refused(Exception):
    """The item that a plugin contributed cannot be used."""


def usable_item(item: Any, by: Implementation) -> tuple[Any, Sequence[str], str]:
    """Return an item as it will be offered, its names, and a remark on what is odd about it or had to be changed.

    :raises Refused: it cannot be used.
    """
    match by.hook:
        case "tools":
            tool, remark = usable(item, by.tier)
            return tool, (tool.name,), remark
        case "agents":
            if not isinstance(item, Agent):
                raise Refused(f"{item!r:.80} is not an Agent")
            if item.internal:
                raise Refused(f"agent {item.id!r}: internal agents are made by the host only")
            return item, (item.id,), ""
        case "models":
            if not isinstance(item, ModelProvider):
                needed = ("name", *(name for name in vars(ModelProvider) if not name.startswith("_")))
                missing = ", ".join(name for name in needed if not hasattr(item, name))
                problem = f"{class_name(item):.80} is not a model provider: it lacks {missing}"
                raise Refused(f"{problem}; derive from moryflow_sdk.BaseProvider and write find and stream")
            return item, (item.name,), ""
        case _:
            if not isinstance(item, Command):
                raise Refused(f"{item!r:.80} is not a Command")
            return item, (item.name, *item.aliases), ""


def usable(item: Any, tier: str) -> tuple[Tool, str]:
    if not issubclass(type(item), Tool):  # an item can lie to isinstance about its class
        shown = f"the function {item.__name__}" if isinstance(item, FunctionType) else f"{item!r:.80}"
        raise Refused(f"{shown} is not a tool; make it with @tool")
    if not isinstance(item.name, str) or not _NAME.fullmatch(item.name):
        raise Refused(f"{item.name!a:.80} is not a tool name: {_RULE}")
    if not callable(item.function):
        raise Refused(f"{item.name!r} has no function")
    if inspect.isgeneratorfunction(item.function) or inspect.isasyncgenfunction(item.function):
        raise Refused(f"{item.name!r} yields, and what it yields would be lost; return the result")
    if problem := _time_problem(item.timeout) or _declared_problem(item):
        what, _, wrong = problem.partition(" ")
        raise Refused(f"the {what} of {item.name!r} {wrong}")
    tool, remark = _with_description(_with_schema(item, tier))
    seen = "" if tier == "builtin" else first_unseen(json.dumps(tool.parameters, ensure_ascii=False))
    hidden = f"the schema of {item.name!r} has characters that nobody sees ({seen})" if seen else ""
    return tool, remark or hidden or _domain_remark(item)


def place_of(item: Any) -> tuple[str, int] | None:
    """Return file and line of a contributed item, or only the file it was made from; ``None`` if neither is known."""
    source, code = source_of(item), _code_of(item)
    if code is None or (source and code.co_filename != source):
        return (source, 0) if source else None
    return code.co_filename, code.co_firstlineno


def _code_of(item: Any) -> CodeType | None:
    if not issubclass(type(item), Tool):
        return None
    try:
        code = getattr(inspect.unwrap(item.function), "__code__", None)
    except BaseException:
        return None
    return code if isinstance(code, CodeType) else None


# By contribute hook, the command that checks an item made from a file.
_LISTS = {"tools": "moryflow tool check", "agents": "moryflow agent check", "commands": "moryflow doctor"}


def next_step(item: Any, by: Implementation) -> str:
    """Return the command that checks a contributed item again after its file was changed."""
    if (source := source_of(item)) and by.hook in _LISTS:
        return f"change {Path(source).name}, then {_LISTS[by.hook]}"
    return f"moryflow plugin check {by.plugin}" if by.tier != "builtin" else ""


def source_of(item: Any) -> str:
    """Return the file that an item names as its ``source``; empty if there is none or reading it raises."""
    try:
        source = item.source
    except BaseException:
        return ""
    return source if isinstance(source, str) else ""


def _time_problem(timeout: Any) -> str:
    if timeout is None:
        return ""
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        return f"timeout is {timeout!a:.40}, not a number of seconds"
    return "" if timeout > 0 and math.isfinite(timeout) else f"timeout is {timeout}, not a number of seconds above 0"


def _declared_problem(item: Tool) -> str:
    if not isinstance(item.domain, str):
        return f"domain is {item.domain!a:.40}, not a text"
    if not isinstance(item.more_time, str):
        return f"more_time is {item.more_time!a:.40}, not a text"
    if not isinstance(item.parallel_safe, bool):
        return f"parallel_safe is {item.parallel_safe!a:.40}, not True or False"
    if not isinstance(item.remarks, tuple) or not all(isinstance(name, str) for name in item.remarks):
        return f"remarks is {item.remarks!a:.40}, not a tuple of names"
    names = ("targets", "offered", "offered_in", "found_in", "mentions", "preview")
    functions = {name: getattr(item, name) for name in names}
    wrong = next((name for name, value in functions.items() if value is not None and not callable(value)), "")
    return f"{wrong} is {functions[wrong]!a:.40}, not a function" if wrong else ""


def _domain_remark(item: Tool) -> str:
    if item.domain in DOMAINS:
        return ""
    return f"the domain of {item.name!r} is {item.domain!a:.40}, which no rule can name; {nearest_or_all(item.domain, DOMAINS)}"


def _with_schema(item: Tool, tier: str) -> Tool:
    """Return `item` with a schema that can be sent to a model. Schemas of built-in tools are not checked again."""
    if tier == "builtin" and (isinstance(item.schema, CheckedSchema) or (item.schema is None and not item.source)):
        return item
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydantic's, about fields with names of its own (copy, json, schema)
            schema = plain_schema(item.parameters)
    except ValueError as error:
        raise Refused(f"the schema of {item.name!r} cannot be used: {error}") from error
    except Exception as error:  # a type hint may make pydantic, or a type of the plugin's, raise anything
        raise Refused(f"no schema can be made of the type hints of {item.name!r}: {_briefly(error)}") from error
    if item.schema is not None:
        return replace(item, schema=schema)
    given = item.arguments.names
    lost = [name for name in parameters(item.function) if name not in given and name != item.context_parameter]
    if lost:  # pydantic reserves some names and silently leaves such a parameter out
        raise Refused(f"pydantic reserves the name of the parameter {lost[0]!r} of {item.name!r}; rename it")
    return item


def _briefly(error: Exception) -> str:
    """Return the error about a type hint on one line, without pydantic's advice for its own users."""
    message = " ".join(text_of(error).partition("\n\n")[0].partition(" Set `arbitrary_types_allowed")[0].split()).rstrip(".")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _with_description(item: Tool) -> tuple[Tool, str]:
    if not isinstance(item.description, str) or not item.description.strip():
        return replace(item, description=""), f"{item.name!r} has no description, so a model can only guess what it is for"
    if len(item.description) > MAX_DESCRIPTION:
        cut = item.description[:MAX_DESCRIPTION]
        return replace(item, description=cut), f"the description of {item.name!r} is cut at {MAX_DESCRIPTION} characters"
    if not can_be_sent(item.description):
        sent = item.description.encode("utf-8", "replace").decode("utf-8")
        return replace(item, description=sent), f"the description of {item.name!r} is not valid Unicode text"
    if seen := first_unseen(item.description):
        kept = replace(item, description=without_unseen(item.description))
        return kept, f"the description of {item.name!r} has characters that nobody sees ({seen}); they are left out"
    return item, ""


def at(file: str, line: int) -> str:
    """Return file and line as the beginning of a message."""
    return f"{file}:{line}: " if line else f"{file}: " if file else ""
