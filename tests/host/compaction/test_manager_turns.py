"""Whole turns of long sessions, against a scripted model."""

from __future__ import annotations

from compaction_paths import compact, filled, kinds, says, talk, texts, user
from moryflow_sdk import ChatParams

ANSWER = {"text": "the answer"}


async def test_a_session_that_is_too_long_is_summarised_before_the_turn(bench):
    """Before a turn: summary first, the newest turns verbatim, nothing deleted (S0.12, S0.21, S0.23, S0.24, S1.2–S1.6, D14)."""
    async with bench.host(compact(), ANSWER) as host:
        session = await bench.session(host, talk(14, 1000))
        result = await session.prompt("and now?")
        path = await host.store.path(session.id)
        request = host.scripted.requests[-1]
    assert (result.end_reason, result.text) == ("completed", "the answer")
    assert kinds(path)[-3:] == ["user", "compaction", "assistant"]
    assert len([node for node in path if node.kind == "user"]) == 15
    view = [message for message in request.messages if not message.text.startswith("You are")]
    assert view[0].role == "system" and view[0].text.startswith("[Conversation summary]\n## Goal")
    assert view[-1].text == "and now?" and view[1].role == "user"
    assert {"prompt 12", "prompt 13"} <= {message.text[:9] for message in view}
    done = bench.compactions("done")[0]
    assert done["tokens_after"] < done["tokens_before"] and done["summary_chars"] > 0


async def test_a_short_session_is_left_alone(bench):
    """Below the limit nothing happens: no request, no event, no node (S0.13)."""
    async with bench.host(ANSWER) as host:
        session = await bench.session(host, talk(3, 100))
        await session.prompt("and now?")
    assert bench.compactions() == [] and [r.purpose for r in host.scripted.requests] == ["main"]


async def test_the_fork_is_a_stored_run_without_tools(bench):
    """Run, events and cost are stored with purpose=compact; no tool is offered (S1.15, S1.22–S1.26, S1.28, D19, D68)."""
    async with bench.host(compact(), ANSWER) as host:
        session = await bench.session(host, talk(14, 1000))
        result = await session.prompt("and now?")
        runs = await host.store.runs(session.id)
        events = [event for event in await host.store.events(session.id) if event.type == "compaction"]
        fork = host.scripted.requests[0]
        listed = list(host.agents)
    assert [(run.purpose, run.agent, run.state, run.end_reason) for run in runs if run.purpose == "compact"] == [
        ("compact", "default_compact_agent", "ended", "completed")
    ]
    assert (fork.purpose, fork.tools, fork.params) == ("compact", (), ChatParams()), "no parameter that nobody asked for"
    assert [event.data["state"] for event in events] == ["pending", "done"]
    assert {event.agent for event in events} == {"default_compact_agent"}
    assert "default_compact_agent" not in listed
    assert result.usage.input == sum(10 for _ in host.scripted.requests)


async def test_a_limit_that_a_person_set_is_asked_for(bench):
    """A reasoning model would spend a limit of ours on its reasoning (S0.22)."""
    bench.config(maxOutputTokens=500)
    async with bench.host(compact(), ANSWER) as host:
        session = await bench.session(host, talk(14, 1000))
        await session.prompt("and now?")
    assert host.scripted.requests[0].params == ChatParams(max_tokens=500)


async def test_a_failing_summarizer_never_blocks_the_turn(bench):
    """Failure: pruning only, an event that says why, a cool-down, the turn goes on (S0.25, S1.32)."""
    error = {"code": "auth", "message": "no such key"}
    async with bench.host(compact(error=error), ANSWER, compact(), {"text": "two"}) as host:
        session = await bench.session(host, talk(14, 1000))
        first = await session.prompt("and now?")
        second = await session.prompt("and then?")
        path = await host.store.path(session.id)
    assert (first.text, second.text) == ("the answer", "two")
    assert "compaction" not in kinds(path)
    assert [item["reason"] for item in bench.compactions("failed")] == ["no such key"]


async def test_a_session_three_times_the_window_is_rescued(bench):
    """Far over the window: the middle is left out, so that the one request fits, and the turn goes on (S0.2, S0.22, S1.20)."""
    async with bench.host(compact(), ANSWER, window=8000) as host:
        session = await bench.session(host, talk(24, 2000))
        result = await session.prompt("and now?")
        [fork] = [request for request in host.scripted.requests if request.purpose == "compact"]
    assert result.text == "the answer"
    assert sum(len(m.text) for m in fork.messages) / 4 + 2048 < 8000
    assert "prompt 0" in fork.messages[1].text and "answer 20" in fork.messages[1].text


async def test_a_refused_prompt_is_compacted_once_and_asked_again(bench):
    """The provider says the prompt is too long: compact at once, rebuild, ask again (S1.20, D18)."""
    too_long = {"error": {"code": "context", "message": "maximum context length"}}
    async with bench.host(too_long, compact(), ANSWER, window=100_000) as host:
        session = await bench.session(host, talk(14, 1000))
        result = await session.prompt("and now?")
        path = await host.store.path(session.id)
    assert (result.end_reason, result.text) == ("completed", "the answer")
    assert kinds(path).count("compaction") == 1
    assert bench.compactions("done")[0]["trigger"] == "recovery"


async def test_what_never_fits_ends_the_turn_with_the_session_intact(bench):
    """Still too long after recovery: prompt_too_long, and the session goes on later (S1.21)."""
    too_long = {"error": {"code": "context", "message": "maximum context length"}}
    async with bench.host(too_long, compact(), too_long, ANSWER, window=100_000) as host:
        session = await bench.session(host, talk(14, 1000))
        result = await session.prompt("and now?")
        assert result.end_reason == "prompt_too_long" and result.exit_code == 5
        again = await session.prompt("shorter?")
    assert again.text == "the answer"


async def test_off_is_really_off(bench):
    """mode=off, enabled=false and auto=false: nothing by itself, not even recovery (S0.29, S2.6, D18)."""
    too_long = {"error": {"code": "context", "message": "maximum context length"}}
    for setting in ({"mode": "off"}, {"enabled": False}, {"auto": False}):
        bench.config(**setting)
        async with bench.host(too_long) as host:
            session = await bench.session(host, talk(14, 1000))
            result = await session.prompt("and now?")
            path = await host.store.path(session.id)
        assert result.end_reason == "prompt_too_long" and set(kinds(path)) == {"user", "assistant"}
    assert bench.compactions() == []


async def test_a_second_compaction_merges_the_first(bench):
    """The earlier summary goes into the next one, and only the last one is shown (S1.5, D17)."""
    second = "## Goal\nMend the parser.\n## Progress\nAll of it is done."
    async with bench.host(compact(), *[ANSWER] * 5, compact(second), ANSWER) as host:
        session = await bench.session(host, talk(14, 1000))
        for size in (0, 0, 0, 0, 0, 26_000):
            await session.prompt(filled("and now?", size))
        path = await host.store.path(session.id)
        forks = [request for request in host.scripted.requests if request.purpose == "compact"]
    assert "Half of it is done" in forks[1].messages[1].text
    assert kinds(path).count("compaction") == 2
    shown = texts(path)
    assert "All of it is done" in shown[0] and not any("Half of it" in text for text in shown)


async def test_one_turn_that_is_too_large_is_split(bench):
    """A single turn too large: its beginning gets a section of its own, its prompt and its end stay (S1.11, D15)."""
    nodes = [*talk(2, 400), user("the large one", 2000), *[says(f"part {i}", 3000) for i in range(9)]]
    written = "## Goal\nMend it.\n## Progress\nIt is begun.\n## The current turn so far\nWe looked at parts 0 to 4."
    async with bench.host(compact(written), ANSWER) as host:
        session = await bench.session(host, nodes)
        await session.prompt("go on")
        path = await host.store.path(session.id)
        asked = host.scripted.requests[0].messages
    node = next(node for node in path if node.kind == "compaction")
    assert "## The current turn so far" in asked[0].text
    assert asked[1].text.index("[the current turn begins here]") < asked[1].text.index("the large one")
    assert node.payload["details"]["split"] is True
    assert "## The current turn so far\nWe looked at parts 0 to 4." in node.payload["summary"]
    assert texts(path)[1].startswith("the large one") and texts(path)[2].startswith("part ")
