"""Questions to the user at an editor: ``session/request_permission``, and the answers.

An answer counts only for the call that was shown: each option's id contains the question's id and the hash of the judged
call, and any answer that is not one of the offered options refuses the call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Event, MoryflowError, thaw
from moryflow_sdk.support.texts import in_words, visible

from .updates import Update, fenced, kind_of, places_of, text_block, title_of

if TYPE_CHECKING:
    from moryflow.approvals.questions import ApprovalDesk

    from .connection import EditorConnection


_BY = "client"
FULL_ACCESS = "full_access allows every tool what you may do yourself, without asking; explicit denies stay"


class PermissionAsker:
    """Forwards the questions of a session and its sub-agents to the editor, and the answers to the host.

    :param session: the id under which the editor knows the session.
    """

    def __init__(
        self, connection: EditorConnection, desk: ApprovalDesk, session: str, vault: Path, domain: Callable[[str], str]
    ):
        self._connection, self._desk, self._session, self._vault = connection, desk, session, vault
        self._domain = domain
        self._open: dict[str, asyncio.Task[None]] = {}
        self._refused: set[tuple[str, ...]] = set()

    def __call__(self, event: Event) -> None:
        match event.type:
            case "permission.asked":
                approval = event.data["approval_id"]
                task = asyncio.get_running_loop().create_task(self._ask(approval, thaw(event.data)))
                self._open[approval] = task
                task.add_done_callback(lambda done: self._question_done(approval, done))
            case "permission.replied" | "permission.expired":
                self.withdraw(event.data["approval_id"])
            case _:
                pass

    def _question_done(self, approval: str, done: asyncio.Task[None]) -> None:
        """Remove a finished question; if asking it failed, refuse the call."""
        self._open.pop(approval, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            asyncio.get_running_loop().call_exception_handler({"message": "a question failed", "exception": error})
            self._open[approval] = asyncio.create_task(self._reply(approval, "reject", f"it could not be asked: {error}"))

    def withdraw(self, approval: str | None = None) -> None:
        """Withdraw one question or all: it was answered elsewhere, or its turn has ended."""
        for name, task in [*self._open.items()]:
            if approval in (None, name):
                task.cancel()

    async def _ask(self, approval: str, data: Mapping[str, Any]) -> None:
        about = (data["tool"], *map(str, _patterns(data) or (data["hash"],)))
        if about in self._refused:
            await self._reply(approval, "reject", "the user refused this before and does not want to be asked again")
            return
        if data.get("questions"):
            await self._ask_choices(approval, data)
            return
        offered = options_of(approval, data)
        try:
            answer = await _answer(self._connection, self._session, self._call(data), offered)
        except MoryflowError as error:
            await self._reply(approval, "reject", f"the editor could not ask: {error}")
            return
        match answer:
            case "once" | "always" | "exact" | "preset":
                await self._reply(approval, answer)
            case "reject_once" | "reject_always":
                self._refused |= {about} if answer == "reject_always" else set()
                await self._reply(approval, "reject")
            case "cancelled":
                await self._reply(approval, "stop")
            case _:
                await self._reply(approval, "reject", "the editor gave an answer that was not offered")

    async def _ask_choices(self, approval: str, data: Mapping[str, Any]) -> None:
        """Ask a model's questions one after the other; an editor lets the user pick one choice of each."""
        answers: dict[str, str] = {}
        for question in data["questions"]:
            labels = [visible(str(option["label"])) for option in question["options"]]
            chosen = {f"{place}:{approval}": label for place, label in enumerate(labels)}
            offered = [{"optionId": option, "name": label, "kind": "allow_once"} for option, label in chosen.items()]
            offered.append({"optionId": f"reject_once:{approval}", "name": "Do not answer", "kind": "reject_once"})
            call = {**self._call({**data, "preview": ""}), "title": visible(str(question["question"]))}
            try:
                answer = await _answer(self._connection, self._session, call, offered)
            except MoryflowError as error:
                await self._reply(approval, "reject", f"the editor could not ask: {error}")
                return
            if not answer.isdecimal():
                await self._reply(approval, "stop" if answer == "cancelled" else "reject")
                return
            answers[str(question["question"])] = labels[int(answer)]
        await self._reply(approval, "once", json.dumps(answers, ensure_ascii=False))

    async def _reply(self, approval: str, reply: str, message: str = "") -> None:
        self._open.pop(approval, None)  # otherwise the event of this reply would cancel the task that runs it
        with suppress(MoryflowError):  # it was answered elsewhere, or its turn has ended
            await self._desk.reply(approval, reply, message=message, by=_BY)

    def _call(self, data: Mapping[str, Any]) -> Update:
        tool, args, targets = data["tool"], data["args"], data["targets"]
        places = places_of(targets, self._vault, args)
        return {
            "toolCallId": data["call_id"],
            "title": title_of(tool, args),
            "kind": kind_of(tool, self._domain(tool)),
            "status": "pending",
            "content": [*_said(data), *([fenced(str(data["preview"]), "diff")] if data.get("preview") else [])],
            "rawInput": args,
            **({"locations": places} if places else {}),
        }


async def _answer(connection: EditorConnection, session: str, call: Update, offered: Sequence[Mapping[str, str]]) -> str:
    """Ask the user about `call`; return what the id of the chosen option begins with, ``cancelled``, or "" for all else."""
    shown = {"sessionId": session, "toolCall": call, "options": offered}
    match await connection.ask("session/request_permission", shown):
        case {"outcome": {"outcome": "selected", "optionId": chosen}}:
            return next((one["optionId"].partition(":")[0] for one in offered if one["optionId"] == chosen), "")
        case {"outcome": {"outcome": "cancelled"}}:
            return "cancelled"
        case _:
            return ""


def _patterns(data: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(data.get("remember") or ())


def _said(data: Mapping[str, Any]) -> list[Update]:
    """Return what will run, then who asks and what is unusual; no value can forge a line: line breaks in it are escaped.

    A command is shown as it was written, in a block of its own.
    """
    named = [*map(str, data["targets"])]
    commands = [fenced(visible(in_words(one), keep="\n\t")) for one in named if one.startswith("shell:")]
    others = [visible(in_words(one)) for one in named if not one.startswith("shell:") and in_words(one) != data["tool"]]
    folder, unusual = str(data.get("folder") or "vault:/"), str(data.get("unusual", data["reason"]))
    where = f" in {in_words(folder)}" if folder != "vault:/" else ""
    lines = [f"{data.get('agent', '')} wants to use {data['tool']}{where}", *others, *([f"! {unusual}"] if unusual else [])]
    return [*commands, text_block("\n\n".join(map(visible, lines)))]


def options_of(approval: str, data: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the offered answers. *Always* names the rule that it would store, and is missing if there is none to store."""
    about = f"{approval}:{str(data['hash'])[:16]}"
    always, exact = (visible(str(data.get(name) or "")) for name in ("always", "exact"))
    such = (
        f"all of {', '.join(visible(in_words(str(one))) for one in _patterns(data))}" if _patterns(data) else "the same again"
    )
    preset = data.get("preset")
    named = [
        ("once", "allow_once", "Once"),
        *([("always", "allow_always", f"Always: {always}")] if always else []),
        *([("exact", "allow_always", f"Always, exactly: {exact}")] if exact else []),
        *([("preset", "allow_always", f"From now on {visible(str(preset['says']))}")] if preset else []),
        ("reject_once", "reject_once", "Refuse"),
        ("reject_always", "reject_always", f"Refuse, and {such} without asking, in this session"),
    ]
    return [{"optionId": f"{name}:{about}", "name": text, "kind": kind} for name, kind, text in named]


async def full_access_confirmed(connection: EditorConnection, session: str) -> bool:
    """Ask the user to confirm full access; only an explicit yes counts."""
    options = [
        {"optionId": "confirm:full_access", "name": "Turn full access on", "kind": "allow_once"},
        {"optionId": "leave:full_access", "name": "Keep asking", "kind": "reject_once"},
    ]
    call = {"toolCallId": "mode:full_access", "title": "Full access", "kind": "switch_mode", "status": "pending"}
    try:
        return await _answer(connection, session, {**call, "content": [text_block(FULL_ACCESS)]}, options) == "confirm"
    except MoryflowError:
        return False
