"""The request of a search, its result, and which of the files found may be shown.

The folder itself has been judged. A file in it is left out if its name looks like secrets and no rule allows it, or if a rule
of the user or of the agent asks or denies. The files left out are counted, and the output says so.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from moryflow_sdk import Rule, Target, ToolContext, ToolError, ToolResult
from moryflow_sdk.support.patterns import Pattern, TooMany, braces, compile_rule, path_regex
from moryflow_sdk.support.protected_files import sensitive
from moryflow_sdk.support.rule_entries import ANY_DOMAIN
from moryflow_sdk.support.texts import composed

Compiled = Sequence[tuple[Rule, Pattern]]

_REASONS = {"unreadable": "cannot be read", "named": "a line end is in the name"}
# How many of the files that were left out for one reason are named.
_NAMED = 5


def some(paths: Sequence[str]) -> str:
    more = len(paths) - _NAMED
    return ", ".join(paths[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")


@dataclass
class FolderReader:
    """Decides which files one search may show, and counts those that it may not."""

    ctx: ToolContext
    target: Target
    secrets: int = 0
    by_rule: int = 0
    left_out: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def leave_out(self, path: str, reason: str) -> None:
        """Remember a file or folder that was not searched, because it is ``unreadable`` or badly ``named``."""
        self.left_out.setdefault(reason, []).append(path)

    def refused_paths(self, paths: Sequence[str]) -> set[str]:
        """Return those of `paths` (relative to the folder) that may not be shown, and count them."""
        return {path for path in paths if not self.shows(path)}

    def shows(self, path: str) -> bool:
        """Whether a file may be shown. A file that may not is counted, so ask only once for each."""
        secret = sensitive(path)
        if self._may_show(path, secret=secret):
            return True
        self.secrets += secret
        self.by_rule += not secret
        return False

    @property
    def notes(self) -> list[str]:
        """Sentences about the files that were left out."""
        counts = (
            (self.secrets, "sensitive", "their names look like secrets"),
            (self.by_rule, "other", "a rule asks or denies"),
        )
        notes = [f"{count} {kind} file{'s' * (count != 1)} not searched: {why}" for count, kind, why in counts if count]
        return notes + [f"not searched, {_REASONS[reason]}: {some(paths)}" for reason, paths in self.left_out.items()]

    def _may_show(self, path: str, *, secret: bool) -> bool:
        """Decide as for ``read`` of the file, but without the rules about its place: the folder has been judged."""
        if self._home_below is not None and f"{path}/".startswith(self._home_below):
            return False
        text = f"{self.target.text.rstrip('/')}/{path}"
        full_access = self.ctx.mode == "full_access"
        decisions = [decision for layer in self._layers if (decision := _last(layer, text))]
        if "deny" in decisions or ("ask" in decisions and not full_access):
            return False
        return not secret or full_access or bool(self._layers and _last(self._layers[0], text) == "allow")

    @cached_property
    def _layers(self) -> list[Compiled]:
        """The user's rules, then each agent's own, which can only be stricter; empty if there are none of either."""
        configured = _read_rules(self.ctx.rules.all())
        agents = _read_rules(self.ctx.agent.rules)
        sources = dict.fromkeys(rule.source for rule, _ in agents)
        own = [[(rule, pattern) for rule, pattern in agents if rule.source == source] for source in sources]
        return [configured, *own] if configured or own else []

    @cached_property
    def _home_below(self) -> str | None:
        """Moryflow's own folder, relative to the target: empty if the target is in it, ``None`` if it is elsewhere.

        The folder holds tokens and is never searched.
        """
        home, folder = str(self.ctx.home).rstrip("/") + "/", (self.target.path or "").rstrip("/") + "/"
        if home.startswith(folder):
            return home.removeprefix(folder)
        return "" if folder.startswith(home) and not folder.startswith(f"{home}agent-output/") else None


def _read_rules(rules: Iterable[Rule]) -> Compiled:
    return [(rule, compile_rule(rule)) for rule in rules if rule.domain in ("read", ANY_DOMAIN)]


def _last(layer: Compiled, text: str) -> str | None:
    """Return the decision of the last rule that matches. With a broken rule, deny if it was a deny; else ask."""
    if doubts := {rule.decision for rule, pattern in layer if pattern.problem}:
        return "deny" if "deny" in doubts else "ask"
    return next((rule.decision for rule, pattern in reversed(layer) if pattern.matches(text)), None)


# How many bytes of lines are kept in memory until they are sorted; a search that finds more is stopped.
MAX_BYTES = 32 * 1024 * 1024

# Bytes that a line takes beside its text.
_EACH = 100

# With more lines than this the notes come first, because truncation cuts off the end of a long output.
_MANY = 1000

SEARCH_SECONDS = 60.0


@dataclass(frozen=True)
class SearchRequest:
    """A search: the pattern, how it is read, and which files are searched (`glob`)."""

    pattern: str
    ignore_case: bool = False
    literal: bool = False
    context: int = 0
    glob: str = ""

    @property
    def wants(self) -> Callable[[str], object] | None:
        """A function that says whether the glob matches a path; ``None`` if all files are searched.

        A glob without a slash matches names in any folder.
        """
        if not self.glob:
            return None
        return glob_matcher(self.glob if "/" in self.glob else f"**/{self.glob}")


def glob_matcher(pattern: str) -> Callable[[str], object]:
    """Return a function that says whether a glob matches a path: ``*`` stops at ``/``, ``**`` does not, ``{a,b}`` is either.

    :raises ToolError: ``invalid_pattern``.
    """
    with _usable(pattern):
        each = (path_regex("", one, folders=False) for one in alternatives(composed(pattern)))
        named = re.compile("|".join(each), re.DOTALL)
    return lambda path: named.fullmatch(composed(path))


def alternatives(pattern: str) -> list[str]:
    """Return the globs that the braces of `pattern` expand to.

    :raises ToolError: ``invalid_pattern``.
    """
    with _usable(pattern, TooMany):
        return braces(pattern)


@contextmanager
def _usable(pattern: str, *failures: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (re.error, RecursionError, OverflowError, *failures) as error:
        raise ToolError(f"the glob {pattern[:80]!r} cannot be used: {error}", code="invalid_pattern") from error


@dataclass(frozen=True)
class SearchLine:
    path: str
    number: int
    matches: bool
    text: str


@dataclass
class SearchResult:
    """The lines found, in the order they came; `more`: the search stopped early, for the reason `why`; `notes`: remarks;
    `unreadable`: files and folders."""

    lines: list[SearchLine] = field(default_factory=list[SearchLine])
    more: bool = False
    why: str = ""
    notes: list[str] = field(default_factory=list[str])
    unreadable: list[str] = field(default_factory=list[str])
    size: int = 0

    def take(self, lines: Iterable[SearchLine]) -> bool:
        """Add `lines`; return false, and stop the search, once :data:`MAX_BYTES` is reached."""
        for line in lines:
            self.lines.append(line)
            self.size += len(line.text) + _EACH
            if self.size > MAX_BYTES:
                self.stop(f"stopped after {len(self.lines):,} lines")
                return False
        return True

    def stop(self, why: str) -> None:
        """Record that the search stopped early."""
        self.more, self.why = True, why


def result_of(found: SearchResult, pattern: str, limit: int | None, *, files_only: bool, tool: str) -> ToolResult:
    """Return the lines sorted by path, at most `limit` matches if the model set one, and the notes.

    The plugin ``truncation`` cuts a long output and stores the rest, as for every tool.
    """
    lines = sorted(found.lines, key=lambda line: line.path)
    matches = sum(line.matches for line in lines)
    files = dict.fromkeys(line.path for line in lines)
    total = len(files) if files_only else matches
    limit = total if limit is None else limit
    shown = _files(lines, files, limit) if files_only else _lines(lines, limit)
    notes = list(map(one_line, found.notes))
    if total > limit or found.more:
        count = f"more than {total:,}" if found.more else f"{total:,}"
        reason = f" ({found.why})" if found.why else ""
        notes.insert(0, f"{min(total, limit):,} of {count} {'files' if files_only else 'matches'}{reason}; narrow the search")
    if not matches:
        shown = ["no match"]
    pattern = pattern if len(pattern) <= 40 else f"{pattern[:39]}…"
    return ToolResult(
        output="\n".join(with_notes(shown, notes)),
        title=f"{tool} {pattern!r} ({matches} in {len(files)} file{'s' * (len(files) != 1)})",
        metadata={"matches": matches, "files": len(files), "complete": not found.more},
    )


def with_notes(shown: Sequence[str], notes: Sequence[str]) -> list[str]:
    """Return the lines with the notes, which come first if there are many lines."""
    marked = [f"[{note}]" for note in notes]
    return [*marked, *shown] if len(shown) > _MANY else [*shown, *marked]


def _files(lines: Sequence[SearchLine], files: dict[str, None], limit: int) -> list[str]:
    counts = dict.fromkeys(files, 0)
    for line in lines:
        counts[line.path] += line.matches
    return [f"{one_line(path)} ({count})" for path, count in list(counts.items())[:limit]]


def _lines(lines: Sequence[SearchLine], limit: int) -> list[str]:
    """Return ``path:12:text`` for matches and ``path-11-text`` for context, with ``--`` between groups of lines."""
    shown: list[str] = []
    previous: SearchLine | None = None
    with_context = any(not line.matches for line in lines)
    for line in lines:
        limit -= line.matches
        if limit < 0:
            break
        gap = previous is not None and (previous.path, previous.number + 1) != (line.path, line.number)
        if with_context and gap:
            shown.append("--")
        sign = ":" if line.matches else "-"
        shown.append(f"{one_line(line.path)}{sign}{line.number}{sign}{line.text}")
        previous = line
    return shown


def one_line(path: str) -> str:
    """Return `path` with line ends escaped: one in a name must not look like another entry."""
    return path.replace("\n", "\\n").replace("\r", "\\r")
