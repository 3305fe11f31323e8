"""The page of the cookbook, made of the files: one recipe whole, and of each other what its docstring says first."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COOKBOOK = ROOT / "user_examples" / "cookbook"
WHOLE = ("create_ticket",)
"""Shown whole; the pages of the hooks show a gate, a change of results, an agent and a command."""
HEAD = """# Cookbook

Twenty plugins, each in one file of `user_examples/cookbook/`. Copy the one that is most like what you want to
`~/.moryflow/plugins/`, change it, and check it with `moryflow plugin check NAME`. Its settings go below `plugins.NAME` in
`~/.moryflow/config.jsonc`. Tests run all of them. One stands here whole; each [hook](order.md) has an example on its page,
and the [reference](reference/plugin.md) explains the names.
"""
LIST = """
## The others

"""


def page() -> str:
    """Return the page."""
    others = sorted(path.stem for path in COOKBOOK.glob("*.py") if path.stem not in WHOLE)
    return "".join([HEAD, *(_recipe(COOKBOOK / f"{name}.py") for name in WHOLE), LIST, *map(_row, others)])


def _recipe(path: Path) -> str:
    title, said, code = _parts(path)
    return f"\n## {title}\n{said}\n`{path.stem}.py`:\n\n```python\n{code}\n```\n"


def _row(name: str) -> str:
    title, _, code = _parts(COOKBOOK / f"{name}.py")
    hooks = ", ".join(f"`{hook}`" for hook in re.findall(r"(?m)^@hookimpl.*\n(?:async )?def (\w+)", code))
    return f"- `{name}.py`: {title[0].lower()}{title[1:]} ({hooks})\n"


def _parts(path: Path) -> tuple[str, str, str]:
    """Return the title of a recipe, what it says of itself, and its code."""
    text = path.read_text(encoding="utf-8")
    doc = ast.parse(text).body[0]
    assert isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    title, said = str(doc.value.value).split("\n", 1)
    return title.rstrip("."), re.sub("``", "`", said), "\n".join(text.splitlines()[doc.end_lineno or 0 :]).strip()
