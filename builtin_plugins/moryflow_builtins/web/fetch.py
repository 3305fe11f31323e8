"""``web_fetch``: what the rules say of each hop, and the result."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from moryflow_sdk import Rule, ToolContext, ToolError, ToolResult, config_of
from moryflow_sdk.support.fetcher import Fetcher
from moryflow_sdk.support.patterns import compile_rule
from moryflow_sdk.support.processes import marked_environment
from moryflow_sdk.support.urls import Url

from . import WebSettings
from .page import marked, pdf_text, result_of


def fetcher_of(ctx: ToolContext) -> Fetcher:
    """Return what fetches under the settings and the rules of a turn."""
    settings = config_of(ctx, WebSettings)
    return Fetcher(
        seconds=settings.seconds,
        most=settings.max_bytes,
        permitted=lambda url: _is_named(ctx, url),
        wanted=lambda url: _is_free(ctx, url),
        behind_fake_ip=settings.behind_fake_ip,
    )


async def fetch_page(ctx: ToolContext, address: str) -> ToolResult:
    """Fetch a page, and return it as the model reads it.

    :raises ToolError: it may not be fetched, did not come, or cannot be read.
    """
    got = await fetcher_of(ctx).fetch(address)
    if got.leads_to is not None:
        text = f"{got.url} redirects to {got.leads_to}, about which there is a rule. To go there fetch that address."
        return ToolResult(output=text, title=f"{got.url} redirects")
    if got.status >= 400:
        raise ToolError(f"{got.url} answered {got.status}", code=f"http_{got.status}")
    if got.body.startswith(b"%PDF-"):
        text = await pdf_text(got, config_of(ctx, WebSettings).seconds, marked_environment(ctx.mark))
        return ToolResult(output=marked(str(got.url), text), title=f"fetched {got.url} (PDF)")
    sees_images = ctx.model is None or ctx.model.images
    fragment = address.partition("#")[2]
    return await asyncio.to_thread(result_of, got, fragment, sees_images=sees_images)


def _is_named(ctx: ToolContext, url: Url) -> bool:
    """Whether a rule of the person opens this service: one that names its scheme, host and port."""
    base = str(replace(url, path="/", query=""))
    named = [rule for rule in ctx.rules.all() if rule.domain == "web_fetch" and _matches(rule, url)]
    last = named[-1] if named else None
    return last is not None and last.decision != "deny" and _plain(last.pattern).startswith(base)


def _plain(pattern: str) -> str:
    return pattern.removeprefix("url:").replace("\\", "")


def _matches(rule: Rule, url: Url) -> bool:
    return compile_rule(rule).matches(f"url:{url}")


def _is_free(ctx: ToolContext, url: Url) -> bool:
    """Whether a redirect may be followed without the gates: no rule denies it, and none that counts asks.

    Where one does, the model is told and may call again, so that the gates judge that call like any other.
    """
    if ctx.rules.problems():
        return False
    own = [rule for rule in ctx.agent.rules if rule.domain == "web_fetch" and rule.decision != "allow"]
    found = [rule for rule in ctx.rules.all() if rule.domain == "web_fetch" and _matches(rule, url)]
    if any(_matches(rule, url) for rule in own) or any(rule.decision == "deny" for rule in found):
        return False
    return not found or found[-1].decision == "allow"
