"""What a person is shown of a server before they accept it, and what is then pinned."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from moryflow_sdk.support.settings import ServerSettings
from moryflow_sdk.support.texts import visible

from .catalog import pinned_tool
from .definitions import AT_THE_TOP, FIELDS, differences, hides, problem_of
from .lock import Pin, configured_as
from .prompts import prompt_lines

MOST_LINES = 200
"""Of a difference that is shown."""


class Listing:
    """What a server says of itself now."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.identity: Mapping[str, Any] = answer["identity"]
        self.server: Mapping[str, Any] = answer["server"]
        self.tools: Sequence[Mapping[str, Any]] = answer["tools"]
        self.prompts: Sequence[Mapping[str, Any]] = answer["prompts"]
        self.beyond: int = answer["beyond"]

    def changes(self, pin: Pin) -> dict[str, str]:
        """Return what is not as it was accepted: tool, or ``/prompt`` → why."""
        tools = differences(pin.by_name, self.tools, [each["hash"] for each in self.tools])
        was, now = ({f"/{each.get('name')}": each for each in prompts} for prompts in (pin.prompts, self.prompts))
        fresh = {name: "new" if name not in was else "changed" for name in now if was.get(name) != now[name]}
        return {**tools, **fresh, **{name: "the server has it no longer" for name in was if name not in now}}


def server_text(name: str, server: ServerSettings) -> str:
    """Say what a server is, as a person is shown it: what runs or where it is, and what it is given."""
    if server.url is not None:
        sent = f"; sent along: {', '.join(sorted(server.headers))}" if server.headers else ""
        return visible(f"{name} is at {server.url}{sent}")
    runs = visible(shlex.join([server.command or "", *server.args]))
    given = [key if value == f"${{{key}}}" else f"{key}, as configured" for key, value in sorted(server.env.items())]
    variables = f"\n  variables: {visible(', '.join(given))}" if given else ""
    where = f"\n  folder: {visible(server.cwd)} of the vault" if server.cwd else ""
    return f"{name} runs: {runs}{variables}{where}\n  It runs as you, outside of the sandbox."


def accepted(name: str, server: ServerSettings, listing: Listing) -> Pin:
    """Return the pin that a person agrees to by a yes."""
    return Pin(
        configured=configured_as(name, server),
        shown="",
        identity=listing.identity,
        server=listing.server,
        tools=tuple(pinned_tool(each, problem_of(each)) for each in listing.tools),
        prompts=tuple(listing.prompts),
        beyond=listing.beyond,
    )


def listing_text(listing: Listing) -> str:
    """Return the tools of a server for people: every word that a model will read."""
    said = listing.server
    lines = [f"It says that it is {said.get('name')} {said.get('version')} (protocol {said.get('protocol')}), and has:"]
    for each in listing.tools:
        problem = problem_of(each)
        unseen = " [invisible characters, which are left out]" if hides(each) else ""
        about = f"withheld: {problem}" if problem else str(each.get("description") or each.get("title") or "").strip()
        said = "\n".join([about, *([] if problem else _arguments(each))]).replace("\n", "\n    ")
        lines.append(f"  {visible(str(each.get('name'))[:200])}{unseen}\n    {said}")
    if not listing.tools:
        lines = [f"{lines[0]} no tools"]
    if listing.beyond:
        lines.append(f"  and {listing.beyond} more tools, which are not offered: there are too many")
    if listing.prompts:
        lines += ["prompts, which you run as slash commands:", *prompt_lines(listing.prompts)]
    return "\n".join(lines)


def _arguments(definition: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each argument, with all that the model reads of it, and what else it reads of all of them."""
    schema: Mapping[str, Any] = definition["inputSchema"]
    properties = schema.get("properties")
    described: Mapping[str, Any] = properties if isinstance(properties, Mapping) else {}
    for name, each in described.items():
        yield f"- {visible(name)}: {each if isinstance(each, bool) else json.dumps(each, ensure_ascii=False)}"
    for key in AT_THE_TOP:
        value = schema.get(key)
        plain = key in ("type", "properties") or value is None or isinstance(value, bool)
        if not (plain or (key == "required" and isinstance(value, list) and all(name in described for name in value))):
            yield f"- of all arguments, {key}: {json.dumps(value, ensure_ascii=False)}"


def difference_text(pin: Pin | None, listing: Listing) -> str:
    """Return what differs from what was accepted, line by line."""
    if pin is None:
        return ""
    lines = list(_difference(pin, listing))
    if not lines:
        return ""
    cut = [f"  … {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join(["What is different:", *lines[:MOST_LINES], *cut])


def _difference(pin: Pin, listing: Listing) -> Iterator[str]:
    for key in sorted({*pin.identity, *listing.identity}):
        if pin.identity.get(key) != listing.identity.get(key):
            yield f"  the server's {key}: {pin.identity.get(key)!r} is now {listing.identity.get(key)!r}"
    now = {str(each.get("name")): each for each in listing.tools} | {f"/{each['name']}": each for each in listing.prompts}
    old = pin.by_name | {f"/{each['name']}": each for each in pin.prompts}
    for name, why in sorted(listing.changes(pin).items()):
        yield f"  {visible(name)}: {visible(why)}"
        was, new = _written(old.get(name)), _written(now.get(name))
        if was and new:
            changed = difflib.unified_diff(was, new, lineterm="", n=0)
            yield from (f"    {line[:300]}" for line in changed if not line.startswith(("---", "+++", "@@")))


def _written(definition: Mapping[str, Any] | None) -> list[str]:
    if definition is None:
        return []
    kept = {name: definition[name] for name in (*FIELDS, "arguments") if name in definition}
    return json.dumps(kept, indent=1, ensure_ascii=False, sort_keys=True).splitlines()
