"""Ask the user about a call. A question is stored before it is asked and answered once, also later or by another process.

A question shows the call by its tool's preview, or by its arguments.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from moryflow_sdk import Ask, MoryflowError, Rule, Ruling, ToolCall, ToolContext, ToolError, thaw
from moryflow_sdk.support.texts import in_words

from moryflow.approvals import ApprovalReply, reply_of
from moryflow.base.events import now
from moryflow.base.foreign_errors import text_of
from moryflow.hooks.checks import copy_for_plugin
from moryflow.hooks.plugin_set import RegisteredTool
from moryflow.hooks.threads import CallTimeout, PluginUnresponsive
from moryflow.kernel.outcome import OnAsk
from moryflow.kernel.tool_call import call_row, digest
from moryflow.kernel.tool_executor import as_refused
from moryflow.kernel.turn_context import Journal, TurnContext
from moryflow.services import View
from moryflow.store import ApprovalRow

if TYPE_CHECKING:
    from moryflow.store import Store


# The `by` of an answer that was given because the input for answers had ended.
CLOSED = "closed"
# The `by` of an answer to a question whose turn was stopped, for example by Ctrl-C, or interrupted with its host.
CANCEL, INTERRUPTED = "cancel", "interrupted"
# Fields stored with a question to see whether an answer still applies, and what it stored; people do not see them.
_NOT_SHOWN = ("bound", "rules")
# Seconds between two looks for an answer that another process stored.
POLL_SECONDS = 0.5
# Seconds that a tool's preview may take; after that the arguments are shown.
PREVIEW_TIMEOUT = 10.0
# Characters of a preview that are kept, the same limit as for arguments.
MAX_PREVIEW = 4 * 1024 * 1024
# A target up to this many characters is shown whole, as a command always is, so its argument need not be shown too.
SHORT_TARGET = 200


class ApprovalRequired(Exception):
    """The turn must end here: a question is open and ``--on-ask fail`` was chosen."""


class ApprovalDesk:
    """Asks questions and waits for answers, from this process or, through the store, from another. One per host."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._store = store
        self._open: dict[str, tuple[tuple[str, ...], Ruling, asyncio.Future[ApprovalReply]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unattended: set[str | None] = set()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remember the loop that turns run on."""
        self._loop = loop

    def from_any_thread(self, function: Callable[..., Any], *args: Any) -> None:
        """Call `function` on the loop."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    async def reply(self, approval_id: str, reply: str, *, message: str = "", by: str = "user") -> ApprovalRow:
        """Store an answer; only the first one counts.

        :param reply: a word of :data:`~moryflow.approvals.WORDS`.
        :raises MoryflowError: there is no such question, or `reply` is not one of these words.
        """
        reply = reply_of(reply)
        row = await self._store().reply(approval_id, reply, message=message, by=by)
        waiting = self._open.get(row.id)
        if waiting is not None and not waiting[2].done():
            waiting[2].set_result(ApprovalReply(row.reply or reply, row.message or "", row.by or by))
        return row

    def reconsider(self, session: str) -> None:
        """Answer the open questions of `session` and its children that its new mode allows without asking."""
        for owners, ruling, future in tuple(self._open.values()):
            asks = [v for _, v in ruling.verdicts if v.decision == "ask"]
            if session in owners and not future.done() and all(getattr(v, "bypass", "never") == "mode" for v in asks):
                future.set_result(ApprovalReply("once", by="mode"))

    async def nobody_left(self, session: str | None = None) -> None:
        """Deny all open and later questions, because nobody is left to answer.

        :param session: deny only those of this session and its children; ``None`` means every session.
        """
        self._unattended.add(session)
        for approval_id, (owners, _, _) in tuple(self._open.items()):
            if session is None or session in owners:
                await self.reply(approval_id, "reject", by=CLOSED)

    def somebody_is_there(self, session: str) -> None:
        """Undo :meth:`nobody_left` for `session`: its questions are asked again from now on."""
        self._unattended.discard(session)

    async def settle(
        self,
        scope: TurnContext,
        journal: Journal,
        call: ToolCall,
        ruling: Ruling,
        on_ask: OnAsk,
        preview: str,
        *,
        ignore_earlier: bool = False,
    ) -> Ruling:
        """Turn an ask into allow, deny or stop.

        :param preview: what the user sees of the call; an answer counts only for this preview.
        :param ignore_earlier: ask even if it was answered before: a running body asks each of its questions.
        :raises ApprovalRequired: nobody can be asked now and the turn is to end (``on_ask="fail"``).
        """
        bound = question_hash(call, ruling)
        before = [] if ignore_earlier else await self._earlier_questions(scope, call)
        earlier = _same_question(before, bound, preview)
        if earlier is not None and earlier.state == "replied":
            return await self._apply(scope, journal, ruling, earlier)
        if on_ask == "deny" or (on_ask == "prompt" and not self._unattended.isdisjoint((None, *scope.lineage))):
            return _refuse_unasked(ruling)
        if earlier is None and ruling.offer is not None and await self._store().offered(str(scope.vault)):
            ruling = ruling.replace(offer=None)
        row = earlier or _question(scope, call, ruling, bound, preview)
        self._expire(journal, (other for other in before if other.id not in (row.id, *self._open)))
        answered = await self._wait_for_answer(scope, journal, call, ruling, row, fail=on_ask == "fail")
        return await self._apply(scope, journal, ruling, answered)

    async def preview(self, scope: TurnContext, owned: RegisteredTool, call: ToolCall) -> str:
        """Return for the user what `call` will do; if the tool's preview fails, the reason and the arguments."""
        arguments = arguments_text(call)
        if owned.tool.preview is None:
            return cut_middle(arguments)
        view = cast("ToolContext", PreviewView(scope, owned.plugin, copy_for_plugin(call) if owned.foreign else call))
        try:
            text = await owned.life.run(owned.tool.preview, (view,), PREVIEW_TIMEOUT, body=True)
        except (CallTimeout, PluginUnresponsive):
            text = f"its preview failed: its preview took longer than {PREVIEW_TIMEOUT:g} s\n{arguments}"
        except ToolError as error:
            text = f"its preview failed: {error.message}\n{arguments}"
        except Exception as error:  # the isolation boundary around a tool's code: the user reads the error and the arguments
            text = f"its preview failed: {type(error).__name__}: {text_of(error)}\n{arguments}"
        return cut_middle(text if isinstance(text, str) and text else arguments)

    async def _wait_for_answer(
        self, scope: TurnContext, journal: Journal, call: ToolCall, ruling: Ruling, row: ApprovalRow, *, fail: bool
    ) -> ApprovalRow:
        """Ask, and return the question with its answer. If the turn is cancelled meanwhile, record that as the answer."""
        with self._open_question(scope, ruling, row) as future:
            try:  # the commit is inside: people see the question before it returns
                await self._ask(scope, journal, call, ruling, row)
                if fail:
                    raise ApprovalRequired(row.id)
                answer = await self._wait(row, future)
            except asyncio.CancelledError:
                by = CANCEL if scope.live.cancelled else INTERRUPTED
                self._note(journal, _with_answer(row, ApprovalReply("stop", by=by)))
                scope.live.asked_calls.discard(call.id)
                raise
        return _with_answer(row, answer)

    async def lapse(self, scope: TurnContext, journal: Journal, call: ToolCall) -> None:
        """Expire the open questions about `call`: the call has its result, so an answer would do nothing."""
        self._expire(journal, await self._earlier_questions(scope, call))

    async def _earlier_questions(self, scope: TurnContext, call: ToolCall) -> list[ApprovalRow]:
        if call.id not in scope.live.asked_calls:
            return []
        rows = await self._store().approvals(session=scope.session)
        return [row for row in rows if row.call_id == call.id and row.state != "expired"]

    def _expire(self, journal: Journal, rows: Iterable[ApprovalRow]) -> None:
        for row in rows:
            if row.state == "pending":
                journal.approval(row._replace(state="expired"))
                journal.event("permission.expired", **_event_fields(row))

    async def _ask(self, scope: TurnContext, journal: Journal, call: ToolCall, ruling: Ruling, row: ApprovalRow) -> None:
        scope.live.asked_calls.add(call.id)
        journal.approval(row)
        journal.call(call_row(scope, call, "waiting", ruling))
        visible = {name: value for name, value in row.request.items() if name not in _NOT_SHOWN}
        journal.event("permission.asked", **{"approval_id": row.id, "call_id": call.id, **visible})
        journal.event("session.status", status="waiting")
        await journal.commit()

    @contextmanager
    def _open_question(self, scope: TurnContext, ruling: Ruling, row: ApprovalRow) -> Iterator[asyncio.Future[ApprovalReply]]:
        """Accept answers to `row` within the block. It must begin before the question is published."""
        future: asyncio.Future[ApprovalReply] = asyncio.get_running_loop().create_future()
        self._open[row.id] = (scope.lineage, ruling, future)
        try:
            yield future
        finally:
            del self._open[row.id]

    async def _wait(self, row: ApprovalRow, future: asyncio.Future[ApprovalReply]) -> ApprovalReply:
        """Wait for the answer, from this process or, through the store, from another."""
        while True:
            await asyncio.wait((future,), timeout=POLL_SECONDS)
            if future.done():
                return future.result()
            stored = await self._store().approval(row.id)
            if stored.state == "replied":
                return ApprovalReply(stored.reply or "reject", stored.message or "", stored.by or "user")

    async def _apply(self, scope: TurnContext, journal: Journal, ruling: Ruling, row: ApprovalRow) -> Ruling:
        self._note(journal, row)
        journal.event("session.status", status="busy")
        if row.by == "mode":
            await _record_waiting(scope, journal)
            return ruling.replace(decision="allow", by="mode", mode="full_access")
        if row.by != CLOSED:
            ruling = ruling.replace(reply=row.reply, message=row.message)
        match row.reply:
            case "once":
                return ruling.replace(decision="allow", by="user")
            case "always" | "exact" | "preset":
                await self._remember(scope, journal, _rules_of(ruling, row))
                return ruling.replace(decision="allow", by="user")
            case "stop":
                return as_refused(ruling, cause="user", reason="stopped by the user", by="user", stop=True)
            case _ if row.by == CLOSED:
                return _refuse_unasked(ruling)
            case _:
                reason = row.message or "the user refused this call"
                return as_refused(ruling, cause="user", reason=reason, by="user")

    def _note(self, journal: Journal, row: ApprovalRow) -> None:
        journal.approval(row)
        journal.event("permission.replied", **_event_fields(row), reply=row.reply, by=row.by, message=row.message)

    async def _remember(self, scope: TurnContext, journal: Journal, stored: Iterable[tuple[Rule, str]]) -> None:
        """Store rules, each in its scope. They apply to this session at once, even if the rules file cannot be written."""
        rules = scope.around.services["rules"](scope, "moryflow")
        for rule, where in stored:
            try:
                await rules.append(rule, scope=where)
            except MoryflowError as error:
                journal.event("error", code=error.code, message=error.message, where=error.where, next=error.next_step)
        grants = [rule.model_dump(exclude_defaults=True) for rule in scope.live.grants]
        journal.session(grants=grants)
        above = scope.started
        while above is not None:  # parent sessions share the grants: their rows must store them too
            above.scope.live.inbox.append(lambda journal: journal.session(grants=grants))
            above = above.scope.started


async def _record_waiting(scope: TurnContext, journal: Journal) -> None:
    """Record what waits for a pause of this turn and of those above it: a change of the mode comes before what it allows."""
    while scope.live.inbox:
        scope.live.inbox.pop(0)(journal)
    await journal.commit()
    if scope.started is not None:
        above = scope.started.scope
        await _record_waiting(above, Journal(above))


def _refuse_unasked(ruling: Ruling) -> Ruling:
    return as_refused(ruling, cause="headless", reason=f"{ruling.reason}; nobody could be asked", by="headless")


def _rules_of(ruling: Ruling, row: ApprovalRow) -> list[tuple[Rule, str]]:
    if row.reply == "preset":
        return [(Rule.model_validate(rule), "user") for rule in row.request.get("rules", {}).get("preset", ())]
    kept = [item for item in ruling.remember if item.scope != "none"]
    return [(rule, item.scope) for item in kept for rule in item.rules(exact=row.reply == "exact")]


def _preset_rules(scope: TurnContext, name: str) -> Sequence[Rule]:
    builtins: list[Any] = [plugin.object for plugin in scope.plugin_set.plugins.values() if plugin.tier == "builtin"]
    owner = next((one for one in builtins if hasattr(one, "preset_rules")), None)
    return owner.preset_rules(name) if owner is not None else ()


def _always_text(ruling: Ruling, *, exact: bool = False) -> str:
    """Return what the answer *always*, or *exact*, stores: the patterns; empty if it counts only once, like the others."""
    stored = [item for item in ruling.remember if item.scope == "user"]
    patterns = (in_words(item.pattern if exact else item.wider or item.pattern) for item in stored)
    texts = [", ".join(dict.fromkeys(patterns))] if stored else []
    session = [item for item in ruling.remember if item.scope == "session"]
    texts += dict.fromkeys(item.says or "holds for this session only, and is not stored" for item in session)
    return "; ".join(texts)


def _with_answer(row: ApprovalRow, answer: ApprovalReply) -> ApprovalRow:
    return row._replace(state="replied", reply=answer.reply, message=answer.message, by=answer.by, replied_at=now())


def _event_fields(row: ApprovalRow) -> dict[str, Any]:
    call = {name: thaw(row.request[name]) for name in ("tool", "domain", "targets") if name in row.request}
    return {"approval_id": row.id, "call_id": row.call_id, **call}


def _same_question(rows: Sequence[ApprovalRow], bound: str, preview: str) -> ApprovalRow | None:
    same = (row for row in rows if row.request.get("bound") == bound and row.request.get("preview", preview) == preview)
    return next(same, None)


def _question(scope: TurnContext, call: ToolCall, ruling: Ruling, bound: str, preview: str) -> ApprovalRow:
    """Return the question of `ruling`. An answer applies only to the same hash (`bound`) and the same `preview`."""
    kept = [item for item in ruling.remember if item.scope != "none"]
    patterns = [item.wider or item.pattern for item in kept]
    lasting = [item for item in kept if item.scope == "user"]
    rules = {
        "always": [rule for item in lasting for rule in item.rules()],
        "exact": [rule for item in lasting for rule in item.rules(exact=True)],
        "preset": _preset_rules(scope, ruling.offer.name) if ruling.offer is not None else (),
    }
    folder = next((target.folder.text for target in call.targets if target.folder is not None), None)
    request = {
        "tool": call.tool,
        "args": thaw(call.args),
        "hash": call.hash,
        "domain": call.domain,
        "targets": [target.text for target in call.targets],
        **({"folder": folder} if folder else {}),
        "preview": preview,
        "reason": ruling.reason,
        "unusual": ruling.unusual,
        "remember": patterns[0] if len(patterns) == 1 else (patterns or None),
        "always": _always_text(ruling),
        **({"exact": _always_text(ruling, exact=True)} if any(item.wider for item in kept) else {}),
        **({"preset": ruling.offer.model_dump()} if ruling.offer is not None else {}),
        **({"questions": thaw(call.args.get("questions", ()))} if ruling.cause == "question" else {}),
        "rules": {reply: [rule.model_dump(exclude_defaults=True) for rule in stored] for reply, stored in rules.items()},
        "agent": scope.agent.id,
        "bound": bound,
    }
    return ApprovalRow(
        id=f"ap_{secrets.token_hex(6)}",
        session=scope.session,
        call_id=call.id,
        turn=scope.turn,
        kind=ruling.cause,
        request=request,
        state="pending",
        reply=None,
        message="",
        by=None,
        created=now(),
        replied_at=None,
    )


def question_hash(call: ToolCall, ruling: Ruling) -> str:
    """Return the hash of a question: arguments, targets, reason, contents it depends on, and what *always* would store."""
    asked = {
        "hash": call.hash,
        "targets": [target.model_dump() for target in call.targets],
        "reason": ruling.reason,
        "remember": [item.model_dump() for item in ruling.remember],
        "contents": contents_read(ruling),
    }
    return digest(json.dumps(asked, sort_keys=True).encode())


def contents_read(ruling: Ruling) -> dict[str, str]:
    """Return the contents that the asks behind `ruling` depend on: name → state, for example a script's hash."""
    asks = (verdict for _, verdict in ruling.verdicts if isinstance(verdict, Ask))
    return {name: state for ask in asks for name, state in ask.contents.items()}


class PreviewView(View):
    """The context of a preview: the plugin's view, and the call. The call does not run yet, so it cannot ask or publish."""

    def __init__(self, scope: TurnContext, plugin: str, call: ToolCall) -> None:
        super().__init__(scope, plugin)
        self.call = call


def arguments_text(call: ToolCall) -> str:
    """Return the arguments that the targets of `call` do not show already, one per line."""
    short = (one for one in call.targets if one.kind == "shell" or ("\n" not in one.given and len(one.given) <= SHORT_TARGET))
    targets = {one.given for one in short}
    values = cast("Mapping[str, Any]", thaw(call.args))
    return "\n".join(
        _argument(name, value) for name, value in values.items() if not (isinstance(value, str) and value in targets)
    )


def _argument(name: str, value: Any) -> str:
    """Return one argument as text. The lines of a longer text are indented, so that none looks like another argument."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if "\n" not in text:
        return f"{name}: {text}"
    return "\n  ".join((f"{name}:", *text.split("\n")))


def cut_middle(text: str) -> str:
    """Return `text` without its middle if it is longer than :data:`MAX_PREVIEW`."""
    if len(text) <= MAX_PREVIEW:
        return text
    half = MAX_PREVIEW // 2
    return f"{text[:half]}\n[{len(text) - 2 * half:,} characters are left out here]\n{text[-half:]}"
