"""Patterns that compile but match nothing, because targets are never written like that."""

from __future__ import annotations

import re

from moryflow_sdk import Rule
from moryflow_sdk.patterns import Pattern, address_pattern
from moryflow_sdk.urls import RefusedUrl, parse_url

_JOINED = re.compile(r"(?:^|\s)(?:&&|\|\||\||&)(?:\s|$)|;(?:\s|$)")
_REDIRECTED = re.compile(r"(?:^|\s)\d?(?:>>?|<)\s*\S")
_QUOTES = re.compile(r"['\"\\]")


def mistake(rule: Rule, pattern: Pattern) -> str:
    """Return why `rule` can never match; empty when it can, or when that cannot be told."""
    text = rule.pattern
    if text in ("*", "**") or text.startswith(("regex:", "tool:")):
        return ""
    match rule.domain:
        case "read" | "edit":
            return _path(text.partition(":")[2] if text.startswith(("vault:", "fs:")) else text)
        case "bash":
            return _command(text.removeprefix("shell:"), allows=rule.decision == "allow")
        case "web_fetch":
            full = address_pattern(text.removeprefix("url:"), allows=rule.decision == "allow")
            return _url(full, exact=pattern.exact)
        case "mcp":
            body = text.removeprefix("mcp:")
            return "" if "/" in body or "*" in body else "tools of a server are written SERVER/TOOL; a star stands for all"
        case _:
            return ""


def _path(body: str) -> str:
    if re.search(r"(?:^|/)\.{1,2}(?:/|$)", body):
        return "targets are resolved, so none has . or .. in it"
    if "//" in body:
        return "targets are resolved, so none has // in it"
    if body.endswith("/") and body != "/":
        return f"targets do not end with a slash; write {body}** for what is in the folder"
    return ""


def _command(body: str, *, allows: bool) -> str:
    if body != body.strip(" "):
        return "commands are matched without blanks around them"
    if _QUOTES.search(body):
        return ""
    if _JOINED.search(body):
        return "every command of a line is judged alone; write a rule for each"
    if "  " in body:
        return "words are matched with one blank between them"
    if allows and _REDIRECTED.search(body):
        return "redirections are judged as reading and editing, not as part of the command"
    if allows and ("$(" in body or "`" in body):
        return "an allow never covers what is known only when it runs"
    return ""


def _url(body: str, *, exact: bool) -> str:
    if exact:
        return _exact_url(body)
    if re.search(r"[\[{]", body):
        return ""
    literal = body[: body.index("*")] if "*" in body else body
    if not any(literal.startswith(start) or start.startswith(literal) for start in ("http://", "https://")):
        return "addresses begin with http:// or https://; write docs.python.org or https://docs.python.org/** for a whole site"
    if "://" in literal and "**" not in body and "/" not in body.partition("://")[2]:
        return f"an address has a path after its host, and * stops at a slash; write {body.rstrip('*')}/**"
    return ""


def stops_at_slash(rule: Rule) -> str:
    """Return the pattern that was probably meant where the last star of one for addresses stops at a slash; else nothing."""
    pattern = rule.pattern
    if rule.domain != "web_fetch" or pattern == "*" or pattern.startswith(("regex:", "tool:")):
        return ""
    full = address_pattern(pattern, allows=rule.decision == "allow")
    return f"{pattern}*" if full.endswith("*") and not full.endswith(("**", "\\*")) else ""


def _exact_url(body: str) -> str:
    try:
        canonical = str(parse_url(body))
    except RefusedUrl as error:
        if error.service is None:
            return f"no such address is fetched: {error}"
        canonical = str(error.service)
    return "" if canonical == body else f"addresses are matched in one form; this one is {canonical}"
