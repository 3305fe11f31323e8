"""``web_search``: ask a search service, and return its answer as a list.

As with a model's service, the user chooses the service: the connection goes to the configured address, through the proxy of
the environment, and nobody else receives the query.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from moryflow_sdk import ModelError, ToolContext, ToolError, ToolResult, config_of

from . import SearchSettings, WebSettings, searches_with
from .page import marked

if TYPE_CHECKING:
    from moryflow_sdk.chat_completions.transport import HttpResponse

MAX_BYTES = 4 * 1024 * 1024
# The longest text about a page, in characters.
SNIPPET = 500


class SearchHit(NamedTuple):
    """A page in the results."""

    title: str
    url: str
    snippet: str


class SearchService(NamedTuple):
    """How to ask a search service.

    :ivar address: its address; empty if the settings must name it.
    :ivar headers: key → the headers that send it.
    :ivar request: query and number of results → the path and the body of the request.
    :ivar found: the path of keys to the list of results in the answer.
    :ivar snippet: the keys of a result that may have a text about the page; the first one with a text is used.
    """

    address: str
    headers: Callable[[str], Mapping[str, str]]
    request: Callable[[str, int], tuple[str, Mapping[str, Any] | None]]
    found: tuple[str, ...]
    snippet: tuple[str, ...]


SERVICES: Mapping[str, SearchService] = {
    "searxng": SearchService(
        "",
        lambda key: {"authorization": f"Bearer {key}"} if key else {},
        lambda query, _: (f"/search?{urlencode({'q': query, 'format': 'json'})}", None),
        ("results",),
        ("content",),
    ),
    "brave": SearchService(
        "https://api.search.brave.com/res/v1",
        lambda key: {"x-subscription-token": key},
        lambda query, count: (f"/web/search?{urlencode({'q': query, 'count': count})}", None),
        ("web", "results"),
        ("description",),
    ),
    "tavily": SearchService(
        "https://api.tavily.com",
        lambda key: {"authorization": f"Bearer {key}"},
        lambda query, count: ("/search", {"query": query, "max_results": count}),
        ("results",),
        ("content",),
    ),
    "exa": SearchService(
        "https://api.exa.ai",
        lambda key: {"x-api-key": key},
        lambda query, count: (
            "/search",
            {"query": query, "numResults": count, "contents": {"text": {"maxCharacters": SNIPPET}}},
        ),
        ("results",),
        ("summary", "text"),
    ),
}


async def search_web(ctx: ToolContext, query: str) -> ToolResult:
    """Ask the configured service, and return the results for the model.

    :raises ToolError: the service cannot be reached, refuses, or does not answer with results.
    """
    settings = config_of(ctx, WebSettings)
    name = searches_with(settings.search)
    try:
        async with asyncio.timeout(settings.seconds):
            if name == "ddgs":
                hits = await asyncio.to_thread(_ask_ddgs, query, settings.search.results, settings.seconds)
            else:
                hits = await _ask(name, settings.search, query, settings.seconds)
    except TimeoutError:
        raise ToolError(f"{name} did not answer within {settings.seconds:g} s", code="timeout") from None
    hits = hits[: settings.search.results]
    rows = [f"{at}. {hit.title}\n   {hit.url}\n   {hit.snippet}".rstrip() for at, hit in enumerate(hits, 1)]
    text = marked(f"{name}: {query}", "\n".join(rows)) if rows else f"{name} found nothing for: {query}"
    return ToolResult(output=text, title=f"{len(hits)} results of {name}", metadata={"urls": [hit.url for hit in hits]})


async def _ask(name: str, settings: SearchSettings, query: str, seconds: float) -> list[SearchHit]:
    from moryflow_sdk.chat_completions.endpoint import Endpoint
    from moryflow_sdk.chat_completions.failures import Broken, ConnectFailed, TimedOut, Undecodable
    from moryflow_sdk.chat_completions.transport import HttpClient, tls_context

    service = SERVICES[name]
    address, headers = settings.address or service.address, service.headers(settings.key(name))
    endpoint = Endpoint(address, name, headers={"accept": "application/json", **headers}, timeout=seconds)
    path, body = service.request(query, settings.results)
    try:
        context = await asyncio.to_thread(tls_context) if endpoint.is_tls else None
        client = HttpClient(endpoint, context)
        try:
            sent = None if body is None else json.dumps(body).encode()
            response = await client.send("GET" if body is None else "POST", path, sent)
            try:
                answer = await _body(response)
            finally:
                await response.aclose()
        finally:
            await client.aclose()
    except (ConnectFailed, TimedOut, Broken, Undecodable, ModelError, ValueError) as error:
        raise ToolError(f"{name} at {endpoint.public_url} cannot be asked: {error}") from None
    if response.status != 200:
        raise _refusal_error(name, settings, response.status)
    return _hits(service, answer, name)


async def _body(response: HttpResponse) -> bytes:
    content = bytearray()
    async for piece in response.pieces():
        content += piece
        if len(content) > MAX_BYTES:
            raise ValueError(f"its answer has more than {MAX_BYTES:,} bytes")
    return bytes(content)


def _refusal_error(name: str, settings: SearchSettings, status: int) -> ToolError:
    if status in (401, 403):
        source = settings.key_source(name)
        step = "allow json in search.formats of its settings.yml" if name == "searxng" else f"set a key in {source}"
        return ToolError(f"{name} refused the search ({status})", code=f"http_{status}", next_step=step)
    said = "is asked too often, or more than the key may" if status == 429 else f"answered {status}"
    return ToolError(f"{name} {said}", code=f"http_{status}")


def _hits(service: SearchService, answer: bytes, name: str) -> list[SearchHit]:
    """Return the results in an answer; entries without an address are left out."""
    try:
        found: Any = json.loads(answer)
        for key in service.found:
            found = found.get(key, [])
        return [hit for item in found if (hit := _hit(item, "url", service.snippet)) is not None]
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise ToolError(f"{name} did not answer with the JSON of a search") from None


def _hit(item: Any, address: str, snippets: Iterable[str]) -> SearchHit | None:
    url = item.get(address)
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        return None
    about = next((text for key in snippets if isinstance(text := item.get(key), str) and text.strip()), "")
    return SearchHit(_line(str(item.get("title") or url), 200), _line(url, 2000), _line(about, SNIPPET))


def _line(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"


def _ask_ddgs(query: str, count: int, seconds: float) -> list[SearchHit]:
    """Search with the unofficial library ddgs, which reads the pages of search engines and makes its own connections."""
    try:
        from ddgs import DDGS  # pyright: ignore[reportMissingImports]
    except ImportError:
        step = "python3 -m pip install 'moryflow[ddgs]'"
        raise ToolError("ddgs is not installed", code="missing", next_step=step) from None
    try:
        found: Any = DDGS(timeout=int(seconds) or 1).text(query, max_results=count)
    except Exception as error:  # unexpected pages of the engines can raise anything
        if "no results" in str(error).lower():
            return []
        raise ToolError(f"ddgs cannot search: {_line(str(error), 200)}") from None
    return [hit for item in found if (hit := _hit(item, "href", ("body",))) is not None]
