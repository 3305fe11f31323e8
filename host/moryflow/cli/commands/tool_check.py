"""``moryflow tool check``: try the files with tools, and say what is wrong with each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal.text import plain, show

from .tool_files import SWITCH, file_called

if TYPE_CHECKING:
    from moryflow.runtime.host import Host


@click.command("check")
@click.argument("file", required=False)
@document_options
@click.pass_context
def check(ctx: click.Context, file: str | None) -> int:
    """Load the files of the tools folder and name what is wrong; exit code 3 when something of them cannot be used.

    FILE is a path, or a name in the folder; without it, all. They are loaded here also while they are switched off.
    """
    from moryflow.cli.open_host import with_host

    async def work(host: Host) -> list[dict[str, Any]]:
        paths = [_in_folder(host.home / "tools", file_called(host.home, file))] if file else _files(host.home / "tools")
        return [_row(host, path) for path in paths]

    rows = with_host(ctx, work, settings={SWITCH: True}, quiet=True)
    show(flags_of(ctx), rows, plain("\n".join(_lines(row) for row in rows)) or "there are no files with tools")
    return 0 if all(row["ok"] for row in rows) else 3


def _files(folder: Path) -> list[Path]:
    """Return what is to be checked: the files, and a folder that cannot be listed."""
    from moryflow_sdk.support.own_files import own_files

    paths, problems = own_files(folder, ".py", hidden=(".", "_"))
    return [folder] if problems else paths


def _in_folder(folder: Path, path: Path) -> Path:
    from moryflow_sdk import ConfigError

    if path.parent.resolve() != folder.resolve():
        raise ConfigError("only files of the tools folder are loaded", where=str(path), next_step=f"cp {path} {folder}/")
    return folder / path.name


def _row(host: Host, path: Path) -> dict[str, Any]:
    """Say what a file gives, what of it cannot be used, and what Python warns of in it."""
    from moryflow.plugins.sources import slips

    notes = [note for record in host.plugin_set.records for note in record.notes]
    problems = [note for note in notes if note.startswith((f"{path}:", f"{path.parent}: "))]
    tools = sorted(name for name, owned in host.tools.items() if owned.tool.source == str(path))
    if not tools and not problems:
        problems = [f"{path}: it was not loaded; next: moryflow plugin info external_tools"]
    found = {"file": str(path), "ok": bool(tools) and not problems, "tools": tools}
    return {**found, "problems": problems, "warnings": slips([path])}


def _lines(row: dict[str, Any]) -> str:
    state = "ok" if row["ok"] else "not all of it can be used" if row["tools"] else "nothing of it can be used"
    names = f" ({', '.join(row['tools'])})" if row["tools"] else ""
    said = [*row["problems"], *(f"warning: {warning}" for warning in row["warnings"])]
    return "\n".join([f"{row['file']}: {state}{names}", *(f"  {line}" for line in said)])
