"""Template loaders of packages as commands: ``/llm:prefix NAME words``. A template counts as written by somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from moryflow_sdk import Command, ConfigError, SlashResult, ToolError, Turn
from moryflow_sdk.support.threads import on_daemon_thread

# Seconds that a loader may take.
TIMEOUT = 60.0
# What a template may ask for besides its text. A command only writes a prompt: model and tools stay those of the session.
_NOT_USED = ("attachments", "fragments", "functions", "model", "options", "schema_object", "system_fragments", "tools")


def template_command(prefix: str, loader: Callable[[str], Any]) -> Command:
    """Return the command for the templates behind `prefix`."""
    usage = f"/llm:{prefix} NAME [WORDS]"

    async def slash(rest: str, _turn: Turn) -> SlashResult:
        name, _, words = rest.strip().partition(" ")
        if not name:
            raise ConfigError(f"/llm:{prefix} needs the name of a template", next_step=usage)
        try:
            async with asyncio.timeout(TIMEOUT):
                template = await asyncio.wrap_future(on_daemon_thread(lambda: loader(name), f"moryflow-template-{prefix}"))
            prompt, system = template.evaluate(words.strip())
        except TimeoutError as error:
            raise ToolError(f"{prefix}:{name} was not loaded within {TIMEOUT:g} s", code="timeout") from error
        except Exception as error:  # the boundary around the package's code
            raise ToolError(f"{prefix}:{name} cannot be used: {error}", code="llm_template", next_step=usage) from error
        whole = "\n\n".join(part for part in (system, prompt) if part)
        if not whole:
            raise ToolError(f"{prefix}:{name} has no text", code="llm_template", next_step=usage)
        left = [field.removesuffix("_object") for field in _NOT_USED if getattr(template, field, None)]
        more = f"; its {', '.join(left)} are not used" if left else ""
        return SlashResult(
            text=f"{prefix}:{name} wrote {len(whole):,} characters, which are sent{more}", prompt=whole, foreign=True
        )

    return Command(name=f"llm:{prefix}", help=f"Use a template that {prefix} loads: {usage}", slash=slash)
