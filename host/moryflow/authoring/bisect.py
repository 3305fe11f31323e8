"""Find the plugin that made a turn bad: run its hooks again with halves of the plugins on (``moryflow plugin bisect``)."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moryflow_sdk import ConfigError

from moryflow.base.builtins import AMONG_USER

from .recorded_inputs import UNKNOWN, Moment
from .replay import GATES, REPLAYED
from .rerun import Rerun, with_only

if TYPE_CHECKING:
    from moryflow.runtime.host import Host

    from .trace import RecordedSession, RecordedTurn

Judge = Callable[[str, Sequence[str], str], bool]
"""Takes the turn as text, the plugins that were on, and the sections that differ from a run without any; returns whether the
turn is good."""


@dataclass(frozen=True)
class Culprit:
    """What :meth:`Bisection.find` found.

    :ivar needs: other plugins without which the plugin does no harm.
    :ivar rounds: for each run, the plugins that were on and whether the turn was good.
    :ivar changed: the sections of the turn's text that the plugin changed: place, before, after.
    """

    plugin: str
    needs: tuple[str, ...]
    rounds: tuple[tuple[tuple[str, ...], bool], ...]
    changed: tuple[tuple[str, str, str], ...]


class Bisection:
    """Runs the hooks of one turn with some plugins on, and remembers the result of each run."""

    def __init__(self, host: Host, recorded: RecordedSession, turn: RecordedTurn, judge: Judge) -> None:
        self._host = host
        self._recorded = recorded
        self._turn = turn
        self._judge = judge
        self._texts: dict[tuple[str, ...], list[tuple[str, str]]] = {}
        self._judged: dict[tuple[str, ...], bool] = {}

    def suspects(self) -> list[str]:
        """Return the plugins that may have changed the turn, in the order they are called, without the built-in ones."""
        plugins = self._host.plugin_set.plugins
        called = [item.plugin for hook in REPLAYED for item in self._host.plugin_set.ordered(hook)]
        return [name for name in dict.fromkeys(called) if plugins[name].tier != "builtin" or name in AMONG_USER]

    async def find(self) -> Culprit:
        """Return the plugin that made the turn bad.

        :raises ConfigError: the turn is good with all plugins, or bad without any, or a plugin is not loaded yet.
        """
        for record in self._host.plugin_set.records:
            if record.status == "pending":
                message = f"plugin {record.name!r} is not loaded yet: {record.error or record.reason}"
                raise ConfigError(message, next_step=record.hint or "the same command again, in a moment")
        suspects = self.suspects()
        name = self._turn.place
        if not await self._is_good(()):
            step = f"moryflow session show {self._recorded.session.id}: the prompt, the model or a tool did it"
            raise ConfigError(f"{name} is bad without any plugin of yours too", next_step=step)
        if await self._is_good(suspects):
            step = f"moryflow trace {self._recorded.session.id} marks code that has changed since; or judge it otherwise"
            raise ConfigError(f"{name} is good with every plugin that is loaded now", next_step=step)
        good, bad = 0, len(suspects)
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (middle, bad) if await self._is_good(suspects[:middle]) else (good, middle)
        needs = await self._needed_with(suspects[:good], suspects[good])
        changed = self._changes(suspects[:good], suspects[: good + 1])
        return Culprit(suspects[good], needs, tuple(self._judged.items()), changed)

    async def _needed_with(self, others: Sequence[str], culprit: str) -> tuple[str, ...]:
        """Return those of `others` without which `culprit` does no harm."""
        if not await self._is_good([culprit]):
            return ()
        needed = list(others)
        for name in others:
            fewer = [each for each in needed if each != name]
            if not await self._is_good([*fewer, culprit]):
                needed = fewer
        return tuple(needed)

    async def _is_good(self, plugins: Sequence[str]) -> bool:
        on = tuple(plugins)
        if on not in self._judged:
            self._texts[on] = await self._run(on)
            changed = [(place, text) for place, _, text in self._changes((), on)] if on else self._texts[on]
            self._judged[on] = self._judge(_joined(self._texts[on]), on, _joined(changed))
        return self._judged[on]

    async def _run(self, plugins: Sequence[str]) -> list[tuple[str, str]]:
        """Return the turn's text, place by place, as these plugins would have made it."""
        rerun = Rerun(self._host, self._recorded, with_only(self._host.plugin_set, frozenset(plugins)))
        found: list[tuple[str, str]] = []
        results: dict[str, str] = {}
        for turn in self._recorded.until(self._turn):
            for moment in rerun.moments(turn):
                if moment.hook not in REPLAYED:
                    continue
                text = await _text(rerun, moment, results)
                if turn is self._turn and text:
                    found.append((moment.place, text))
        return found

    def _changes(self, before: Sequence[str], after: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
        one, other = dict(self._texts[tuple(before)]), dict(self._texts[tuple(after)])
        places = [*one, *(place for place in other if place not in one)]
        pairs = [(place, one.get(place, ""), other.get(place, "")) for place in places]
        return tuple((place, text, changed) for place, text, changed in pairs if text != changed)


def _joined(sections: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(f"== {place}\n{text}" for place, text in sections) + "\n"


async def _text(rerun: Rerun, moment: Moment, results: dict[str, str]) -> str:
    """Return the result of the hook of `moment` as text; empty if its input is not known or no plugin says anything.

    :param results: by call id, the results as these plugins have changed them so far, for the messages of later requests.
    """
    if moment.hook in GATES:
        verdicts = (await rerun.call(moment)).value
        return "\n".join(f"{verdict['decision']}: {verdict.get('reason', '')}" for verdict in verdicts.values())
    given = moment.values[0] if moment.values else None
    if given is UNKNOWN:
        return ""
    if moment.hook == "chat_messages":
        given = tuple(item.replace(text=results[item.call_id]) if item.call_id in results else item for item in given or ())
    outcome = await rerun.call(moment, given)
    if moment.hook == "tool_after" and moment.call is not None and "withheld by" not in outcome.value:
        results[moment.call.id] = outcome.value.get("output", "")
    failures = [f"{failure.plugin} failed: {failure.error}" for failure in outcome.failures]
    shown = _shown(moment.hook, outcome.value) if outcome.value is not None else ""
    return "\n".join(filter(None, [shown, *failures]))


def _shown(hook: str, value: Any) -> str:
    """Return the value of a transform as text that a person or a command can search."""
    match hook:
        case "chat_system":
            return "\n\n".join(block["text"] for block in value.get("blocks", ()))
        case "system_blocks":
            return "\n\n".join(block.get("text", "") for block in value)
        case "chat_messages":
            return "\n".join(_message(message) for message in value)
        case "tool_after" if "withheld by" not in value:
            return f"{value.get('status', 'ok')}\n{value.get('output', '')}"
        case _:
            shown = value.get("args", {}) if hook == "tool_before" else value
            return json.dumps(shown, ensure_ascii=False, sort_keys=True)


def _message(message: dict[str, Any]) -> str:
    calls = "".join(f"\n  {call['name']} {call.get('arguments', '')}" for call in message.get("tool_calls", ()))
    return f"{message['role']}: {message.get('text', '')}{calls}"
