"""Detect an agent that goes in circles, and ask, go on or end the run.

Calls are counted in the gate, in call order, across the steps of a run. A person's answer arrives with ``tool_decided``.
"""

from __future__ import annotations

from moryflow_sdk import Allow, Ask, Remember, Ruling, Stop, ToolCall, ToolResult, Turn, Verdict, hookimpl

from .run import DoomLoopSettings, Hit, Run

name = "doom_loop"
services = ("emit",)
config_model = DoomLoopSettings
config_path = "agents.runtime.doomLoop"
gate = True

DOMAIN = "doom_loop"
"""Domain of the session grant that *always* makes; no permission rule has it."""

ALWAYS = (
    "lets this session go on without asking about loops again: each time the counters start again at zero; it holds for "
    "this session only and is not stored"
)
"""What the question says of the answer *always*."""


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
    """Take note of how a question of ours was answered."""
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
    """Count a call that no gate has seen: of a tool that is not there, or with arguments that do not fit."""
    settings: DoomLoopSettings = turn.config
    if call.hash or not settings.enabled or result.code in ("skipped", "interrupted"):
        return None
    run = Run.load(turn.session_state, turn.id, call.id)
    hit = run.count_mistake(call, result.output, settings)
    verdict = None
    if hit == "same_tool":
        turn.emit("hit", **_facts(run, hit, call), action="stopped")
        times = run.mistakes[run.signature]
        verdict = _stop(f"{call.tool} was called {times} times {_since(run, times)} with the same mistake")
    elif hit and turn.headless:  # else the next call that reaches the gate is asked about
        verdict = _verdict(run, hit, call, turn, asked=False)
    run.save(turn.session_state)
    return verdict if isinstance(verdict, Stop) else None


def _verdict(run: Run, hit: Hit, call: ToolCall, turn: Turn, *, asked: bool) -> Verdict:
    """Say what happens at a hit; the run goes on without a question where that was agreed before.

    :param asked: this very hit was asked about; what came of that is for ``tool_decided`` to note.
    """
    settings: DoomLoopSettings = turn.config
    what = _described(run, hit, call)
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


def _since(run: Run, times: int) -> str:
    return "in a row" if run.repeats >= times else "without a good call between"


def _stop(what: str) -> Stop:
    advice = "say more precisely what you want, or split the task; the limits are in agents.runtime.doomLoop"
    return Stop(reason=f"the agent goes in circles: {what}. To go on, {advice}", cause="doom_loop", end_reason="doom_loop")


def _described(run: Run, hit: Hit, call: ToolCall) -> str:
    if hit == "too_many":
        return f"this run has made {run.calls} tool calls, the last one of {call.tool}"
    same = "the same arguments" if ":" in run.signature else "arguments too large to compare"
    return f"{call.tool} was called {run.repeats} times in a row with {same}"


def _facts(run: Run, hit: Hit, call: ToolCall) -> dict[str, object]:
    counters = {"total": run.total, "calls": run.calls, "repeats": run.repeats, "attempts": run.attempts}
    return {"threshold": hit, "call_id": call.id, "tool": call.tool, "recent": list(run.recent), **counters}
