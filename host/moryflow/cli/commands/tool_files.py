"""``moryflow tool allow`` and ``check``: the consent that a tool file needs, and its mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.open_host import from_host, own_home
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import plain, show

if TYPE_CHECKING:
    from moryflow.runtime.host import Host

SWITCH = "agents.runtime.tools.external.enabled"


@click.command("allow")
@click.argument("file")
@document_options
def allow(flags: Flags, file: str) -> None:
    """Allow a file in the tools folder, as it is now: its tools are loaded, and run without a question about the file.

    FILE is a path, or a name in the folder. Read it first: it runs with your rights. After a change, allow it again.
    """
    from moryflow.plugins.consent import Consents

    home = own_home()
    path = _in_folder(home / "tools", find_file(home, file))
    given = Consents(home).give(path)
    show(flags, {"file": str(path), "waited": given}, f"{path} may run")


def find_file(home: Path, name: str) -> Path:
    """Return the file that the user means: a path, or a name in the tools folder, with or without its suffix.

    :raises ConfigError: there is no such file.
    """
    folder = home / "tools"
    there = _files(folder)
    for path in (Path(name).expanduser(), folder / name, *(path for path in there if path.stem == name)):
        if path.is_file():
            return path.absolute()
    from moryflow_sdk import ConfigError
    from moryflow_sdk.support.texts import did_you_mean

    hint = did_you_mean(name, [path.name for path in there])
    raise ConfigError(f"there is no file {name!r} here or in {folder}{hint}", next_step=f"ls {folder}")


def missing_hint(host: Host, tool: str) -> tuple[str, str]:
    """Return why there is no `tool` if a plugin or a file that is not loaded has it, and the next step; else empty strings."""
    from moryflow.packages.inventory import rows
    from moryflow.plugins.consent import Consents
    from moryflow.runtime.generation import wanted_plugins

    known = rows(host.home, host.config, wanted_plugins(host.config))
    owners = {row.name for row in known if tool in (*row.record.tools, *(row.card.tools if row.card else ()))}
    for record in host.plugin_set.records:
        if record.name in owners and record.status != "loaded":
            step = f"moryflow plugin {'enable' if record.reason == 'disabled' else 'check'} {record.name}"
            return f"; it is one of the plugin {record.name}, which is not loaded: {record.reason or record.error}", step
    found = [path for path in _files(host.home / "tools") if path.is_file()]
    files = [path for path in found if path.stem == tool or f"def {tool}(" in path.read_text("utf-8", "replace")]
    if not files:
        return "", ""
    switch = host.config.get(SWITCH)
    allowed = switch or Consents(host.home).of_content(files[0]) == "allowed"
    step = "moryflow tool check" if allowed else f"read it, then moryflow tool allow {files[0].name}"
    return f"; {files[0]} seems to have it", f"moryflow config unset {SWITCH}" if switch is False else step


@click.command("check")
@click.argument("file", required=False)
@document_options
def check(flags: Flags, file: str | None) -> int:
    """Load the files of the tools folder and name what is wrong; exit code 3 when something of them cannot be used.

    FILE is a path, or a name in the folder; without it, all. They are loaded here also while they are switched off.
    """

    def work(host: Host) -> list[dict[str, Any]]:
        paths = [_in_folder(host.home / "tools", find_file(host.home, file))] if file else _files(host.home / "tools")
        return [_row(host, path) for path in paths]

    rows = from_host(flags, work, settings={SWITCH: True}, quiet=True)
    show(flags, rows, plain("\n".join(_lines(row) for row in rows)) or "there are no files with tools")
    return 0 if all(row["ok"] for row in rows) else 3


def _files(folder: Path) -> list[Path]:
    from moryflow_sdk.support.own_files import own_files, own_programs

    paths, problems = own_files(folder, ".py", hidden=(".", "_"))
    return [folder] if problems else [*paths, *own_programs(folder)]


def _in_folder(folder: Path, path: Path) -> Path:
    from moryflow_sdk import ConfigError

    if path.parent.resolve() != folder.resolve():
        raise ConfigError("only files of the tools folder are loaded", where=str(path), next_step=f"cp {path} {folder}/")
    return folder / path.name


def _row(host: Host, path: Path) -> dict[str, Any]:
    from moryflow_sdk.support.own_files import MANIFESTS

    notes = [note for record in host.plugin_set.records for note in record.notes]
    beside = () if path.suffix == ".py" else tuple(f"{path.with_suffix(suffix)}:" for suffix in MANIFESTS)
    problems = [note for note in notes if note.startswith((f"{path}:", f"{path.parent}: ", *beside))]
    tools = sorted(name for name, owned in host.tools.items() if owned.tool.source == str(path))
    if not tools and not problems:
        problems = [f"{path}: it was not loaded; next: moryflow plugin info external_tools"]
    return {"file": str(path), "ok": bool(tools) and not problems, "tools": tools, "problems": problems}


def _lines(row: dict[str, Any]) -> str:
    state = "ok" if row["ok"] else "part of it cannot be used" if row["tools"] else "it cannot be used"
    names = f" ({', '.join(row['tools'])})" if row["tools"] else ""
    return "\n".join([f"{row['file']}: {state}{names}", *(f"  {line}" for line in row["problems"])])
