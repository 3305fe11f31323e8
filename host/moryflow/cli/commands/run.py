"""``moryflow run``: one turn."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from moryflow_sdk import ConfigError, Usage

from moryflow.cli.failures import allowing, next_of
from moryflow.cli.findings import say_about_agent
from moryflow.cli.open_host import with_host
from moryflow.cli.options import Flags, RunFlags, TurnCommand, turn_options
from moryflow.cli.terminal import as_json, at_terminal, plain, say
from moryflow.cli.terminal.interrupts import run_on_loop, stop_on_signals
from moryflow.cli.terminal.streams import stdout

if TYPE_CHECKING:
    from moryflow_sdk import Event

    from moryflow.approvals import Answers
    from moryflow.cli.terminal.render import TerminalView
    from moryflow.runtime.host import Host
    from moryflow.runtime.session import Session
    from moryflow.runtime.turn_result import AnswerSchema, TurnResult


@click.command("run", cls=TurnCommand)
@click.argument("prompt", required=False)
@click.option("-f", "--file", "files", multiple=True, type=click.Path(path_type=Path), help="Attach a text file or an image.")
@click.option("--output", "output", type=click.Choice(["text", "json", "stream-json"]), default="text", show_default=True)
@click.option("--schema", metavar="JSON|PATH", help="A JSON Schema that the answer must fit; the value is printed.")
@click.option("--until", metavar="COMMAND", help="Go on, turn after turn, until this command of yours succeeds.")
@click.option("--rounds", type=click.IntRange(1, 1000), help="The most turns for --until. [default: 8]")
@turn_options
def command(
    flags: Flags,
    again: bool,
    resume: str | None,
    attach: str | None,
    prompt: str | None,
    output: str,
    **given: Any,
) -> int:
    """Run one prompt and print the answer.

    The prompt is the argument, what is piped in, or both. Files are attached with -f. A slash command works too: /undo.
    """
    from moryflow.cli.terminal.stdin import attachment, piped_text

    output = "json" if flags.as_json and output == "text" else output
    replies = output == "stream-json" and prompt is not None
    piped = None if replies else piped_text(have_prompt=prompt is not None)
    whole = "\n\n".join(part for part in (prompt, piped) if part and part.strip()) or None
    typed, resume = len(prompt) if prompt and piped else None, "" if again and resume is None else resume
    chosen = RunFlags(prompt=whole, typed=typed, resume=resume, output=output, **given)
    if chosen.rounds is not None and chosen.until is None:
        raise ConfigError("--rounds is about --until", next_step="moryflow run --until COMMAND --rounds N")
    if chosen.until is not None and (attach is not None or chosen.schema is not None):
        raise ConfigError("--until goes with neither --attach nor --schema", next_step="leave one of them out")
    if whole is None and chosen.resume is None and not chosen.files:
        raise ConfigError("there is no prompt", next_step='moryflow run "your question", or pipe it in')
    schema = None if chosen.schema is None else _schema(chosen.schema)
    if attach is not None:
        from moryflow.cli.attached import check_attach

        check_attach(flags, attach, worktree=chosen.worktree)
    attached: dict[str, list[Any]] = {"files": [], "images": []}
    for path in chosen.files:  # read before the loop, which catches the first Ctrl-C: a pipe may block for ever
        kind, item = attachment(path)
        attached[kind].append(item)
    if attach is not None:
        return run_on_loop(lambda: _run_attached(attach, flags, chosen, attached, schema))

    from .session_worktree import finish

    code, vault = with_host(flags, lambda host: _run(host, flags, chosen, attached, schema))
    finish(vault, flags, ask=code == 0 and output == "text")
    return code


def _schema(given: str) -> AnswerSchema:
    import json5

    from moryflow.runtime.turn_result import AnswerSchema

    inline = given.lstrip().startswith("{")
    try:
        return AnswerSchema(json5.loads(given if inline else Path(given).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        message = f"this is not a JSON Schema: {str(error).replace('<string>:', 'line ')}"
        where = "--schema" if inline else given
        raise ConfigError(message, where=where, next_step='--schema \'{"type": "object"}\', or the name of a file') from error


async def _run(
    host: Host, flags: Flags, chosen: RunFlags, attached: dict[str, list[Any]], schema: AnswerSchema | None
) -> tuple[int, str]:
    from moryflow.kernel.outcome import RunOptions
    from moryflow.runtime.slash_lines import check_known, known_commands, run_line, slash_line
    from moryflow.runtime.subagents import whole_answer
    from moryflow.runtime.turn_result import TurnResult

    text, typed, said = chosen.prompt or "", chosen.typed, None
    if line := slash_line(text, known_commands(host)):
        check_known(host, line[0])
    session = await open_session(host, flags, chosen)
    say_about_agent(host, session.agent.source, quiet=flags.quiet)
    if line:
        said = await run_line(host, session, line, partial(_confirmed_mode, flags))
        text, typed = said.prompt, 0 if said.foreign else typed
    effort: Any = chosen.effort
    options = RunOptions(on_ask=on_ask(chosen), max_steps=chosen.max_steps, max_cost=chosen.max_cost, effort=effort)
    options = options._replace(schema=None if schema is None else schema.document)
    first: Mapping[str, Any] = {}
    if chosen.output == "stream-json":
        from moryflow.runtime.documents import init_json

        first = init_json(host, session)
    subscribe = session.subscribe if chosen.output == "stream-json" else host.bus.subscribe
    source = TurnSource(host.approvals, host.config.get("language") or "en", subscribe, session.cancel)
    view = _view(source, flags, chosen, first)
    stop_on_signals(session.cancel)
    if said is not None and not said.prompt:
        view(TurnResult(session.id, "completed", said.text, Usage(), None, 0))
        return 0, session.row.vault
    if said is not None and said.text:
        say(said.text)
    if chosen.prompt is None and not any(attached.values()):
        work = session.resume(options)
    else:
        if schema is not None:
            text, typed = text + schema.instructions, len(text) if typed is None else typed
        work = session.prompt(text, files=attached["files"], images=attached["images"], options=options, typed=typed)
    try:
        first_result = await work
    except ConfigError:
        if chosen.until is None or chosen.prompt is not None:
            raise
        first_result = TurnResult(session.id, "completed", "", Usage(), None, 0)  # nothing was cut off: the command decides
    result = await whole_answer(session, first_result, options, schema)
    if chosen.until is not None:
        from .until import ROUNDS, Goal, until

        goal = Goal(chosen.until, chosen.rounds or ROUNDS)
        result = await until(goal, session, options, result, view if chosen.output == "text" else lambda _: None)
    view(result)
    if host.config.get("trace") and not flags.quiet:
        from moryflow.authoring.trace import traced

        from .trace import trace_text

        click.echo(trace_text(await traced(host, session.id, "last")), err=True)
    return result.exit_code, session.row.vault


async def _run_attached(
    url: str, flags: Flags, chosen: RunFlags, attached: dict[str, list[Any]], schema: AnswerSchema | None
) -> int:
    from moryflow.cli.attached import AttachedServer, AttachedSession, session_of, turn_body

    confirm_mode(chosen.mode, flags)
    server = await AttachedServer.found(url)
    session = AttachedSession(server, await session_of(server, flags, chosen))
    source = TurnSource(session, server.language, session.subscribers.append, session.cancel)
    view = _view(source, flags, chosen, await server.init(session.id) if chosen.output == "stream-json" else {})
    stop_on_signals(session.cancel)
    body = turn_body(chosen, on_ask(chosen), schema=None if schema is None else schema.document)
    text = None if chosen.prompt is None and not any(attached.values()) else chosen.prompt or ""
    result = await session.run(text, body if text is None else {**body, **attached, "typed": chosen.typed})
    session.close()
    view(result)
    if server.traces and not flags.quiet:
        from moryflow.authoring.trace import Trace

        from .trace import trace_text

        click.echo(trace_text(Trace.of_json(await server.trace(session.id, turn="last"))), err=True)
    return result.exit_code


async def open_session(host: Host, flags: Flags, chosen: RunFlags) -> Session:
    """Begin a session, or open the one to continue, with the model, agent and mode that the flags name.

    If the model is not installed yet, or there is none, the user is offered to install one first.
    """
    from .model import ensure_model, offer_model

    vault = flags.vault
    if chosen.model is None and chosen.resume is None:
        await offer_model(host, chosen.agent, flags)
    model = await ensure_model(host, chosen.model, flags)
    if chosen.resume is None:
        confirm_mode(chosen.mode, flags)
        if chosen.worktree:
            from .session_worktree import begin_session

            return await begin_session(host, flags, chosen, model)
        return await host.new_session(vault, agent=chosen.agent, mode=chosen.mode, model=model)
    if chosen.worktree:
        problem = "--worktree begins a session; one that has a worktree always works there"
        raise ConfigError(problem, next_step="leave it out, or leave out -c and -r; moryflow session worktree list")
    session = await host.resume(vault, chosen.resume or None)
    if model is not None:
        await session.set_model(model)
    if chosen.agent is not None:
        await session.set_agent(chosen.agent)
    if chosen.mode is not None and chosen.mode != session.mode:
        confirm_mode(chosen.mode, flags)
        await session.set_mode(chosen.mode)
    return session


FULL_ACCESS = "full_access allows every tool what you may do yourself, without asking; explicit denies stay. Go on?"


def confirm_mode(mode: str | None, flags: Flags) -> None:
    """Ask once before full access.

    :raises ConfigError: the user refused, or nobody could be asked and ``-y`` was not given.
    """
    if mode != "full_access" or flags.yes:
        return
    if not at_terminal() or not _confirmed(FULL_ACCESS):
        raise ConfigError("full_access was not confirmed", next_step="add -y to confirm it")


async def _confirmed_mode(flags: Flags) -> bool:
    confirm_mode("full_access", flags)
    return True


def _confirmed(text: str) -> bool:
    from moryflow.cli.terminal.stdin import discard_typed

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    discard_typed()
    try:
        return click.confirm(text, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


def on_ask(chosen: RunFlags) -> Any:
    """Return what ``--on-ask`` says; by default the user at a terminal is asked, and elsewhere a question is denied."""
    if chosen.on_ask is not None:
        return chosen.on_ask
    return "prompt" if at_terminal() and chosen.output == "text" else "deny"


class TurnSource(NamedTuple):
    """What the view of a turn needs from the process or server that runs it.

    :ivar subscribe: calls its argument with each event from then on.
    :ivar stop: cancels the turn.
    """

    answers: Answers
    language: str
    subscribe: Callable[[Callable[[Event], None]], object]
    stop: Callable[[], None]


def _view(source: TurnSource, flags: Flags, chosen: RunFlags, init: Mapping[str, Any]) -> Callable[[TurnResult], None]:
    """Subscribe a view of the turn to its events; return the function that shows the turn's result.

    :param init: the first line of ``--output stream-json``.
    """
    if chosen.output == "stream-json":
        from moryflow.cli.terminal.stream_json import Lines, answer_from_stdin

        lines = Lines(source.stop, init)
        source.subscribe(lines)
        if on_ask(chosen) == "prompt":
            answer_from_stdin(source.answers)
        return lines.finish
    from moryflow.cli.terminal.render import TerminalView

    answers = chosen.output == "text" and chosen.schema is None  # else only failures are shown, and the result as JSON
    view = TerminalView(quiet=flags.quiet, verbose=flags.verbose, language=source.language, answers=answers)
    listener: Any = view
    if on_ask(chosen) == "prompt":
        from moryflow.cli.terminal.approval_prompt import TerminalAsker

        listener = TerminalAsker(source.answers, view)
    source.subscribe(listener)
    return lambda result: show_result(result, view, flags, chosen.output)


def show_result(result: TurnResult, view: TerminalView, flags: Flags, output: str) -> None:
    """Print the result of a turn, and explain on standard error how the turn ended."""
    view.finish(result.text if view.answers else "")
    if output == "json":
        click.echo(as_json(result.as_json(), indent=None), file=stdout())
    elif result.value:
        click.echo(as_json(result.value[0]), file=stdout())
    explain(result, flags)


def explain(result: TurnResult, flags: Flags, in_place: Callable[[str], str] = str) -> None:
    """Explain on standard error how a turn ended, unless it simply completed, and which calls were denied unasked.

    :param in_place: returns a next step as it is typed where this is shown.
    """
    if result.error is not None:
        error = result.error
        say(f"moryflow: {error.where + ': ' if error.where else ''}{error.message}")
        say(f"  next: {in_place(error.next_step or _NEXT.get(result.end_reason) or next_of(error))}")
    elif result.end_reason != "completed":
        next_step = _NEXT.get(result.end_reason, "moryflow run -c continues")
        say(f"moryflow: {result.ending}\n  next: {in_place(next_step)}")
    elif result.shortfall is not None:
        say(f"moryflow: {result.shortfall.sentence}\n  next: {in_place(result.shortfall.next_step)}")
    unasked = [denial for denial in result.denied if denial["cause"] == "headless"]
    if flags.quiet:
        return
    if unasked:
        calls = "1 call was" if len(unasked) == 1 else f"{len(unasked)} calls were"
        say(f"moryflow: {calls} denied because nobody could be asked")
        reasons = dict.fromkeys(" ".join(denial["reason"].split()) for denial in unasked if not denial["rules"])
        for reason in list(reasons)[:MAX_REASONS]:
            say(f"  {plain(reason)}")
        say(f"  next: {_next_for_unasked(unasked)}")
    elif result.unasked:
        say("moryflow: a tool went on without an answer to its question, because nobody could be asked")
        say("  next: run it at a terminal")


# How many reasons of denied calls are shown; `--output json` has all.
MAX_REASONS = 3


def _next_for_unasked(unasked: list[dict[str, Any]]) -> str:
    """Return the next step for calls that nobody could be asked about; it names the rules if every call has one to store."""
    rules = allowing((rule["domain"], rule["pattern"]) for denial in unasked for rule in denial["rules"])
    stored = bool(rules) and all(denial["rules"] for denial in unasked)
    way = (
        f"allow {'it' if len(unasked) == 1 else 'them'} ({rules})"
        if stored
        else "mend what the reason names, allow it with a rule (moryflow permission --help)"
    )
    return plain(f"run it at a terminal, {way}, or --mode full_access -y")


_NEXT = {
    "approval_required": "moryflow approval list, then moryflow approval reply ID once|always|reject, then moryflow run -c",
    "max_steps": "moryflow run -c --max-steps N",
    "budget": "moryflow run -c --max-cost USD",
    "prompt_too_long": "moryflow session compact, or moryflow run without -c, which begins a new session",
    "plugin_failed": "moryflow plugin list",
}
