"""One command in the sandbox: the files that are read-only or hidden for it, and the check after it has ended.

A record is written before the command starts. If the host is killed, the next host finds the record and does the check.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from moryflow_sdk import Ask, Denied, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.own_files import open_regular
from moryflow_sdk.support.processes import end_marked
from moryflow_sdk.support.protected_files import RUNS_LATER, without_git_credentials
from moryflow_sdk.support.sandbox import FileRules, Sandbox

from .protected import INSTALLED, GuardedEntry, Search, Settled, Survey, put_back, put_in_place

# How many paths are made read-only or hidden one by one; the time for this grows with the square of their number.
MAX_CLOSED = 400

_REFUSED = re.compile("Read-only file system|Device or resource busy")
# How many characters at each end of an output are searched for errors; in megabytes it would take longer than the command.
_COMPLAINTS = 64 * 1024
# The mark of each command that runs in this process → the guarded files that were found before it started.
_running: dict[str, dict[str, GuardedEntry]] = {}


class Confined:
    """A command's sandbox.

    :param opened: paths, relative to the vault, that the user was asked about by name.
    :ivar notes: remarks about the sandbox, added to the output for the model.
    """

    def __init__(self, ctx: ToolContext, sandbox: Sandbox, network: bool, opened: frozenset[str]) -> None:
        self.ctx = ctx
        self.sandbox = sandbox
        self.network = network
        self.opened = opened
        self.before = Survey()
        self.hidden: list[str] = []
        self.notes: list[str] = []
        self._vault = ctx.vault
        self._rules = FileRules(ctx.rules.all(), ctx.agent.rules)
        restricts = self._rules.restricting
        also = (lambda path: self._rules.decision("read", f"vault:/{path}") in ("ask", "deny")) if restricts else None
        self._search = Search(str(self._vault), self.opened, also, each_secret=self._rules.allowing)
        self._folder = self.ctx.data_dir / "running"
        self._above_opened = {str(parent) for path in self.opened for parent in Path(path).parents}

    def argv(self, argv: Sequence[str], workdir: Path) -> list[str]:
        """Return the command line that runs `argv` in the sandbox.

        :raises ToolError: there are too many secrets to hide.
        """
        closed, kept = self._closed()
        hidden, replaced = self._hidden()
        return self.sandbox.command(
            argv,
            vault=self._vault,
            hidden=[self.ctx.home, *hidden],
            read_only=[*(path for path in self.ctx.watched if self._is_writable_there(path)), *closed],
            opened=[self._vault / name for name in RUNS_LATER.literal if self._is_open(name)],
            kept=kept,
            replaced=replaced,
            network=self.network,
            workdir=workdir,
        )

    def _is_writable_there(self, path: Path) -> bool:
        """Whether the vault makes `path` writable. A path elsewhere is not bound: it may be hidden, and would be seen again."""
        return path.is_relative_to(self._vault) or self._vault.is_relative_to(path)

    def begin(self) -> None:
        """Search the vault before the command, and write the record. Its lock is held while this process lives."""
        self.before = self._search.before()
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        record = {"vault": str(self._vault), "mark": self.ctx.mark, "opened": sorted(self.opened)}
        self._record = (self._folder / f"{self.ctx.mark}.json").open("w", encoding="utf-8")
        fcntl.flock(self._record, fcntl.LOCK_EX)
        self._record.write(json.dumps({**record, "guarded": self.before.guarded}))
        self._record.flush()
        _running[self.ctx.mark] = self.before.guarded

    def end(self) -> Settled:
        """Set aside the guarded files that the command made. It has ended, with everything that it started."""
        try:  # without the files that a rule or the user has opened
            surveys = (self.before.guarded, self._search.after(self.before.guarded))
            before, now = ({path: entry for path, entry in one.items() if not self._is_open(path)} for one in surveys)
            return put_back(self._vault, before, now, _aside_folder(self.ctx.data_dir, self.ctx.mark))
        finally:
            _running.pop(self.ctx.mark, None)
            for path in self._folder.glob(f"{self.ctx.mark}.*"):
                path.unlink(missing_ok=True)
            self._record.close()

    def _is_open(self, path: str) -> bool:
        return path in self.opened or path in self._above_opened or self._rules.allows("edit", f"vault:/{path}")

    async def ask(self, settled: Settled, result: ToolResult) -> ToolResult:
        """Ask whether the files that were put back may be where the command wanted them; add the answer to the result."""
        summary = "the command made files that run later" + (f": {settled.summary}" if settled.changes else "")
        if not settled.changes:
            return _error_result(result, settled, summary)
        question = f"{summary}. They were set aside. Move them where the command wanted them?"
        try:
            await self.ctx.ask(Ask(question))
        except Denied as error:
            answer = str(error).removeprefix(f"{question}; ")
            return _error_result(result, settled, f"{summary}. They were set aside; {answer}")
        left = await asyncio.to_thread(put_in_place, self._vault, settled.changes)
        unseen = {path: entry for path, entry in self.before.guarded.items() if entry.kind == "unseen"}
        now = await asyncio.to_thread(self._search.after, unseen)
        for other in _running.values():
            other.update({path: entry for path, entry in now.items() if path not in other})
        kept = Settled(left=[*settled.left, *left])
        if kept:
            return _error_result(result, kept, f"{summary}. The user agreed")
        return result.replace(output=f"{result.output}\n[{summary}: the user agreed]")

    def remark(self, result: ToolResult) -> ToolResult:
        """Add to the output which files were hidden or read-only, if the command names them or may have failed on them."""
        command = next(target.given for target in self.ctx.call.targets if target.kind == "shell")
        named = [path for path in self.hidden if Path(path).name in command]
        notes = list(self.notes)
        missed = [path for path in self.hidden if os.access(self._vault / path, os.R_OK)]  # not ``lost+found`` of root
        if named or (missed and result.metadata.get("exit_code")):
            notes.append(f"hidden in the sandbox: {_shortened_list(named or missed)}")
        ends = f"{result.output[:_COMPLAINTS]}\n{result.output[-_COMPLAINTS:]}"
        refused = "\n".join(line for line in ends.splitlines() if _REFUSED.search(line))
        closed = [path for path in self.before.guarded if path in refused]
        notes += [f"runs later, so it is read-only in the sandbox: {_shortened_list(closed)}"] if closed else []
        if not notes:
            return result
        return result.replace(output="\n".join((result.output, *(f"[{note}]" for note in notes))))

    def _closed(self) -> tuple[list[Path], list[Path]]:
        """Return the paths that are read-only, and the paths that can be written but not moved."""
        paths: list[str] = []
        kept: list[Path] = []
        for path, entry in self.before.guarded.items():
            if self._is_open(path):
                continue
            if entry.kind == "repository":
                kept.append(self._vault / path)
            elif entry.kind == "link":
                goal = Path(os.path.realpath(self._vault / path))  # a link in a loop resolves to itself
                if goal.is_relative_to(self._vault) and goal != self._vault and os.path.lexists(goal):
                    paths.append(str(goal.relative_to(self._vault)))
            elif entry.kind != "unseen":
                paths.append(path)
        if len(paths) + len(kept) > MAX_CLOSED:
            paths = list(dict.fromkeys(map(_package_folder, paths)))
        if len(paths) + len(kept) > MAX_CLOSED:
            self.notes.append(f"{len(paths)} files and folders here run later, so the whole folder was read-only")
            return [self._vault], []
        return [self._vault / path for path in sorted(paths)], kept

    def _hidden(self) -> tuple[list[Path], dict[Path, Path]]:
        """Return the folders that appear empty in the sandbox, and the files that another file replaces there.

        A file in a folder that the user cannot enter is among the folders: the sandbox hides that folder instead.
        """
        secrets = {path: folder for path, folder in self.before.secrets.items() if self._is_hidden(path)}
        unseen = [path for path, entry in self.before.guarded.items() if path and entry.kind == "unseen"]
        self.hidden = sorted([*secrets, *unseen])
        if len(secrets) > MAX_CLOSED:
            message = f"there are {len(secrets)} files of secrets in the working folder, too many to hide one by one"
            raise ToolError(message, code="sandbox", next_step="move them into one folder such as .secrets/, or out of here")
        folders = [path for path, folder in secrets.items() if folder or not os.path.lexists(self._vault / path)]
        replaced = {self._vault / path: self._stand_in(path) for path in secrets.keys() - set(folders)}
        for path, entry in self.before.guarded.items():
            config = self._vault / path / "config"
            if entry.kind == "repository" and f"{path}/config" not in self.opened and (text := _without_credentials(config)):
                replaced[config] = self._make_file(f"config{len(replaced)}", text)
        replaced = {path: other for path, other in replaced.items() if not path.is_symlink()}
        return [self._vault / path for path in (*folders, *unseen)], replaced

    def _is_hidden(self, path: str) -> bool:
        """Whether a secret has to be hidden: nobody opened it, and it is not in Moryflow's home, which is hidden anyway."""
        above = {path, *map(str, Path(path).parents)}
        shown = not above.isdisjoint(self.opened) or self._rules.allows("read", f"vault:/{path}")
        home = self.ctx.home
        return not shown and (self._vault.is_relative_to(home) or not (self._vault / path).is_relative_to(home))

    def _stand_in(self, path: str) -> Path:
        """Return an empty file to show instead; for a file that git tracks an unreadable one, or git would commit it empty."""
        index = self._vault / ".git" / "index"
        with suppress(OSError):
            if os.fsencode(path) in _content(index):
                return self._make_file("closed", "", 0)
        return self._make_file("empty", "")

    def _make_file(self, name: str, content: str, mode: int = 0o400) -> Path:
        path = self._folder / f"{self.ctx.mark}.{name}"
        if not path.exists():
            path.write_text(content, encoding="utf-8")
            path.chmod(mode)
        return path


async def run_confined(inside: Confined, command: Callable[[], Awaitable[ToolResult]]) -> ToolResult:
    """Run `command` with a search of the vault before and after it, and put back guarded files, also if it is cancelled."""
    await asyncio.to_thread(inside.begin)
    try:
        result = await command()
    except BaseException:
        settled = await _uncancelled(inside.end)
        if settled:
            inside.ctx.log.warning("the command had made files that run later: %s; put back", settled.summary)
        raise
    settled = await _uncancelled(inside.end)
    result = inside.remark(result)
    return await inside.ask(settled, result) if settled else result


async def _uncancelled(work: Callable[[], Settled]) -> Settled:
    """Return the result of `work`; if the call is cancelled, wait for `work` first."""
    working = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        await asyncio.wait((working,))
        raise


def _without_credentials(config: Path) -> str:
    """Return a configuration of git without its tokens and passwords; empty if it holds none."""
    try:
        text = _content(config).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
    clean = without_git_credentials(text)
    return clean if clean != text else ""


def _content(file: Path) -> bytes:
    """Return the content of an ordinary file; a command may have put a pipe in its place, and reading that would block."""
    with open_regular(file) as stream:
        return stream.read()


def _package_folder(path: str) -> str:
    """Return the topmost folder of installed packages that `path` is in, or `path`."""
    names = path.split("/")
    return next(("/".join(names[: index + 1]) for index, name in enumerate(names) if name in INSTALLED), path)


def _shortened_list(paths: list[str]) -> str:
    return ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")


def _error_result(result: ToolResult, settled: Settled, summary: str) -> ToolResult:
    asides = [str(change.now) for change in settled.changes]
    kept = f" What it made is kept in {_shortened_list(asides)}." if asides else ""
    left = f" Not put back: {'; '.join(settled.left)}." if settled.left else ""
    output = f"error: sandbox: {summary}.{kept}{left}\n\n{result.output}"
    metadata = {**result.metadata, "sandbox": {"put_back": [change.path for change in settled.changes], "left": settled.left}}
    return result.replace(status="error", code="runs_later", output=output.rstrip(), metadata=metadata)


def _aside_folder(data: Path, mark: str) -> Path:
    return data / "aside" / f"{time.strftime('%Y%m%d-%H%M%S')}-{mark[:8]}"


def settle_leftovers(data: Path, log: logging.Logger) -> None:
    """Settle commands whose host was killed, and log what was put back."""
    for path in sorted((data / "running").glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError), path.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the host of the command is alive
            settled = _settle_record(json.load(file), data)
            if settled:
                log.warning(
                    "a command whose host was ended had made files that run later: %s; put back; kept: %s%s",
                    settled.summary,
                    _shortened_list([str(change.now) for change in settled.changes]),
                    f"; not put back: {'; '.join(settled.left)}" if settled.left else "",
                )
            for other in path.parent.glob(f"{path.stem}.*"):
                other.unlink(missing_ok=True)


def _settle_record(record: dict[str, Any], data: Path) -> Settled:
    end_marked((record["mark"],))
    before = {path: GuardedEntry(*entry) for path, entry in record["guarded"].items()}
    now = Search(record["vault"], frozenset(record["opened"])).after(before)
    return put_back(Path(record["vault"]), before, now, _aside_folder(data, record["mark"]))
