"""Register plugins with pluggy: all of a plugin's hooks or none, and every mistake with its line."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cache, wraps
from types import CodeType, FunctionType, MethodType, ModuleType, NoneType, SimpleNamespace, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import pluggy
from moryflow_sdk import HOOKS, HookOptions, hookspecs
from moryflow_sdk.arguments import parameters
from moryflow_sdk.hookspecs import PROJECT

from moryflow.hooks.plugin_set import Implementation, LoadFailure, Plugin

from .manifest import nearest_or_all

_ORDERING = ("tryfirst", "trylast", "hookwrapper", "wrapper", "optionalhook")
_HOOKABLE = (FunctionType, MethodType, staticmethod, classmethod)
LONGEST = 600.0
"""Seconds that an implementation may ask for at most: nothing waits for ever."""


class Registry(pluggy.PluginManager):
    """pluggy with our hook specifications, and with errors that say where the mistake is.

    pluggy asks for the options of every attribute; that is where we look at the functions ourselves.
    """

    def __init__(self) -> None:
        super().__init__(PROJECT)
        self.add_hookspecs(hookspecs)
        self._seen: list[tuple[str, Any]] = []
        self._unmarked: list[str] = []
        self._counts = False

    def add(self, plugin: Plugin) -> tuple[Implementation, ...]:
        """Register `plugin` and return its implementations.

        :raises LoadFailure: a hook is unknown, takes unknown arguments, or asks for what we do not offer.
        """
        self._seen, self._unmarked = [], []
        self._counts = callable(getattr(plugin.object, "count_tokens", None))
        try:
            self._register(plugin)
        except pluggy.PluginValidationError as error:
            where = _place(self._seen[-1][1]) if self._seen else {}
            raise LoadFailure("register", _plain(str(error), self._seen), **where) from error
        except ValueError as error:
            raise LoadFailure("register", f"the same object is registered already: {error}".splitlines()[0]) from error
        hooks = dict.fromkeys(hook for hook, _ in self._seen)
        implementations = tuple(
            _implementation(found, hook, plugin)
            for hook in hooks
            for found in getattr(self.hook, hook).get_hookimpls()
            if found.plugin_name == plugin.name
        )
        try:
            _check_order(plugin.name, implementations)
            for hook, function in self._seen if plugin.tier != "builtin" else ():
                _check_result(hook, function)
        except LoadFailure:
            self.unregister(name=plugin.name)
            raise
        return implementations

    def _register(self, plugin: Plugin) -> None:
        try:
            self.register(plugin.object, plugin.name)
        except BaseException:
            if self.has_plugin(plugin.name):  # not every version of pluggy checks everything first
                self.unregister(name=plugin.name)
            raise

    @property
    def remark(self) -> str:
        """What is odd about the plugin registered last, though no error."""
        if self._unmarked:
            names = ", ".join(self._unmarked)
            return f"{names}: named like a hook but not marked; add @hookimpl, or rename it"
        return "" if self._seen or self._counts else "it implements no hook; mark its functions with @hookimpl"

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if isinstance(plugin, ModuleType) and not isinstance(vars(plugin).get(name), _HOOKABLE):
            return None  # most names of a module are imported classes; pluggy takes 6 µs to see that each is no hook
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None:
            own = getattr(plugin, name, None) if name in HOOKS else None
            if inspect.isfunction(own) and own.__module__ == getattr(plugin, "__name__", None):
                self._unmarked.append(name)
            return None
        function = getattr(plugin, name)
        hook = options.get("specname") or name
        self._seen.append((hook, function))
        _check(hook, function, cast("Mapping[str, Any]", options))
        return options


def _check(hook: str, function: Any, options: Mapping[str, Any]) -> None:
    """Refuse what pluggy would accept and we do not.

    :raises LoadFailure: with the line of the function.
    """

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
        refuse(f"{hook}: takes {', '.join(needed)} by keyword only; a hook is given its arguments by place", "drop the *")
    if wishes.events and hook != "event":
        refuse(f"{hook}: events= is for the hook event; this one is not told of any")
    if wishes.on_failure not in ("skip", "withhold"):
        refuse(f"{hook}: on_failure={wishes.on_failure!r} must be 'skip' or 'withhold'")
    if wishes.on_failure == "withhold" and info.kind != "transform":
        refuse(f'{hook}: on_failure="withhold" is for transforms; this hook is of the kind {info.kind}')
    if inspect.isasyncgenfunction(function) or (inspect.isgeneratorfunction(function) and info.kind != "contribute"):
        refuse(f"{hook}: a generator cannot be a hook of the kind {info.kind}", "return the value")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _by_keyword_only(function: Any) -> list[str]:
    """Return what a function needs and cannot be given by place."""
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType):
        return []
    names = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    return [name for name in names if name not in (function.__kwdefaults__ or {})]


def _check_order(name: str, implementations: Iterable[Implementation]) -> None:
    """Refuse wishes of one plugin that cannot be met, whatever else is there: its functions for a hook stand together.

    :raises LoadFailure: with the line of the function whose wish contradicts the plugin itself.
    """
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
            raise LoadFailure("register", text, hint="drop one of the wishes", **place)


def _check_result(hook: str, function: Any) -> None:
    """Refuse a function that says it returns what the hook does not take; one of the kind ``observe`` may say anything.

    :raises LoadFailure: with the line of the function.
    """
    taken = _taken(hook)
    odd = [said for said in _results(function) if not any(_related(said, one) for one in taken)]
    if odd and HOOKS[hook].kind != "observe":
        text = f"{hook}: it says that it returns {_named(odd)}, which the hook does not take; it takes {_named(taken)}"
        raise LoadFailure("register", text, hint="change what stands behind ->, and what it returns", **_place(function))


@cache
def _taken(hook: str) -> tuple[type, ...]:
    """Return the classes that a hook takes; nothing at all always counts as no answer."""
    return tuple(dict.fromkeys((*_results(getattr(hookspecs, hook)), NoneType)))


def _results(function: Any) -> tuple[type, ...]:
    """Return the classes that `function` says it returns; none where that cannot be read at run time."""
    plain = inspect.unwrap(function)
    try:
        said = SimpleNamespace(__annotations__={"return": plain.__annotations__["return"]})
        hint = get_type_hints(said, plain.__globals__)["return"]
    except Exception:  # the annotation is code of the plugin, or a name that only type checkers import
        return ()
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return tuple(kind for member in members if isinstance(kind := get_origin(member) or member, type))


def _related(said: type, taken: type) -> bool:
    try:
        return issubclass(said, (taken, Awaitable)) or issubclass(taken, said)
    except TypeError:  # a protocol, which cannot be asked
        return True


def _named(kinds: Iterable[type]) -> str:
    return ", ".join("None" if kind is NoneType else kind.__name__ for kind in kinds)


def _implementation(found: Any, hook: str, plugin: Plugin) -> Implementation:
    options = _options(found.function)
    function, is_async = found.function, inspect.iscoroutinefunction(inspect.unwrap(found.function))
    if HOOKS[hook].kind == "contribute":
        function = _listed_async(function) if is_async else _listed(function)
    return Implementation(
        plugin=plugin.name,
        tier=plugin.tier,
        hook=hook,
        function=function,
        arguments=_arguments(found, hook),
        options=options,
        is_async=is_async,
        timeout=float(options.timeout or HOOKS[hook].timeout),
        life=plugin.life,
        plugin_hash=plugin.hash,
        inline=plugin.tier == "builtin" and not is_async and not options.blocking,
    )


def _arguments(found: Any, hook: str) -> tuple[str, ...]:
    """Return what the function takes: pluggy leaves out arguments with defaults, we pass those that the hook gives."""
    given = parameters(getattr(hookspecs, hook))
    names = list(found.argnames)
    for name in found.kwargnames:
        if name not in given:
            break
        names.append(name)
    return tuple(names)


def _listed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Read what a contribute hook returns to its end inside the call, since a generator runs plugin code."""

    @wraps(function)
    def run(*arguments: Any) -> tuple[Any, ...]:
        return _items(function(*arguments))

    return run


def _listed_async(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def run(*arguments: Any) -> tuple[Any, ...]:
        return _items(await function(*arguments))

    return run


def _items(returned: Any) -> tuple[Any, ...]:
    if returned is None:
        return ()
    if isinstance(returned, str | bytes | Mapping) or not isinstance(returned, Iterable):
        raise TypeError(f"a list of items is expected, not {type(returned).__name__}")
    return tuple(cast("Iterable[Any]", returned))


def _options(function: Any) -> HookOptions:
    return getattr(function, "moryflow_options", HookOptions())


def _place(function: Any) -> dict[str, Any]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return {"file": code.co_filename, "line": code.co_firstlineno} if code else {}


def _plain(message: str, seen: list[tuple[str, Any]]) -> str:
    """Say in one line what pluggy says in three."""
    hook = seen[-1][0] if seen else ""
    if "can not be found in the hookspec" not in message or hook not in HOOKS:
        return " ".join(message.split())
    given, taken = parameters(getattr(hookspecs, hook)), parameters(seen[-1][1])
    unknown = [name for name in taken if name not in given]
    return f"{hook}: takes {', '.join(unknown)}, which the hook does not give; it gives {', '.join(given)}"
