"""Detect an agent that goes in circles, and ask, continue or end the run.

The gate counts calls in their order, across the steps of a run. The user's answer arrives with ``tool_decided``.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any, Literal, Self

from moryflow_sdk import Allow, Ask, Remember, Ruling, Stop, ToolCall, ToolResult, Turn, Verdict, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

Hit = Literal["same_tool", "too_many"]
RECENT = 10
_KEY = "run"
Limit = Annotated[int, Meta(gt=0, le=1_000_000, strict=True)]


class DoomLoopSettings(Settings):
    """When a run counts as going in circles.

    :ivar max_attempts: how often a loop may be refused, or ignored in full access, in one run; the next one ends it.
    :ivar max_tool_calls: how many calls a run may make before the user is asked.
    :ivar same_tool_threshold: how many calls in a row with the same tool and effect lead to a question.
    :ivar max_signature_bytes: of calls with larger arguments, only the tool's name is compared.
    :ivar cooldown_tool_calls: how many calls are not checked after the user let the run continue.
    :ivar enabled: if false, loops are not looked for.
    """

    strictest = {"maxAttempts": 1, "maxToolCalls": 1, "sameToolThreshold": 1, "cooldownToolCalls": 0, "enabled": True}

    max_attempts: Limit = 3
    max_tool_calls: Limit = 60
    same_tool_threshold: Limit = 5
    max_signature_bytes: Limit = 8192
    cooldown_tool_calls: Annotated[int, Meta(ge=0, le=1_000_000, strict=True)] = 3
    enabled: Annotated[bool, Meta(strict=True)] = True


@dataclass
class Run:
    """The counters of a run.

    :ivar total: number of calls in the whole run; `calls`: since the last continuation.
    :ivar recent: names of the last tools that were called, oldest first.
    :ivar repeats: how often `signature` was called in a row.
    :ivar cooldown: how many further calls are not checked.
    :ivar attempts: hits since the user last agreed to continue: those that were refused, or ignored in full access.
    :ivar open: ids of calls that are judged but not decided, each with its hit, which is being asked about, or ``None``.
    """

    turn: str
    total: int = 0
    calls: int = 0
    recent: list[str] = field(default_factory=list[str])
    signature: str = ""
    repeats: int = 0
    cooldown: int = 0
    attempts: int = 0
    open: dict[str, Hit | None] = field(default_factory=dict[str, "Hit | None"])

    @classmethod
    def load(cls, state: MutableMapping[str, Any], turn: str, call: str) -> Self:
        """Return the run of `call`: the turn's own, or the run of an earlier process in which the call was left open."""
        stored = state.get(_KEY) or {}
        if stored.get("turn") != turn and call not in stored.get("open", ()):
            return cls(turn)
        known = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
        run = cls(**{**known, "turn": turn})
        run.open = dict(run.open)
        return run

    def save(self, state: MutableMapping[str, Any]) -> None:
        """Write the counters to the session's state, which is committed with the next node."""
        state[_KEY] = {**vars(self), "recent": list(self.recent), "open": dict(self.open)}

    def count(self, call: ToolCall, settings: DoomLoopSettings) -> Hit | None:
        """Count `call` and return the threshold that it hits, if any. A call that is judged again counts only once."""
        if call.id in self.open:
            return self.open[call.id]
        self._add(call.tool, signature_of(call, settings.max_signature_bytes))
        hit: Hit | None = None
        if self.cooldown:
            self.cooldown -= 1
            self.repeats = 1
        else:
            hit = self._hit(settings)
        self.open[call.id] = hit
        return hit

    def count_mistake(self, call: ToolCall, message: str, settings: DoomLoopSettings) -> Hit | None:
        """Count a call that was refused before any gate judged it; the same `message` to the model means the same mistake."""
        self._add(call.tool, f"{call.tool}:mistake:{sha256(message.encode('utf-8', 'replace')).hexdigest()}")
        return self._hit(settings)

    def _hit(self, settings: DoomLoopSettings) -> Hit | None:
        if self.repeats >= settings.same_tool_threshold:
            return "same_tool"
        return "too_many" if self.calls > settings.max_tool_calls else None

    def go_on(self, settings: DoomLoopSettings, *, attempts: int) -> None:
        """Reset the counters, and do not check the next calls."""
        self.attempts = attempts
        self.calls = self.repeats = 0
        self.signature = ""
        self.cooldown = settings.cooldown_tool_calls

    def _add(self, tool: str, signature: str) -> None:
        self.total += 1
        self.calls += 1
        self.recent = [*self.recent, tool][-RECENT:]
        self.repeats = self.repeats + 1 if signature == self.signature else 1
        self.signature = signature


def signature_of(call: ToolCall, limit: int) -> str:
    """Return the signature of a call: the tool and the effect, or only the tool if the arguments are large."""
    text = json.dumps(call.args, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)
    data = text.encode("utf-8", "surrogatepass")
    return call.tool if len(data) > limit else f"{call.tool}:{call.effect or sha256(data).hexdigest()}"


name = "doom_loop"
services = ("emit",)
config_model = DoomLoopSettings
config_path = "agents.runtime.doomLoop"
gate = True

# The domain of the session grant that *always* stores; no permission rule has this domain.
DOMAIN = "doom_loop"

# The explanation of the answer *always* in the question.
ALWAYS = (
    "lets this session go on without asking about loops again: each time the counters start again at zero; it holds for "
    "this session only and is not stored"
)


@hookimpl
def tool_gate(call: ToolCall, turn: Turn) -> Verdict | None:
    """Count the call; at a threshold ask, continue or stop."""
    settings: DoomLoopSettings = turn.config
    if not settings.enabled:
        return None
    run = Run.load(turn.session_state, turn.id, call.id)
    asked = call.id in run.open
    hit = run.count(call, settings)
    verdict = _verdict(run, hit, call, turn, asked=asked) if hit else None
    run.save(turn.session_state)
    return verdict


@hookimpl
def tool_decided(call: ToolCall, ruling: Ruling, turn: Turn) -> None:
    """Record how this plugin's question was answered."""
    settings: DoomLoopSettings = turn.config
    if not settings.enabled or ruling.decision == "ask":
        return
    run = Run.load(turn.session_state, turn.id, call.id)
    hit = run.open.pop(call.id, None)
    if hit and ruling.decision == "allow":
        run.go_on(settings, attempts=0)
    elif hit:
        run.attempts += 1
    run.save(turn.session_state)


@hookimpl
def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> Stop | None:
    """Count a call that no gate judged, because the tool does not exist or the arguments do not fit."""
    settings: DoomLoopSettings = turn.config
    if call.hash or not settings.enabled or result.code in ("skipped", "interrupted"):
        return None
    run = Run.load(turn.session_state, turn.id, call.id)
    hit = run.count_mistake(call, result.output, settings)
    verdict = None
    if hit == "same_tool":
        turn.emit("hit", **_facts(run, hit, call), action="stopped")
        verdict = _stop(f"{call.tool} was called {run.repeats} times in a row with the same mistake")
    elif hit and turn.headless:  # else the next call that reaches the gate is asked about
        verdict = _verdict(run, hit, call, turn, asked=False)
    run.save(turn.session_state)
    return verdict if isinstance(verdict, Stop) else None


def _verdict(run: Run, hit: Hit, call: ToolCall, turn: Turn, *, asked: bool) -> Verdict:
    """Return the verdict for a hit; the run continues without a question if the user agreed to that before.

    :param asked: whether the user was already asked about this hit; ``tool_decided`` records the answer.
    """
    settings: DoomLoopSettings = turn.config
    what = _describe(run, hit, call)
    granted = any(rule.domain == DOMAIN and rule.decision == "allow" for rule in turn.grants)
    if asked and granted:
        return Allow(reason=f"doom loop: {what}; continued, because always was answered in this session")
    if run.attempts >= settings.max_attempts and not granted:
        turn.emit("hit", **_facts(run, hit, call), action="stopped")
        return _stop(f"{what}, and this happened {run.attempts} times before in this run")
    if granted or turn.mode == "full_access":
        turn.emit("hit", **_facts(run, hit, call), action="continued")
        run.go_on(settings, attempts=0 if granted else run.attempts + 1)
        run.open[call.id] = None
        why = f" ({run.attempts} of {settings.max_attempts}), because full_access"
        if granted:
            why = ", because always was answered in this session"
        return Allow(reason=f"doom loop: {what}; continued{why}")
    if turn.headless:
        turn.emit("hit", **_facts(run, hit, call), action="stopped")
        return _stop(f"{what}, and nobody can be asked whether to go on")
    if not asked:
        turn.emit("hit", **_facts(run, hit, call), action="asked")
    remember = Remember(scope="session", domain=DOMAIN, pattern="*", says=ALWAYS)
    return Ask(reason=f"{what}; go on?", cause="doom_loop", bypass="never", remember=(remember,))


def _stop(what: str) -> Stop:
    advice = "say more precisely what you want, or split the task; the limits are in agents.runtime.doomLoop"
    return Stop(reason=f"the agent goes in circles: {what}. To go on, {advice}", cause="doom_loop", end_reason="doom_loop")


def _describe(run: Run, hit: Hit, call: ToolCall) -> str:
    if hit == "too_many":
        return f"this run has made {run.calls} tool calls, the last one of {call.tool}"
    same = "the same arguments" if ":" in run.signature else "arguments too large to compare"
    return f"{call.tool} was called {run.repeats} times in a row with {same}"


def _facts(run: Run, hit: Hit, call: ToolCall) -> dict[str, object]:
    counters = {"total": run.total, "calls": run.calls, "repeats": run.repeats, "attempts": run.attempts}
    return {"threshold": hit, "call_id": call.id, "tool": call.tool, "recent": list(run.recent), **counters}
