"""Call a server's tool, and turn its answer into a result with text, images and stored files.

At the end is the search for ``tool_search``.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from moryflow_sdk import ConfigError, Image, PluginContext, Tool, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.texts import best_matches, visible

from .definitions import differences
from .helper import Helper, spec_of
from .lock import CONTEXT, Server, note_withheld

MAX_IMAGE = 5 * 1024 * 1024
# How many images of one result the model sees; the others are stored.
MAX_IMAGES = 20
# How many parts of one result are kept.
MAX_PARTS = 200
_QUOTED = str.maketrans({'"': "&quot;", "<": "&lt;", ">": "&gt;"})
_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


async def result_of(answer: Mapping[str, Any], title: str, ctx: ToolContext) -> ToolResult:
    """Return the result of a call.

    :param answer: the ``CallToolResult`` as JSON.
    """
    texts, images = await _parts(answer.get("content") or (), ctx)
    structured = answer.get("structuredContent")
    if structured is not None and not any(texts):
        texts = [json.dumps(structured, ensure_ascii=False)]
    if images and not texts:
        texts = [f"{len(images)} images" if len(images) > 1 else "an image"]
    failed = bool(answer.get("isError"))
    return ToolResult(
        status="error" if failed else "ok",
        code="mcp_error" if failed else None,
        output="\n".join(texts) or "done",
        title=title,
        images=tuple(images),
    )


async def _parts(content: Sequence[Mapping[str, Any]], ctx: ToolContext) -> tuple[list[str], list[Image]]:
    """Return the parts of a result as texts and as images that the model sees; other data is stored, and a text says where."""
    texts, images = list[str](), list[Image]()
    sees_images = ctx.model is None or ctx.model.images
    for item in content[:MAX_PARTS]:
        image = _image(item) if sees_images and len(images) < MAX_IMAGES else None
        if image is not None:
            images.append(image)
        else:
            texts.append(await _text_of(item, ctx))
    if len(content) > MAX_PARTS:
        texts.append(f"[{len(content) - MAX_PARTS:,} more parts are left out]")
    return texts, images


def marked(tag: str, about: Mapping[str, str], text: str, head: str) -> str:
    """Return foreign text between tags that it cannot close itself, below the line `head`."""
    inside = re.sub(rf"<(?=/?{tag}\b)", "&lt;", text, flags=re.IGNORECASE)
    attributes = " ".join(f'{name}="{visible(value).translate(_QUOTED)}"' for name, value in about.items())
    return f"{head}\n<{tag} {attributes}>\n{inside}\n</{tag}>"


async def _text_of(item: Mapping[str, Any], ctx: ToolContext) -> str:
    match item.get("type"):
        case "text":
            return str(item.get("text", ""))
        case "image" | "audio":
            return await _stored(item, item.get("data", ""), str(item["type"]), ctx)
        case "resource":
            resource: Mapping[str, Any] = item.get("resource") or {}
            if "blob" in resource:
                return await _stored(resource, resource["blob"], f"resource {resource.get('uri')}", ctx)
            return f"{resource.get('uri', '')}\n{resource.get('text', '')}"
        case "resource_link":
            details = ", ".join(str(item[name]) for name in ("name", "description", "mimeType") if item.get(name))
            return f"[resource {item.get('uri')}: {details}]"
        case kind:
            return f"[a part of the unknown kind {kind!r}]"


def _image(item: Mapping[str, Any]) -> Image | None:
    """Return an image that the model can see, or ``None`` if its type, size or encoding does not allow that."""
    item = item.get("resource") or {} if item.get("type") == "resource" else item
    data, media_type = item.get("data") or item.get("blob") or "", str(item.get("mimeType", "")).lower()
    if media_type not in _IMAGES or len(data) > MAX_IMAGE * 4 / 3 or not _decoded(data):
        return None
    return Image(media_type=media_type, data=data)


def _decoded(data: Any) -> bytes | None:
    try:
        return base64.b64decode(data, validate=True)
    except (ValueError, TypeError):
        return None


async def _stored(item: Mapping[str, Any], data: Any, what: str, ctx: ToolContext) -> str:
    content, what = _decoded(data), f"{what} {item.get('mimeType', '')}"
    if content is None:
        return f"[{what}: it is not valid base64]"
    artifact = await ctx.artifacts.store(content, call_id=ctx.call.id, tool=ctx.call.tool)
    return f"[{what}, {len(content)} bytes, stored as {artifact.path} (output {artifact.id})]"


# ---------------------------------------------------------------- calls


async def call(helper: Helper, server: Server, name: str, arguments: dict[str, Any], plugin: PluginContext) -> ToolResult:
    """Call a tool of a server, if the tool is unchanged since the review.

    :raises ToolError: the tool has changed, and was not called; or the call failed.
    """
    ctx: ToolContext = arguments.pop(CONTEXT)
    spec = spec_of(server.name, server.settings, plugin.environ, ctx.vault, plugin.data_dir)
    assert server.pin is not None
    pinned = {each["name"]: each["hash"] for each in server.pin.tools}
    message = {"do": "call", "server": spec, "tool": name, "args": arguments, "pinned": pinned}
    answer = await helper.request(message, progress=ctx.progress)
    if "drift" in answer:
        changes = differences(server.pin.by_name, answer["drift"]["tools"])
        with suppress(ConfigError):  # the next call will notice it again; this result must not be lost
            note_withheld(plugin.home, server.name, changes)
        if answer.get("refused"):
            why = changes.get(name, "changed")
            text = f"{server.name}/{name} is not what the user has reviewed: {visible(why)}; it was not called"
            raise ToolError(text, code="mcp_drift", next_step=f"the user runs: moryflow mcp review {server.name}")
    return await result_of(answer, f"{server.name}: {name}", ctx)


# ---------------------------------------------------------------- finding


BEST = 5


def found(query: str, tools: Sequence[Tool]) -> list[Tool]:
    """Return the tool with the name `query`, else the few tools that share the most words with it."""
    wanted = query.strip().casefold()
    exact = [each for each in tools if wanted in (each.name.casefold(), each.name.rpartition("__")[2].casefold())]
    if exact:
        return exact[:BEST]
    named = {each.name: each for each in tools}
    fields = {
        name: ((4, name), (2, each.description), (1, " ".join((each.schema or {}).get("properties", {}))))
        for name, each in named.items()
    }
    return [named[name] for name in best_matches(query, fields)[:BEST]]
