"""Prompts of MCP servers as slash commands: ``/server:prompt words``. As for tools, only pinned prompts are offered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Command, ConfigError, PluginContext, SlashResult, ToolError, Turn
from moryflow_sdk.support.texts import visible

from .definitions import cleaned
from .lock import CALL_SECONDS, Server, note_withheld

if TYPE_CHECKING:
    from .helper import Helper

# The longest text of a server for a prompt.
MAX_CHARACTERS = 200_000
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


def commands_of(servers: Sequence[Server], ctx: PluginContext, helper: Callable[[], Helper]) -> Iterator[Command]:
    """Yield a command for each prompt that was reviewed."""
    yield from (_command(server, prompt, ctx, helper) for server in servers for prompt in offered_prompts(server))


def offered_prompts(server: Server) -> Sequence[Mapping[str, Any]]:
    if server.pin is None or not server.pin.prompts or server.state != "reviewed":
        return []
    return [each for each in server.pin.prompts if not (_problem(each) or server.pin.withheld.get(f"/{each['name']}"))]


def _problem(prompt: Mapping[str, Any]) -> str:
    if "problem" in prompt:
        return str(prompt["problem"])
    if not _NAME.fullmatch(str(prompt.get("name"))):
        return "its name is invalid: up to 64 letters, digits, _ . and -"
    names = [argument.get("name") for argument in prompt.get("arguments") or ()]
    return "" if all(isinstance(name, str) and _NAME.fullmatch(name) for name in names) else "an argument has no name"


def prompt_lines(prompts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a description of each prompt for people, in the form in which it is typed."""
    for each in prompts:
        problem = _problem(each)
        about = f"withheld: {problem}" if problem else " ".join(str(cleaned(each.get("description") or "")).split())
        yield f"  /{visible(str(each.get('name'))[:64])} {'' if problem else usage_of(each)}\n    {about[:1000]}".rstrip()


def usage_of(prompt: Mapping[str, Any]) -> str:
    """Return the arguments of a prompt for its usage line: ``NAME [OPTIONAL]``."""
    arguments = prompt.get("arguments") or ()
    return " ".join(each["name"].upper() if each.get("required") else f"[{each['name'].upper()}]" for each in arguments)


def _command(server: Server, prompt: Mapping[str, Any], ctx: PluginContext, helper: Callable[[], Helper]) -> Command:
    folder, environ, home = ctx.data_dir, ctx.environ, ctx.home
    own: str = prompt["name"]

    async def slash(rest: str, turn: Turn) -> SlashResult:
        from asyncio import timeout

        from .helper import spec_of

        args = arguments_in(rest, server.name, prompt)
        spec = spec_of(server.name, server.settings, environ, turn.vault, folder)
        assert server.pin is not None
        message = {"do": "prompt", "server": spec, "name": own, "args": args, "pinned": prompt}
        seconds = server.settings.timeout or CALL_SECONDS
        try:
            async with timeout(seconds):
                answer = await helper().request({**message, "identity": server.pin.identity})
        except TimeoutError:
            raise ToolError(f"{server.name} did not write the prompt within {seconds:g} s", code="timeout") from None
        if answer.get("refused"):
            with suppress(ConfigError):  # the next run finds it again
                note_withheld(home, server.name, {f"/{own}": "changed"})
            text = f"/{server.name}:{own} is not what you have reviewed; it was not run"
            raise ToolError(text, code="mcp_drift", next_step=f"moryflow mcp review {server.name}")
        return _slash_result(server.name, own, answer)

    shown = " ".join(str(cleaned(prompt.get("description") or prompt.get("title") or "")).split())[:200]
    usage = usage_of(prompt)
    help_text = f"{shown or 'a prompt'} (MCP server {server.name}{f'; {usage}' if usage else ''})"
    return Command(name=f"{server.name}:{own}", help=visible(help_text), slash=slash)


def _slash_result(server: str, name: str, answer: Mapping[str, Any]) -> SlashResult:
    """Return the text of a server as a prompt that counts as foreign, not as typed by the user."""
    from .calls import marked

    text = "\n\n".join(f"[{each.get('role', 'user')}]\n{_text(each['content'])}" for each in answer["messages"])
    if not text:
        raise ToolError(f"/{server}:{name} came back empty", code="mcp_error")
    if len(text) > MAX_CHARACTERS:
        raise ToolError(f"/{server}:{name} came back with more than {MAX_CHARACTERS:,} characters", code="mcp_error")
    head = f"The user runs the prompt {name!r} of the MCP server {server!r}. The server has written it; do what it asks for:"
    whole = marked("mcp_prompt", {"server": server, "name": name}, text, head)
    return SlashResult(text=f"{server} wrote {len(text):,} characters, which are sent", prompt=whole, foreign=True)


def _text(content: Mapping[str, Any]) -> str:
    if content["type"] == "text":
        return content["text"]
    resource = content.get("resource") or {}
    return f"{resource['uri']}\n{resource['text']}" if "text" in resource else f"[{content['type']}]"


def arguments_in(rest: str, server: str, prompt: Mapping[str, Any]) -> dict[str, str]:
    """Return the arguments in a typed text: a word for each, in their order; the last argument takes the rest.

    :raises ConfigError: an argument is missing, or there are too many.
    """
    arguments: Sequence[Mapping[str, Any]] = prompt.get("arguments") or ()
    words = rest.split(None, max(0, len(arguments) - 1))
    given = {each["name"]: word.strip() for each, word in zip(arguments, words, strict=False)}
    missing = [each["name"] for each in arguments if each.get("required") and each["name"] not in given]
    if missing or len(words) > len(arguments):
        usage = usage_of(prompt)
        text = f"needs {', '.join(missing)}" if missing else "takes no arguments"
        raise ConfigError(f"/{server}:{prompt['name']} {text}", next_step=f"/{server}:{prompt['name']} {usage}".strip())
    return given
