"""Agents in a conversation: change the one that answers, hand a plan over, look in on sub-agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moryflow.approvals import OFFERED, answer_of
from moryflow.cli.terminal.text import columns, terminal_width

if TYPE_CHECKING:
    from moryflow.runtime.documents import Kin

    from .port import ConversationPort

LISTED = 50
"""Sub-agents that are listed, the newest first."""
PLANNER, BUILDER = "plan", "build"
HAND_OVER = "The plan above is agreed. Carry it out step by step, and check each step."


def hands_over(talk: ConversationPort, line: str) -> bool:
    """Whether `line` is the one word that hands a plan to the agent that builds."""
    return line.lower() == BUILDER and talk.host.agent == PLANNER


async def next_agent(talk: ConversationPort) -> None:
    """Let the next agent answer, as Tab at an empty prompt does."""
    ids = [name for name, agent in talk.host.agents.items() if agent.takes_turns]
    now = talk.host.agent
    following = ids[(ids.index(now) + 1) % len(ids)] if now in ids else BUILDER
    await talk.host.change(agent=following)
    talk.choose(agent=following)


class FamilyCommands:
    """The slash commands about agents."""

    def __init__(self, talk: ConversationPort) -> None:
        self._talk = talk

    def agents(self) -> dict[str, str]:
        """Return what each primary agent's own command does, by name."""
        return {name: agent.text for name, agent in self._talk.host.agents.items()}

    async def agent(self, name: str) -> str:
        """Show the agent, or change it."""
        talk = self._talk
        if name:
            await talk.host.change(agent=name)
            talk.choose(agent=name)
        talk.say(f"agent: {talk.host.agent}")
        if not name:
            talk.say(columns([(f"/{one}", text) for one, text in self.agents().items()], within=terminal_width()))
        return ""

    async def switch(self, name: str, rest: str) -> str:
        """Change to the agent `name` and send it `rest`; from planning to building, the plan goes along."""
        before = self._talk.host.agent
        hands_over = not rest and (before, name) == (PLANNER, BUILDER) and await self._planned()
        await self.agent(name)
        return HAND_OVER if hands_over else rest

    async def _planned(self) -> bool:
        """Whether the planner has said something that was not handed over yet."""
        path = await self._talk.host.path(self._talk.host.row.id)
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
        tree = await talk.host.tree()
        own = [child for child in reversed(tree.kin) if not child.of][:LISTED]
        talk.say(columns([_line(child) for child in own]) if own else "no sub-agents yet; @general … starts one")
        return ""

    async def parent(self, _: str) -> str:
        """Go back to the session that started this one."""
        above = self._talk.host.row.parent
        if above is None:
            self._talk.say("this session was started by nobody but you")
            return ""
        return await self._go(above)

    async def stop(self, _: str) -> str:
        """Stop the sub-agents that work in the background."""
        number = await self._talk.host.stop_children()
        self._talk.say(f"{number} stopped; what they did so far is kept")
        return ""

    async def reply(self, rest: str) -> str:
        """Answer the question of a sub-agent that works in the background."""
        approval, _, said = rest.partition(" ")
        answer = answer_of(said)
        if answer is None:
            self._talk.say(f"/reply QUESTION {OFFERED}, or why not: nothing was answered; /show lists the open questions")
            return ""
        row = await self._talk.host.reply(approval, answer.reply, message=answer.message)
        if row.state == "expired":
            from moryflow.cli.commands.approval import too_late_error

            raise too_late_error(row)
        self._talk.say(f"{row.id}: {row.reply}")
        return ""

    async def show(self, approval: str) -> str:
        """Show all of a question, or list those that are open."""
        from moryflow.cli.commands.approval import open_questions, whole_question
        from moryflow.cli.terminal.question_text import show_whole

        host = self._talk.host
        if not approval:
            self._talk.say(open_questions(await host.approvals()))
            return ""
        await show_whole(whole_question(await host.approval(approval)))
        return ""

    async def _go(self, name: str) -> str:
        talk = self._talk
        await talk.host.open(name, talk.chosen.model)
        row = talk.host.row
        talk.say(f"session {row.id} · {talk.host.agent}{' · /parent leads back' if row.parent else ''}")
        return ""


def _line(child: Kin) -> tuple[str, ...]:
    steps = f", {child.steps} step{'s' if child.steps != 1 else ''}" if child.end_reason not in ("at work", "not begun") else ""
    return child.session, child.agent, f"{child.end_reason}{steps}", child.title
