"""A tool that calls a web service with a secret key.

The key is a setting of the plugin, so no prompt, no log and no trace contains it. The address is a setting too, and rules
for ``web_fetch`` are compared with it.

Try it: ``moryflow plugin key set create_ticket api_key``, then ``moryflow tool run create_ticket --title "It rains in"``.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Annotated, Any

from moryflow_sdk import TargetRequest, Tool, ToolContext, ToolError, hookimpl, tool, url_target
from pydantic import BaseModel, SecretStr


class Settings(BaseModel, frozen=True):
    """What ``plugins.create_ticket`` may say."""

    api_key: SecretStr
    url: str = "https://tickets.example.org/api/tickets"


config_model = Settings


def service(args: Mapping[str, Any], settings: Settings) -> TargetRequest:
    """What a call touches, told by its arguments and the settings."""
    return url_target(settings.url)


@tool(domain="web_fetch", targets=service, timeout=20)
def create_ticket(title: Annotated[str, "One line"], context: ToolContext) -> str:
    """File a ticket and return its number."""
    settings: Settings = context.config
    headers = {"authorization": f"Bearer {settings.api_key.get_secret_value()}", "content-type": "application/json"}
    request = urllib.request.Request(settings.url, json.dumps({"title": title}).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return f"ticket {json.load(answer)['id']}"
    except urllib.error.URLError as error:
        raise ToolError(f"the ticket was not filed: {error}", next_step="try again later") from error


@hookimpl
def tools() -> list[Tool]:
    """Offer the tool."""
    return [create_ticket]
