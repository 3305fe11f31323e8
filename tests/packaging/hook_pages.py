"""The pages of ``docs/hooks/``: each made from the hook's specification, its example and that example's test."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from api_reference import places
from moryflow_sdk import HOOKS, HookInfo, hookspecs

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "user_examples" / "hooks"
TESTS = ROOT / "tests" / "user_examples" / "test_hook_examples.py"

FAILURE = {
    "life": "the plugin has failed",
    "contribute": "the item that fails is left out and reported",
    "transform": "it is skipped and the value stays as it was",
    "gate": "**deny**, cause `hook_failure`",
    "observe": "the failure is ignored and reported",
    "tool_decided": "**deny** in full access, else ask; cause `hook_failure`",
    "tool_after": 'it is skipped; with `on_failure="withhold"` the result becomes an error and no part of it is sent',
}
"""What a failing implementation does to the turn, by kind of hook; some hooks have a line of their own."""

VALUE = {
    "plugin_start": "a function that undoes it",
    "contribute": "items that belong to the plugin",
    "gate": "`Allow`, `Ask`, `Deny`, `Stop` or nothing; the most severe counts",
    "tool_decided": "a stricter verdict, or nothing",
    "observe": "nothing",
}
FOLDERS = ("compaction",)
"""Hooks with a folder of more examples."""


@dataclass(frozen=True)
class Answers:
    """What the docstring of a hook says: what for, when, each argument, what the return value does, for whom."""

    what: str
    when: str
    arguments: dict[str, str]
    returns: str
    whom: str


def page(name: str) -> str:
    """Return the page of one hook."""
    info, answers = HOOKS[name], answers_of(name)
    source = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    said = {argument: text for argument, text in answers.arguments.items() if text != f"the {argument}."}
    lines = [
        f"# {info.dotted}",
        "",
        f"{linked(answers.what)} {linked(answers.when)}",
        "",
        f"```python\n{signature(name)}\n```",
        "",
        *(f"- `{argument}`: {linked(text)}" for argument, text in said.items()),
        f"- returns {linked(answers.returns)}",
        f"- {info.kind}, {info.timeout:g} s: [what happens if it fails](../order.md#failure)",
        f"- types: {types_of(name)}",
        "",
        linked(answers.whom),
        "",
        "## Example",
        "",
        f"<!-- file: ~/.moryflow/plugins/my_{name}.py -->\n```python\n{source}```",
        "",
        f"Its [test](../testing.md): `{test_file(name).relative_to(ROOT).as_posix()}`.",
        *more_of(name),
    ]
    return "\n".join(lines) + "\n"


def more_of(name: str) -> list[str]:
    """Name the other examples of a hook, those in the folder of its name."""
    names = [f"`{file.name}`" for file in sorted((EXAMPLES.parent / name).glob("*.py"))] if name in FOLDERS else []
    return ["", f"More are in `user_examples/{name}/`: {', '.join(names)}."] if names else []


def test_file(name: str) -> Path:
    """Return where the test of a hook's example is written, for whoever copies the example."""
    return EXAMPLES / "tests" / f"test_my_{name}.py"


def table() -> str:
    """Return the table of all hooks: value, what a failure does, deadline; those of which the same is true share a row."""
    rows: dict[str, list[str]] = {}
    for info in HOOKS.values():
        said = f"| {info.kind} | {value(info)} | {failure(info)} | {info.timeout:g} s |"
        rows.setdefault(said, []).append(f"[`{info.dotted}`](hooks/{info.name}.md)")
    head = ["| hooks | kind | returns | when it fails | deadline |", "|---|---|---|---|---|"]
    return "\n".join([*head, *(f"| {', '.join(links)} {said}" for said, links in rows.items())])


def answers_of(name: str) -> Answers:
    """Read the docstring of a hook.

    :raises ValueError: it leaves one of the five questions open.
    """
    text = inspect.cleandoc(getattr(hookspecs, name).__doc__)
    prose = [part for part in re.split(r"\n\s*\n", text) if not part.startswith(":")]
    fields = dict(re.findall(r"^:((?:param )?\w+): (.*?)(?=^:|\n\n|\Z)", text, re.DOTALL | re.MULTILINE))
    arguments = {key.removeprefix("param "): joined(said) for key, said in fields.items() if key.startswith("param ")}
    taken = tuple(inspect.signature(getattr(hookspecs, name)).parameters)
    complete = len(prose) == 3 and prose[1].startswith("Called ") and prose[2].startswith("For ")
    if not complete or tuple(arguments) != taken or "returns" not in fields:
        raise ValueError(f"hookspecs.py: {name}: say what, 'Called …', each argument, what it returns, 'For …'")
    return Answers(joined(prose[0]), joined(prose[1]), arguments, joined(fields["returns"]), joined(prose[2]))


def signature(name: str) -> str:
    """Return the hook as a plugin would write it."""
    found = inspect.signature(getattr(hookspecs, name))
    parameters = ", ".join(f"{item.name}: {item.annotation}" for item in found.parameters.values())
    return f"@hookimpl\ndef {name}({parameters}) -> {found.return_annotation}: ..."


HEAD = '''"""The test of the example of the hook ``{name}``; made by tests/packaging/refresh_docs.py."""

'''
FIXTURE = """@pytest.fixture
def example(moryflow):
    \"\"\"A host of its own, with the plugin.\"\"\"
    moryflow.plugin(Path(__file__).with_name("my_{name}.py"))
    return moryflow"""


def test_of(name: str) -> str:
    """Return the test of a hook's example as a file that stands alone.

    :raises ValueError: it has none.
    """
    source = TESTS.read_text(encoding="utf-8")
    body = ast.parse(source).body
    defined = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    test = defined.get(f"test_example_of_{name}")
    if test is None:
        raise ValueError(f"{TESTS.name}: the example of the hook {name} has no test test_example_of_{name}")
    helpers = [defined[used] for used in _names(test) if used in defined and used != "example"]
    wanted = {"pytest", "Path"}.union(*(_names(node) for node in (test, *helpers)))
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom) and wanted & _bound(node)]
    standard = [ast.unparse(node) for node in imports if not _bound(node) & {"pytest", "moryflow", "moryflow_sdk"}]
    others = [ast.unparse(node) for node in imports if _bound(node) & {"pytest", "moryflow", "moryflow_sdk"}]
    functions = [str(ast.get_source_segment(source, node)) for node in (*helpers, test)]
    # The numbers of requirements in its docstring are for us.
    functions[-1] = re.sub(r" \([^()]*\)\.\"\"\"", '."""', functions[-1], count=1)
    imported = "\n".join([*standard, "", *others])
    return "\n\n\n".join([HEAD.format(name=name) + imported, FIXTURE.format(name=name), *functions]) + "\n"


def _names(node: ast.AST) -> list[str]:
    return list(dict.fromkeys(found.id for found in ast.walk(node) if isinstance(found, ast.Name)))


def _bound(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name for alias in node.names}


def failure(info: HookInfo) -> str:
    """Return what happens when an implementation raises, overruns or returns nonsense."""
    return FAILURE.get(info.name, FAILURE[info.kind])


def value(info: HookInfo) -> str:
    """Return what an implementation gives back, in a few words."""
    if info.kind == "transform":
        return "the new value, or nothing"
    return VALUE.get(info.name) or VALUE[info.kind]


def joined(text: str) -> str:
    """Return a paragraph as one line."""
    return " ".join(text.split())


def linked(text: str) -> str:
    """Write reStructuredText as Markdown: code, and names of other hooks as links to their pages."""
    text = re.sub(r":\w+:`([\w.~]+)`", lambda role: _name(role[1].lstrip("~").rpartition(".")[2]), text)
    return re.sub(r"``([^`]+)``", lambda code: _name(code[1]), text)


def types_of(name: str) -> str:
    """Return links to the types in the signature of a hook."""
    found = dict.fromkeys(re.findall(r"\b[A-Z]\w+", signature(name)))
    return ", ".join(_name(code) for code in found if code in places())


def _name(code: str) -> str:
    if code[:1].isupper() and code in places():
        return f"[`{code}`](../reference/{places()[code]}#{code.lower()})"
    return f"[`{HOOKS[code].dotted}`]({code}.md)" if code in HOOKS and code not in ("tools", "event") else f"`{code}`"
