"""Whatever a conversation brings: every request fits its window, begins with a person's words and holds the prompt."""

from __future__ import annotations

import asyncio
import string
from types import SimpleNamespace

import pytest
from compaction_paths import ANSWERED, calls, compaction, path_of, result, says, talk, texts, user
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow.compaction.measure import chars
from moryflow.compaction.prune import limits_of, plan_cut, plan_fit
from moryflow.config.schema import CompactionSettings
from moryflow.kernel.model_request import RequestBuilder
from moryflow.runtime.session_commands import compact_now
from moryflow.store.messages import ContextBuilder
from moryflow.store.records import effective, nodes_for_view
from moryflow_sdk import Message, ModelInfo
from simulation import VOICE, WINDOWS, SimulatedModel, ask, converse, wander

pytestmark = pytest.mark.slow


@pytest.fixture
def talking(bench):
    """A bench with a tool that says as much as it is asked for, as often as one likes."""
    bench.plugin("voice", VOICE)
    bench.doom()
    return bench


async def conversation(talking, model, *, turns, deeds=converse):
    async with talking.host(provider=model) as host:
        session = await host.new_session(talking.vault)
        await session.keep()
        return await deeds(model, host, session, turns)


@pytest.mark.parametrize("window", [8000, 32_000, 128_000])
@given(seed=st.integers(0, 10**6))
@settings(max_examples=3)
def test_no_request_is_larger_than_the_window_or_lacks_the_prompt(talking, window, seed):
    """Random turns, four reads in one step among them, however often it is compacted (S0.2, S0.23, S1.20, D15, D17)."""
    model = SimulatedModel(window, seed)
    ends = asyncio.run(conversation(talking, model, turns=12))
    assert model.wrong == [] and set(ends) == {"completed"}


@given(seed=st.integers(0, 10**6), window=st.sampled_from(WINDOWS), mode=st.sampled_from(["auto", "before", "background"]))
@settings(max_examples=8)
def test_whatever_a_person_does_between_two_prompts(talking, window, seed, mode):
    """Sub-agents, branches, other models, `/compact`, undo, bad summaries: each request is one that a provider takes."""
    talking.doom(mode=mode)
    talking.events.clear()
    model = SimulatedModel(window, seed, summaries=("good", "good", "long", "chat", "cut", "empty"), children=True)
    ends = asyncio.run(conversation(talking, model, turns=8, deeds=wander))
    assert model.wrong == [] and set(ends) <= {"completed", "prompt_too_long"}
    failed = any(item["state"] == "failed" for item in talking.compactions())
    said = [event.data["message"] for event in talking.events if event.type == "error"]
    assert all("the prompt alone" in text or failed for text in said)


@pytest.mark.parametrize("steps", [(0, 1), (6, 12)])
async def test_small_windows_do_not_thrash(talking, steps):
    """At 8,000, of which tools take a fifth: four requests lie between two summaries, and one is enough for one (D15)."""
    talking.plugin("voice", VOICE.replace("Say it again", "Say it again " * 460))
    model = SimulatedModel(8000, seed=3)
    model.steps, model.sizes = steps, (300, 1500, 6000)
    ends = await conversation(talking, model, turns=40 if steps == (0, 1) else 8)
    asked = "".join({"main": "m", "compact": "c"}[request.purpose] for request in model.requests)
    assert model.wrong == [] and set(ends) == {"completed"}
    assert asked.count("c") >= 2 and min(map(len, asked.split("c")[1:-1])) >= 4


@pytest.mark.parametrize("tools", [0, 2500])
@pytest.mark.parametrize("summary", ["good", "long"])
@pytest.mark.parametrize(("prompt", "answer"), [(200, 1500), (800, 1500), (200, 3000), (2000, 1000), (2000, 3000), (400, 5000)])
async def test_heavy_text_does_not_thrash_either(talking, prompt, answer, summary, tools):
    """Nothing can be pruned, and four turns are more than the window holds: still four requests for each summary (D15)."""
    talking.plugin("voice", VOICE.replace("Say it again", "Say it again" + " and again" * (tools * 4 // 10)))
    model = SimulatedModel(8000, summaries=(summary,))
    model.steps, model.answer = (0,), answer

    async def deeds(model, host, session, turns):
        return [await ask(model, session, f"{turn}: " + "look " * (prompt // 5)) for turn in range(turns)]

    ends = await conversation(talking, model, turns=40, deeds=deeds)
    assert model.wrong == [] and set(ends) == {"completed"}
    assert model.asked["main"] >= 4 * len(talking.compactions("pending")) >= 4


@pytest.mark.parametrize("mode", ["auto", "before", "background"])
@pytest.mark.parametrize("summary", ["chat", "empty", "cut"])
async def test_a_summariser_that_always_fails_costs_old_words_and_no_turn(talking, summary, mode):
    """Where nothing can be pruned, what was said in old turns is cut: the prompt stays, the request fits (S0.25, S1.21)."""
    talking.doom(mode=mode)
    model = SimulatedModel(8000, summaries=(summary,))
    model.steps, model.answer = (0,), 3000

    async def deeds(model, host, session, turns):
        return [await ask(model, session, f"{turn}: " + "look there " * 150) for turn in range(turns)]

    ends = await conversation(talking, model, turns=16, deeds=deeds)
    assert model.wrong == [] and set(ends) == {"completed"}
    said = [message.text for message in model.requests[-1].messages if message.role == "assistant"]
    assert "more characters; there is no room and no summary]" in said[0]


def by_script(text):
    """About what a tokenizer counts: a token for a wide character, two for three signs."""
    wide, signs = sum(char > "\u2e80" for char in text), sum(char in string.punctuation + string.digits for char in text)
    return wide * 0.9 + signs * 0.6 + (len(text) - wide - signs) / 4.6


@pytest.mark.parametrize("text", ["请把这个函数的说明写得更清楚一些。", '{"a": [1, 2, {"b": "c"}]}, ', "word "])
async def test_every_script_fits(talking, text):
    """A window is tokens: wide characters and signs take more of them than letters do (S1.20)."""
    window = 16_000
    model = SimulatedModel(window, seed=1)
    model.count = lambda request: by_script("".join(message.text for message in request.messages))
    model.steps, model.word = (2, 3), text
    ends = await conversation(talking, model, turns=6)
    assert model.wrong == [] and set(ends) == {"completed"}


async def test_wide_characters_in_the_system_prompt_count_from_the_first_request_on(talking):
    """Where little was said yet nothing is measured with care, unless system prompt and tools may be large (S0.2, S1.20)."""
    text = "请把这个函数的说明写得更清楚一些。"
    talking.plugin("long", f"@hookimpl\ndef system_blocks():\n    return [SystemBlock(id='long', text='{text}' * 1500)]\n")
    (talking.home / "config.jsonc").unlink()
    model = SimulatedModel(32_000)
    model.count = lambda request: by_script("".join(message.text for message in request.messages))
    async with talking.host(provider=model) as host:
        session = await talking.session(host, [])
        end = await ask(model, session, text * 700)
    assert (end, model.wrong) == ("prompt_too_long", [])


async def test_what_can_never_fit_is_not_sent(bench):
    """A prompt larger than the window ends the turn before anything is sent, with compaction on and off (S1.21)."""
    for mode in ("auto", "off"):
        bench.config(mode=mode)
        async with bench.host({"text": "the answer"}, window=4000) as host:
            session = await bench.session(host, [])
            done = await session.prompt("word " * 4000)
            assert (done.end_reason, done.exit_code, host.scripted.requests) == ("prompt_too_long", 5, [])
            assert "the prompt alone does not fit the window" in done.error.message and "in parts" in done.error.next_step
            assert (await session.prompt("shorter?")).end_reason == ("prompt_too_long" if mode == "off" else "completed")


MANY_TOOLS = """
import dataclasses

def one(number):
    @tool(domain="read", name=f"tool_{number}")
    def it() -> str:
        return "done"
    return dataclasses.replace(it, description="Say it. " * 500)

@hookimpl
def tools():
    return [one(number) for number in range(20)]
"""
LONG_PROMPT = """
@hookimpl
def system_blocks():
    return [SystemBlock(id="long", text="Mind this. " * 30_000)]
"""


@pytest.mark.parametrize(("window", "plugin"), [(8000, MANY_TOOLS), (64_000, LONG_PROMPT)])
async def test_a_prompt_of_the_system_or_tools_larger_than_the_window_are_said(talking, window, plugin):
    """Nothing is sent, nothing is summarised in vain, and the sentence says what helps (S1.21)."""
    talking.plugin("voice", plugin)
    model = SimulatedModel(window)
    async with talking.host(provider=model) as host:
        session = await talking.session(host, talk(14, window // 10))
        done = await session.prompt("and now?")
    assert (done.end_reason, done.exit_code, model.requests) == ("prompt_too_long", 5, [])
    assert "the system prompt and the tools alone" in done.error.message and "session context" in done.error.next_step


async def test_four_parallel_reads_in_one_step(talking):
    """50,000 characters each in a window of 32,000: they are cut, the model is told, and the turn goes on (S1.20)."""
    model = SimulatedModel(32_000)
    model.plan, model.steps = [[50_000] * 4], (0,)
    async with talking.host(provider=model) as host:
        session = await host.new_session(talking.vault)
        end = await ask(model, session, "read all four")
    outputs = [message.text for message in model.requests[-1].messages if message.role == "tool"]
    assert end == "completed" and model.wrong == [] and model.asked["compact"] == 0
    assert len(outputs) == 4 and all("[cut: the beginning of 50000 characters" in text for text in outputs)
    assert all(len(text) > 15_000 for text in outputs)


# -------------------------------------------------------------------- the view


def test_the_prompt_of_a_turn_that_is_split_stays():
    """The cut falls into the turn: its prompt stands behind the summary, word for word, after any number of them (D15)."""
    path = path_of(
        user("old"), says("done"), user("Mend it. Touch nothing else."), calls("a"), result("a"), compaction("n3", "S"),
        calls("b"), result("b"), compaction("n6", "T"), calls("c"), result("c"),
    )  # fmt: skip
    assert texts(path)[:2] == ["[Conversation summary]\nT", "Mend it. Touch nothing else."]
    assert [message.role for message in ContextBuilder().build(path)][:3] == ["system", "user", "assistant"]
    assert [node.id for node in nodes_for_view(reversed(path))] == ["n2", *(f"n{number}" for number in range(6, 11))]


@given(st.lists(st.sampled_from(["user", "say", "call", "note", "cut"]), max_size=30), st.data())
def test_the_first_message_is_always_a_persons(kinds, data):
    """Behind the summary stands a user's message, wherever the cut fell, in old sessions too; what is held shows the same."""
    items = [user("first")]
    for number, kind in enumerate(kinds, 1):
        if kind == "cut":
            items.append(compaction(f"n{data.draw(st.integers(0, len(items) - 1))}"))
        else:
            made = {"user": [user(f"u{number}")], "say": [says(f"a{number}")], "note": [("note", {"text": "n"})]}
            items += made.get(kind) or [calls(f"c{number}"), result(f"c{number}")]
    path = path_of(*items)
    view = [message for message in ContextBuilder().build(path) if message.role != "system"]
    assert view[0].role == "user"
    assert ContextBuilder().build(nodes_for_view(reversed(path))) == ContextBuilder().build(path)
    last = [item for item in items if item[0] == "user"][-1][1]["text"]
    kept = {node.id for node in effective(path)[1]}
    prompt = [node for node in path if node.kind == "user"][-1]
    if all(node.id in kept for node in path if node.seq > prompt.seq and node.kind in ("assistant", "tool")):
        assert any(message.text == last for message in view)


def test_a_path_that_an_answer_begins_gets_a_line_of_the_host():
    """What a plugin protects may be an answer alone: providers refuse a conversation that begins with one (D17)."""
    path = path_of(user("a"), says("kept"), user("b"), says("c"), compaction("n2", "S", protected=["n1"]))
    assert [message.role for message in ContextBuilder().build(path)] == ["system", "user", "assistant", "user", "assistant"]


# -------------------------------------------------------------------- protected turns


async def test_three_finished_turns_stay_besides_the_prompt(bench):
    """They fit, so they stay, though they are more than half of what triggers (S0.18, D15)."""
    bench.config(keepRecentTokens=1)
    nodes = [*talk(4, 1000), *talk(3, 3000)]
    async with bench.host(ANSWERED, {"text": "the answer"}) as host:
        session = await bench.session(host, nodes)
        await session.prompt("and now?")
        view = texts(await host.store.path(session.id))
    assert view[0].startswith("[Conversation summary]")
    assert [text[:8] for text in view[1:]] == [
        "prompt 0",
        "answer 0",
        "prompt 1",
        "answer 1",
        "prompt 2",
        "answer 2",
        "and now?",
        "the answ",
    ]


async def test_three_finished_turns_stay_when_a_person_asks(bench):
    """`/compact` and `session compact`: the same three, also of a short conversation in a large window (S0.18, S0.29)."""
    async with bench.host(ANSWERED, window=128_000) as host:
        session = await bench.session(host, talk(8, 1000))
        await compact_now(host, session)
        view = texts(await host.store.path(session.id))
    assert [text[:8] for text in view[1:]] == [f"{who} {turn}" for turn in (5, 6, 7) for who in ("prompt", "answer")]


# -------------------------------------------------------------------- pruning first


@pytest.mark.parametrize(
    ("window", "protect", "minimum"), [(128_000, 40_000, 20_000), (8000, 2500, 1250), (32_000, 10_000, 5000)]
)
def test_the_thresholds_of_pruning_scale_with_the_window(window, protect, minimum):
    """40,000 and 20,000 at 128,000; what a person wrote is taken as it is (D15, S4.14)."""
    limits = limits_of(CompactionSettings(), window)
    assert (limits.protect, limits.minimum) == (protect, minimum)
    assert limits_of(CompactionSettings(prune_protect_tokens=700), window).protect == 700


async def test_pruning_comes_first_in_a_small_window(bench):
    """At 8,000 old outputs become lines, and no summary is asked for (D15, S0.19)."""
    old = [item for n in range(3) for item in (user(), calls(f"c{n}"), result(f"c{n}", size=6000), says())]
    async with bench.host({"text": "the answer"}, window=8000) as host:
        session = await bench.session(host, [*old, *talk(3, 1500)])
        await session.prompt("and now?")
        asked = [request.purpose for request in host.scripted.requests]
        sent = [message.text for message in host.scripted.requests[0].messages if message.role == "tool"]
    assert asked == ["main"] and sent[0].startswith("[pruned read")


def test_the_newest_outputs_are_cut_the_largest_first():
    """What is small stays whole; the line names how much there was and where the whole is (D16)."""
    path = path_of(
        user(), calls("a", "b", "c"), result("a", "a", 400), result("b", "b", 8000, path="x.txt"), result("c", "c", 9000)
    )
    cut = plan_cut(path, {}, 2100, chars)
    assert set(cut.nodes) == {"n3", "n4"} and "whole output: x.txt" in cut.nodes["n3"]
    assert all(len(text) / 4 <= 1005 for text in cut.nodes.values())
    assert not plan_cut(path, {}, 9000, chars)


def test_what_is_never_pruned_gives_way_last():
    """Outputs of `task` go only when nothing else is left (S0.20)."""
    path = path_of(
        user(),
        calls("a", tool="task"),
        result("a", "t", 8000, tool="task"),
        calls("b"),
        result("b", "r", 8000),
        calls("c"),
        result("c"),
    )
    tools = CompactionSettings().protected_tools
    assert set(plan_fit(path, {}, 1510, tools, chars).nodes) == {"n4"}
    assert set(plan_fit(path, {}, 3010, tools, chars).nodes) == {"n2", "n4"}


# -------------------------------------------------------------------- what plugins add

ADDING = """
@hookimpl
def chat_messages(messages):
    return [*messages, Message(role="user", text="Mind this. " * {times})]
"""


@pytest.mark.parametrize(("times", "end"), [(1500, "completed"), (4000, "prompt_too_long")])
async def test_what_plugins_add_to_the_messages_is_counted(talking, times, end):
    """The view makes room for it; where nothing helps, nothing is sent and the sentence says so (S1.20, S1.21)."""
    talking.plugin("adding", ADDING.format(times=times))
    model = SimulatedModel(8000)
    model.steps = (0,)
    async with talking.host(provider=model) as host:
        session = await talking.session(host, talk(5, 2000))
        model.prompts[session.id] = "and now?"
        done = await session.prompt("and now?")
    assert (done.end_reason, model.wrong) == (end, [])
    assert done.error is None or "what plugins add" in done.error.message
    assert end == "completed" or model.asked["main"] == 0


async def test_what_plugins_do_not_add_any_more_is_not_counted():
    """What was added to one request takes no room once another went out without it (S1.20)."""
    model = ModelInfo(id="m", name="m", provider="p", context_window=10_000, tools=False)
    requests = RequestBuilder(SimpleNamespace(), ContextBuilder(), model)
    requests._system = Message(role="system", text="12345")
    view = [Message(role="user", text="and now?")]
    await requests._weigh(view, [*view, Message(role="user", text="Mind this.")])
    assert await requests.overhead(len) == 15
    await requests._weigh(view, view)
    assert await requests.overhead(len) == 5


LEAVING = """
@hookimpl
def chat_messages(messages):
    return messages[1:]
"""


async def test_what_plugins_leave_out_leaves_a_persons_message_first(talking):
    """One that sends the end of a conversation only may begin with an answer: a line of the host stands before it (D17)."""
    talking.plugin("leaving", LEAVING)
    async with talking.host({"text": "the answer"}) as host:
        session = await talking.session(host, talk(2))
        await session.prompt("and now?")
        sent = [message for message in host.scripted.requests[0].messages if message.role != "system"]
    assert [message.role for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert sent[0].text.startswith("[note from the host]") and sent[-1].text == "and now?"
