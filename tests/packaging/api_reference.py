"""The names of the API in ``docs/reference/``: signature, docstring, methods, and an example where the use is not plain.

A page names what it holds: ``<!-- begin: moryflow_sdk Allow Ask -->`` … ``<!-- end -->``; what stands between is written here.
``Host:resume,aclose`` are only these methods of a class, ``Host:+resume`` the way to make it too, ``Host:-`` no methods.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from moryflow_sdk import HOOKS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "reference"
EXAMPLES = ROOT / "user_examples" / "reference"
BLOCK = re.compile(r"<!-- begin: (?P<module>moryflow[\w.]*)(?P<names>[^>]*) -->\n.*?<!-- end -->", re.DOTALL)
MODULES = (
    "moryflow_sdk", "moryflow_sdk.services", "moryflow_sdk.chat_completions", "moryflow", "moryflow.testing",
    "moryflow.testing.replies",
)  # fmt: skip
"""Modules whose ``__all__`` is public; a name of several of them stands once."""
WIDTH = 96
MARK = re.compile(r"# example (?P<shown>on the page )?of: (?P<names>.+)")
"""The line above an example; all are run, the page shows those whose use is not plain from the signature."""
FIELD = re.compile(r"^:(?P<kind>param|ivar|raises|returns?) ?(?P<name>[\w.]*): (?P<text>.*?)(?=^:\w|\n\n|\Z)", re.DOTALL | re.M)


@dataclass(frozen=True)
class Doc:
    """A docstring: its prose as Markdown, and what it says of parameters, results and errors."""

    prose: list[str]
    fields: list[tuple[str, str, str]]


def pages() -> dict[Path, str]:
    """Return every page that holds names of the API, as it should be."""
    found = {path: path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))}
    return {path: filled(text) for path, text in found.items() if BLOCK.search(text)}


def filled(text: str) -> str:
    """Return a page with its blocks written anew."""
    text = BLOCK.sub(_block, text)
    for alias in aliases().values():  # a type stands where it is used first
        before, found, after = text.partition(alias)
        for again in (f"`{alias}`\n\n", f"{alias}\n\n", f"{alias}\n"):
            after = after.replace(again, "")
        text = before + found + after.replace("```python\n```\n\n", "")
    return text


def _block(match: re.Match[str]) -> str:
    module, names = match["module"], match["names"].split()
    parts = [entry(module, name) for name in names]
    where = f"From `{module}`:"
    return "\n\n".join([f"<!-- begin: {module} {' '.join(names)} -->", where, *parts, "<!-- end -->"])


@cache
def places() -> dict[str, str]:
    """Return the page of each name, from the first lines of the blocks."""
    found: dict[str, str] = {}
    for path in sorted(PAGES.glob("*.md")):
        for block in BLOCK.finditer(path.read_text(encoding="utf-8")):
            found |= {name.partition(":")[0]: path.name for name in block["names"].split()}
    return found


def exported() -> set[str]:
    """Return every public name."""
    return {name for module in MODULES for name in _all(import_module(module))}


def _all(module: ModuleType) -> list[str]:
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = vars(module).items()
    return [name for name, value in own if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")]


def entry(module: str, name: str) -> str:
    """Return the part of a page about one name.

    :raises ValueError: it has no docstring.
    """
    name, _, chosen = name.partition(":")
    value = getattr(import_module(module), name)
    if inspect.isclass(value) and value.__module__.startswith("moryflow"):
        parts = [*_class(name, value, chosen), *_methods(value, chosen.lstrip("+").split(",") if chosen else ())]
    elif inspect.isfunction(value):
        parts = [_function(name, value), *_prose(doc_of(value, name), name)]
    else:
        text = _comment_on(module, name) or _fallback(name)
        parts = [_code(_constant(module, name)), *_prose(parsed(text), name)]
    return "\n\n".join([f"## `{name}`", *parts, *example(name)])


def doc_of(value: Any, name: str) -> Doc:
    """Return the docstring of `value`.

    :raises ValueError: it has none of its own.
    """
    text = inspect.cleandoc(value.__dict__.get("__doc__") or "" if inspect.isclass(value) else value.__doc__ or "")
    if not text or text.startswith(f"{name}("):  # what dataclass writes
        raise ValueError(f"{name} has no docstring; the reference needs one")
    return parsed(text)


def parsed(text: str) -> Doc:
    """Take a docstring apart."""
    fields = [(match["kind"], match["name"], _joined(match["text"])) for match in FIELD.finditer(text)]
    rest = [part.strip() for part in re.split(r"\n\s*\n", FIELD.sub("", text)) if part.strip()]
    return Doc([part if part.startswith("    ") else _joined(part) for part in rest], fields)


def _prose(doc: Doc, name: str, written: Mapping[str, str] = {}) -> list[str]:
    """Return what a docstring says; of the fields of a class, as they are `written`, those of which it says nothing too."""
    parts = [linked(part, name) for part in doc.prose]
    said = {field: linked(text, name) for kind, field, text in doc.fields if kind in ("param", "ivar")}
    named: list[str] = []
    for known, group in groupby([*written, *(field for field in said if field not in written)], said.__contains__):
        shown = [f"`{written.get(field, field)}`{f': {said[field]}' if known else ''}" for field in group]
        named += [f"- {row}" for row in (shown if known else [", ".join(shown)])]
    raised = [f"- raises `{field}`: {linked(text, name)}" for kind, field, text in doc.fields if kind == "raises"]
    returned = [f"- returns {linked(text, name)}" for kind, _, text in doc.fields if kind.startswith("return")]
    rows = [*named, *returned, *raised]
    return [*parts, *(["\n".join(rows)] if rows else [])]


def linked(text: str, within: str = "") -> str:
    """Write reStructuredText as Markdown, with names of the API as links."""
    return re.sub(r":\w+:`~?(?P<role>[\w.]+)`|``(?P<code>[^`]+)``", lambda found: _linked(found, within), text)


def _linked(found: re.Match[str], within: str) -> str:
    name = found["role"] or ""
    if name in places() and name != within and not _is_member(within, name):
        return f"[`{name}`]({places()[name]}#{name.lower()})"
    return _link(found["code"] or name, within)


def _is_member(within: str, name: str) -> bool:
    """Whether the class `within` has something called `name` of its own, which is meant then."""
    return any(hasattr(getattr(import_module(module), within, None), name) for module in MODULES) if within else False


def _link(code: str, within: str) -> str:
    short = re.sub(r"^moryflow[\w.]*\.(?=[A-Z])", "", code)
    head, _, rest = short.partition(".")
    page = places().get(head)
    if head in HOOKS and head == short and page is None and "_" in head:
        return f"[`{HOOKS[head].dotted}`](../hooks/{head}.md)"
    if page is None or head == within or not head[0].isupper() or (rest and not rest.isidentifier()):
        return f"`{code}`"
    return f"[`{short}`]({page}#{head.lower()})"


# ---------------------------------------------------------------- signatures


def _class(name: str, cls: type, chosen: str) -> list[str]:
    """Return how a class is made and what it is; its fields, each with its type, as a list."""
    init, doc = _init(cls), doc_of(cls, name)
    if init is not None and cls.__name__ != "Frozen" and not _is_protocol(cls):
        if (base := cls.__mro__[1]).__name__ in places() and init is _init(base):
            made = [f"Made like [`{base.__name__}`]({places()[base.__name__]}#{base.__name__.lower()})."]
        else:
            made = [] if chosen and chosen[0] != "+" else [_with_aliases(f"class {name}{_arguments(init)}")]
        return [*made, *_prose(doc, name)]
    written = {field: f"{field}: {_typed(note)}{f' = {value}' if value else ''}" for field, note, value in _fields(cls)}
    types = _aliases_in(" ".join(written.values()))
    return [*([_code("\n".join(types))] if types else []), *_prose(doc, name, written)]


def _init(cls: type) -> ast.FunctionDef | None:
    """Return the ``__init__`` of a class, also one for type checkers only; of an error, that of its base."""
    for base in cls.__mro__ if issubclass(cls, Exception) else (cls,):
        for node in ast.walk(_node(base)):
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                return node
    return None


def _is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


@cache
def _node(cls: Any) -> ast.ClassDef:
    if cls is object or not cls.__module__.startswith("moryflow"):
        return ast.ClassDef(cls.__name__, [], [], [], [])
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    return node


def _fields(cls: type) -> Iterator[tuple[str, str, str]]:
    """Yield name, type and default of the fields, those of bases that are not on a page of their own first."""
    bases = [
        base for base in reversed(cls.__mro__) if base is cls or (base.__name__ not in places() and base.__name__ != "Frozen")
    ]
    for node in (item for base in bases for item in _node(base).body):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), annotation=note, value=value) if not name.startswith("_"):
                yield name, _text(note), _default(value)
            case _:
                continue


def _default(value: ast.expr | None) -> str:
    match value:
        case None:
            return ""
        case ast.Call(func=ast.Name(id="field"), keywords=keywords):
            given = {word.arg: word.value for word in keywords}
            return _text(given["default"]) if "default" in given else "{}" if "default_factory" in given else ""
        case _:
            return _text(value)


def _text(node: ast.AST) -> str:
    text = ast.unparse(node)
    return text.replace("'", '"') if '"' not in text else text


def _typed(note: str) -> str:
    note = re.sub(r"Annotated\[([^,\]]+), [^\]]*\]", r"\1", note.strip('"'))
    return note.replace("FrozenMapping", "Mapping[str, Any]")


def _function(name: str, function: Any) -> str:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    return _with_aliases(_signature(node, name))


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    result = f" -> {_typed(_text(node.returns))}" if node.returns else ""
    return f"{start} {name}{_arguments(node, result)}{result}"


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef, after: str = "") -> str:
    found = node.args
    positional = [*found.posonlyargs, *found.args]
    defaults = [None] * (len(positional) - len(found.defaults)) + list(found.defaults)
    written = [_argument(item, value) for item, value in zip(positional, defaults, strict=True)]
    if found.posonlyargs:
        written.insert(len(found.posonlyargs), "/")
    if found.vararg:
        written.append(f"*{_argument(found.vararg, None)}")
    elif found.kwonlyargs:
        written.append("*")
    written += [_argument(item, value) for item, value in zip(found.kwonlyargs, found.kw_defaults, strict=True)]
    if found.kwarg and found.kwarg.arg != "unknown":
        written.append(f"**{_argument(found.kwarg, None)}")
    return _wrapped([item for item in written if item not in ("self", "cls")], node.name + after)


def _argument(item: ast.arg, value: ast.expr | None) -> str:
    note = f": {_typed(_text(item.annotation))}" if item.annotation else ""
    return f"{item.arg}{note}{f' = {_text(value)}' if value and note else f'={_text(value)}' if value else ''}"


def _wrapped(items: list[str], beside: str) -> str:
    line = f"({', '.join(items)})"
    return line if len(line) + len(beside) < WIDTH - 10 else "(\n" + "".join(f"    {item},\n" for item in items) + ")"


def _methods(cls: type, chosen: Collection[str]) -> Iterator[str]:
    """Yield the list of the public methods and properties of a class, or of those that are `chosen`."""
    found: list[tuple[str, Doc]] = []
    for node in _node(cls).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        shown = node.name == "__call__" or not node.name.startswith("_")
        said = ast.get_docstring(node)
        # The page of the services says what each is; of a turn it only has their names.
        if shown and said and not said.startswith("The service") and (not chosen or node.name in chosen):
            found.append((_method(node), parsed(said)))
    if used := _aliases_in(" ".join(signature for signature, _ in found)):
        yield _code("\n".join(used))
    if found and (doc_of(cls, cls.__name__).fields or (_init(cls) is None and any(_fields(cls)))):
        yield "Also:"  # else the two lists would be read as one
    if found:
        yield "\n".join(_item(signature, doc, cls.__name__) for signature, doc in found)


def _item(signature: str, doc: Doc, within: str) -> str:
    """Return a method as an entry of a list, what its docstring says of parameters below it."""
    prose, *fields = _prose(Doc([], doc.fields), within) if doc.fields else [""]
    text = " ".join(linked(part, within) for part in doc.prose if not part.startswith("    "))
    if text.startswith("Return "):  # the signature says so
        text = text[7].upper() + text[8:]
    code = [linked(part, within) for part in doc.prose if part.startswith("    ")]
    below = [textwrap.indent(part, "    ") for part in (prose, *fields) if part]
    return "\n".join([f"- `{signature}`: {text}", *(f"\n{textwrap.indent(part, '    ')}\n" for part in code), *below])


def _method(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    if any(isinstance(mark, ast.Name) and mark.id in ("property", "cached_property") for mark in node.decorator_list):
        return f"{node.name}: {_typed(_text(node.returns)) if node.returns else 'Any'}"
    kinds = [mark.id for mark in node.decorator_list if isinstance(mark, ast.Name)]
    marks = [f"@{kind} " for kind in kinds if kind in ("classmethod", "staticmethod")]
    line = re.sub(r"\s+", " ", _signature(node, node.name)).replace("( ", "(").replace(", )", ")")
    start = "" if re.search("-> Async(Generator|Iterator)", line) else "await "
    return "".join([*marks, line.replace("async def ", start).removeprefix("def ").removesuffix(" -> None")])


def _code(text: str) -> str:
    return f"```python\n{text}\n```" if "\n" in text else f"`{text}`"


def _with_aliases(text: str) -> str:
    """Return the code of a signature, with the types before it that are on no page of their own."""
    return _code("\n\n".join([*_aliases_in(text), text]))


def _aliases_in(text: str) -> list[str]:
    used = dict.fromkeys(re.findall(r"(?<![.\w\"])[A-Z]\w+", text))
    known = aliases()
    return [known[name] for name in used if name in known and name not in places()]


@cache
def aliases() -> dict[str, str]:
    """Return the type aliases of the packages' modules, as they are written."""
    found: dict[str, str] = {}
    values = [getattr(import_module(module), name) for module in MODULES for name in _all(import_module(module))]
    homes = {str(getattr(value, "__module__", "")) for value in values}
    files = {inspect.getsourcefile(import_module(home)) or "" for home in homes if home.startswith("moryflow")}
    for path in sorted({*map(Path, files), *(ROOT / "plugin_sdk" / "moryflow_sdk").glob("*.py")}):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id=kind)) as value) if kind in (
                    "Literal", "Callable",
                ):  # fmt: skip
                    found[name] = _folded(name, _text(value))
                case _:
                    continue
    return found


def _folded(name: str, value: str) -> str:
    line = f"{name} = {value}"
    if len(line) <= WIDTH:
        return line
    head, _, rest = value.partition("[")
    inner = textwrap.wrap(rest.removesuffix("]"), WIDTH - 4, initial_indent="    ", subsequent_indent="    ")
    return "\n".join([f"{name} = {head}[", *inner, "]"])


def _constant(module: str, name: str) -> str:
    """Return a constant or a type alias as it is written where it is made."""
    for source in _sources(module):
        for node in source.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                    return _short(f"{name} = {_text(value)}", name, module)
                case ast.AnnAssign(target=ast.Name(id=found), annotation=note, value=ast.expr() as value) if found == name:
                    return _short(f"{name}: {_text(note)} = {_text(value)}", name, module)
                case _:
                    continue
    return f"{name} = {getattr(import_module(module), name)!r}"


def _short(text: str, name: str, module: str) -> str:
    if len(text) <= WIDTH:
        return text
    value = getattr(import_module(module), name)
    keys = list(value) if isinstance(value, dict | tuple | frozenset | list) else []
    return (
        "\n".join(
            [
                f"{name} = (",
                *textwrap.wrap(", ".join(f'"{key}"' for key in keys), WIDTH, initial_indent="    ", subsequent_indent="    "),
                ")",
            ]
        )
        if keys
        else text
    )


@cache
def _sources(module: str) -> tuple[ast.Module, ...]:
    """Return the module, then the modules below the same package, parsed."""
    file = Path(inspect.getsourcefile(import_module(module)) or "")
    files = [file, *sorted(file.parent.glob("*.py"))] if file.name == "__init__.py" else [file]
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in files)


def _comment_on(module: str, name: str) -> str:
    """Return the docstring below an assignment."""
    for source in _sources(module):
        for node, after in zip(source.body, source.body[1:], strict=False):
            names = [
                item.id for item in getattr(node, "targets", [getattr(node, "target", None)]) if isinstance(item, ast.Name)
            ]
            match after:
                case ast.Expr(value=ast.Constant(value=str() as text)) if name in names:
                    return inspect.cleandoc(text)
                case _:
                    continue
    return ""


def _fallback(name: str) -> str:
    raise ValueError(f"{name} has no docstring below its assignment; the reference needs one")


# ---------------------------------------------------------------- examples


@cache
def examples() -> dict[str, str]:
    """Return what a page shows as the example of each name; empty where it stands in user_examples/reference/ only."""
    found: dict[str, str] = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
        lines = source.splitlines()
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            if marked := MARK.match(lines[first - 2]):
                names = marked["names"].split(", ")
                found |= dict.fromkeys(names, "")
                found[names[0]] = _shown(tree, node, lines, first) if marked["shown"] else ""
    return found


def example(name: str) -> list[str]:
    """Return the example of a name, if it is one for the page.

    :raises ValueError: it has none.
    """
    if name not in examples():
        raise ValueError(f"{name} has no example: add a function marked '# example of: {name}' to user_examples/reference/")
    return [_code(source)] if (source := examples()[name]) else []


def _shown(tree: ast.Module, node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], first: int) -> str:
    """Return what a reader sees: the body of a function ``example_…``, else the function; with the imports it needs."""
    inside = node.name.startswith("example_")
    opening = node.body[1 if ast.get_docstring(node) else 0]
    start = min([opening.lineno, *(mark.lineno for mark in getattr(opening, "decorator_list", ()))]) if inside else first
    while inside and lines[start - 2].strip().startswith("#"):
        start -= 1
    shown = textwrap.dedent("\n".join(lines[start - 1 : node.end_lineno]))
    body: list[ast.AST] = [item for part in node.body for item in ast.walk(part)] if inside else list(ast.walk(node))
    used = {item.id for item in body if isinstance(item, ast.Name)}
    needed = [line for item in tree.body for line in _needed(item, used)]
    ours = [line for line in needed if line.split()[1].startswith("moryflow")]
    blocks = ["\n".join(line for line in needed if line not in ours), "\n".join(ours)]
    return ("\n\n" if inside else "\n\n\n").join(["\n\n".join(filter(None, blocks)), shown]).lstrip("\n")


def _needed(item: ast.stmt, used: set[str]) -> Iterator[str]:
    match item:
        case ast.ImportFrom(module=str() as module, names=names) if module != "__future__":
            kept = [name.name for name in names if (name.asname or name.name) in used]
            if kept:
                yield f"from {module} import {', '.join(kept)}"
        case ast.Import(names=[ast.alias(name=name)]) if name.partition(".")[0] in used:
            yield f"import {name}"
        case _:
            return


def _joined(text: str) -> str:
    return " ".join(text.split())
