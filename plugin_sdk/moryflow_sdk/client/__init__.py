"""A client of ``moryflow serve``: sessions, turns and events of a running server, from another program.

It speaks HTTP/1.1 by itself, over TCP or a Unix socket, and imports nothing but asyncio: a program that uses it starts at once.
"""

from .client import Client, ClientError, ClientSession, SyncClient, connect, connect_sync

__all__ = ["Client", "ClientError", "ClientSession", "SyncClient", "connect", "connect_sync"]
