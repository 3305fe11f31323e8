"""What a child agent may do: what both it and its parent may do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from moryflow_sdk import Agent, Rule

if TYPE_CHECKING:
    from moryflow.kernel.turn_context import TurnContext

OWN, EXTRA, ABOVE = "agent", "spawn", " above"
"""Where a rule of an agent comes from. Each source is judged by itself and the most severe counts."""


def narrow_agent(agent: Agent, scope: TurnContext, extra: Sequence[Rule] = ()) -> Agent:
    """Return `agent` as a child of the turn `scope`: with the rules of all above it, and only tools that they have too.

    :param extra: rules that narrow it further.
    """
    above = scope.agent
    rules = (
        *(rule.replace(source=OWN) for rule in agent.rules),
        *(rule.replace(source=EXTRA) for rule in extra),
        *(rule.replace(source=_higher(rule.source)) for rule in above.rules),
    )
    return agent.replace(
        rules=rules,
        tools=_both(agent, above, scope.plugin_set.tools),
        deny_tools=tuple(dict.fromkeys((*agent.deny_tools, *above.deny_tools))),
    )


def _higher(source: str) -> str:
    """Name a source one level up, so that no two levels are taken for one list, where the last match would win."""
    known = source in (OWN, EXTRA) or source.endswith(ABOVE)
    return f"{source if known else OWN}{ABOVE}"


def _both(agent: Agent, above: Agent, known: Iterable[str]) -> tuple[str, ...] | None:
    """Return the tools that both agents name; ``None`` where neither names any."""
    if agent.tools is None:
        return above.tools
    if above.tools is None:
        return agent.tools
    from moryflow.kernel.tool_prepare import names_tool

    return tuple(name for name in known if names_tool(name, agent.tools) and names_tool(name, above.tools))
