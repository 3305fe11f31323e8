"""What is done two hundred times a day on the page, in a real Chromium (issue E, part 2)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import ASKS, Server, expect, finished, say

Tab = Callable[..., Any]
AXE = Path(__file__).resolve().parents[3] / "host" / "web" / "node_modules" / "axe-core" / "axe.min.js"
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture
def server(shared: Server) -> Server:
    """The one server of this module."""
    return shared


def quiet(server: Server) -> None:
    """Leave no question of an earlier test."""
    for row in server.get("/approvals?state=pending"):
        server.post(f"/approvals/{row['id']}", {"reply": "stop"})


def test_the_cursor_stands_where_one_types(server: Server, tab: Tab) -> None:
    """On load, after the button, after another session was chosen, and after an answer; a phone's keyboard stays away."""
    page = tab(server)
    expect(page.locator(".start #message")).to_be_focused()
    session = server.session("One.", ASKS, "Three.")
    server.whole_turn(session, "cursor")
    page.locator(".sessions .open", has_text="cursor").click()
    expect(page.locator(".composer #message")).to_be_focused()
    page.keyboard.type("typed at once")
    page.locator(".composer .primary").click()
    expect(page.locator("#message")).to_be_focused()
    page.locator(".question").wait_for()
    page.keyboard.press("Alt+KeyQ")
    page.keyboard.press("o")
    expect(page.locator("#message")).to_be_focused()
    finished(page, "Three.")
    phone = tab(server, **PHONE)
    phone.locator("#message").wait_for()
    expect(phone.locator("#message")).not_to_be_focused()


def test_keys_work_from_inside_the_box_and_are_listed(server: Server, tab: Tab) -> None:
    """`?` in an empty box lists them, in a text it is a character; Alt with a letter goes where it says."""
    one, other = server.session("One."), server.session("Two.")
    for session, prompt in ((one, "first of the keys"), (other, "second of the keys")):
        server.whole_turn(session, prompt)
    page = tab(server, other)
    page.keyboard.type("why?")
    expect(page.locator("#message")).to_have_value("why?")
    page.fill("#message", "")
    page.keyboard.type("?")
    expect(page.locator("dialog .keys").first).to_be_visible()
    expect(page.locator("dialog .keys").first).to_contain_text("new line")
    page.keyboard.press("Escape")
    expect(page.locator("#message")).to_be_focused()
    page.keyboard.press("ArrowUp")
    expect(page.locator("#message")).to_have_value("second of the keys")
    page.keyboard.press("Alt+ArrowDown")
    page.wait_for_function("id => location.hash === '#' + id", arg=one)
    page.go_back()
    page.wait_for_function("id => location.hash === '#' + id", arg=other)
    page.keyboard.press("Alt+KeyK")
    expect(page.locator(".sessions input")).to_be_focused()
    page.keyboard.press("Alt+KeyN")
    expect(page.locator(".start #message")).to_be_focused()


def test_commands_are_offered_from_the_one_table(server: Server, tab: Tab) -> None:
    """What is typed need not be their beginning; Enter runs one, Tab completes it, and one that wants a value waits for it."""
    assert [row["name"] for row in server.get("/commands")][:3] == ["help", "mode", "model"]
    session = server.session("One.")
    server.whole_turn(session, "commands")
    page = tab(server, session)
    page.keyboard.type("/")
    names = page.locator(".box > .names li")
    expect(names.first).to_contain_text("/help list the commands")
    page.keyboard.type("ud")  # letters in their order
    expect(names).to_have_count(1)
    page.keyboard.press("Tab")
    expect(page.locator("#message")).to_have_value("/undo ")
    page.fill("#message", "")
    page.keyboard.type("/mod")
    expect(names).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_have_value("/mode ")
    page.fill("#message", "")
    page.keyboard.type("/hel")
    expect(names).to_have_count(1)
    page.keyboard.press("Enter")
    page.locator(".notice", has_text="/compact: replace").wait_for()
    expect(page.locator("#message")).to_have_value("")
    expect(page.locator("article.user")).to_have_count(1)


def test_files_are_offered_before_the_first_message(server: Server, tab: Tab) -> None:
    """Those of the folder that the session will have (S2.5)."""
    page = tab(server)
    page.keyboard.type("Read @rdme")
    page.locator(".box > .names li", has_text="@README.md").click()
    expect(page.locator("#message")).to_have_value("Read @README.md ")


def test_a_search_answers_while_one_types(server: Server, tab: Tab) -> None:
    """Its hits are plain text around the marked words; what is nowhere is said to be nowhere."""
    told = f"{'before ' * 40}the **quokka** sleeps in `zoo.md` {'after ' * 40}"
    session = server.session(told)
    server.whole_turn(session, "Where is it?")
    page = tab(server)
    page.locator(".sessions input").press_sequentially(["quok", "sleeps"][0])
    hit = page.locator(".hits li", has_text="quokka")
    hit.wait_for()
    expect(hit.locator("mark")).to_have_text("quok")
    shown = hit.locator("span").inner_text()
    assert shown.startswith("…") and shown.index("quokka") < 60 and not re.search(r"[*`]", shown)
    hit.locator("button").click()
    page.locator("article.assistant:focus", has_text="quokka").wait_for()
    page.fill(".sessions input", "nowhere-at-all(")
    page.locator(".sessions .none", has_text="Nothing found").wait_for()
    expect(page.locator(".sessions .open")).to_have_count(0)
    page.locator(".sessions input").press("Escape")
    page.locator(".sessions .open", has_text="Where is it?").wait_for()


def test_who_answers_how_is_chosen_beside_the_message(server: Server, tab: Tab) -> None:
    """Agent, model and effort of a session, and of one that does not exist yet; the effort goes with the next prompt."""
    session = server.session("One.", "Two.")
    page = tab(server, session)
    page.locator("select.who").select_option("plan")
    page.wait_for_function("() => document.querySelector('.divider')?.textContent.includes('plan')")
    page.locator("select.effort").select_option("high")
    with page.expect_request(lambda request: request.url.endswith("/prompt")) as sent:
        say(page, "efforts")
    assert sent.value.post_data_json["effort"] == "high"
    finished(page, "One.")
    found = server.get(f"/sessions/{session}")
    assert (found["agent"], found["effort"]) == ("plan", "high")
    with page.expect_request(lambda request: request.url.endswith("/prompt")) as sent:
        say(page, "once more")
    assert "effort" not in sent.value.post_data_json
    finished(page, "Two.")
    page.reload()
    expect(page.locator("select.effort")).to_have_value("high")
    page.locator(".model .choice").click()
    page.locator(".model input").fill("script:nothing.json")
    page.keyboard.press("Enter")
    page.locator(".model .choice", has_text="script:nothing.json").wait_for()
    assert server.get(f"/sessions/{session}")["model"] == "script:nothing.json"


def changing(server: Server) -> str:
    """A session whose model reads a file and changes it."""
    old, new = "    return round(sum(prices), 2)", "    # cents\n    return sum(prices)"
    (server.vault / "sums.py").write_text(f"def total(prices):\n{old}\n\n\ndef tax():\n    return '<b>'\n")
    edit = {"path": "sums.py", "old_string": old, "new_string": new}
    calls = [{"name": "read", "arguments": {"path": "sums.py"}}], [{"name": "edit", "arguments": edit}]
    return server.session(*({"calls": some} for some in calls), "Done.", mode="full_access", confirm=True)


def test_a_change_is_shown_open_with_numbers_and_colours(server: Server, tab: Tab) -> None:
    """Both numbers of a line, and the syntax of its file; what it took stands under the answer."""
    session = changing(server)
    page = tab(server, session)
    say(page, "Use cents")
    finished(page, "Done.")
    change = page.locator(".card .diff.numbered")
    change.locator(".added .hljs-keyword", has_text="return").wait_for()
    rows = change.locator("span[data-new], span[data-old]").evaluate_all(
        "all => all.map(one => [one.dataset.old ?? '', one.dataset.new ?? '', one.textContent])"
    )
    assert rows[0] == ["1", "1", " def total(prices):\n"]
    assert ["2", "", "-    return round(sum(prices), 2)\n"] in rows
    assert ["", "3", "+    return sum(prices)\n"] in rows
    assert change.locator("b").count() == 0
    page.locator(".session-head nav button", has_text="Changes").click()
    page.locator(".panel .changes", has_text="sums.py").locator(".added .hljs-keyword").wait_for()
    expect(page.locator(".assistant:not(.live) .spent").last).to_contain_text(re.compile(r"^\d+ → \d+ tokens · [\d.]+ s$"))


def test_sessions_are_listed_by_day_and_folder_and_have_a_menu(server: Server, tab: Tab) -> None:
    """Rename, fork, export and delete, by keyboard too; the state of each is seen."""
    other = server.vault / "other"
    other.mkdir()
    session = server.session("One.", vault=str(other))
    server.whole_turn(session, "in another folder")
    asking = server.session(ASKS, "Done.")
    server.post(f"/sessions/{asking}/prompt", {"text": "it asks"}, 202)
    page = tab(server)
    expect(page.locator(".list section > h2", has_text="Today")).to_have_count(1)
    page.locator(".list h3", has_text="other").wait_for()
    page.locator(".list li", has_text="it asks").locator(".mark").wait_for()
    row = page.locator(".list li", has_text="in another folder")
    row.hover()
    row.locator(".more").click()
    page.locator(".menu [role=menuitem]", has_text="Change the title").click()
    page.fill("dialog input", "renamed")
    page.keyboard.press("Enter")
    row = page.locator(".list li", has_text="renamed")
    row.locator(".more").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.locator(".composer").wait_for()
    expect(page.locator(".list li", has_text="renamed")).to_have_count(2)
    first = page.locator(".list li:not(:has([aria-current=true]))", has_text="renamed")
    first.hover()
    first.locator(".more").click()
    with page.expect_download() as got:
        page.locator(".menu [role=menuitem]", has_text="Export").click()
    assert got.value.suggested_filename == f"{session}.jsonl"
    first.hover()
    first.locator(".more").click()
    page.locator(".menu [role=menuitem]", has_text="Delete").click()
    page.locator("dialog button", has_text="Yes").click()
    expect(page.locator(".list li", has_text="renamed")).to_have_count(1)
    assert session not in {one["id"] for one in server.get("/sessions")}
    quiet(server)


def test_all_questions_are_listed_whichever_session_asks(server: Server, tab: Tab) -> None:
    """Each leads to its card; on a phone a line above the conversation does."""
    quiet(server)
    sessions = [server.session(ASKS, "Done.") for _ in range(2)]
    for number, session in enumerate(sessions):
        server.post(f"/sessions/{session}/prompt", {"text": f"question {number}"}, 202)
    page, phone = tab(server), tab(server, server.session("Quiet."), **PHONE)
    expect(page.locator(".asks button")).to_have_count(2)
    page.locator(".asks button", has_text="question 1").click()
    page.locator(".question:focus").wait_for()
    page.keyboard.press("s")
    expect(page.locator(".asks button")).to_have_count(1)
    phone.locator(".asking button").click()
    phone.locator(".question").wait_for()
    quiet(server)
    expect(page.locator(".asks")).to_have_count(0)


def test_a_turn_that_ends_while_nobody_looks_is_told(server: Server, tab: Tab) -> None:
    """By the system if it was allowed, in the title and the list else, until somebody looks."""
    session = server.session("One.", "Two.")
    server.whole_turn(session, "looked away from")
    page = tab(server)
    server.whole_turn(session, "again")
    expect(page).to_have_title("✓ Moryflow")
    row = page.locator(".list li", has_text="looked away from")
    row.locator(".dot").wait_for()
    row.locator(".open").click()
    expect(row.locator(".dot")).to_have_count(0)
    expect(page).to_have_title("looked away from · Moryflow")


def test_how_full_the_window_is_stands_beside_the_message(server: Server, tab: Tab) -> None:
    """In per cent of what the model takes; after each request, and after a reload."""
    session = server.session("One.")
    page = tab(server)
    model = {"id": server.get(f"/sessions/{session}")["model"], "context_window": 100}
    page.route("**/models", lambda route: route.fulfill(json=[model]))
    page.goto(f"{server.said['url']}/#{session}")
    page.reload()
    say(page, "Fill it")
    finished(page, "One.")
    expect(page.locator(".filled")).to_have_text("10 %")
    page.reload()
    expect(page.locator(".filled")).to_have_text("10 %")


def test_a_button_leads_back_to_the_end(server: Server, tab: Tab) -> None:
    """It is there while the reader is more than a screen away from it."""
    session = server.session("word\n\n" * 200)
    server.whole_turn(session, "long")
    page = tab(server, session)
    page.locator(".markdown", has_text="word").wait_for()
    expect(page.locator(".to-end")).to_have_count(0)
    page.locator(".transcript").evaluate("box => { box.scrollTop = 0; }")
    page.locator(".to-end").click()
    expect(page.locator(".to-end")).to_have_count(0)


TOLD = """() => {
    window.told = [];
    window.Notification = class { constructor(title, more) { told.push([title, more.body]); } static permission = "granted"; };
    Object.defineProperty(document, "hidden", {get: () => true});
}"""


def test_a_notice_says_which_session_ended(server: Server, tab: Tab) -> None:
    """With its title, if the browser was allowed to notify."""
    session = server.session("One.", ASKS, "Three.")
    server.whole_turn(session, "told about")
    page = tab(server)
    page.add_init_script(f"({TOLD})()")
    page.reload()
    page.locator(".list li", has_text="told about").wait_for()
    server.post(f"/sessions/{session}/prompt", {"text": "again"}, 202)
    page.wait_for_function("() => told.length === 1")
    assert page.evaluate("told") == [["told about", "A question waits"]]
    quiet(server)
    page.wait_for_function("() => told.length === 2")
    assert page.evaluate("told[1]") == ["told about", "The turn ended: stopped"]


def test_a_phone_is_let_in_by_a_picture(server: Server, tab: Tab) -> None:
    """The link that the QR code holds is for the address of the page; what has to run first is said."""
    page = tab(server)
    page.locator(".sessions footer button", has_text="Devices").click()
    page.locator(".qr svg path").wait_for()
    assert len(page.locator(".qr path").get_attribute("d") or "") > 2_000
    expect(page.locator("dialog")).to_contain_text(f"ssh -L {server.port}:127.0.0.1:{server.port} HOST")
    link = page.locator(".link code").inner_text()
    phone = page.context.browser.new_context(**PHONE)
    other = phone.new_page()
    other.goto(link)
    other.locator(".start #message").wait_for()
    phone.close()


QUESTIONS = [
    {"question": "Which database?", "header": "Data",
     "options": [{"label": "SQLite", "description": "one file"}, {"label": "PostgreSQL"}]},
    {"question": "What goes in?", "multiSelect": True, "options": [{"label": "Notes"}, {"label": "Mail"}, {"label": "Photos"}]},
]  # fmt: skip


def test_questions_of_the_model_are_answered_with_choices(server: Server, tab: Tab) -> None:
    """By key, by click, several where several fit, or in words; one question with one answer takes one key (S0.47)."""
    ask = [
        {"calls": [{"name": "ask_user", "arguments": {"questions": some}}]}
        for some in (QUESTIONS, QUESTIONS[:1], QUESTIONS[:1])
    ]
    session = server.session(ask[0], "So it is.", ask[1], "Good.", ask[2], "As you say.")
    page = tab(server, session)
    say(page, "Plan it")
    page.locator(".choices").wait_for()
    expect(page.locator(".choices .primary")).to_be_disabled()
    page.keyboard.press("Alt+KeyQ")
    page.keyboard.press("2")
    for label in ("Notes", "Mail", "Photos"):
        page.locator(".option", has_text=label).click()
    page.locator(".option", has_text="Mail").click()
    page.locator(".choices .primary").click()
    finished(page, "So it is.")
    say(page, "And again")
    page.locator(".choices").wait_for()
    page.keyboard.press("Alt+KeyQ")
    page.keyboard.press("1")
    finished(page, "Good.")
    say(page, "And in words")
    page.locator(".choices input").fill("a text file")
    page.keyboard.press("Enter")
    finished(page, "As you say.")
    outputs = [node["payload"]["output"] for node in server.get(f"/sessions/{session}")["nodes"] if node["kind"] == "tool"]
    whole = "Which database? → PostgreSQL\nWhat goes in? → Notes, Photos"
    assert outputs == [whole, "Which database? → SQLite", "Which database? → a text file"]
    assert [json.loads(row["message"]) for row in server.get("/approvals") if row["session"] == session][1] == {
        "Which database?": "SQLite"
    }


SMALL = """() => [...document.querySelectorAll("button, select, summary, input:not([type=file]), textarea, .attach")]
    .filter(one => one.checkVisibility({visibilityProperty: true, opacityProperty: true}))
    .map(one => one.matches("[type=radio], [type=checkbox]") ? one.closest("label") : one)
    .map(one => [one.outerHTML.slice(0, 90), one.getBoundingClientRect()])
    .filter(([, box]) => box.height < 44 || box.width < 44).map(([text, box]) => `${text} ${box.width}×${box.height}`)"""


def test_what_is_touched_is_large_enough_on_a_phone(server: Server, tab: Tab) -> None:
    """44 pixels each way, in the list, a conversation with a question, the devices and each panel; one way to scroll."""
    session = server.session("# One\n\nText.\n\n```py\nx = 1\n```", ASKS, "Done.")
    server.whole_turn(session, "touched")
    server.post(f"/sessions/{session}/prompt", {"text": "ask"}, 202)
    page = tab(server, **PHONE)
    page.locator(".list .open", has_text="touched").wait_for()
    assert page.evaluate(SMALL) == []
    page.locator(".list .open", has_text="touched").click()
    page.locator(".question").wait_for()
    assert page.evaluate(SMALL) == []
    for name in ("Changes", "Tree", "Prompt", "Plugins", "Statistics"):
        page.locator(".session-head nav button", has_text=name).click()
        page.locator(".panel :is(h2, li, dl, .none)").first.wait_for()
        assert page.evaluate(SMALL) == [], name
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.locator(".panel > header button").click()
    page.locator(".back").click()
    page.locator(".sessions footer button", has_text="Devices").click()
    page.locator(".tokens li").first.wait_for()
    assert page.evaluate(SMALL) == []
    quiet(server)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [{"viewport": {"width": 1280, "height": 800}}, PHONE], ids=["desktop", "phone"])
def test_axe_finds_nothing_on_any_screen(server: Server, tab: Tab, size: dict[str, Any], scheme: str) -> None:
    """The list, a search, a change, a question with choices, names to pick from, a menu, the keys and the devices."""
    if not AXE.exists():
        pytest.skip("no axe-core on this machine: npm ci in host/web")
    quiet(server)
    session, asking = changing(server), server.session({"calls": [{"name": "ask_user", "arguments": {"questions": QUESTIONS}}]})
    server.whole_turn(session, "searched for")
    server.post(f"/sessions/{asking}/prompt", {"text": "choose"}, 202)
    page = tab(server, color_scheme=scheme, **size)
    page.locator(".asks button").wait_for()

    def clean(scene: str) -> None:
        page.evaluate(f"{AXE.read_text()}; 0")
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == [], scene

    clean("list")
    page.locator(".sessions footer button", has_text="Devices").click()
    page.locator(".qr path").wait_for()
    page.locator(".tokens li").first.wait_for()
    clean("devices")
    page.keyboard.press("Escape")
    page.locator(".sessions footer button", has_text="Keys").click()
    page.locator("dialog .keys").first.wait_for()
    clean("keys")
    page.keyboard.press("Escape")
    page.locator(".list li", has_text="searched for").locator(".more").first.dispatch_event("click")
    page.locator(".menu").wait_for()
    clean("menu")
    page.keyboard.press("Escape")
    page.fill(".sessions input", "searched")
    page.locator("mark").first.wait_for()
    clean("search")
    page.locator(".hits .open").first.click()
    page.locator(".diff .hljs-keyword").first.wait_for()
    clean("change")
    page.locator("#message").press_sequentially("/")
    page.locator(".names li").first.wait_for()
    clean("commands")
    page.fill("#message", "")
    page.locator(".model .choice").click()
    page.locator(".model input").fill("any")
    clean("models")
    page.keyboard.press("Escape")
    page.evaluate("id => { location.hash = id; }", asking)
    page.locator(".choices").wait_for()
    clean("choices")
    quiet(server)
