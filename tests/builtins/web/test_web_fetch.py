"""``web_fetch`` through the whole chain: rules, redirects, results, a service of the person's own."""

from __future__ import annotations

from typing import Any

import pytest
from moryflow.testing import replies
from moryflow.testing.isolated import IsolatedHost
from moryflow.testing.replies import LoopbackServer
from moryflow_builtins.web import WebSettings


def rules(host: IsolatedHost, *entries: tuple[str, str], **web: Any) -> None:
    written = [{"domain": "web_fetch", "pattern": pattern, "decision": decision} for pattern, decision in entries]
    host.configure({"agents": {"runtime": {"permission": {"rules": written}, "web": web}}})


def test_a_service_of_this_machine_needs_a_rule_that_names_it(moryflow: IsolatedHost) -> None:
    """And is fetched with one, as Markdown, marked."""
    with LoopbackServer(otherwise=replies.Reply(b"<h1>One</h1>", content_type="text/html")) as server:
        denied = moryflow.call_tool("web_fetch", url=server.address).result
        assert denied.status == "denied" and f"moryflow permission allow web_fetch '{server.address}/**'" in denied.output
        assert not server.requests


def test_a_named_service_is_fetched(moryflow: IsolatedHost) -> None:
    with LoopbackServer(otherwise=replies.Reply(b"<h1>One</h1>", content_type="text/html")) as server:
        rules(moryflow, (f"{server.address}/**", "allow"))
        got = moryflow.call_tool("web_fetch", url=f"{server.address}/p").result
        assert got.status == "ok" and "# One" in got.output and got.output.startswith("Text from the web")
        assert not {"cookie", "authorization"} & set(server.requests[0].headers)


@pytest.mark.parametrize("pattern", ["*", "http://**", "regex:.*"])
def test_a_rule_that_names_nothing_opens_no_service(moryflow: IsolatedHost, pattern: str) -> None:
    with LoopbackServer() as server:
        rules(moryflow, (pattern, "allow"))
        assert moryflow.call_tool("web_fetch", url=server.address).result.status == "denied"
        assert not server.requests


@pytest.mark.parametrize("decision", ["deny", "ask"])
def test_a_redirect_does_not_get_around_a_rule(moryflow: IsolatedHost, decision: str) -> None:
    """The model is told where it leads; what it calls then is judged like any call (S0.37)."""
    away = replies.Reply(b"", status=302, headers={"location": "/secret"})
    with LoopbackServer(away) as server:
        rules(moryflow, (f"{server.address}/**", "allow"), (f"{server.address}/secret", decision))
        got = moryflow.call_tool("web_fetch", url=server.address).result
        assert decision == "deny" or f"redirects to {server.address}/secret" in got.output
        assert [request.path for request in server.requests] == ["/"]


def test_a_redirect_within_what_is_allowed_is_followed(moryflow: IsolatedHost) -> None:
    away = replies.Reply(b"", status=302, headers={"location": "/there"})
    with LoopbackServer(away, replies.Reply(b"found", content_type="text/plain")) as server:
        rules(moryflow, (f"{server.address}/**", "allow"))
        assert "\nfound\n" in moryflow.call_tool("web_fetch", url=server.address).result.output


def test_errors_and_limits_are_sentences(moryflow: IsolatedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSettings, "max_bytes", 10)
    with LoopbackServer(replies.failure(404), replies.Reply(b"x" * 100, content_type="text/plain")) as server:
        rules(moryflow, (f"{server.address}/**", "allow"))
        gone = moryflow.call_tool("web_fetch", url=server.address).result
        assert (gone.status, gone.code) == ("error", "http_404")
        assert "only the first 10 bytes" in moryflow.call_tool("web_fetch", url=server.address).result.output


def test_what_is_too_large_for_the_model_is_stored(moryflow: IsolatedHost) -> None:
    with LoopbackServer(replies.Reply(b"line\n" * 50_000, content_type="text/plain")) as server:
        rules(moryflow, (f"{server.address}/**", "allow"))
        got = moryflow.call_tool("web_fetch", url=server.address).result
        assert got.truncated and got.output_id
