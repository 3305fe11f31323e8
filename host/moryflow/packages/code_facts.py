"""What a plugin's code says about itself, read without running it, and what a new version changes.

This informs the user; it is no boundary. Code can hide what it does from any reader.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

_URL = re.compile(r"\b(?:https?|wss?)://([^\s/'\"?#{}<>\\]+)")
# The functions that start a program; the first word of their first argument is its name.
_STARTERS = frozenset({"run", "Popen", "call", "check_call", "check_output", "system", "popen", "create_subprocess_exec",
                       "create_subprocess_shell", "execv", "execvp", "spawnv"})  # fmt: skip
_STARTING_MODULES = frozenset({"subprocess", "os", "asyncio"})
# How many names one line lists.
MAX_NAMES = 12


class CodeFacts(NamedTuple):
    """What is written in the code of a plugin.

    :param imports: the modules that it imports by name, packages only.
    :param hosts: the hosts of addresses in its strings.
    :param programs: the first words of literal commands that it starts.
    :param deciding: per file that defines a gate or a tool, its code without comments.
    """

    hooks: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    imports: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    programs: frozenset[str] = frozenset()
    deciding: Mapping[str, str] = {}


def facts_of(files: Mapping[str, bytes]) -> CodeFacts:
    """Return the facts of the Python files of one package, by path. A file that does not parse has none."""
    hooks: dict[str, None] = {}
    tools: dict[str, None] = {}
    imports, hosts, programs, deciding = set[str](), set[str](), set[str](), dict[str, str]()
    for name, data in sorted(files.items()):
        try:
            with warnings.catch_warnings(action="ignore"):  # an invalid escape in somebody's string
                tree = ast.parse(data)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        own_hooks, own_tools = dict[str, None](), dict[str, None]()
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    own_hooks |= dict.fromkeys(_named(node, "hookimpl", "specname"))
                    own_tools |= dict.fromkeys(_named(node, "tool", "name"))
                case ast.Import():
                    imports |= {item.name.partition(".")[0] for item in node.names}
                case ast.ImportFrom(module=str(module), level=0):
                    imports.add(module.partition(".")[0])
                case ast.Call():
                    programs |= set(_started(node))
                case ast.Constant(value=str(text)):
                    hosts |= {found.rpartition("@")[2] for found in _URL.findall(text)}
        if own_tools or "tool_gate" in own_hooks:
            deciding[name] = ast.dump(tree)
        hooks |= own_hooks
        tools |= own_tools
    return CodeFacts(tuple(hooks), tuple(tools), frozenset(imports), frozenset(hosts), frozenset(programs), deciding)


def _named(node: ast.FunctionDef | ast.AsyncFunctionDef, mark: str, keyword: str) -> Iterator[str]:
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if (call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")) != mark:
            continue
        given = [item.value for item in getattr(decorator, "keywords", ()) if item.arg == keyword]
        literal = given[0].value if given and isinstance(given[0], ast.Constant) else None
        yield literal if isinstance(literal, str) else node.name


def _started(node: ast.Call) -> Iterator[str]:
    """Yield the program that a call starts, if it is written in the call."""
    match node.func:
        case ast.Attribute(value=ast.Name(id=module), attr=name) if module in _STARTING_MODULES and name in _STARTERS:
            first = node.args[0] if node.args else None
        case _:
            return
    if isinstance(first, ast.List | ast.Tuple) and first.elts:
        first = first.elts[0]
    if isinstance(first, ast.Constant) and isinstance(first.value, str) and first.value.split():
        yield first.value.split()[0]


class CodeChange(NamedTuple):
    """What differs between two versions of a package's files.

    :param lines: for people, one difference each.
    :param decides: whether the code of a gate or a tool is new or changed.
    """

    lines: tuple[str, ...]
    decides: bool


def code_change(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> CodeChange:
    """Compare the files of two versions, by path: which changed, and what the new code says that the old one did not."""
    was, now = facts_of(_python(before)), facts_of(_python(after))
    marks = {"~": sorted(name for name in {*before} & {*after} if before[name] != after[name])}
    marks |= {"+": sorted({*after} - {*before}), "-": sorted({*before} - {*after})}
    changed = [f"{mark}{name}" for mark, names in marks.items() for name in names]
    new_hooks = [hook for hook in now.hooks if hook not in was.hooks]
    parts: tuple[tuple[str, Sequence[str]], ...] = (
        ("files", changed),
        ("new hooks", new_hooks),
        ("new imports", sorted(now.imports - was.imports)),
        ("new hosts in its strings", sorted(now.hosts - was.hosts)),
        ("new programs that it starts", sorted(now.programs - was.programs)),
    )
    lines = tuple(f"{label}: {_listed(names)}" for label, names in parts if names)
    decides = any(was.deciding.get(name) != code for name, code in now.deciding.items())
    return CodeChange(lines, decides)


def _python(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.endswith(".py")}


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return " ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
