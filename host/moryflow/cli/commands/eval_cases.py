"""``moryflow eval CASES.yaml``: run cases with graders, with and without a plugin; recorded answers, or a live model.

Each case runs in a folder of its own, as ``moryflow run`` would; what the model answered live is recorded beside the cases, so
that the next run needs no model and gives the same result.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from moryflow_sdk import ConfigError

from moryflow.cli.open_host import with_store
from moryflow.cli.options import Flags, document_options
from moryflow.cli.terminal import columns, plain, say, show

# Seconds that the command of a grader may take.
TIMEOUT = 600.0
GRADERS = ("command", "file", "call", "judge", "answer")
_CASE = frozenset({"name", "prompt", "files", "graders", "agent", "mode", "config", "max_steps"})


@dataclass
class Outcome:
    """What a case did: the answer, the calls that ran, and what the graders found."""

    answer: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    turns: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    failures: list[str] = field(default_factory=list[str])
    judged: dict[str, bool] = field(default_factory=dict[str, bool])
    session: str = ""

    @property
    def passed(self) -> bool:
        return not self.failures


@click.command("eval")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("-m", "--model", help="The model for --live.")
@click.option("--live", is_flag=True, help="Ask the model, and record its answers beside FILE.")
@click.option("--without", "plugin", metavar="PLUGIN", help="Run each case without this plugin too.")
@click.option("-k", "words", help="Only the cases whose names contain this.")
@document_options
def command(flags: Flags, file: Path, model: str | None, live: bool, plugin: str | None, words: str | None) -> int:
    """Run the cases of FILE and grade them; exit code 3 when one fails.

    A case has a prompt, the files of its folder, and graders: command, file, call, answer, judge.
    """
    cases = [case for case in read_cases(file) if words is None or words in case["name"]]
    recorded = file.with_suffix(".recorded.json")
    known = _recorded(recorded)  # with -k, the answers of the other cases stay
    missing = [case["name"] for case in cases if case["name"] not in known]
    if missing and not live:
        said = f"no answers are recorded for {', '.join(missing[:5])}"
        raise ConfigError(said, where=str(recorded), next_step=f"moryflow eval {file} --live")
    rows: list[dict[str, Any]] = []
    for case in cases:
        say(f"moryflow: {case['name']}")
        answers = None if live else known[case["name"]]
        outcome = _run(case, flags, model, answers, [])
        row = {"name": case["name"], "passed": outcome.passed, "failures": outcome.failures, "answer": outcome.answer}
        if plugin is not None:
            other = _run(case, flags, model, answers, [plugin])
            row |= {"without": other.passed, "failures_without": other.failures}
        if live:
            known[case["name"]] = {"turns": outcome.turns, "answer": outcome.answer, "judged": outcome.judged}
        rows.append(row)
    if live:
        recorded.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    failed = sum(not row["passed"] for row in rows)
    marks = [(_mark(row["passed"]), *([_mark(row["without"])] if plugin else [])) for row in rows]
    table = columns((*mark, row["name"], "; ".join(row["failures"])) for mark, row in zip(marks, rows, strict=True))
    head = f"with, without {plugin}\n" if plugin else ""
    show(flags, {"v": 1, "passed": len(rows) - failed, "failed": failed, "cases": rows},
         plain(f"{head}{table}\n\n{len(rows) - failed} passed, {failed} failed"))  # fmt: skip
    return 3 if failed else 0


def _recorded(file: Path) -> dict[str, Any]:
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except ValueError as error:
        raise ConfigError(f"it is not JSON: {error}", where=str(file), next_step="delete it, and record with --live") from error


def _mark(passed: bool) -> str:
    return "ok" if passed else "FAILED"


def read_cases(file: Path) -> list[dict[str, Any]]:
    """Return the cases of a file, checked.

    :raises ConfigError: it is no YAML, or a case is not what it should be.
    """
    import yaml

    try:
        found: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"it cannot be read: {error.strerror}", where=str(file), next_step="moryflow eval CASES.yaml"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = f"{file}:{line + 1}" if line is not None else str(file)
        problem = f"it is not YAML: {getattr(error, 'problem', None) or error}"
        raise ConfigError(problem, where=where, next_step="fix it") from error
    cases = found.get("cases") if isinstance(found, Mapping) else found
    if not isinstance(cases, list) or not cases:
        raise ConfigError("it has no list `cases`", where=str(file), next_step="cases: [{name, prompt, files, graders}]")
    checked = [_checked(case, number, file) for number, case in enumerate(cases, 1)]
    names = [case["name"] for case in checked]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"two cases are called {twice!r}", where=str(file), next_step="give each its own name")
    return checked


def _checked(case: Any, number: int, file: Path) -> dict[str, Any]:
    def wrong(text: str) -> ConfigError:
        return ConfigError(f"case {number}: {text}", where=str(file), next_step="a case is {name, prompt, files, graders}")

    if not isinstance(case, Mapping) or not isinstance(case.get("prompt"), str):
        raise wrong("it needs a prompt")
    if odd := {*map(str, case)} - _CASE:
        raise wrong(f"there is no field {', '.join(sorted(odd))}; there are {', '.join(sorted(_CASE))}")
    graders = case.get("graders")
    if not isinstance(graders, list) or not graders:
        raise wrong("it needs a list of graders, or nothing would be graded")
    for grader in graders:
        if not isinstance(grader, Mapping) or len({*grader} & {*GRADERS}) != 1:
            raise wrong(f"a grader is one of {', '.join(GRADERS)}, not {grader!r:.80}")
        for place in (grader, grader.get("file")):
            pattern = place.get("answer", place.get("matches", "")) if isinstance(place, Mapping) else ""
            try:
                re.compile(str(pattern))
            except re.error as error:
                raise wrong(f"{pattern!r} is not a regular expression: {error}") from error
    for name in case.get("files") or {}:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise wrong(f"the file {name!r} is outside the case's folder")
    return {"name": str(case.get("name") or f"case {number}"), **{key: value for key, value in case.items() if key != "name"}}


# ---------------------------------------------------------------- running


def _run(case: Mapping[str, Any], flags: Flags, model: str | None, recorded: Any, without: Sequence[str]) -> Outcome:
    """Run one case in a new folder and grade it; with `recorded` answers no model is asked."""
    with tempfile.TemporaryDirectory(prefix="moryflow-eval-") as place:
        vault = Path(place, "vault")
        vault.mkdir()
        for name, text in (case.get("files") or {}).items():
            path = vault / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(str(text), encoding="utf-8")
        script = Path(place, "script.json")
        if recorded is not None:
            script.write_text(json.dumps(recorded["turns"]), encoding="utf-8")
        outcome = _turn(case, vault, f"script:{script}" if recorded is not None else model, without, flags)
        for grader in case["graders"]:
            if why := _graded(grader, outcome, vault, model, recorded):
                outcome.failures.append(why)
    return outcome


def _turn(case: Mapping[str, Any], vault: Path, model: str | None, without: Sequence[str], flags: Flags) -> Outcome:
    layer: dict[str, Any] = dict(case.get("config") or {})
    layer |= {"disabledPlugins": [*layer.get("disabledPlugins", ()), *without]} if without else {}
    words = ["run", case["prompt"], "--vault", str(vault), "--output", "stream-json", "-q", "--on-ask", "deny"]
    words += ["-m", model] if model else []
    words += ["--agent", str(case["agent"])] if case.get("agent") else []
    words += ["--max-steps", str(case["max_steps"])] if case.get("max_steps") else []
    words += ["--mode", "full_access", "-y"] if case.get("mode") == "full_access" else []
    words += ["--config", json.dumps(layer)] if layer else ["--config", flags.config] if flags.config else []
    done = subprocess.run(
        [sys.executable, "-m", "moryflow", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    outcome = Outcome()
    asked: dict[str, dict[str, Any]] = {}
    for line in done.stdout.splitlines():
        event = json.loads(line)
        if event["type"] == "tool.start":
            asked[event["call_id"]] = {"tool": event["tool"], "args": event["args"]}
        elif event["type"] == "tool.result":
            begun = asked.get(event["call_id"], {"tool": event["tool"], "args": {}})
            outcome.calls.append({**begun, "status": event["status"]})
        elif event["type"] == "result":
            outcome.answer, outcome.session = event["text"], event["session"]
            if event["status"] != "completed":
                outcome.failures.append(f"the turn ended: {event['end_reason']}")
    if not outcome.session:
        last = done.stderr.strip().splitlines() or ["it said nothing"]
        outcome.failures.append(f"it did not run: {last[0]}")
        return outcome
    outcome.turns = _taken_turns(outcome.session)
    return outcome


def _taken_turns(session: str) -> list[dict[str, Any]]:
    """Return what the model answered in a session, as a script, and delete the session."""

    async def work(store: Any) -> list[dict[str, Any]]:
        nodes = await store.nodes(session)
        await store.delete(session)
        return [_scripted(node.payload) for node in nodes if node.kind == "assistant"]

    return with_store(work)


def _scripted(payload: Mapping[str, Any]) -> dict[str, Any]:
    calls = [{"name": call["name"], "arguments": json.loads(call["arguments"] or "{}")} for call in payload["calls"]]
    return {"text": payload["text"], "calls": calls} if calls else {"text": payload["text"]}


# ---------------------------------------------------------------- grading


def _graded(grader: Mapping[str, Any], outcome: Outcome, vault: Path, model: str | None, recorded: Any) -> str:
    kind = next(name for name in GRADERS if name in grader)
    given = grader[kind]
    if kind == "command":
        return _command(str(given), vault)
    if kind == "file":
        return _file(given if isinstance(given, Mapping) else {"path": given}, vault)
    if kind == "answer":
        return "" if re.search(str(given), outcome.answer) else f"the answer does not match {given!r}"
    if kind == "call":
        return _call(given if isinstance(given, Mapping) else {"tool": given}, outcome, never=bool(grader.get("never")))
    question = str(given)
    if recorded is None:
        outcome.judged[question] = _judge(question, outcome.answer, model)
        return "" if outcome.judged[question] else f"the judge says no: {question}"
    if recorded["answer"] != outcome.answer or question not in recorded["judged"]:
        return f"the answer is another than the one that was judged: {question}; moryflow eval --live judges it"
    return "" if recorded["judged"][question] else f"the judge said no: {question}"


def _command(command: str, vault: Path) -> str:
    shell = ["/bin/sh", "-c", command]  # the words of whoever wrote the case
    try:
        done = subprocess.run(
            shell, cwd=vault, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"{command} took longer than {TIMEOUT:.0f} s"
    said = (done.stdout + done.stderr).strip().splitlines()
    return "" if done.returncode == 0 else f"{command} ended with {done.returncode}{f': {said[-1][:100]}' if said else ''}"


def _file(given: Mapping[str, Any], vault: Path) -> str:
    path = vault / str(given.get("path"))
    if given.get("absent"):
        return f"{given['path']} is there" if path.exists() else ""
    if not path.is_file():
        return f"{given.get('path')} is not there"
    text = path.read_text(encoding="utf-8", errors="replace")
    if "equals" in given and text != str(given["equals"]):
        return f"{given['path']} is not as it should be"
    if "contains" in given and str(given["contains"]) not in text:
        return f"{given['path']} does not contain {given['contains']!r}"
    return "" if "matches" not in given or re.search(str(given["matches"]), text) else f"{given['path']} does not match"


def _call(given: Mapping[str, Any], outcome: Outcome, *, never: bool) -> str:
    wanted = given.get("args") or {}
    found = [call for call in outcome.calls if call["tool"] == given.get("tool") and _has(call["args"], wanted)]
    if "status" in given:
        found = [call for call in found if call["status"] == given["status"]]
    if never:
        return f"{given.get('tool')} was called" if found else ""
    return "" if found else f"{given.get('tool')} was not called{f' with {wanted}' if wanted else ''}"


def _has(args: Any, wanted: Mapping[str, Any]) -> bool:
    return isinstance(args, Mapping) and all(args.get(key) == value for key, value in wanted.items())


def _judge(question: str, answer: str, model: str | None) -> bool:
    """Ask the model, without plugins and tools, whether an answer is as it should be; no answer counts as no."""
    prompt = f"Answer with yes or no only. {question}\n\nThe answer to judge:\n{answer}"
    words = [sys.executable, "-m", "moryflow", "run", prompt, "-q", "--safe-mode", "--output", "json"]
    done = subprocess.run(
        [*words, *(["-m", model] if model else [])], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return False
    _taken_turns(found["session"])
    return str(found["text"]).strip().casefold().startswith("yes")
