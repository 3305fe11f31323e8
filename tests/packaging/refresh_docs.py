"""Write anew what the documentation takes from the code: hook pages, the table of hooks, the reference, ``docs/llms.txt``.

Run it from a checkout: ``python tests/packaging/refresh_docs.py``. What it writes is under version control, so that the
pages can be read without building anything; a test fails when they differ from the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from moryflow_sdk import HOOKS

sys.path.insert(0, str(Path(__file__).parent))
import api_reference
import cli_reference
import client_operations
import cookbook_page
import hook_pages
import hook_types
import http_reference
import settings_reference

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(<!-- begin: hooks -->\n).*?(<!-- end: hooks -->)", re.DOTALL)
SUMMARY = "A host for LLM agents that people want to extend: a minimal kernel, everything else a plugin."


def main() -> int:
    """Write every file that differs."""
    written = [path for path, text in documents().items() if write(path, text)]
    print("\n".join(f"wrote {path.relative_to(ROOT)}" for path in written) or "nothing has changed")
    return 0


def documents() -> dict[Path, str]:
    """Return every generated file with what it should hold."""
    pages = {DOCS / "hooks" / f"{name}.md": hook_pages.page(name) for name in HOOKS}
    pages |= {hook_pages.test_file(name): hook_pages.test_of(name) for name in HOOKS}
    order = DOCS / "order.md"
    pages[order] = BLOCK.sub(lambda ends: f"{ends[1]}\n{hook_pages.table()}\n\n{ends[2]}", order.read_text(encoding="utf-8"))
    pages[DOCS / "cookbook.md"] = cookbook_page.page()
    reference = DOCS / "reference"
    pages |= api_reference.pages()
    pages |= {reference / "cli.md": cli_reference.page(), reference / "settings.md": settings_reference.page()}
    pages[reference / "http.md"] = http_reference.page()
    sdk = ROOT / "plugin_sdk" / "moryflow_sdk"
    types = {sdk / "hooks.pyi": hook_types.stub(), sdk / "client" / "operations.py": client_operations.module()}
    return {**pages, **types, DOCS / "llms.txt": index(pages)}


def index(generated: dict[Path, str]) -> str:
    """Return one line for each page, in the order of the site's navigation."""
    lines = [f"# Moryflow\n\n> {SUMMARY}"]
    for section, names in navigation():
        lines.append(f"\n## {section}\n")
        for name in names:
            path = DOCS / name
            lines.append(f"- [{title(text := generated.get(path) or path.read_text(encoding='utf-8'))}]({name}): {first(text)}")
    return "\n".join(lines) + "\n"


def navigation() -> Iterator[tuple[str, list[str]]]:
    """Yield the sections of ``mkdocs.yml`` with their pages."""
    settings: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for entry in settings["nav"]:
        (section, pages), *_ = entry.items()
        yield section, pages if isinstance(pages, list) else [pages]


def title(text: str) -> str:
    """Return the heading of a page."""
    return text.partition("\n")[0].removeprefix("# ")


def first(text: str) -> str:
    """Return the first sentence of a page, without links."""
    paragraph = next(part for part in text.split("\n\n") if not part.startswith("#"))
    plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.?!])\s", plain)[0]


def write(path: Path, text: str) -> bool:
    """Write `text` where it differs from what is there; return whether it did."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return True


if __name__ == "__main__":
    sys.exit(main())
