"""The command ``moryflow instructions``; and instructions that the configuration names by address, fetched and cached."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import click
from moryflow_sdk import ToolError, Turn
from moryflow_sdk.support.own_files import replace_file

from . import Instructions, InstructionSettings, instructions_for, is_address


@click.command("instructions")
@click.pass_obj
def instructions(context: Any) -> None:
    """Show which instruction files are read, in which order, what they cost, and what is left out."""

    async def work(turn: Turn) -> tuple[list[dict[str, Any]], str]:
        found = []
        if turn.config.enabled:
            pages = await fetch_instructions(turn.config, turn.data_dir)
            found = instructions_for(turn.vault, turn.home, turn.config, pages)
        rows = [_row(item, turn) for item in found]
        total = sum(item.tokens for item in found)
        lines = [f"{row['tokens']:>6}  {row['file']}{_why(row)}" for row in rows]
        nothing = "no AGENTS.md or CLAUDE.md here; folders below are looked at when a file in them is read"
        return rows, "\n".join([*lines, f"{total:>6}  tokens, about, in every request"]) if rows else nothing

    rows, text = context.run(work, vault=context.vault)
    context.print(rows, text=text)


def _row(item: Instructions, turn: Turn) -> dict[str, Any]:
    return {
        "file": item.name(turn.vault),
        "path": str(item.path),
        "tokens": item.tokens,
        "loaded": bool(item.text),
        "problems": list(item.problems),
    }


def _why(row: dict[str, Any]) -> str:
    return f"  ({'; '.join(row['problems'])})" if row["problems"] else ""


# ---------------------------------------------------------------- Pages that the configuration names by address


FRESH = 3600.0
"""Seconds for which a cached page is used without fetching it again."""
AGAIN = 300.0
"""Seconds until a page that could not be fetched is tried again."""
PATIENCE = 3.0
"""Seconds that the start of a turn waits for a page."""


class _Kept(NamedTuple):
    """The cache entry of a page.

    :ivar text: the text that was fetched last; empty if it never was.
    :ivar tried: when it was last tried to fetch the page, in seconds since 1970.
    :ivar problem: why that failed; empty if it did not.
    """

    text: str = ""
    tried: float = 0.0
    problem: str = ""


async def fetch_instructions(settings: InstructionSettings, folder: Path) -> list[Instructions]:
    """Return the texts of the pages that `settings.files` names.

    :param folder: the plugin's data folder, with the cache.
    """
    addresses = [name for name in dict.fromkeys(settings.files) if is_address(name)]
    return list(await asyncio.gather(*(_page(address, folder / "pages", settings.max_bytes) for address in addresses)))


async def _page(address: str, folder: Path, most: int) -> Instructions:
    file = folder / f"{sha256(address.encode()).hexdigest()[:32]}.json"
    kept = _read(file)
    if not 0 <= time.time() - kept.tried < (AGAIN if kept.problem else FRESH):
        try:
            kept = _Kept(await _fetch(address, most), time.time())
        except ToolError as error:
            kept = _Kept(kept.text, time.time(), str(error))
        _write(file, kept)
    problem = f"{kept.problem}; the last fetched text is used" if kept.problem and kept.text else kept.problem
    return Instructions(file, kept.text, (problem,) if problem else (), address)


async def _fetch(address: str, most: int) -> str:
    """Return the text at an address.

    :raises ToolError: it cannot be fetched, or is not plain text.
    """
    from moryflow_sdk.support.fetcher import Fetcher

    # The configuration may name a service on this machine; the fetcher refuses redirects to one.
    got = await Fetcher(seconds=PATIENCE, most=most, permitted=lambda _: True).fetch(address)
    if got.status != 200:
        raise ToolError(f"it answered {got.status}")
    if got.cut:
        raise ToolError(f"it has more than the {most:,} bytes that one file may have")
    if "html" in got.headers.get("content-type", "").lower() or b"\0" in got.body:
        raise ToolError("it is neither plain text nor Markdown")
    return got.body.decode("utf-8-sig", "replace").strip()


def _read(file: Path) -> _Kept:
    try:
        found: Any = json.loads(file.read_bytes())
        return _Kept(str(found["text"]), float(found["tried"]), str(found["problem"]))
    except (OSError, ValueError, KeyError, TypeError):
        return _Kept()


def _write(file: Path, kept: _Kept) -> None:
    """Store a page in the cache; if that is not possible, it will be fetched again."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, json.dumps(kept._asdict()).encode())
