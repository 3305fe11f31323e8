"""``moryflow output``: stored tool outputs, for people."""

from __future__ import annotations

import codecs
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import click
from moryflow_sdk import Artifact, CommandContext, ToolError, Turn
from moryflow_sdk.services import Artifacts
from moryflow_sdk.support.texts import visible

from moryflow_builtins.truncation import human

PAGE = 1 << 18


@click.group()
def output() -> None:
    """List, show and open stored tool outputs."""


@output.command("list")
@click.option("--session", help="Only outputs of this session.")
@click.option(
    "-n", "--limit", default=50, show_default=True, type=click.IntRange(1, 1_000_000_000), help="How many, newest first."
)
@click.pass_obj
def list_outputs(context: CommandContext, session: str | None, limit: int) -> None:
    """List stored outputs, newest first."""

    async def work(turn: Turn) -> list[Artifact]:
        return list(await turn.artifacts.list(session=session, limit=limit))

    found: list[Artifact] = context.run(work)
    rows = [artifact.model_dump(mode="json") for artifact in found]
    context.print(rows, text="\n".join(map(_line, found)) or "no stored outputs")


@output.command("show")
@click.argument("id_", metavar="ID")
@click.option("--offset", default=0, type=click.IntRange(0), help="Skip this many bytes.")
@click.option("--limit", type=click.IntRange(1, 1_000_000_000), help="Print at most this many bytes.")
@click.pass_obj
def show(context: CommandContext, id_: str, offset: int, limit: int | None) -> None:
    """Print a stored output, or a part of it counted in bytes."""

    async def work(turn: Turn) -> dict[str, Any]:
        artifact = await _find(turn.artifacts, id_)
        collected = bytearray()
        write: Callable[[bytes], object] = collected.extend if context.as_json else _printer()
        await _copy(turn.artifacts, artifact, offset, limit, write)
        end = offset + len(collected)
        more = {"offset": offset, "next_offset": end if end < artifact.size else None}
        return {**artifact.model_dump(mode="json"), **more, "text": collected.decode("utf-8", "replace")}

    document = context.run(work)
    if context.as_json:
        context.print(document)


@output.command("open")
@click.argument("id_", metavar="ID")
@click.pass_obj
def open_output(context: CommandContext, id_: str) -> None:
    """Open a stored output with the system's default program."""

    async def work(turn: Turn) -> Artifact:
        if turn.profile == "remote":
            raise ToolError(
                "files are not opened in the remote profile", code="denied", next_step=f"moryflow output show {id_}"
            )
        artifact = await _find(turn.artifacts, id_)
        await turn.artifacts.read(artifact.id, limit=1)
        return artifact

    artifact: Artifact = context.run(work)
    _launch(artifact)
    click.echo(f"opened {artifact.path}", err=True)


def _launch(artifact: Artifact) -> None:
    """Open the file with the system's opener, as one argument and never through a shell."""
    opener = shutil.which("open" if sys.platform == "darwin" else "xdg-open")
    if opener is None:
        text = "this system has no program that opens files"
        raise ToolError(text, code="missing", where=artifact.path, next_step=f"moryflow output show {artifact.id}")
    done = subprocess.run([opener, artifact.path], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip()[:200] or f"exit code {done.returncode}"
        raise ToolError(f"{opener}: {said}", where=artifact.path, next_step=f"moryflow output show {artifact.id}")


async def _find(artifacts: Artifacts, wanted: str) -> Artifact:
    exact = await artifacts.get(wanted)
    if exact is not None:
        return exact
    alike = [artifact for artifact in await artifacts.list(limit=100_000) if artifact.id.startswith(wanted)]
    if len(alike) == 1:
        return alike[0]
    text = f"several outputs begin with {wanted!r}" if alike else f"no output has the id {wanted!r}"
    raise ToolError(text, code="not_found", next_step="moryflow output list")


async def _copy(
    artifacts: Artifacts, artifact: Artifact, offset: int, limit: int | None, write: Callable[[bytes], object]
) -> None:
    left = artifact.size if limit is None else limit
    while left > 0:
        piece = await artifacts.read(artifact.id, offset=offset, limit=min(left, PAGE))
        if not piece:
            return
        write(piece)
        offset, left = offset + len(piece), left - len(piece)


def _printer() -> Callable[[bytes], object]:
    """Return a function that prints bytes: unchanged into a pipe, without control sequences on a terminal."""
    if not sys.stdout.isatty():
        return sys.stdout.buffer.write
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    return lambda data: click.echo(visible(decoder.decode(data), keep="\n\t"), nl=False)


def _line(artifact: Artifact) -> str:
    state = "expired" if artifact.state == "expired" else f"until {artifact.expires[:10]}" if artifact.expires else "kept"
    when = artifact.created[:19].replace("T", " ")
    return f"{artifact.id}  {when}  {human(artifact.size):>10}  {visible(artifact.tool)[:20]:<20}  {state:<16}  {artifact.path}"
