"""A command for the user: ``moryflow vault-size``, and ``/vault-size`` in ``chat``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Command, PluginContext, SlashResult, Turn, hookimpl

if TYPE_CHECKING:
    import click


def measured(vault: Path) -> dict[str, int]:
    """Return how many Markdown files there are, and their bytes."""
    sizes = [path.stat().st_size for path in vault.rglob("*.md")]
    return {"files": len(sizes), "bytes": sum(sizes)}


def at_a_shell() -> click.Command:
    """Make the click command; called when it is used, so that click is imported by nobody else."""
    import click

    @click.command()
    @click.pass_obj
    def vault_size(obj: Any) -> None:
        """Say how many notes there are."""
        found = measured(obj.vault)
        obj.print(found, text=f"{found['files']} notes, {found['bytes']} bytes")

    return vault_size


async def in_chat(text: str, turn: Turn) -> SlashResult:
    """In a conversation: shown to the user; with ``prompt=`` it would be sent to the agent."""
    found = measured(turn.vault)
    return SlashResult(text=f"{found['files']} notes, {found['bytes']} bytes")


@hookimpl
def commands(ctx: PluginContext) -> list[Command]:
    """A name of the host's own would be refused."""
    return [Command(name="vault-size", help="Say how many notes there are.", cli=at_a_shell, slash=in_chat)]
