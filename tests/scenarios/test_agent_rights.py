"""What a child session may do: never more than its parent, and known only by the kernel (R4, D66)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from agent_texts import agent_of
from hypothesis import given, settings
from hypothesis import strategies as st
from moryflow import RunOptions
from moryflow.agents import narrow_agent
from moryflow.kernel.outcome import SessionPermissions
from moryflow.kernel.tool_call import call_as_judged
from moryflow.kernel.tool_executor import combine, default_verdicts
from moryflow.kernel.turn_context import TurnContext
from moryflow.runtime.session_lease import read_only_scope
from moryflow_sdk import Agent, ConfigError, ModelSettings, Rule

SEVERITY = {"allow": 0, "ask": 1, "deny": 2, "stop": 3}
CALLS = (
    ("read", {"path": "a.md"}),
    ("read", {"path": ".env"}),
    ("read", {"path": "/etc/hostname"}),
    ("write", {"path": "src/a.py", "content": "x"}),
    ("write", {"path": ".moryflow/plans/p.md", "content": "x"}),
    ("delete", {"path": ".git/config"}),
    ("bash", {"command": "git status"}),
    ("bash", {"command": "echo hi > src/a.py && rm -rf src"}),
    ("task", {"agent": "explore", "prompt": "x"}),
)
PATTERNS = {
    "read": ("**", "vault:**", "vault:/*.md", "vault:/.env", "fs:**", "regex:^vault:"),
    "edit": ("**", "vault:**", "vault:/src/**", "vault:/.moryflow/plans/*.md", "*.py", "regex:("),
    "bash": ("*", "git *", "git status", "echo *", "rm *"),
    "task": ("*", "explore", "task:explore", "general"),
    "tool": ("*",),
}


def rules(source):
    """Random rules, as a person's file or an agent's might hold."""
    one = st.sampled_from([(domain, pattern) for domain, patterns in PATTERNS.items() for pattern in patterns])
    made = st.builds(
        lambda where, decision: Rule(domain=where[0], pattern=where[1], decision=decision, source=source),
        one,
        st.sampled_from(["allow", "ask", "deny"]),
    )
    return st.lists(made, max_size=5).map(tuple)


def tool_names():
    """Random lists of tools an agent names."""
    return st.none() | st.lists(st.sampled_from(["read", "write", "bash", "*", "d*", "task"]), max_size=3).map(tuple)


def agents():
    """Random agents."""
    return st.builds(
        lambda own, tools, denied: Agent(id="x", rules=own, tools=tools, deny_tools=denied),
        rules("user"),
        tool_names(),
        st.lists(st.sampled_from(["bash", "w*"]), max_size=1).map(tuple),
    )


async def ruling(scope: TurnContext, agent: Agent, tool: str, args) -> int:
    """Return how severe the gates are to a call, with what is not offered as a denial."""
    from moryflow.kernel.tool_call import offered_tools

    place = replace(scope, agent=agent, _views={})
    if tool not in offered_tools(place):
        return SEVERITY["deny"]
    call, _ = call_as_judged(place, tool, args, "call_1", 1)
    verdicts = await place.around.dispatcher.gates(place, "tool_gate", call=call)
    verdicts += default_verdicts(place.plugin_set.missing_gates, verdicts)
    return SEVERITY[combine(verdicts, mode=place.live.mode).decision]


async def test_no_child_may_do_more_than_its_parent_or_than_its_own_agent(rig):
    """For random rules of person, parent, child and grandchild, in both modes, through the real gate (R4, D66)."""
    rig.config(doomLoop={"enabled": False})
    (rig.vault / "a.md").write_text("x")
    async with rig.host() as host:
        base = read_only_scope(host, (await host.new_session(rig.vault, model=rig.script({"text": "x"}))).row, None)
        loop = asyncio.get_running_loop()

        @settings(max_examples=120)
        @given(
            rules("session"), agents(), agents(), agents(), rules("user"), st.sampled_from(CALLS),
            st.sampled_from(["agent", "full_access"]),
        )  # fmt: skip
        def holds(person, parent, child, grandchild, extra, call, mode):
            async def judge():
                base.live.permissions = SessionPermissions(mode, list(person))
                above = replace(base, agent=parent, _views={})
                below = narrow_agent(child, above, extra)
                lowest = narrow_agent(grandchild, replace(base, agent=below, _views={}))
                order = (parent, below, lowest, replace_rules(child), replace_rules(grandchild))
                return [await ruling(base, who, *call) for who in order]

            top, second, third, own_second, own_third = asyncio.run_coroutine_threadsafe(judge(), loop).result(300)
            assert third >= second >= top
            assert second >= own_second and third >= own_third

        await asyncio.to_thread(holds)


def replace_rules(agent: Agent) -> Agent:
    """Return the agent alone, its rules as those of an agent."""
    return agent.replace(rules=tuple(rule.replace(source="agent") for rule in agent.rules))


def test_two_levels_are_never_taken_for_one_list(rig):
    """A parent's denial is not lifted by a later allow of the child, at any depth (R4)."""
    deny = Agent(id="a", rules=(Rule(domain="edit", pattern="**", decision="deny"),))
    allow = Agent(id="b", rules=(Rule(domain="edit", pattern="**", decision="allow"),))

    class Above:
        agent = deny

        class plugin_set:
            tools = ()

    below = narrow_agent(allow, Above, ())
    Above.agent = below
    lowest = narrow_agent(allow, Above, ())
    assert [rule.source for rule in lowest.rules] == ["agent", "agent above", "agent above above"]
    assert [rule.decision for rule in lowest.rules] == ["allow", "allow", "deny"]


# -------------------------------------------------------------------- who started whom

WRITER = """
    name = "keeper"
    services = ("spawn", "history")

    @tool(domain="read")
    async def keep(ctx: ToolContext) -> str:
        \"\"\"Start the keeper's own agent.\"\"\"
        own = Agent(id="writer", prompt="w", model={model!r}, rules=(Rule(domain="bash", pattern="*", decision="allow"),))
        done = await ctx.spawn(own, "write", metadata={{"target": "a.md"}}, title="Keep")
        return done.session

    @tool(domain="read")
    def who(ctx: ToolContext) -> str:
        \"\"\"Say who started this turn.\"\"\"
        return repr((ctx.spawned.plugin, dict(ctx.spawned.metadata)) if ctx.spawned else None)

    @hookimpl
    def tools():
        return [keep, who]
"""


async def test_a_plugin_knows_the_turns_it_started_and_nobody_else_can_claim_them(rig):
    """turn.spawned is the kernel's word for this one turn: not a name's, not a resumed, forked or imported session's (D34)."""
    model = f"script:{rig.vault.parent / 'writer.json'}"
    who = rig.call("who")
    (rig.vault.parent / "writer.json").write_text(json.dumps([who, {"text": "ok"}, *[who, {"text": "ok"}] * 3]))
    rig.plugin("keeper", WRITER.format(model=model))
    seen = []
    async with rig.host() as host:
        host.bus.subscribe(lambda event: event.type == "tool.result" and seen.append(event.data["output"]))
        session = await host.new_session(rig.vault, model=rig.script(rig.call("keep"), who, {"text": "done"}))
        result = await session.prompt("go")
        kid = (await host.store.sessions(5, purpose=None, parent=result.session))[0]
        assert kid.origin["spawn"]["plugin"] == "keeper"
        await (await host.resume(session_id=kid.id, model=model)).prompt("again")
        copy = await host.store.fork(kid.id)
        await (await host.resume(session_id=copy.id, model=model, agent="build")).prompt("again")
        lines = [line async for line in host.store.export(kid.id)]
        brought = await host.store.import_(lines)
        assert brought.origin == {"session": kid.id, "imported": True}
        again = [line async for line in host.store.export(brought.id)]
        assert json.loads(again[0])["origin"] == json.loads(lines[0])["origin"]
        await (await host.resume(session_id=brought.id, model=model, agent="build")).prompt("again")
    assert seen == ["('keeper', {'target': 'a.md'})", kid.id, "None", "None", "None", "None"]


async def test_a_child_that_a_person_goes_on_with_stays_as_narrow_as_it_was(rig):
    """Its agent is kept with the session, its parent's rules and all, and no other agent takes over (R4)."""
    script = rig.vault.parent / "kid.json"
    edit = rig.call("write", path="a.md", content="x")
    script.write_text(json.dumps([{"text": "ok"}, edit, {"text": "ok"}]))
    (rig.home / "agents").mkdir(mode=0o700)
    head = {"id": "helper", "mode": "subagent", "model": f"script:{script}"}
    (rig.home / "agents" / "helper.md").write_text(f"---\n{json.dumps(head)}\n---\nHelp.\n")
    task = rig.call("task", agent="helper", prompt="x")
    async with rig.host() as host:
        session = await host.new_session(rig.vault, agent="plan", model=rig.script(task, {"text": "ok"}))
        result = await session.prompt("go")
        kid = (await host.store.sessions(5, purpose=None, parent=result.session))[0]
        for asked in (None, "build"):
            again = await host.resume(session_id=kid.id, agent=asked, model=f"script:{script}")
            assert again.agent.id == "helper" and "task" in again.agent.deny_tools
        done = await again.prompt("now write")
    assert done.denied[0]["tool"] == "write" and not (rig.vault / "a.md").exists()


# -------------------------------------------------------------------- the agents that come with it


async def scripted(rig, agent, *turns, prompt="go", on_ask="deny"):
    """Run one prompt with an agent; return the result, the tool results and what the model was told of tools."""
    async with rig.host() as host:
        session = await host.new_session(rig.vault, agent=agent, model=rig.script(*turns))
        result = await session.prompt(prompt, options=RunOptions(on_ask=on_ask))
        path = await host.store.path(session.id)
    return result, [node.payload for node in path if node.kind == "tool"]


async def test_build_is_the_default_and_may_use_every_tool(rig):
    """The default agent edits in the folder without a question (S4.3, S2.17)."""
    result, told = await scripted(rig, None, rig.call("write", path="a.md", content="x"), {"text": "ok"})
    assert result.end_reason == "completed" and told[0]["status"] == "ok"
    async with rig.host() as host:
        assert host.agent(None).id == "build" and host.agent("build").source.endswith("build.md")
        assert next(iter(host.agents)) == "build"


async def test_plan_changes_nothing_but_its_plans_and_asks_for_commands(rig):
    """edit is denied except .moryflow/plans/*.md, bash asks, the rest reads, in full access too (S2.2, S2.18, D23)."""
    (rig.vault / "a.md").write_text("old")
    turns = [
        rig.call("read", path="a.md"),
        rig.call("write", path="a.md", content="new"),
        rig.call("write", path=".moryflow/plans/p.md", content="# Plan"),
        rig.call("write", path=".moryflow/plans/p.sh", content="x"),
        rig.call("write", path="deep/.moryflow/plans/p.md", content="x"),
        rig.call("bash", command="ls"),
        rig.call("bash", command="echo x > a.md"),
    ]
    _, told = await scripted(rig, "plan", *turns, {"text": "The plan."})
    assert [item["status"] for item in told] == ["ok", "denied", "ok", "denied", "denied", "denied", "denied"]
    assert "nobody could be asked" in told[5]["output"] and "rule deny" in told[6]["output"]
    assert (rig.vault / "a.md").read_text() == "old"
    rig.allow_all()
    async with rig.host() as host:
        session = await host.new_session(rig.vault, agent="plan", mode="full_access", model=rig.script(*turns, {"text": "x"}))
        await session.prompt("go")
        told = [node.payload["status"] for node in await host.store.path(session.id) if node.kind == "tool"]
    assert told == ["ok", "denied", "ok", "denied", "denied", "ok", "denied"]


async def test_a_plan_goes_to_build_in_the_same_session(rig):
    """Switching the agent lifts the restriction; the plan is in the conversation (S2.18, D23)."""
    plan = rig.call("write", path=".moryflow/plans/p.md", content="# Plan")
    async with rig.host() as host:
        script = rig.script(plan, {"text": "planned"}, rig.call("write", path="a.md", content="built"), {"text": "built"})
        session = await host.new_session(rig.vault, agent="plan", model=script)
        await session.prompt("plan it")
        await session.set_agent("build")
        await session.prompt("carry it out")
        again = await host.resume(session_id=session.id)
    assert (rig.vault / "a.md").read_text() == "built" and again.agent.id == "build"


async def test_explore_reads_and_nothing_else(rig):
    """Read-only, no bash, sensitive files still ask; whatever it is not offered is unknown to it (S2.3, D23)."""
    (rig.vault / "a.md").write_text("x")
    (rig.vault / ".env").write_text("KEY=1")
    rig.config(permission={"rules": [{"domain": d, "pattern": "*", "decision": "allow"} for d in ("bash", "tool", "mcp")]})
    turns = [
        rig.call("read", path="a.md"),
        rig.call("grep", pattern="x"),
        rig.call("read", path=".env"),
        rig.call("write", path="a.md", content="y"),
        rig.call("bash", command="ls"),
        rig.call("task", agent="general", prompt="x"),
    ]
    _, told = await scripted(rig, "explore", *turns, {"text": "ok"})
    assert [item["status"] for item in told] == ["ok", "ok", "denied", "error", "error", "error"]
    assert [item.get("code") for item in told[3:]] == ["unknown_tool"] * 3


async def test_general_has_every_tool(rig):
    """As a sub-agent, too, but ``task`` where the person's depth ends (S2.3, D23)."""
    turns = [rig.call("write", path="a.md", content="y"), rig.call("task", agent="general", prompt="x")]
    below = [{**turn, "purpose": "child"} for turn in (*turns, {"text": "did it"})]
    _, told = await scripted(rig, "general", *turns, *below, {"text": "ok"})
    assert [item["status"] for item in told] == ["ok", "ok"] and told[1]["metadata"]["calls"] == {"write": 1, "task": 1}
    async with rig.host() as host:
        calls = await host.store.calls(session=told[1]["metadata"]["session"])
    assert [call.state for call in calls] == ["completed", "error"]


@pytest.mark.parametrize("name", ["title", "summary", "default_compact_agent", "quiet"])
async def test_a_hidden_agent_cannot_be_chosen(rig, name):
    """Not for a run, not in a session, not as a sub-agent, not by the configuration; it can be looked at (S4.3)."""
    (rig.home / "agents").mkdir(mode=0o700)
    (rig.home / "agents" / "quiet.md").write_text("---\nid: quiet\ndescription: d\nhidden: true\n---\nBe quiet.\n")
    (rig.home / "agents" / "quiet.md").chmod(0o600)
    rig.config(agent={"id": name})
    async with rig.host() as host:
        assert host.agent(None).id == "build"
        with pytest.raises(ConfigError, match="is hidden: it works for Moryflow or for a plugin, and cannot be chosen"):
            await host.new_session(rig.vault, agent=name)
        session = await host.new_session(rig.vault, model=rig.script({"text": "ok"}))
        with pytest.raises(ConfigError, match="is hidden"):
            await session.set_agent(name)
        with pytest.raises(ConfigError) as nearly:
            await session.set_agent(f"{name}x")
        assert name not in str(nearly.value).replace(f"{name}x", "")
        done = await host.call_tool("task", {"agent": name, "prompt": "x"}, vault=rig.vault)
        assert done.result.code == "unknown_agent"


async def test_title_and_summary_have_no_tools(rig):
    """They answer and can do nothing else (S4.3)."""
    async with rig.host() as host:
        for agent in (host.agents["title"], host.agents["summary"]):
            assert agent.hidden and agent.mode == "primary" and agent.tools == ()
            assert agent.settings == ModelSettings(), "some models refuse a parameter that nobody asked for"


async def test_the_prompts_hold_nothing_that_changes(rig):
    """No placeholder, no date, no path of this machine; names of tools in them exist (S0.82)."""
    async with rig.host() as host:
        for agent in (host.agents[name] for name in ("build", "plan", "general", "explore", "title", "summary")):
            assert "{" not in agent.prompt and str(rig.vault) not in agent.prompt and "20" not in agent.prompt
            assert len(agent.prompt) / 4 < 700
            if agent.tools:
                assert {tool for tool in agent.tools if tool != "*"} <= set(host.tools)


async def test_an_agents_file_may_limit_its_steps(rig):
    """maxSteps of a file counts; one that is not a number is named and left out (S4.2, D42)."""
    assert agent_of(b'---\n{"id": "x", "maxSteps": 3}\n---\nhi\n', "x.md")[0].max_steps == 3
    agent, wrong = agent_of(b'---\n{"id": "x", "maxSteps": "many"}\n---\nhi\n', "x.md")
    assert agent.max_steps is None and "maxSteps" in wrong[0].message


async def test_without_the_plugins_line_the_host_has_its_default_agent(rig):
    """Deleting the line removes plan and its like, and nothing else (ARCHITECTURE §1)."""
    from moryflow.base.builtins import BUILTINS

    rest = tuple(name for name in BUILTINS if not name.endswith(".agents"))
    async with rig.host(builtins=rest) as host:
        assert host.agent(None).id == "build" and not {"plan", "general", "explore"} & set(host.agents)
        session = await host.new_session(rig.vault, model=rig.script({"text": "hi"}))
        assert (await session.prompt("go")).text == "hi"


async def test_a_persons_agent_does_not_take_a_built_in_name(rig):
    """It is left out and named, so that explore stays read-only (D41, D57)."""
    (rig.home / "agents").mkdir(mode=0o700)
    (rig.home / "agents" / "explore.md").write_text('---\n{"id": "explore"}\n---\nI may do all.\n')
    async with rig.host() as host:
        assert host.agent("explore").tools == ("read", "ls", "glob", "grep", "search_in_file")
        record = next(record for record in host.plugin_set.records if record.name == "user_agents")
        assert "taken by the builtin plugin agents" in record.error


async def test_a_child_whose_rights_cannot_be_read_is_not_gone_on_with(rig):
    """Nothing wider stands in for them (R4)."""
    async with rig.host() as host:
        parent = (await host.new_session(rig.vault, model=rig.script({"text": "x"}))).row
        origin = {"spawn": {"plugin": "tasks", "agent": {"id": "x", "powers": "all"}}}
        hold = await host.store.begin_child(parent, agent="x", mode="agent", title="", origin=origin)
        hold.release()
        with pytest.raises(ConfigError, match="cannot be read"):
            await host.resume(session_id=hold.session.id)
