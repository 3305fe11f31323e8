"""Read hooks of Claude Code and Codex, run them as processes of their own, and read their answers.

A hook is a shell command that gets JSON on standard input. Exit code 2 refuses, with standard error as the reason; exit code 0
may come with JSON; every other one, a script that is missing too, is an error that refuses nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.processes import marked_environment
from moryflow_sdk.support.secrets import names_secret

EVENTS = frozenset({
    "PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "SessionEnd", "Stop", "SubagentStop", "PreCompact",
    "Notification",
})  # fmt: skip
# Seconds that a hook may take unless it says so itself, and at most.
TIMEOUT, MAX_TIMEOUT = 60.0, 600.0
MAX_OUTPUT = 256 * 1024
MAX_BYTES = 1024 * 1024


class HookCommand(NamedTuple):
    """One command for one event; `root` is the folder of its plugin, `file` where it stands."""

    event: str
    matcher: str
    command: str
    timeout: float
    root: str
    file: str


class HookAnswer(NamedTuple):
    """What a hook said.

    :param code: its exit code; ``None`` if it did not run to its end.
    :param fields: the JSON that it printed; empty if it printed none.
    """

    hook: HookCommand
    code: int | None
    fields: Mapping[str, Any]
    output: str
    error: str

    @property
    def specific(self) -> Mapping[str, Any]:
        found = self.fields.get("hookSpecificOutput")
        return found if isinstance(found, Mapping) else {}

    @property
    def refusal(self) -> str:
        """Why the hook refuses; empty if it does not."""
        if self.code == 2:
            return self.error.strip() or f"the hook {self.hook.command!r:.80} refused it"
        if self.code != 0:
            return ""
        if self.fields.get("decision") == "block" or self.specific.get("permissionDecision") == "deny":
            return str(self.fields.get("reason") or self.specific.get("permissionDecisionReason") or "a hook refused it")
        return ""

    @property
    def context(self) -> str:
        """What the model shall read."""
        given = self.specific.get("additionalContext")
        return str(given) if given else ""


def read_hooks(paths: Sequence[str]) -> tuple[list[HookCommand], list[tuple[str, str]]]:
    """Return the commands in the files or plugin folders at `paths`, and (file, problem) of what cannot be used."""
    found: list[HookCommand] = []
    problems: list[tuple[str, str]] = []
    for text in paths:
        place = Path(text).expanduser()
        file = _file_at(place)
        if file is None:
            problems.append((text, "there are no hooks: neither a file nor a folder with hooks/hooks.json"))
            continue
        root = place if place.is_dir() else place.parent
        try:
            with open_regular(file) as stream:
                content = json.loads(stream.read(MAX_BYTES))
        except (OSError, ValueError, RecursionError) as error:
            problems.append((str(file), f"it cannot be read: {error}"))
            continue
        sections = content.get("hooks", content) if isinstance(content, dict) else None
        if not isinstance(sections, dict):
            problems.append((str(file), "it holds no object of events"))
            continue
        found += _commands(sections, str(root), str(file), problems)
    return found, problems


def _file_at(place: Path) -> Path | None:
    files = [place] if place.is_file() else [place / "hooks" / "hooks.json", place / "hooks.json"]
    return next((each for each in files if each.is_file()), None)


def stamps(paths: Sequence[str]) -> tuple[int, ...]:
    """Return the change times of the files at `paths`; 0 where there is none."""
    files = [_file_at(Path(text).expanduser()) for text in paths]
    return tuple(file.stat().st_mtime_ns if file is not None else 0 for file in files)


def _commands(sections: Mapping[str, Any], root: str, file: str, problems: list[tuple[str, str]]) -> Iterator[HookCommand]:
    for event, groups in sections.items():
        if event not in EVENTS:
            if isinstance(groups, list):
                problems.append((file, f"the event {event!r:.40} does not exist here; its hooks are not run"))
            continue
        for group in groups if isinstance(groups, list) else []:
            hooks = group.get("hooks") if isinstance(group, Mapping) else None
            for hook in hooks if isinstance(hooks, list) else []:
                kind = hook.get("type", "command") if isinstance(hook, Mapping) else None
                if kind != "command" or not isinstance(hook.get("command"), str):
                    problems.append((file, f"{event}: only hooks of the type command are run, not {kind!r:.40}"))
                    continue
                seconds = hook.get("timeout")
                seconds = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else TIMEOUT
                matcher = group.get("matcher")
                yield HookCommand(event, str(matcher or ""), hook["command"], min(max(seconds, 0.1), MAX_TIMEOUT), root, file)


def fits(hook: HookCommand, name: str) -> bool:
    """Whether the matcher of a hook is about `name`: empty and a star match all, anything else is a regular expression."""
    if hook.matcher in ("", "*"):
        return True
    try:
        return re.fullmatch(hook.matcher, name) is not None
    except (re.error, RecursionError):
        return hook.matcher == name


async def run_all(hooks: Sequence[HookCommand], given: Mapping[str, Any], folder: Path) -> list[HookAnswer]:
    """Run hooks side by side, each with `given` on its standard input; never raises for what they do."""
    return list(await asyncio.gather(*(_run(hook, given, folder) for hook in hooks)))


async def _run(hook: HookCommand, given: Mapping[str, Any], folder: Path) -> HookAnswer:
    environ = {key: value for key, value in marked_environment("").items() if not names_secret(key)}
    own = {"CLAUDE_PLUGIN_ROOT": hook.root, "CLAUDE_PROJECT_DIR": str(folder)}
    environ |= own
    if missing := _missing_script(hook.command, own, folder):
        return HookAnswer(hook, None, {}, "", f"{missing} is not there")
    try:
        process = await asyncio.create_subprocess_shell(
            hook.command,
            cwd=folder,
            env=environ,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return HookAnswer(hook, None, {}, "", f"it cannot be started: {error.strerror}")
    try:
        async with asyncio.timeout(hook.timeout):
            printed, said = await process.communicate(json.dumps(given, default=str).encode("utf-8", "replace"))
    except TimeoutError:
        return HookAnswer(hook, None, {}, "", f"it was stopped after {hook.timeout:g} s")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    output, error = (data[:MAX_OUTPUT].decode("utf-8", "replace") for data in (printed, said))
    return HookAnswer(hook, process.returncode, _fields(output), output, error)


_SCRIPT = re.compile(r".*/.*\.(py|sh|bash|js|mjs|cjs|ts|rb|pl|php)")


def _missing_script(command: str, variables: Mapping[str, str], folder: Path) -> str:
    """Return a script in a command that does not exist.

    Python ends with exit code 2 then, which would refuse every call.
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return ""
    for word in words:
        for name, value in variables.items():
            word = word.replace(f"${{{name}}}", value).replace(f"${name}", value)
        if _SCRIPT.fullmatch(word) and not re.search(r"[$`*?]", word) and not (folder / Path(word).expanduser()).exists():
            return word
    return ""


def _fields(output: str) -> Mapping[str, Any]:
    if not output.lstrip().startswith("{"):
        return {}
    try:
        found = json.loads(output)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
