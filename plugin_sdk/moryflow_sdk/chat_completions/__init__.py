"""A client for the chat-completions protocol, for providers of services that use it.

It does what every such provider needs: it reads JSON values from whatever a server sends, assembles tool calls from pieces,
returns an error for every way to fail, and follows no redirects with credentials. h11 is not imported before the first
call is prepared.
"""

from __future__ import annotations

from .answer import Answer
from .client import ChatClient
from .endpoint import Endpoint
from .failures import from_object, from_status, retry_after

__all__ = ["Answer", "ChatClient", "Endpoint", "from_object", "from_status", "retry_after"]
