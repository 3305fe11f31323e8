"""A conversation on the page, in a real Chromium: what streams, is cut, compacted, found, delegated (issue D, part 2)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import ASKS, MORYFLOW, PATIENCE, Server, expect, finished, say

Tab = Callable[..., Any]


@pytest.fixture
def server(shared: Server) -> Server:
    """The one server of this module."""
    return shared


def hold(name: str) -> dict[str, Any]:
    """Return an answer whose call waits for a file."""
    return {"calls": [{"name": "hold", "arguments": {"name": name}}]}


def let_go(server: Server, name: str) -> None:
    (server.home.parent / "files" / name).touch()


def test_the_first_message_begins_a_session(server: Server, tab: Tab) -> None:
    """In the folder of the server; the message outlives a refusal: here there is no model until one is named."""
    script = server.vault / "begins.json"
    script.write_text('["Begun."]')
    page = tab(server)
    page.fill("#message", "Begin here")
    page.press("#message", "Enter")
    page.locator(".notice", has_text="no model").wait_for()
    page.route("**/sessions", lambda route: route.continue_(post_data={"model": f"script:{script}"}))
    expect(page.locator("#message")).to_have_value("Begin here")
    with page.expect_response(lambda reply: reply.request.method == "POST" and reply.url.endswith("/prompt")) as sent:
        page.press("#message", "Enter")
    session = sent.value.url.split("/")[-2]
    page.locator(".markdown", has_text="Begun.").wait_for()
    assert server.get(f"/sessions/{session}")["vault"] == str(server.vault)


def test_a_session_is_chosen_and_typed_into_before_it_exists(server: Server, tab: Tab) -> None:
    """Mode, agent and model come with the first message; nothing is lost or sent twice at a slow server (S0.68)."""
    script = server.vault / "chosen.json"
    script.write_text('["Chosen."]')
    page = tab(server, server.session("Old."))
    page.locator(".sessions .new").click()
    page.locator(".start select.mode").select_option("full_access")
    page.locator("dialog button", has_text="Yes").click()
    page.locator(".start select.who").select_option("plan")
    page.locator(".start .model .choice").click()
    page.locator(".start .model input").fill(f"script:{script}")
    page.keyboard.press("Enter")
    expect(page.locator("#message")).to_be_focused()
    before = len(server.get("/sessions"))

    def slowly(route: Any) -> None:
        page.press("#message", "Enter")
        page.fill("#message", "first and more")
        route.continue_()

    page.route("**/sessions", lambda route: slowly(route) if route.request.method == "POST" else route.continue_())
    say(page, "first")
    page.locator("article.user", has_text="first").wait_for()
    expect(page.locator(".composer #message")).to_have_value(" and more")
    rows = server.get("/sessions")
    assert (len(rows), rows[0]["mode"], rows[0]["agent"]) == (before + 1, "full_access", "plan")
    say(page, "/nonsense")
    page.locator(".notice", has_text="there is no command /nonsense").wait_for()
    expect(page.locator("#message")).to_have_value("/nonsense")
    say(page, "/mode agent")
    page.locator(".notice", has_text="mode: agent").wait_for()
    assert [
        node["payload"]["text"] for node in server.get(f"/sessions/{rows[0]['id']}")["nodes"] if node["kind"] == "user"
    ] == ["first"]


def test_what_is_finished_is_drawn_once(server: Server, tab: Tab) -> None:
    """While the next answer streams, the elements of the one before stay the very same; focus stays in the input."""
    session = server.session("**One.** " * 20, "Two. " * 200)
    server.whole_turn(session, "first")
    page = tab(server, session)
    page.locator(".assistant .markdown strong").first.wait_for()
    page.evaluate("document.querySelector('.assistant .markdown strong').known = true")
    say(page, "second")
    page.locator(".assistant:not(.live) .markdown", has_text="Two.").wait_for()
    assert page.evaluate("document.querySelector('.assistant .markdown strong').known") is True
    assert page.evaluate("document.activeElement.id") == "message"


def test_a_failed_turn_says_why_after_a_reload(server: Server, tab: Tab) -> None:
    """And goes on from where it failed; a call keeps its time (S0.47)."""
    session = server.session(
        {"calls": [{"name": "lengthy", "arguments": {"text": "a", "times": 1}}]},
        {"error": {"code": "auth", "message": "the key is not known"}},
        "Now it works.",
    )
    server.whole_turn(session)
    page = tab(server, session)
    page.locator(".ended", has_text="the key is not known").wait_for()
    page.locator(".card.ok .time", has_text="ms").wait_for()
    page.locator(".ended button", has_text="Go on").click()
    finished(page, "Now it works.")
    expect(page.locator(".ended")).to_have_count(0)
    expect(page.locator("article.user")).to_have_count(1)


def test_a_turn_is_stopped(server: Server, tab: Tab) -> None:
    """By the button, and by Escape in the input; what runs is named meanwhile."""
    session = server.session(hold("never"), hold("never"), "Done.")
    page = tab(server, session)
    stops = (lambda: page.locator(".composer .stop").click(), lambda: page.press("#message", "Escape"))
    for number, stop in enumerate(stops, 1):
        say(page, "hold on")
        expect(page.locator(".card.running")).to_have_count(1)
        expect(page.locator(".card")).to_have_count(number)
        page.locator(".doing", has_text="runs hold").wait_for()
        stop()
        expect(page.locator(".card.interrupted")).to_have_count(number)
        page.locator(".ended").wait_for()
        page.locator(".composer .stop").wait_for(state="detached")


def test_full_access_asks_nothing(server: Server, tab: Tab) -> None:
    """No card; the call runs."""
    session = server.session(ASKS, "Done.", mode="full_access", confirm=True)
    page = tab(server, session)
    page.evaluate(
        "() => new MutationObserver(() => { window.asked ||= document.querySelector('.question') !== null; })"
        ".observe(document.body, {childList: true, subtree: true})"
    )
    say(page, "Do it")
    page.locator(".card.ok", has_text="danger").wait_for()
    finished(page, "Done.")
    assert not page.evaluate("window.asked")


def test_a_command_is_still_named_when_it_has_ended(server: Server, tab: Tab) -> None:
    """How it ended stands behind it, unless it ended well (S0.47)."""
    calls = [{"name": "bash", "arguments": {"command": command}} for command in ("true", "exit 3")]
    session = server.session({"calls": calls}, "Done.", mode="full_access", confirm=True)
    page = tab(server, session)
    say(page, "Run them")
    page.locator(".markdown", has_text="Done.").wait_for()
    expect(page.locator(".card .target")).to_have_text(["true", "exit 3 (exit code 3)"])


def test_circles_are_asked_about_once(server: Server, tab: Tab) -> None:
    """On, always, or stop: refusing one call would not end it (S0.61)."""
    call = {"calls": [{"name": "lengthy", "arguments": {"text": "a", "times": 1}}]}
    session = server.session(*[call] * 5, "Out of it.")
    page = tab(server, session)
    say(page, "round and round")
    question = page.locator(".question", has_text="It goes in circles")
    question.wait_for()
    expect(question.locator(".answers button")).to_have_text([re.compile(rf"^{word}\b") for word in ("Once", "Always", "Stop")])
    expect(question.locator(".always")).to_contain_text("this session only")
    question.locator("button", has_text="Always").click()
    page.locator(".markdown", has_text="Out of it.").wait_for()


def test_compaction_is_shown_and_taken_back(server: Server, tab: Tab) -> None:
    """A line with tokens before and after, the summary, and the way back; a long output can still be read (S0.28, S0.56)."""
    lengthy = {"calls": [{"name": "lengthy", "arguments": {"text": "abc", "times": 5_000}}]}
    session = server.session(lengthy, *[f"Answer {n}. " + "word " * 300 for n in range(4)], "## Goal\nTo count.", "After.")
    for number in range(4):
        server.whole_turn(session, f"Question {number}")
    page = tab(server, session)
    panel = _beside(page, "Prompt")
    panel.locator("button", has_text="Compact now").click()
    divider = page.locator(".divider", has_text="Compacted")
    page.wait_for_function("() => / → [^ ]+ tokens/.test(document.querySelector('.divider')?.textContent)")
    divider.locator("summary").click()
    divider.locator(".markdown h2", has_text="Goal").wait_for()
    expect(page.locator("article.user")).to_have_count(4)
    page.locator(".card .whole").click()
    page.locator(".card .output", has_text="abc").wait_for()
    divider.locator("button", has_text="Undo compaction").click()
    page.locator(".divider.undone").wait_for()
    expect(divider.locator("button")).to_have_count(0)
    with page.expect_response(lambda reply: reply.request.method == "PUT") as changed:
        panel.get_by_label("by itself, when the window fills").uncheck()
    assert changed.value.json() == {"enabled": False}
    with page.expect_response(lambda reply: reply.request.method == "PUT") as changed:
        panel.get_by_label("by itself, when the window fills").check()
    assert changed.value.json() == {"enabled": True}


def _beside(page: Any, name: str) -> Any:
    page.locator(".session-head nav button", has_text=name).click()
    page.locator(f".panel[aria-label='{name}']").wait_for()
    return page.locator(".panel")


def test_an_output_that_expired_says_so(server: Server, tab: Tab) -> None:
    """In place of the text (S0.56)."""
    session = server.session({"calls": [{"name": "lengthy", "arguments": {"text": "abc", "times": 5_000}}]}, "Done.")
    server.whole_turn(session)
    [stored] = [node["payload"]["output_id"] for node in server.get(f"/sessions/{session}")["nodes"] if node["kind"] == "tool"]
    for file in (server.vault / ".agent-output").rglob(f"*{stored}*"):
        file.unlink()
    assert server.ask("GET", f"/outputs/{stored}").json["code"] == "expired"
    page = tab(server, session)
    page.locator(".card .whole").click()
    page.locator(".card .output", has_text="The stored output has expired.").wait_for()


@pytest.mark.slow
def test_a_search_leads_to_the_place(server: Server, tab: Tab) -> None:
    """Also to one that is older than what is shown."""
    many = {"calls": [{"name": "lengthy", "arguments": {"text": str(number), "times": 1}} for number in range(50)]}
    session = server.session("The word is xylophone.", *[many, "Counted."] * 4)
    for _ in range(5):
        server.whole_turn(session)
    assert server.get(f"/sessions/{session}")["more"]
    page = tab(server, server.session("Another."))
    page.fill(".sessions input", "xylophone")
    page.keyboard.press("Enter")
    page.locator(".sessions li button", has_text="xylophone").click()
    page.locator("article.assistant:focus", has_text="xylophone").wait_for()


def test_a_sub_agent_is_seen_while_it_works(server: Server, tab: Tab) -> None:
    """With its question, which stands in its own run; Tree lists it afterwards."""
    task = {"calls": [{"name": "task", "arguments": {"agent": "general", "prompt": "Do a thing."}}]}
    session = server.session(task, ASKS, "It is done.", "All done.")
    page = tab(server, session)
    say(page, "Have it done")
    question = page.locator(".child .question")
    question.wait_for()
    question.locator("button.primary").click()
    page.locator(".transcript > [role=log] > .assistant .markdown", has_text="All done.").wait_for()
    expect(page.locator(".transcript > .child")).to_have_count(0)
    _beside(page, "Tree").locator(".kin button", has_text="general").click()
    page.locator(".markdown", has_text="It is done.").wait_for()
    page.locator(".kin button", has_text="Parent session").wait_for()


def test_a_sub_agent_that_works_is_there_after_a_reload(server: Server, tab: Tab) -> None:
    """Also while it asks nothing; and it is gone from there when it has ended."""
    task = {"calls": [{"name": "task", "arguments": {"agent": "general", "prompt": "Do a thing."}}]}
    session = server.session(task, hold("below"), "It is done.", "All done.")
    page = tab(server, session)
    say(page, "Have it done")
    page.locator(".transcript > .child").wait_for()
    page.reload()
    page.locator(".transcript > .child summary").click()
    page.locator(".transcript > .child .card", has_text="hold").wait_for()
    let_go(server, "below")
    page.locator(".transcript > [role=log] > .assistant .markdown", has_text="All done.").wait_for()
    expect(page.locator(".transcript > .child")).to_have_count(0)


def test_a_conversation_is_forked(server: Server, tab: Tab) -> None:
    """The copy ends at the prompt that was chosen and goes on by itself; the session that it comes from stays."""
    session = server.session("One.", "Two.", "Another two.")
    for prompt in ("first", "second"):
        server.whole_turn(session, prompt)
    page = tab(server, session)
    page.locator("article.user", has_text="second").locator("button", has_text="Fork").click()
    page.wait_for_function("before => location.hash.slice(1) !== before", arg=session)
    copy = page.evaluate("location.hash.slice(1)")  # set together with the session that is shown
    page.locator("article.user", has_text="second").wait_for()
    page.locator(".assistant .markdown", has_text="Two.").wait_for(state="detached")
    say(page, "third")
    finished(page, "Another two.")
    assert [node["kind"] for node in server.get(f"/sessions/{session}")["nodes"]] == ["user", "assistant"] * 2
    assert copy in {row["id"] for row in server.get("/sessions")}


@pytest.mark.parametrize(("wish", "moves"), [("reduce", False), ("no-preference", True)])
def test_nothing_moves_for_who_wants_it_so(server: Server, tab: Tab, wish: str, moves: bool) -> None:
    """Neither the mark of what runs nor anything that opens (reduced motion)."""
    session = server.session(hold(f"still {wish}"), "Done.")
    page = tab(server, session, reduced_motion=wish)
    say(page, "Go on")
    page.locator(".doing .spinner").wait_for()
    page.locator(".card-head").click()
    page.locator(".card-body").wait_for()
    assert page.evaluate("document.getAnimations().length > 0") is moves
    let_go(server, f"still {wish}")
    page.locator(".markdown", has_text="Done.").wait_for()


REACHED = "addEventListener('focusin', event => event.target.setAttribute('data-reached', ''))"
UNREACHED = """() => [...document.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter(one => one.checkVisibility({visibilityProperty: true}) && !one.disabled && !one.hasAttribute("data-reached"))
    .filter(one => one.type !== "radio" || one.checked)
    .map(one => one.outerHTML.slice(0, 120))"""


def test_every_control_is_reached_by_keyboard(server: Server, tab: Tab) -> None:
    """By Tab, in the list, in a question with its reason, in cards, and in each panel; of radio buttons the one that is set."""
    session = server.session({"calls": [{"name": "lengthy", "arguments": {"text": "abc", "times": 5_000}}]}, ASKS, "Done.")
    page = tab(server, session)
    page.evaluate(REACHED)
    say(page, "Do it")
    page.locator(".question").wait_for()
    page.locator(".card-head").first.click()
    page.locator(".question .answers button", has_text="Refuse").click()
    automatic = "input[type=checkbox]"  # the last part of the panel, asked for when the blocks are there
    holding = {"": "", "Tree": ".tree li", "Prompt": automatic, "Plugins": "summary b", "Statistics": ".figures"}
    for panel, inside in holding.items():
        if panel:
            _beside(page, panel).locator(inside).first.wait_for()
            page.locator("#message").focus()
        for _ in range(20):
            if not (unreached := page.evaluate(UNREACHED)):
                break
            for _ in unreached:
                page.keyboard.press("Tab")
        assert unreached == []
    server.post(f"/sessions/{session}/cancel")


@pytest.fixture
def terminal(server: Server) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a prompt in a terminal of its own."""
    begun: list[subprocess.Popen[str]] = []

    def terminal(script: Path, prompt: str) -> subprocess.Popen[str]:
        environ = {**os.environ, "MORYFLOW_HOME": str(server.home)}
        command = [*MORYFLOW, "run", "-m", f"script:{script}", "--on-ask", "prompt", "--output", "stream-json", prompt]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        begun.append(subprocess.Popen(command, text=True, env=environ, cwd=server.vault, **pipes))  # type: ignore[call-overload]
        return begun[-1]

    yield terminal
    for process in begun:
        process.kill()
        process.communicate()


def test_two_tabs_and_a_terminal(server: Server, tab: Tab, terminal: Callable[..., subprocess.Popen[str]]) -> None:
    """A terminal asks, one tab answers, the other sees it, and the terminal goes on."""
    one, other = tab(server), tab(server)
    script = server.vault / "terminal.json"
    script.write_text('[{"calls": [{"name": "danger", "arguments": {"what": "by a terminal"}}]}, "The terminal is done."]')
    process = terminal(script, "From a terminal")
    for page in (one, other):
        page.locator(".sessions li", has_text="From a terminal").locator(".mark").wait_for()
        page.locator(".sessions li button", has_text="From a terminal").click()
        page.locator(".question").wait_for()
    one.locator(".question button.primary").click()
    for page in (one, other):
        page.locator(".markdown", has_text="The terminal is done.").wait_for()
        expect(page.locator(".question")).to_have_count(0)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert '"reply":"once"' in said.replace(" ", "")


def test_a_question_has_the_same_order_and_keys_as_at_a_terminal(server: Server, tab: Tab) -> None:
    """What will run, what is unusual, the answers; `e` makes always exact, and what is shown is what is stored (R33, D5)."""
    run = {"calls": [{"name": "bash", "arguments": {"command": "git log -3 &&\n  rm -rf build"}}]}
    page = tab(server, server.session(run, "Enough."))
    say(page, "Clean up")
    question = page.locator(".question")
    question.wait_for()
    text = question.inner_text()
    places = [text.index(part) for part in ("git log -3 &&\n  rm -rf build", "deletes", "Always:", "Once")]
    assert places == sorted(places) and not re.search(r"shell:|vault:/|ap_|no rule covers", text)
    expect(question.locator(".always")).to_have_text("Always: git log *, rm -rf build")
    question.press("e")
    expect(question.locator(".always")).to_have_text("Always: git log -3, rm -rf build")
    question.press("a")
    page.locator(".markdown", has_text="Enough.").wait_for()
    [answered] = [one for one in server.get("/approvals") if "rm -rf build" in one["request"]["targets"][0]]
    assert answered["reply"] == "exact"
    assert '"git log -3"' in (server.home / "config.jsonc").read_text()
    assert '"git log *"' not in (server.home / "config.jsonc").read_text()


def test_why_a_question_is_asked_is_said_in_chinese(server: Server, tab: Tab) -> None:
    """The sentences of the judge are translated on the page; names and paths stay as they are (S0.9)."""
    run = {"calls": [{"name": "bash", "arguments": {"command": "rm -rf dist; cat $X"}}]}
    page = tab(server, server.session(run, "Enough."), locale="zh-CN")
    say(page, "Clean up")
    expect(page.locator(".question .because")).to_contain_text("rm 会删除内容")
    expect(page.locator(".question .because")).to_contain_text("$X 在运行时才能确定")
    page.locator(".question").press("o")
    page.locator(".markdown", has_text="Enough.").wait_for()
