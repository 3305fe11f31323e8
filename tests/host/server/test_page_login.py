"""How a browser is let in, and put out again, in a real Chromium (D88)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .conftest import Server, expect

Tab = Callable[..., Any]


def link(server: Server) -> str:
    return str(server.post("/codes", {}, 201)["link"])


def test_every_tab_of_a_browser_is_let_in_by_one_link(server: Server, tab: Tab) -> None:
    """Its token outlives the tab, an old link opened again does no harm, and there is no cookie (D88)."""
    used = link(server)
    page = tab(server)
    other = page.context.new_page()
    other.goto(server.said["url"])
    other.locator(".start #message").wait_for()
    assert page.context.cookies() == []
    assert other.evaluate("localStorage.getItem('moryflow.token')") != server.token
    assert server.ask("POST", "/code", {"code": used.partition("code=")[2]}).status == 200
    other.goto("about:blank")
    other.goto(used)
    other.locator(".start #message").wait_for()
    assert other.url == f"{server.said['url']}/"
    assert len(server.get("/tokens")) == 2  # that of this browser, and of the program that used the link


def test_a_fresh_link_in_an_open_tab_works_at_once(server: Server, browser: Any, tab: Tab) -> None:
    """Pasted into the address or into the page; one that was used says so (D88)."""
    session = server.session("One.")
    context = browser.new_context()
    page = context.new_page()
    page.goto(server.said["url"])
    page.locator(".locked", has_text="moryflow serve --link").wait_for()
    page.fill(".locked input", "http://127.0.0.1/#code=nonsense")
    page.keyboard.press("Enter")
    page.locator(".locked [role=alert]", has_text="this link was used already, or is too old").wait_for()
    page.evaluate("link => { location.href = link; }", link(server))
    page.locator(".start #message").wait_for()
    page.evaluate("id => { location.hash = id; }", session)
    page.locator(".composer #message").wait_for()
    page.evaluate("link => { location.href = link; }", link(server))
    page.wait_for_function("id => location.hash === '#' + id", arg=session)
    page.locator(".composer #message").wait_for()
    assert len(server.get("/tokens")) == 1
    context.close()


def test_a_browser_is_put_out_on_the_page(server: Server, tab: Tab) -> None:
    """The list says which one this is; the other is locked, and a fresh link lets it in again (D88)."""
    page, other = tab(server), tab(server)
    page.locator(".sessions button", has_text="Devices").click()
    rows = page.locator(".tokens li")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="this browser")).to_have_count(1)
    rows.filter(has_not_text="this browser").get_by_role("button").click()
    expect(rows).to_have_count(1)
    server.whole_turn(server.session("Wakes the stream."))
    other.locator(".locked").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    other.goto(link(server))
    other.locator(".start #message").wait_for()
