"""The page of the cookbook: every recipe with what its docstring says, made of the files, so that both cannot differ."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COOKBOOK = ROOT / "user_examples" / "cookbook"
SECTIONS = {
    "Tools": ("create_ticket", "csv_query", "count_words", "bar_chart"),
    "What may happen": ("no_push_to_main", "ask_folder", "generated_files", "read_only", "call_budget"),
    "Results": ("house_secrets", "only_the_end", "translate_results", "format_after_edit"),
    "Prompts, agents and models": ("git_context", "agent_temperature", "reviewer", "fallback_model"),
    "For the person": ("run_tests", "cost_per_day", "notify"),
}
HEAD = """# Cookbook

Twenty plugins, each in one file. Copy the one that is most like what you want to `~/.moryflow/plugins/`, change it, and check it with
`moryflow plugin check NAME`. Its settings go below `plugins.NAME` in `~/.moryflow/config.jsonc`. The files are in
`user_examples/cookbook/`; tests run all of them. The [reference](reference/plugin.md) explains the names.
The vault is the folder that the agent works in.
"""


def page() -> str:
    """Return the page.

    :raises AssertionError: a recipe stands in no section.
    """
    assert {path.stem for path in COOKBOOK.glob("*.py")} == {name for names in SECTIONS.values() for name in names}
    parts = [HEAD]
    for section, names in SECTIONS.items():
        parts += [f"\n## {section}\n", *(_recipe(COOKBOOK / f"{name}.py") for name in names)]
    return "".join(parts)


def _recipe(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    doc = ast.parse(text).body[0]
    assert isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant)
    title, said = str(doc.value.value).split("\n", 1)
    body = "\n".join(text.splitlines()[doc.end_lineno or 0 :]).strip()
    return f"\n### {title.rstrip('.')}\n{re.sub('``', '`', said)}\n`{path.stem}.py`:\n\n```python\n{body}\n```\n"
