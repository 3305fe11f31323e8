"""What is saved in the configuration holds from the next turn on, setting by setting; the rest says restart (S0-i)."""

from __future__ import annotations

import asyncio
import json

import pytest

AGAIN = [{"calls": [{"name": "read", "arguments": {"path": "a.txt"}}]}] * 3
"""A model that reads the same file again and again."""

HELD = {
    "permission rules": {"permission": {"rules": [{"domain": "read", "pattern": "**", "decision": "deny"}]}},
    "hooks": {"hooks": {"tool": {"after": [{"tool": "read", "appendText": "\nappended"}]}}},
    "truncation": {"truncation": {"maxLines": 2}},
}


def saved(home, runtime, **top):
    """Save the configuration."""
    home.write("config.jsonc", json.dumps({**top, "agents": {"runtime": runtime}}))


@pytest.mark.parametrize("kind", HELD)
async def test_rules_hooks_and_truncation_hold_from_the_next_call_on(home, kind):
    """Saved, reported without "restart", and there (issue, configuration)."""
    (home.vault / "a.txt").write_text("line\n" * 20)
    async with home.open():
        before = await home.says("read", path="a.txt")
        saved(home, HELD[kind])
        said = "\n".join((await home.report()).lines())
        assert f"setting agents.runtime.{next(iter(HELD[kind]))}" in said and "restart" not in said
        after = await home.says("read", path="a.txt")
        if kind == "truncation":
            assert len(after.splitlines()) < len(before.splitlines())
        else:
            expected = {"permission rules": "denied", "hooks": "appended"}[kind]
            assert expected in after and expected not in before


async def test_the_doom_loop_reloads(home):
    """The second turn ends where the first one did not (issue, configuration)."""
    (home.vault / "a.txt").write_text("alpha")
    script = home.write("script.json", json.dumps([*AGAIN, {"text": "one"}, *AGAIN, {"text": "two"}]))
    saved(home, {"doomLoop": {"enabled": False}})
    async with home.open() as host:
        session = await host.new_session(home.vault, model=f"script:{script}")
        assert (await session.prompt("hi")).end_reason == "completed"
        saved(home, {"doomLoop": {"maxToolCalls": 1, "maxAttempts": 1}})
        assert "restart" not in (await home.report()).lines()[0]
        assert (await session.prompt("hi")).end_reason == "doom_loop"


WAITING = """
import time
from pathlib import Path
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def wait() -> str:
    "Wait to be let go."
    Path(__file__).with_name("began").touch()
    while not Path(__file__).with_name("go").exists():
        time.sleep(0.005)
    return ""

@hookimpl
def tools():
    return [wait]
"""


async def test_a_running_turn_starts_sub_agents_of_its_own_generation(home):
    """An agent that is saved while the turn runs counts from the next turn on (invariant 8)."""
    agent = '---\n{{"id": "w", "description": "d", "model": "script:{}"}}\n---\nYou write {}.\n'
    child = home.write("child.json", '["written"]')
    home.write("agents/w.md", agent.format(child, "prose"))
    home.write("plugins/mine.py", WAITING)
    task = {"name": "task", "arguments": {"agent": "w", "prompt": "write", "description": "d"}}
    turns = [{"calls": [{"name": "wait", "arguments": {}}]}, {"calls": [task]}, "done"]
    script = home.write("script.json", json.dumps(turns))
    async with home.open() as host:
        session = await host.new_session(home.vault, model=f"script:{script}")
        turn = asyncio.ensure_future(session.prompt("hi"))
        await home.until((home.path / "plugins" / "began").exists)
        home.write("agents/w.md", agent.format(child, "verse"))
        await host.refresh()
        (home.path / "plugins" / "go").touch()
        assert (await turn).text == "done"
        [started] = await host.store.sessions(5, purpose="child", parent=session.id)
        assert started.origin["spawn"]["agent"]["prompt"] == "You write prose."
        assert host.agents["w"].prompt == "You write verse."


async def test_compaction_reloads(home):
    """What the next turn is measured with is what was saved (issue, configuration)."""
    saved(home, {"compaction": {"enabled": False}})
    async with home.open() as host:
        assert host.compaction.settings(host.config).enabled is False
        saved(home, {"compaction": {"enabled": True, "protectedTurns": 7}})
        assert "restart" not in (await home.report()).lines()[0]
        settings = host.compaction.settings(host.config)
        assert (settings.enabled, settings.protected_turns) == (True, 7)


async def test_the_prompt_and_its_parameters_reload(home):
    """The next request has the new words and the new temperature (issue, configuration; S0.81, S0.83)."""
    script = home.write("script.json", '["one", "two"]')
    home.write(
        "plugins/spy.py",
        """
        from moryflow_sdk import hookimpl

        SEEN = []

        @hookimpl
        def chat_system(system, turn):
            SEEN.append(system.text.partition(".")[0])

        @hookimpl
        def chat_params(params, turn):
            with (turn.home / "seen.txt").open("a") as stream:
                print(SEEN[-1], params.temperature, file=stream)
        """,
    )
    saved(home, {"prompt": {"mode": "custom", "text": "Be one.", "params": {"temperature": 0.1}}})
    async with home.open() as host:
        session = await host.new_session(home.vault, model=f"script:{script}")
        await session.prompt("hi")
        saved(home, {"prompt": {"mode": "custom", "text": "Be two.", "params": {"temperature": 0.2}}})
        assert "restart" not in (await home.report()).lines()[0]
        await session.prompt("hi")
    assert (home.path / "seen.txt").read_text().splitlines() == ["Be one 0.1", "Be two 0.2"]


@pytest.mark.parametrize(
    ("setting", "restart"),
    [
        ({"profile": "remote"}, True), ({"strict": True}, True), ({"language": "zh"}, True), ({"trace": True}, True),
        ({"safeMode": True}, False), ({"onlyPlugins": []}, False), ({"disabledPlugins": ["mine"]}, False),
        ({"model": "script:x"}, False), ({"limits": {"maxSteps": 3}}, False),
    ],
)  # fmt: skip
async def test_what_takes_a_restart_says_so_and_nothing_else_does(home, setting, restart):
    """A setting that is read when a host starts is told as such (issue, configuration)."""
    home.tool()
    async with home.open():
        home.write("config.jsonc", json.dumps(setting))
        said = (await home.report()).lines()[0]
        assert f"setting {next(iter(setting))}" in said and ("takes a restart" in said) is restart
        off = {"safeMode", "onlyPlugins", "disabledPlugins"} & setting.keys()
        assert ("hello" in home.host.tools) is not bool(off)
