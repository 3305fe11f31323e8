"""Nobody but the door takes a tool's body in hand, read off the code itself (invariant 1)."""

from __future__ import annotations

import ast
from pathlib import Path
from textwrap import indent

import moryflow
import moryflow_builtins
import moryflow_sdk
import pytest

REACHES = {
    "host/moryflow/kernel/tool_call.py": {"_more_time", "run_body", "result_of_error"},
    "host/moryflow/hooks/dispatcher.py": {"call"},
    "host/moryflow/hooks/plugin_set.py": {"Implementation.place"},
    "host/moryflow/plugins/lifecycle.py": {"_set_up"},
    "host/moryflow/plugins/load.py": {"_within_tier"},
    "host/moryflow/plugins/registration.py": {"_check_order", "_implementation", "usable", "_code_of", "_with_schema"},
    "builtin_plugins/moryflow_builtins/external_tools/exports.py": {"exported_tools", "_with_schema"},
    "builtin_plugins/moryflow_builtins/llm_plugins/tool_calls.py": {"tools_of"},
    "plugin_sdk/moryflow_sdk/tools.py": {"Tool.arguments"},
}
"""Who takes a field ``function``: a tool's body, a hook's, a thread's job."""


def test_only_the_door_reaches_a_tool_body():
    """``tool_call.py`` runs a body under its deadline, for the door; others with a ``function`` are named (invariant 1)."""
    found = {}
    for root in (moryflow, moryflow_builtins, moryflow_sdk):
        folder = Path(root.__path__[0])
        for path in folder.rglob("*.py"):
            if "testing" not in path.parts:
                takers = reaching_in(path, "function")
                found[f"{folder.parent.name}/{path.relative_to(folder.parent).as_posix()}"] = takers
    assert {path: takers for path, takers in found.items() if takers} == REACHES


def test_only_the_door_runs_a_body():
    """Nobody else calls ``run_body`` or makes keywords for a body (invariant 1); a server binds its socket."""
    folder = Path(moryflow.__path__[0])
    users = {path.relative_to(folder).as_posix() for path in folder.rglob("*.py") if reaching_in(path, "run_body", "bind")}
    assert users == {"kernel/tool_executor.py", "server/listener.py"}


def reaching_in(path, *names):
    """Return the functions of a file that take one of `names`; most files do not have the word, and need no reading."""
    text = path.read_text(encoding="utf-8")
    return set(reaching(ast.parse(text), *names)) if any(name in text for name in names) else set()


def reaching(node, *names, inside=""):
    """Yield the function around each place that takes one of `names` from something, however it is spelled."""
    match node:
        case ast.Attribute(attr=name) | ast.ImportFrom(names=[ast.alias(name=name)]) if name in names:
            yield inside
        case ast.Subscript(slice=ast.Constant(value=str(name))) if name in names:
            yield inside
        case ast.Call(func=ast.Name(id="getattr" | "attrgetter") | ast.Attribute(attr="attrgetter" | "__getattribute__")):
            yield from (inside for each in node.args if isinstance(each, ast.Constant) and each.value in names)
        case ast.MatchClass():
            yield from (inside for name in node.kwd_attrs if name in names)
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            inside = f"{inside}.{node.name}".lstrip(".")
    for child in ast.iter_child_nodes(node):
        yield from reaching(child, *names, inside=inside)


@pytest.mark.parametrize(
    "code",
    [
        "t.function(**a)", "getattr(entry, 'function')(**a)", "vars(tool)['function']()", "(t := owned.tool).function()",
        "operator.attrgetter('function')(t)()", "match t:\n    case Tool(function=body):\n        body()",
    ],
)  # fmt: skip
def test_a_second_door_would_be_found_however_it_is_spelled(code):
    """The check above sees it (invariant 1)."""
    assert list(reaching(ast.parse(f"def direct(t):\n{indent(code, '    ')}"), "function")) == ["direct"]
