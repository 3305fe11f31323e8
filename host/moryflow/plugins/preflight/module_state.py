"""The contents of modules: recorded right after their import and compared after a plugin's.

Modules that the host and other plugins rely on are Python's own, ours and those of our dependencies. What they are when
their import ends is theirs; what is different later is somebody's patch. Libraries that only a plugin uses are its own.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import ExtensionFileLoader, SourceFileLoader, SourcelessFileLoader
from opcode import opmap
from operator import attrgetter
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, cast

_SETTING = frozenset(opmap[name] for name in ("STORE_ATTR", "DELETE_ATTR"))
_REACHING = frozenset({
    "__builtins__", "__code__", "__defaults__", "__delattr__", "__dict__", "__getattribute__", "__globals__", "__import__",
    "__kwdefaults__", "__setattr__", "_clear", "apply", "attrgetter", "captureWarnings", "compile", "ctypes", "delattr", "eval",
    "exec", "gc", "get_objects", "getattr", "globals", "import_module", "install", "modules", "monkey", "patch", "reload",
    "runpy", "setLoggerClass", "setattr", "update_wrapper", "vars",
})  # fmt: skip
"""Names by which attributes are set, or found, without being named."""


@dataclass
class Reading:
    """Looks at all code that is run from :meth:`begin` on, except that of modules that belong to everyone."""

    suspicious: bool = False
    running: list[bool] = field(default_factory=list[bool])
    """Whose module is being imported, innermost last: whether it belongs to everyone."""

    def begin(self) -> None:
        """Listen. For a process that only probes: it cannot be undone."""
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "exec" and not self.suspicious and not (self.running and self.running[-1]):
            code = arguments[0]
            self.suspicious = not isinstance(code, CodeType) or any(_reaches(each) for each in _all(code))


def _reaches(code: CodeType) -> bool:
    return not _REACHING.isdisjoint(code.co_names) or not _SETTING.isdisjoint(code.co_code[::2])


def _all(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _all(each)


OURS = frozenset({"moryflow", "moryflow_builtins", "moryflow_sdk"})
DEPENDENCIES = frozenset({
    "_pytest", "aiohttp", "annotated_types", "anyio", "bracex", "certifi", "click", "dateutil", "dotenv", "frontmatter",
    "h11", "httpcore", "httpx", "idna", "importlib_metadata", "jinja2", "json5", "jsonschema", "litellm", "markdown_it",
    "openai", "packaging", "pathspec", "pluggy", "prompt_toolkit", "pydantic", "pydantic_core", "pygments", "pytest", "re2",
    "rich", "tiktoken", "tokenizers", "tree_sitter", "tree_sitter_bash", "typing_extensions", "typing_inspection",
    "watchdog", "wcmatch", "wcwidth", "yaml", "zipp",
})  # fmt: skip
"""Top-level modules of libraries that the host or a built-in plugin uses."""
_WHOLE = frozenset({"os", "builtins", "posixpath"})
"""Modules whose public data is as fixed as their functions."""
_MOVING = frozenset({"__abstractmethods__", "__doc__", "__signature__", "_", "find_distributions"})
"""Names that Python and libraries set when they are first needed; the last one is importlib_metadata's."""
_IMMUTABLE = 1 << 8
"""Flag of types that cannot be changed."""
_METHODS = (FunctionType, BuiltinFunctionType, classmethod, staticmethod, MethodDescriptorType, WrapperDescriptorType)
_GONE = object()
_CODE = attrgetter("__code__", "__defaults__")


@dataclass
class Namespace:
    """A module or class, and what it held."""

    name: str
    where: Any
    held: dict[str, Any]


@dataclass
class ModuleWatch:
    """Notes the modules that belong to everyone, each as it is when its import ends."""

    modules: dict[str, Namespace] = field(default_factory=dict[str, Namespace])
    _classes: dict[int, Namespace] = field(default_factory=dict[int, Namespace])
    _functions: dict[int, FunctionType] = field(default_factory=dict[int, FunctionType])
    _codes: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])
    _keywords: list[tuple[FunctionType, dict[str, Any]]] = field(default_factory=list[tuple[FunctionType, dict[str, Any]]])
    _tables: dict[int, tuple[str, Any, Any]] = field(default_factory=dict[int, tuple[str, Any, Any]])

    reading: Reading = field(default_factory=Reading)

    def begin(self) -> None:
        """Note what is imported now, and from here on what will be. For a process that only probes: it cannot be undone."""
        for loader in (SourceFileLoader, SourcelessFileLoader, ExtensionFileLoader):
            cast("Any", loader).exec_module = _noting(loader.exec_module, self)
        for name, module in list(sys.modules.items()):
            self.note(name, module)

    def note(self, name: str, module: Any) -> None:
        """Note one module, if it belongs to everyone."""
        if name in self.modules or not belongs_to_everyone(name) or not isinstance(module, ModuleType):
            return
        held = dict(vars(module))
        self.modules[name] = Namespace(name, module, held)
        ours = name.partition(".")[0] in OURS
        for key, value in held.items():
            if isinstance(value, type):
                self._note_class(value)
            elif isinstance(value, FunctionType):
                self._note_function(value)
            elif ours and key.isupper() and isinstance(value, dict | list | set):
                self._tables.setdefault(id(value), (f"{name}.{key}", value, cast("Any", value).copy()))

    def _note_class(self, found: type) -> None:
        module = getattr(found, "__module__", "")
        if found.__flags__ & _IMMUTABLE or id(found) in self._classes or not isinstance(module, str):
            return
        if not belongs_to_everyone(module):
            return
        held = dict(vars(found))
        self._classes[id(found)] = Namespace(f"{module}.{found.__qualname__}", found, held)
        for value in held.values():
            inner = getattr(value, "__func__", value.fget if isinstance(value, property) else value)
            if isinstance(inner, FunctionType):
                self._note_function(inner)

    def _note_function(self, function: FunctionType) -> None:
        if id(function) in self._functions:
            return
        self._functions[id(function)] = function
        self._codes.append(_CODE(function))
        if function.__kwdefaults__:
            self._keywords.append((function, dict(function.__kwdefaults__)))

    # ---------------------------------------------------------------- comparing

    def changes(self) -> Iterator[str]:
        """Say what is not any more as it was. Python's own names are put back first: the comparison needs them too."""
        held, now = self.modules["builtins"].held, builtins.__dict__
        for name in held:
            if name not in _MOVING and (name not in now or now[name] is not held[name]):
                now[name] = held[name]
                yield f"builtins.{name}"
        yield from (name for name, value, held in self._tables.values() if not _same(value, held))
        if not self.reading.suspicious:
            return
        yield from self._replaced()
        yield from self._planted()
        for space in (*self.modules.values(), *self._classes.values()):
            names = list(_different(space))
            if names:
                name = _public_name(space)
                yield f"{name}.{names[0]}" if len(names) == 1 else f"{name} ({', '.join(names[:3])})"
        yield from self._rewritten()

    def _replaced(self) -> Iterator[str]:
        for name, space in self.modules.items():
            if sys.modules.get(name) is not space.where:
                yield f"sys.modules[{name!r}]"

    def _planted(self) -> Iterator[str]:
        """Name modules that were put where an import would find them, without being those."""
        for name, module in list(sys.modules.items()):
            if name in self.modules or "." in name or not belongs_to_everyone(name):
                continue
            spec = getattr(module, "__spec__", None)
            if spec is None or getattr(spec, "name", "") != name:
                yield f"sys.modules[{name!r}]"

    def _rewritten(self) -> Iterator[str]:
        functions = list(self._functions.values())
        if list(map(_CODE, functions)) != self._codes:
            for function, (code, defaults) in zip(functions, self._codes, strict=True):
                if function.__code__ is not code or function.__defaults__ is not defaults:
                    yield f"{function.__module__}.{function.__qualname__}"
        for function, held in self._keywords:
            if not _same(function.__kwdefaults__, held):
                yield f"{function.__module__}.{function.__qualname__}"


def belongs_to_everyone(name: str) -> bool:
    """Whether a module is Python's, ours, or one of a library that the host uses."""
    top = name.partition(".")[0]
    if top == "distutils":  # setuptools puts its own in its place
        return False
    return top in sys.stdlib_module_names or top in OURS or top in DEPENDENCIES


def _public_name(space: Namespace) -> str:
    """Return what people call it: a class of a private module by the package that shows it (``pathlib.Path`` of 3.13)."""
    module, _, own = space.name.rpartition(".")
    package, _, last = module.rpartition(".")
    shown = last.startswith("_") and getattr(sys.modules.get(package), own, None) is space.where
    return f"{package}.{own}" if shown else space.name


def _noting(execute: Callable[[Any, ModuleType], None], watch: ModuleWatch) -> Callable[[Any, ModuleType], None]:
    def exec_module(self: Any, module: ModuleType) -> None:
        name, running = module.__name__, watch.reading.running
        running.append(belongs_to_everyone(name))
        try:
            execute(self, module)
        finally:
            running.pop()
        watch.note(name, sys.modules.get(name))

    # In a traceback it is part of the import machinery, which is where people's own code has not begun.
    exec_module.__code__ = exec_module.__code__.replace(co_filename="<import>")
    return exec_module


def _different(space: Namespace) -> Iterator[str]:
    """Name what was replaced, removed, or put before what is inherited."""
    now: Mapping[str, Any] = vars(space.where) if isinstance(space.where, ModuleType) else MappingProxyType(vars(space.where))
    if _same(now, space.held):
        return
    kept = _is_fixed if isinstance(space.where, ModuleType) else _is_method
    for name, value in space.held.items():
        found = now.get(name, space)
        if found is value or name in _MOVING or found is sys.modules.get(f"{space.name}.{name}", _GONE):
            continue
        if kept(space.name, name, value):
            yield name
    for name in [name for name in list(now) if name not in space.held and name not in _MOVING]:
        if _hides(space.where, name, now[name]):
            yield name


def _is_fixed(module: str, name: str, value: Any) -> bool:
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return True
    whole = module in _WHOLE and not name.startswith("_")
    constant = name.isupper() and module.partition(".")[0] not in DEPENDENCIES
    return (whole or constant) and not isinstance(value, ModuleType)


def _is_method(_: str, name: str, value: Any) -> bool:
    if getattr(value, "__name__", "") == "_no_init_or_replace_init" or name.startswith(("__pydantic", "__annotat")):
        return False  # protocols and models complete themselves when they are first used
    return callable(value) or hasattr(type(value), "__get__")


def _hides(where: Any, name: str, value: Any) -> bool:
    """Whether a new name takes the place of what was found under it before: an inherited one, or Python's own."""
    if isinstance(where, ModuleType):
        return where is not builtins and callable(value) and not name.startswith("_") and hasattr(builtins, name)
    inherited = [vars(base)[name] for base in where.__mro__[1:] if name in vars(base)]
    methods = [each for each in inherited if isinstance(each, _METHODS)]
    return bool(methods) and all(value is not each for each in inherited) and _is_method("", name, methods[0])


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except BaseException:  # what is compared may be a plugin's
        return False
