"""Runs the hooks of Claude Code and of its plugins, as processes of their own: a bridge to the hooks of this host.

``PreToolUse`` may change the arguments, and refuse or ask; what it allows lifts nothing. ``PostToolUse`` adds to the result,
``UserPromptSubmit`` and ``SessionStart`` to the system prompt, ``PreCompact`` may decline; ``Stop`` and ``SubagentStop`` may
let the model go on, ``SessionEnd`` and ``Notification`` are told. Names of tools and fields are those that the hooks were
written for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from moryflow_sdk import (
    Ask,
    Command,
    CompactionPlan,
    Deny,
    Diagnostic,
    Event,
    PluginContext,
    Stop,
    SystemBlock,
    ToolCall,
    ToolResult,
    Turn,
    Verdict,
    hookimpl,
)
from moryflow_sdk.support.settings import Meta, Settings

from .commands import HookAnswer, HookCommand, fits, read_hooks, run_all, stamps

name = "claude_hooks"
config_path = "agents.runtime.claudeHooks"


class ClaudeHookSettings(Settings):
    """Whose hooks are run."""

    paths: Annotated[tuple[str, ...], Meta("files with hooks, or folders of plugins, such as ~/.claude/settings.json")] = ()


config_model = ClaudeHookSettings

_TOOLS = {
    "read": "Read", "write": "Write", "edit": "Edit", "multiedit": "MultiEdit", "apply_patch": "Edit", "bash": "Bash",
    "glob": "Glob", "grep": "Grep", "ls": "LS", "web_fetch": "WebFetch", "web_search": "WebSearch", "task": "Task",
    "ask_user": "AskUserQuestion", "skill": "Skill",
}  # fmt: skip
_FILE_TOOLS = ("read", "write", "edit")
_EVENTS = {"turn.finish": "Stop", "permission.asked": "Notification", "session.deleted": "SessionEnd"}


def _hooks(turn: Turn | PluginContext, event: str, name: str = "") -> list[HookCommand]:
    """Return the commands for an event; the files are read again when they change."""
    paths: tuple[str, ...] = turn.config.paths
    if not paths:
        return []
    key = (paths, stamps(paths))
    if key not in _read:
        _read.clear()
        _read[key] = read_hooks(paths)[0]
    return [hook for hook in _read[key] if hook.event == event and fits(hook, name)]


# The hooks that were read last, by the paths and the state of their files.
_read: dict[tuple[tuple[str, ...], tuple[int, ...]], list[HookCommand]] = {}


def _given(turn: Turn, event: str, **more: Any) -> dict[str, Any]:
    mode = "bypassPermissions" if turn.mode == "full_access" else "default"
    about = {"session_id": turn.session, "transcript_path": "", "cwd": str(turn.vault), "permission_mode": mode}
    return {**about, "hook_event_name": event, **more}


def tool_name(tool: str) -> str:
    """Return the name that Claude Code has for a tool of ours."""
    return _TOOLS.get(tool, tool)


def fields_there(tool: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call under the names that Claude Code has for them."""
    return {"file_path" if key == "path" and tool in _FILE_TOOLS else key: value for key, value in args.items()}


def fields_here(tool: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a hook gave back, under our names."""
    return {"path" if key == "file_path" and tool in _FILE_TOOLS else key: value for key, value in fields.items()}


@hookimpl(timeout=600.0)
async def tool_before(call: ToolCall, turn: Turn) -> ToolCall | Verdict | None:
    """Run ``PreToolUse``: the strictest answer counts; new arguments are judged like any others."""
    hooks = _hooks(turn, "PreToolUse", tool_name(call.tool))
    if not hooks:
        return None
    given = _given(turn, "PreToolUse", tool_name=tool_name(call.tool), tool_input=fields_there(call.tool, call.args))
    answers = await run_all(hooks, {**given, "tool_use_id": call.id}, turn.vault)
    _log(turn, answers)
    if verdict := _verdict(answers):
        return verdict
    changed = dict(call.args)
    for answer in answers:
        fields = answer.specific.get("updatedInput")
        if answer.code == 0 and isinstance(fields, Mapping):
            changed |= fields_here(call.tool, fields)
    return call.replace(args=changed) if changed != dict(call.args) else None


def _verdict(answers: Sequence[HookAnswer]) -> Verdict | None:
    for answer in answers:
        if answer.code == 0 and answer.fields.get("continue") is False:
            return Stop(str(answer.fields.get("stopReason") or "a hook stopped the turn"))
    for answer in answers:
        if answer.refusal:
            return Deny(answer.refusal)
    for answer in answers:
        if answer.code == 0 and answer.specific.get("permissionDecision") == "ask":
            return Ask(str(answer.specific.get("permissionDecisionReason") or "a hook asks about it"))
    return None


def _log(turn: Turn, answers: Sequence[HookAnswer]) -> None:
    """Name a hook that failed: it has refused nothing."""
    for answer in answers:
        if answer.code not in (0, 2):
            ended = f"exit code {answer.code}" if answer.code is not None else "no end"
            turn.log.warning(f"the hook {answer.hook.command!r:.80} failed ({ended}): {answer.error.strip()[:200]}")


@hookimpl(timeout=600.0)
async def tool_after(call: ToolCall, result: ToolResult, turn: Turn) -> ToolResult | Stop | None:
    """Run ``PostToolUse``: what it says to the model is put below the output."""
    hooks = _hooks(turn, "PostToolUse", tool_name(call.tool))
    if not hooks:
        return None
    given = _given(turn, "PostToolUse", tool_name=tool_name(call.tool), tool_input=fields_there(call.tool, call.args))
    response = {"output": result.output, "is_error": result.status != "ok"}
    answers = await run_all(hooks, {**given, "tool_use_id": call.id, "tool_response": response}, turn.vault)
    _log(turn, answers)
    if isinstance(stop := _verdict([answer for answer in answers if answer.fields.get("continue") is False]), Stop):
        return stop
    said = [text for answer in answers for text in (answer.refusal, answer.context) if text]
    return result.replace(output="\n".join([result.output, *said])) if said and not result.spool else None


@hookimpl(timeout=600.0)
async def system_blocks(turn: Turn) -> list[SystemBlock]:
    """Run ``SessionStart`` once in a session and ``UserPromptSubmit`` in each turn; what they print stands in the prompt."""
    texts: list[str] = []
    if starts := _hooks(turn, "SessionStart", "startup"):
        if "started" not in turn.session_state:
            answers = await run_all(starts, _given(turn, "SessionStart", source="startup"), turn.vault)
            _log(turn, answers)
            turn.session_state["started"] = "\n".join(filter(None, map(_said, answers)))
        texts.append(str(turn.session_state["started"]))
    if submits := _hooks(turn, "UserPromptSubmit"):
        if "submitted" not in turn.state:
            answers = await run_all(submits, _given(turn, "UserPromptSubmit", prompt=await _prompt(turn)), turn.vault)
            _log(turn, answers)
            refused = [f"{REFUSED} {answer.refusal}" for answer in answers if answer.refusal]
            turn.state["submitted"] = "\n".join(filter(None, [*refused, *map(_said, answers)]))
        texts.append(str(turn.state["submitted"]))
    text = "\n".join(filter(None, texts))
    return [SystemBlock(id=name, text=text)] if text else []


REFUSED = "A hook of the user refuses this prompt. Call no tool, and tell the user why:"


def _said(answer: HookAnswer) -> str:
    if answer.code != 0 or answer.refusal:
        return ""
    return answer.context or ("" if answer.fields else answer.output.strip())


async def _prompt(turn: Turn) -> str:
    nodes = await turn.history.path()
    return next((str(node.payload.get("text", "")) for node in reversed(nodes) if node.kind == "user"), "")


services = ("history", "info")


@hookimpl(timeout=600.0)
async def compaction(plan: CompactionPlan, turn: Turn) -> CompactionPlan | None:
    """Run ``PreCompact``: it may decline."""
    hooks = _hooks(turn, "PreCompact", "auto")
    if not hooks:
        return None
    answers = await run_all(hooks, _given(turn, "PreCompact", trigger="auto", custom_instructions=""), turn.vault)
    _log(turn, answers)
    refusal = next((answer.refusal for answer in answers if answer.refusal), "")
    return plan.replace(decline=refusal) if refusal else None


@hookimpl(timeout=600.0, events=tuple(_EVENTS))
async def event(event: Event, turn: Turn | None) -> None:
    """Tell ``Notification`` and ``SessionEnd``, and ``Stop``, whose refusal the model answers in another turn."""
    stops = event.type == "turn.finish"
    if turn is None or (stops and (turn.purpose == "direct" or event.data.get("end_reason") != "completed")):
        return
    kind = "SubagentStop" if stops and turn.purpose == "child" else _EVENTS[event.type]
    hooks = _hooks(turn, kind)
    if not hooks:
        return
    told = {"stop_hook_active": await _continued(turn)} if stops else {"message": str(event.data.get("reason", ""))}
    answers = await run_all(hooks, _given(turn, kind, **told), turn.vault)
    _log(turn, answers)
    reasons = [answer.refusal for answer in answers if answer.refusal]
    if stops and reasons and not isinstance(_verdict(answers), Stop):
        await turn.info.note("\n".join(reasons), title=name, go_on=True)


async def _continued(turn: Turn) -> bool:
    """Whether a ``Stop`` hook let this turn follow another."""
    nodes = await turn.history.path()
    asked = next((node for node in reversed(nodes) if node.kind in ("user", "note")), None)
    return asked is not None and asked.kind == "note" and asked.payload.get("title") == name


@hookimpl
def commands(ctx: PluginContext) -> list[Command | Diagnostic]:
    """Name what cannot be used of the files; there is no command."""
    found = read_hooks(ctx.config.paths)[1] if ctx.config.paths else []
    return [Diagnostic(file=file, code="claude_hooks", message=text, next_step="moryflow doctor") for file, text in found]
