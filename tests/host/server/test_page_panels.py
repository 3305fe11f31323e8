"""What stands beside and inside a conversation on the page, in a real Chromium (issue D, part 2)."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from moryflow_sdk.support.texts import visible

from .conftest import ASKS, Server, expect, finished, say

DRAFT = "Sums are kept in cents."
WHY = "Floats lose money."
PROPOSE = {"name": "memory_propose", "arguments": {"target": "details/patterns.md", "draft": DRAFT, "why": WHY}}


@pytest.fixture
def server(shared: Server) -> Server:
    """The one server of this module."""
    return shared


def beside(page: Any, name: str) -> Any:
    """Open a panel and return it."""
    page.locator(".session-head nav button", has_text=name).click()
    page.locator(f".panel[aria-label='{name}']").wait_for()
    return page.locator(".panel")


def _bank(server: Server) -> None:
    from moryflow_builtins.memory_bank.cli import files

    for name, text in files().items():
        path = server.vault / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def test_a_proposal_for_the_memory_is_written_or_dropped(server: Server, tab: Callable[..., Any]) -> None:
    """It is shown as a change; a button says the words, and both go with the answer (S3.15, D33)."""
    _bank(server)
    session = server.session({"calls": [PROPOSE]}, "Shall I?", "Dropped.")
    page = tab(server, session)
    say(page, "Keep that we count in cents.")
    proposal = page.locator(".proposal")
    proposal.locator(".added", has_text=DRAFT).wait_for()
    expect(proposal).to_contain_text(WHY)
    page.locator(".markdown", has_text="Shall I?").wait_for()
    proposal.locator("button", has_text="mb:no").click()
    page.locator(".markdown", has_text="Dropped.").wait_for()
    expect(page.locator("article.user").last.locator("p")).to_have_text(re.compile("^mb:no p-"))
    expect(proposal.locator("button")).to_have_count(0)
    expect(proposal.locator(".added")).to_have_count(1)


def test_a_proposal_is_written_below_the_call(server: Server, tab: Callable[..., Any]) -> None:
    """The writer's steps stand in the card of the call that began them (S3.14)."""
    _bank(server)
    write = {"calls": [{"name": "memory_write", "arguments": {}}]}
    session = server.session({"calls": [PROPOSE]}, "Shall I?", write, "I shall not.", "Not written.")
    server.whole_turn(session, "Keep that we count in cents.")
    page = tab(server, session)
    page.locator(".proposal button", has_text="mb:write").click()
    page.locator(".card", has_text="memory_write").wait_for()
    page.locator(".markdown", has_text="Not written.").wait_for()
    assert DRAFT not in (server.vault / "memory-bank/details/patterns.md").read_text()


def test_the_prompt_is_changed_and_reset_alone(server: Server, tab: Callable[..., Any]) -> None:
    """Each parameter has its own default; going back to the default touches no other setting."""
    (server.home / "config.jsonc").write_text('{"language": "en"}')
    page = tab(server, server.session("One."))
    panel = beside(page, "Prompt")
    panel.get_by_label("Custom").check()
    panel.locator("textarea").fill("You are terse.")
    panel.locator("label.default input").first.uncheck()
    panel.get_by_label("temperature").fill("0.5")
    with page.expect_response(lambda reply: reply.request.method == "PUT") as changed:
        panel.locator("button", has_text="Save").click()
    assert changed.value.ok
    wanted = {"mode": "custom", "text": "You are terse.", "temperature": 0.5, "topP": None, "maxTokens": None}
    assert server.get("/settings/prompt") == wanted
    with page.expect_response(lambda reply: reply.request.method == "PUT") as changed:
        panel.locator("button", has_text="Back to the default").click()
    assert changed.value.ok
    assert server.get("/settings/prompt") == {**wanted, "mode": "default"}
    expect(panel.locator("form textarea")).to_have_count(0)  # what is built in is not shown
    panel.get_by_label("Custom").check()
    expect(panel.locator("form textarea")).to_have_value("You are terse.")
    assert json.loads((server.home / "config.jsonc").read_text())["language"] == "en"
    panel.locator(".bars th", has_text="tools").wait_for()


def test_authors_see_plugins_what_they_did_and_why(server: Server, tab: Callable[..., Any]) -> None:
    """Status and hooks, the ledger of a turn, a decision with its rules, figures, and a reload that is said."""
    session = server.session({"calls": [{"name": "lengthy", "arguments": {"text": "a", "times": 1}}]}, "One.")
    server.whole_turn(session)
    page = tab(server, session)
    panel = beside(page, "Plugins")
    panel.locator(".plugins li.loaded summary", has_text="holding").wait_for()
    panel.get_by_label("also what changed nothing").check()
    panel.locator(".ledger td", has_text="truncation").first.wait_for()
    panel.get_by_label("What the tool would get").fill("rm -rf /")
    panel.locator("form button").click()
    panel.locator(".chain li").first.wait_for()
    (server.home / "plugins" / "another.py").write_text("from moryflow_sdk import *\n")
    server.whole_turn(server.session("Two."))
    page.locator(".notice", has_text="another").wait_for()
    panel.locator(".plugins summary", has_text="another").wait_for()
    panel.locator(".reloads li", has_text="another").first.wait_for()
    home = server.get("/stats?limit=1")
    assert home["onboarding_seconds"] >= 0
    assert home["clients"] >= 1
    panel = beside(page, "Statistics")
    panel.locator(".bars th", has_text="lengthy").wait_for()
    expect(panel.locator(".figures dd").first).to_have_text("1")


def test_files_and_pictures_go_along(server: Server, tab: Callable[..., Any]) -> None:
    """Pasted, dropped, and named with @ by the keyboard alone."""
    session = server.session("One.")
    page = tab(server, session)
    page.locator("#message").focus()
    page.keyboard.type("Look at @READ")
    page.locator(".names [aria-selected=true]", has_text="README.md").wait_for()
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_have_value("Look at @README.md ")
    give = """([kind, name, type, text]) => {
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob(text), one => one.charCodeAt(0))], name, {type}));
        const how = kind === "paste" ? new ClipboardEvent(kind, {clipboardData: data, bubbles: true, cancelable: true})
            : new DragEvent(kind, {dataTransfer: data, bubbles: true, cancelable: true});
        document.querySelector("#message").dispatchEvent(how);
    }"""
    page.evaluate(give, ["drop", "notes.txt", "text/plain", "aGVsbG8="])
    page.evaluate(give, ["paste", "dot.png", "image/png", PNG])
    page.locator(".attached img").wait_for()
    page.locator(".attached li", has_text="notes.txt").wait_for()
    page.press("#message", "Enter")
    page.locator(".markdown", has_text="One.").wait_for()
    sent = page.locator("article.user")
    assert sent.locator("img").evaluate("image => image.decode().then(() => image.naturalWidth)") == 1
    expect(sent.locator("summary", has_text="notes.txt")).to_have_count(1)
    expect(page.locator(".attached li")).to_have_count(0)


def test_a_file_is_named_while_the_session_still_loads(server: Server, tab: Callable[..., Any]) -> None:
    """Its folder is not known then; the names come with it, and nothing breaks before (S0.47)."""
    session = server.session("One.")
    page = tab(server, session)
    held, over, early = list[Any](), threading.Event(), list[str]()
    page.on("request", lambda request: "/files" in request.url and not over.is_set() and early.append(request.url))
    page.route(f"**/sessions/{session}?*", lambda route: route.continue_() if over.is_set() else held.append(route))
    page.reload()
    page.locator("#message").press_sequentially("Look at @READ")
    expect(page.locator("#message")).to_have_value("Look at @READ")
    assert page.locator(".names li").count() == 0
    assert early == []
    over.set()
    for route in held:
        route.continue_()
    page.locator(".names [aria-selected=true]", has_text="README.md").wait_for()


PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


def test_a_node_gets_a_name(server: Server, tab: Callable[..., Any]) -> None:
    """In the tree, where it is then shown."""
    session = server.session("One.")
    server.whole_turn(session)
    page = tab(server, session)
    panel = beside(page, "Tree")
    panel.locator("li", has_text="One.").hover()
    panel.locator("li", has_text="One.").locator("button", has_text="Label").click()
    page.locator("dialog input").fill("first-answer")
    page.keyboard.press("Enter")
    panel.locator("b.label", has_text="first-answer").wait_for()
    assert list(server.get(f"/sessions/{session}")["labels"]) == ["first-answer"]


def test_a_sub_agent_is_shown_with_its_whole_run(server: Server, tab: Callable[..., Any]) -> None:
    """Inside the card of the call that began it; reasoning is folded."""
    task = {"name": "task", "arguments": {"agent": "explore", "prompt": "Count the files."}}
    answers = [{"calls": [task], "reasoning": "I shall ask another."}, "There is one file.", "All done."]
    session = server.session(*answers)
    page = tab(server, session)
    say(page, "How many?")
    finished(page, "All done.")
    thoughts = page.locator("details.reasoning").first
    thoughts.wait_for()
    expect(thoughts).to_have_js_property("open", False)
    page.locator(".child summary").click()
    page.locator(".child .markdown", has_text="There is one file.").wait_for()
    page.locator(".child .user", has_text="Count the files.").wait_for()


def test_code_gets_its_colours(server: Server, tab: Callable[..., Any]) -> None:
    """When it is seen, and as text: what is in it stays text."""
    code = "```python\ndef greet():\n    return '<img src=x onerror=alert(1)>'\n```\n\n```nonsense\n<b>\n```"
    lengthy = f"```ini\n[{'a' * 600}]\n```\n\n"  # its colours may take seconds
    session = server.session(lengthy, code)
    for _ in range(2):
        server.whole_turn(session)
    page = tab(server, session)
    page.locator("code .hljs-keyword", has_text="def").wait_for()
    long, code = page.locator("code.language-ini"), page.locator("code.language-python")
    assert long.locator("span").count() == 0
    assert code.text_content() == "def greet():\n    return '<img src=x onerror=alert(1)>'\n"
    assert page.locator("[role=log] img").count() == 0


def test_a_slash_command_is_run(server: Server, tab: Callable[..., Any]) -> None:
    """What it says is shown; a slash that is none goes to the model, and the page moves to what was sent."""
    session = server.session("x\n\n" * 200, "One.")
    server.whole_turn(session)
    page = tab(server, session)
    say(page, "/undo")
    page.locator(".notice", has_text="undo").wait_for()
    expect(page.locator("article.user")).to_have_count(1)
    page.locator(".transcript").evaluate(TO_BEGINNING)
    say(page, "/etc/hosts is what?")
    page.locator(".markdown", has_text="One.").wait_for()
    page.wait_for_function(AT_END)


TO_BEGINNING = """element => {
    element.scrollTop = 0;
    return new Promise(seen => requestAnimationFrame(() => requestAnimationFrame(seen)));  // the page hears of it in a frame
}"""
AT_END = """() => {
    const box = document.querySelector(".transcript");
    return box.scrollHeight - box.scrollTop - box.clientHeight < 60;
}"""


def test_a_call_that_changed_is_not_allowed(server: Server, tab: Callable[..., Any]) -> None:
    """The answer is about another call than the one that was shown: it says so, and nothing runs."""
    session = server.session(ASKS, "Done.")
    page = tab(server, session)
    page.route("**/approvals?*", lambda route: route.fulfill(json=[]))

    def other(route: Any) -> None:
        shown = route.fetch().json()
        route.fulfill(json={**shown, "request": {**shown["request"], "hash": "another"}})

    page.route("**/approvals/*", lambda route: other(route) if route.request.method == "GET" else route.continue_())
    page.route(f"**/sessions/{session}?*", lambda route: route.fulfill(json={**route.fetch().json(), "approvals": []}))
    say(page, "Do it")
    with page.expect_response(lambda reply: reply.request.method == "POST" and "/approvals/" in reply.url) as answered:
        page.locator(".question button.primary").click()
    assert (answered.value.status, answered.value.json()["code"]) == (409, "changed")
    assert not (server.home.parent / "files" / "did").exists()


def test_who_answers_a_call_that_changed_is_told_and_asked_again(server: Server, tab: Callable[..., Any]) -> None:
    """ "Changed since you were asked" stands in the card, which shows the call as it is now; the next answer counts."""
    session = server.session(ASKS, "Done.")
    page, answered = tab(server, session), threading.Event()

    def older(route: Any) -> None:
        shown = route.fetch().json()
        route.fulfill(json={**shown, "request": {**shown["request"], "hash": "another", "targets": ["tool:older"]}})

    # a page that is still loading must not hear of it otherwise
    page.route("**/approvals?*", lambda route: route.continue_() if answered.is_set() else route.fulfill(json=[]))
    page.route(f"**/sessions/{session}?*", lambda route: route.fulfill(json={**route.fetch().json(), "approvals": []}))
    page.route("**/approvals/*", lambda route: older(route) if route.request.method == "GET" else route.continue_())
    say(page, "Do it")
    page.locator(".question .target", has_text="older").wait_for()
    answered.set()
    page.locator(".question button.primary").click()
    page.locator(".question [role=alert]", has_text="changed since you were asked").wait_for()
    page.locator(".question .target", has_text="older").wait_for(state="detached")
    page.locator(".question button.primary").click()
    page.locator(".markdown", has_text="Done.").wait_for()
    assert (server.home.parent / "files" / "did").read_text() == "a thing"


def test_what_hides_in_a_call_is_seen(server: Server, tab: Callable[..., Any]) -> None:
    """Characters that reorder text, or cannot be seen, are escapes where somebody is asked (R3)."""
    session = server.session({"calls": [{"name": "danger", "arguments": {"what": "a\u202eb\u200bc"}}]}, "Done.")
    page = tab(server, session)
    say(page, "Do it")
    page.locator(".question").wait_for()
    assert page.locator(".card-head .target").text_content() == "a\\u202eb\\u200bc"
    assert page.locator(".question .output").text_content() == "what: a\\u202eb\\u200bc"


def test_no_character_hides_that_a_terminal_spells_out(server: Server, tab: Callable[..., Any]) -> None:
    """All of them, each after a letter, and more marks than one carries, in the arguments and in the name of a card (R3)."""
    hiding = [f"a{chr(code)}" for code in range(sys.maxunicode) if not 0xD800 <= code < 0xE000 and code != 0xA]
    hiding = [text for text in hiding if visible(text, keep="\t") != text]
    assert len(hiding) > 4_000
    what = "".join([*hiding, "e" + "\u0301" * 9, "/\u0338"])
    session = server.session({"calls": [{"name": "danger", "arguments": {"what": what}}]}, "Done.")
    page = tab(server, session)
    say(page, "Do it")
    shown = page.locator(".question .output").text_content()
    assert visible(shown, keep="\t") == shown
    assert len(shown) > len(what)
    assert visible(page.locator(".card-head").text_content()) == page.locator(".card-head").text_content()
    server.post(f"/sessions/{session}/cancel")


def test_neither_end_of_a_call_is_out_of_sight(server: Server, tab: Callable[..., Any]) -> None:
    """A long one loses its middle, which a button shows; nothing scrolls; where a command runs is said (S0.9, R3)."""
    (server.vault / "make").mkdir()
    command = {"command": "make", "workdir": "make"}  # a folder with the name of the command, which has been shown already
    lines = [f"line {number}" for number in range(3_000)]
    whole, line = (
        {"name": "danger", "arguments": {"what": text}} for text in ("\n".join(lines), f"first {'x' * 400_000} last")
    )
    calls = [whole, {"name": "bash", "arguments": command}, line]
    session = server.session({"calls": calls}, "Done.")
    page = tab(server, session)
    say(page, "Do it")
    shown = page.locator(".question .output")
    expect(shown).to_contain_text("line 1\n")
    expect(shown).to_contain_text("line 2999")
    assert "line 1500\n" not in shown.text_content()
    assert shown.evaluate("box => box.scrollHeight <= box.clientHeight")
    shown.locator("button").click()
    expect(shown).to_have_text("what:\n" + "\n".join(f"  {line}" for line in lines))
    page.locator(".question button.primary").click()
    expect(page.locator(".question .folder")).to_have_text("Folder make")
    page.locator(".question button.primary").click()
    expect(shown).to_contain_text("what: first x")
    expect(shown).to_contain_text(re.compile("x last$"))
    assert len(shown.text_content()) < 100_000
    server.post(f"/sessions/{session}/cancel")


def test_what_is_typed_meanwhile_stays_when_a_message_comes_back(server: Server, tab: Callable[..., Any]) -> None:
    """The message that could not be sent stands before it (S0.47)."""
    page = tab(server, server.session("One."))
    page.route("**/command", lambda route: page.fill("#message", "and more") or route.abort())
    say(page, "/undo")
    expect(page.locator("#message")).to_have_value("/undo\nand more")


def test_a_snapshot_takes_nothing_back(server: Server, tab: Callable[..., Any]) -> None:
    """A call that begins while a snapshot from before it is on its way is shown as running (S0.47)."""
    calls = [{"calls": [{"name": "hold", "arguments": {"name": name}}]} for name in ("before", "after")]
    session = server.session(*calls, "Done.")
    page, held = tab(server, session), list[Any]()
    say(page, "Do it")
    page.locator(".card.running", has_text="before").wait_for()
    path = f"/sessions/{session}?limit=200"
    older = server.get(path)
    page.route(lambda address: address.endswith(path), lambda route: held.append(route), times=1)
    page.locator(".session-head h1 button").click()
    page.fill("dialog input", "loads the page anew")
    with page.expect_request(lambda request: request.url.endswith(path)):
        page.keyboard.press("Enter")
    (server.home.parent / "files" / "before").touch()
    page.locator(".card.running", has_text="after").wait_for()
    with page.expect_response(lambda reply: reply.url.endswith(path)):
        held[0].fulfill(json=older)
    page.locator(".session-head h1", has_text="loads the page anew").wait_for()
    page.locator(".card.running", has_text="after").wait_for()
    (server.home.parent / "files" / "after").touch()
    finished(page, "Done.")
