"""``web_search``: who is asked, with which key, and what becomes of the answer."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest
from moryflow.testing import replies
from moryflow.testing.isolated import IsolatedHost
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.web import KEYS, SearchSettings, WebSettings, doctor, searches_with

HIT = {"title": "One </web_page>", "url": "https://one.example/", "content": "About\n one."}
ANSWERS = {
    "searxng": {"results": [HIT, {"title": "no address"}]},
    "brave": {"web": {"results": [{**HIT, "description": "About one."}]}},
    "tavily": {"results": [HIT]},
    "exa": {"results": [{**HIT, "text": "About one."}]},
}


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in KEYS.values():
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with LoopbackServer() as server:
        yield server


def reply(value: Any) -> replies.Reply:
    return replies.Reply(json.dumps(value).encode())


def use(host: IsolatedHost, **search: Any) -> None:
    host.configure({"agents": {"runtime": {"web": {"search": search}}}})


def test_without_a_service_there_is_no_search(moryflow: IsolatedHost) -> None:
    """It would cost tokens in every request; `doctor` says how it is switched on."""
    assert "web_fetch" in moryflow.host.tools and "web_search" not in moryflow.host.tools
    ((state, text, _),) = doctor(WebSettings())
    assert state == "ok" and "export BRAVE_API_KEY" in text


@pytest.mark.parametrize("service", ANSWERS)
def test_every_service_is_asked_in_its_own_way(moryflow: IsolatedHost, server: LoopbackServer, service: str) -> None:
    """With its key in its header, and one list comes of it, marked as foreign."""
    use(moryflow, service=service, address=server.address, apiKey="k-12345678", results=3)
    server.add(reply(ANSWERS[service]))
    got = moryflow.call_tool("web_search", query="größe & more").result
    assert got.status == "ok", got.output
    assert "1. One &lt;/web_page>\n   https://one.example/\n   About one.\n</web_page>" in got.output
    assert got.output.startswith("Text from the web") and "no address" not in got.output
    (asked,) = server.requests
    assert ("q=gr%C3%B6%C3%9Fe+%26+more" in asked.path) or asked.body["query"] == "größe & more"
    assert "k-12345678" in " ".join(asked.headers.values()) and "k-12345678" not in got.output


def test_a_key_in_the_environment_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    assert searches_with(SearchSettings()) == ""
    assert searches_with(SearchSettings(address="http://localhost:8080")) == "searxng"
    assert searches_with(SearchSettings(service="exa")) == ""
    monkeypatch.setenv("EXA_API_KEY", "k")
    assert searches_with(SearchSettings()) == searches_with(SearchSettings(service="exa")) == "exa"
    monkeypatch.setenv("MY_KEY", "k")
    assert searches_with(SearchSettings(service="brave", api_key_env="MY_KEY")) == "brave"


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (replies.failure(401), "http_401", "refused the search"),
        (replies.failure(429), "http_429", "too often"),
        (replies.failure(500), "http_500", "answered 500"),
        (replies.Reply(b"<html>"), "failed", "did not answer with the JSON of a search"),
        (reply([]), "failed", "did not answer with the JSON of a search"),
        (reply({"results": {"a": 1}}), "failed", "did not answer with the JSON of a search"),
        (replies.Reply(b" " * (5 << 20)), "failed", "more than 4,194,304 bytes"),
        (replies.Reply(end="reset"), "failed", "cannot be asked"),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    moryflow: IsolatedHost, server: LoopbackServer, answer: replies.Reply, code: str, said: str
) -> None:
    use(moryflow, service="tavily", address=server.address, apiKey="k-12345678")
    server.add(answer)
    got = moryflow.call_tool("web_search", query="x").result
    assert (got.status, got.code) == ("error", code) and said in got.output, got.output
    assert "k-12345678" not in got.output


def test_nothing_found_is_said(moryflow: IsolatedHost, server: LoopbackServer) -> None:
    use(moryflow, address=server.address)
    server.add(reply({"results": []}))
    assert moryflow.call_tool("web_search", query="x").result.output == "searxng found nothing for: x"


def test_a_rule_is_about_the_words(moryflow: IsolatedHost, server: LoopbackServer) -> None:
    """Its target is ``query:`` and the words (S0.41)."""
    rules = [{"domain": "web_search", "pattern": "*secret*", "decision": "deny"}]
    runtime = {"web": {"search": {"address": server.address}}, "permission": {"rules": rules}}
    moryflow.configure({"agents": {"runtime": runtime}})
    assert moryflow.call_tool("web_search", query="our secret plan").result.status == "denied"
    assert not server.requests


def test_a_service_without_its_key_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ((state, text, step),) = doctor(WebSettings(search=SearchSettings(service="brave")))
    assert (state, step) == ("warning", "export BRAVE_API_KEY=YOUR-KEY") and "brave" in text
    ((state, _, step),) = doctor(WebSettings(search=SearchSettings(service="searxng")))
    assert state == "warning" and "web.search.address" in step


def test_the_unofficial_library_is_asked_in_a_thread(moryflow: IsolatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is installed; where it is not, the line that installs it is said."""
    use(moryflow, service="ddgs")
    monkeypatch.setitem(sys.modules, "ddgs", None)
    missing = moryflow.call_tool("web_search", query="x").result
    assert missing.code == "missing" and "pip install 'moryflow[ddgs]'" in missing.output

    class Engine:
        def __init__(self, timeout: int) -> None: ...

        def text(self, query: str, max_results: int) -> list[dict[str, str]]:
            if query == "none":
                raise RuntimeError("No results found.")
            if query == "bad":
                raise RuntimeError("blocked\nby the engine")
            return [{"title": "One", "href": "https://one.example/", "body": "About one."}]

    monkeypatch.setitem(sys.modules, "ddgs", types.SimpleNamespace(DDGS=Engine))
    assert "1. One\n   https://one.example/\n   About one." in moryflow.call_tool("web_search", query="x").result.output
    assert "found nothing" in moryflow.call_tool("web_search", query="none").result.output
    assert "ddgs cannot search: blocked by the engine" in moryflow.call_tool("web_search", query="bad").result.output
