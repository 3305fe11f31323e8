"""Agents in a conversation: change the one that answers, hand a plan over, look in on sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moryflow.approvals.replies import OFFERED, answer_of
from moryflow.cli.terminal.text import columns, terminal_width

if TYPE_CHECKING:
    from moryflow_sdk import Agent

    from moryflow.runtime.host import Host

    from .port import ConversationPort

PLANNER, BUILDER = "plan", "build"
HAND_OVER = "The plan above is agreed. Carry it out step by step, and check each step."


def primary(host: Host) -> list[Agent]:
    """Return the agents that a person can talk with, in their order."""
    return [agent for agent in host.agents.values() if agent.mode != "subagent" and not agent.hidden]


def hands_over(talk: ConversationPort, line: str) -> bool:
    """Whether `line` is the one word that hands a plan to the agent that builds."""
    return line.lower() == BUILDER and talk.session.agent.id == PLANNER


async def next_agent(talk: ConversationPort) -> None:
    """Let the next agent answer, as Tab at an empty prompt does."""
    ids = [agent.id for agent in primary(talk.host) if agent.mode == "primary"]
    now = talk.session.agent.id
    following = ids[(ids.index(now) + 1) % len(ids)] if now in ids else BUILDER
    await talk.session.set_agent(following)
    talk.choose(agent=following)


class FamilyCommands:
    """The slash commands about agents."""

    def __init__(self, talk: ConversationPort) -> None:
        self._talk = talk

    def agents(self) -> dict[str, str]:
        """Return what each primary agent's own command does, by name."""
        return {agent.id: agent.description or agent.name for agent in primary(self._talk.host)}

    async def agent(self, name: str) -> str:
        """Show the agent, or change it."""
        talk = self._talk
        if name:
            await talk.session.set_agent(name)
            talk.choose(agent=name)
        talk.say(f"agent: {talk.session.agent.id}")
        if not name:
            rows = [(f"/{agent.id}", agent.description) for agent in primary(talk.host)]
            talk.say(columns(rows, within=terminal_width()))
        return ""

    async def switch(self, name: str, rest: str) -> str:
        """Change to the agent `name` and send it `rest`; from planning to building, the plan goes along."""
        before = self._talk.session.agent.id
        hands_over = not rest and (before, name) == (PLANNER, BUILDER) and await self._planned()
        await self.agent(name)
        return HAND_OVER if hands_over else rest

    async def _planned(self) -> bool:
        """Whether the planner has said something that was not handed over yet."""
        path = await self._talk.host.store.path(self._talk.session.id)
        handed = [place for place, node in enumerate(path) if node.kind == "user" and node.payload["text"] == HAND_OVER]
        since = path[handed[-1] :] if handed else path
        changes = [node.payload["agent"] for node in since if "agent" in node.payload]
        agent = PLANNER if not handed and changes[:1] != [PLANNER] else BUILDER  # who had the word before the first change
        for node in since:
            agent = node.payload.get("agent", agent)
            if node.kind == "assistant" and agent == PLANNER:
                return True
        return False

    async def children(self, name: str) -> str:
        """List the sub-agents of this session, or go to one."""
        talk = self._talk
        if name:
            return await self._go(name)
        rows = await talk.host.store.sessions(50, purpose=None, parent=talk.session.id)
        busy = {running.session.id for running in talk.session.children.running}
        shown = [
            (row.id, row.agent, "at work" if row.id in busy else await _ended(talk.host, row.id), row.title) for row in rows
        ]
        talk.say(columns(shown) if shown else "no sub-agents yet; @general … starts one")
        return ""

    async def parent(self, _: str) -> str:
        """Go back to the session that started this one."""
        above = self._talk.session.row.parent
        if above is None:
            self._talk.say("this session was started by nobody but you")
            return ""
        return await self._go(above)

    async def stop(self, _: str) -> str:
        """Stop the sub-agents that work in the background."""
        running = self._talk.session.children.running
        self._talk.session.cancel()
        await self._talk.session.children.settled()
        self._talk.say(f"{len(running)} stopped; what they did so far is kept")
        return ""

    async def reply(self, rest: str) -> str:
        """Answer the question of a sub-agent that works in the background."""
        approval, _, said = rest.partition(" ")
        answer = answer_of(said)
        if answer is None:
            self._talk.say(f"/reply QUESTION {OFFERED}, or why not: nothing was answered; /show lists the open questions")
            return ""
        row = await self._talk.host.approvals.reply(approval, answer.reply, message=answer.message)
        if row.state == "expired":
            from moryflow.cli.commands.approval import too_late_error

            raise too_late_error(row)
        self._talk.say(f"{row.id}: {row.reply}")
        return ""

    async def show(self, approval: str) -> str:
        """Show all of a question, or list those that are open."""
        from moryflow.cli.commands.approval import open_questions, whole_question
        from moryflow.cli.terminal.question_text import show_whole

        store = self._talk.host.store
        if not approval:
            self._talk.say(open_questions(await store.approvals(state="pending")))
            return ""
        await show_whole(whole_question(await store.approval(approval)))
        return ""

    async def _go(self, name: str) -> str:
        talk = self._talk
        session = await talk.host.resume(talk.session.row.vault, name, model=talk.chosen.model)
        await talk.exchange(session)
        talk.say(f"session {session.id} · {session.agent.id}{' · /parent leads back' if session.row.parent else ''}")
        return ""


async def _ended(host: Host, session: str) -> str:
    runs = [run for run in await host.store.runs(session) if not run.is_compaction]
    if not runs:
        return "not begun"
    steps = sum(run.steps for run in runs)
    return f"{runs[-1].end_reason or 'interrupted'}, {steps} step{'s' if steps != 1 else ''}"
