"""The page of the cookbook, made of the files: of each recipe what its docstring says first, and its hooks."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COOKBOOK = ROOT / "user_examples" / "cookbook"
HEAD = """# Cookbook

Twenty plugins, each in one file of `user_examples/cookbook/`. Copy the one that is most like what you want to
`~/.moryflow/plugins/`, change it, and check it with `moryflow plugin check NAME`. Its settings go below `plugins.NAME` in
`~/.moryflow/config.jsonc`. Each [hook](order.md) has an example on its page, and the [reference](reference/plugin.md)
explains the names.

"""


def page() -> str:
    """Return the page."""
    return "".join([HEAD, *map(_row, sorted(COOKBOOK.glob("*.py")))])


def _row(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    title = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0].rstrip(".")
    hooks = ", ".join(f"`{hook}`" for hook in re.findall(r"(?m)^@hookimpl.*\n(?:async )?def (\w+)", text))
    return f"- `{path.name}`: {title[0].lower()}{title[1:]} ({hooks})\n"
