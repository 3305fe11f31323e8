"""A client for the chat-completions protocol, for providers whose service speaks it.

It holds the rules that every such provider needs: bytes to JSON values whatever a server sends, tool calls from pieces,
an error for every way to fail, and no redirects with credentials. h11 is imported when the first call is prepared,
not before.
"""

from __future__ import annotations

from .answer import Answer
from .client import ChatClient
from .failures import from_object, from_status, retry_after
from .request import Endpoint

__all__ = ["Answer", "ChatClient", "Endpoint", "from_object", "from_status", "retry_after"]
