"""A server made with the SDK, which speaks every protocol version that the SDK knows: on standard streams, or ``http``."""

import asyncio
import socket
import sys

from mcp.server import MCPServer

server = MCPServer("sdk", version="1", log_level="ERROR")


@server.tool()
def echo(text: str) -> str:
    """Say it."""
    return text


@server.prompt()
def greet(who: str) -> str:
    """Greet somebody."""
    return f"Say hello to {who}."


async def listen() -> None:
    """Serve on a free port of loopback, and print which."""
    import uvicorn

    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        place.listen()
        print(place.getsockname()[1], flush=True)
        config = uvicorn.Config(server.streamable_http_app(), log_level="error")
        await uvicorn.Server(config).serve(sockets=[place])


if sys.argv[1:] == ["http"]:
    asyncio.run(listen())
else:
    server.run()
