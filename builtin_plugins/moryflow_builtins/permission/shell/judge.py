"""Judge a shell text: every simple command by the rules, its words as paths, and the commands inside it.

What :mod:`.lexer` does not read is asked about, and denied if the words of a denied command stand in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from moryflow_sdk import FrozenDict, Rule, Target
from moryflow_sdk.calls import UNKNOWN_FOLDER
from moryflow_sdk.support.patterns import compile_rule

from moryflow_builtins.permission.files import hard_limit, judge_file
from moryflow_builtins.permission.policy import CompiledRule, Judgement, Policy, RuleHit, place_of, shortened

from .guards import ANYTHING, UncoveredWords, guards_of
from .lexer import NotRead, Redirect, SimpleCommand, Word, read
from .line import MAX_DEPTH, MAX_SUFFIXES, CommandLine, rest_of
from .own_folder import (
    bank_refused,
    change_refused,
    folder_refused,
    judge_own_folder,
    judge_own_pattern,
    judge_own_program,
    names_own_folder,
    serves_commands,
)
from .remember import contents_of, rule_to_remember
from .tables import ADDS_WORDS, GIT_CHANGES, GIT_SENDS, NEUTRAL, SOUGHT, UNKNOWN, WRAPPERS, program
from .words import (
    changing,
    fed_text,
    foreign_repository,
    git_place,
    inner_texts,
    inner_words,
    is_neutral_copy,
    is_own,
    misleading_character,
    name_of,
    operand_count,
    own_change_in_text,
    path_words,
    rough_commands,
    script_of,
)

# How many commands and paths of one text are judged, counted once for each possible folder.
MAX_WORK = 4000

# How many folders a command may run in; with more of them the folder is unknown.
MAX_BASES = 8

# Commands after which the shell may be in another folder.
_MOVES = frozenset(["cd", "pushd", "popd", "source", ".", "eval"])


class TooMuchWork(Exception):
    """The text holds more than :data:`MAX_WORK` allows to judge."""


class Judge:
    """Judges one shell text that starts in `folder`, and collects the judgements in `parts`."""

    def __init__(self, policy: Policy, command: str, folder: str) -> None:
        self.parts: dict[Judgement, None] = {}
        self._policy = policy
        self._whole = command
        self._bases: set[str | None] = {folder}  # the folders that the next command may run in
        self._all: set[str | None] = {folder}  # the folders that any command behind it may run in
        self._trusted = False  # inside a command that a rule allows word for word
        self._written: set[str] = set()
        self._targets: dict[tuple[str, str, str | None], Target] = {}
        self._seen: set[tuple[SimpleCommand, frozenset[str | None], bool]] = set()
        self._denies = any(one.rule.decision == "deny" for rules in policy.layers for one in rules.of("bash"))
        self._work = 0

    def judge(self) -> None:
        """Judge the whole text."""
        try:
            self._script(self._whole, 0)
        except TooMuchWork:
            self._trusted = False
            self._not_read(self._whole, "it is too long to check")
            self._add(
                Judgement("bash", f"shell:{shortened(self._whole, 200)}", "ask", "it is too long to check", bypass="never")
            )

    def _add(self, part: Judgement) -> None:
        lifted = self._trusted and part.domain == "bash" and part.decision == "ask" and part.bypass != "never"
        if not lifted or part.lapsed:
            self.parts.setdefault(part)

    def _add_all(self, parts: Iterable[Judgement]) -> None:
        for part in parts:
            self._add(part)

    def _unseen(self) -> None:
        """Refuse a command whose words or code are not seen, in a text that names what no tool changes."""
        self._refuse_names(self._whole)

    def _refuse_names(self, text: str) -> None:
        change = own_change_in_text(text)
        if change:
            self._add(change_refused(text, change))
        if names_own_folder(self._policy, text):
            self._add(folder_refused(self._policy, text))

    def _ask(self, text: str, reason: str) -> None:
        """Ask about something that no rule covers."""
        self._add(Judgement("bash", f"shell:{text}", "ask", reason))

    def _spend(self, work: int) -> None:
        self._work += work * len(self._bases)
        if self._work > MAX_WORK:
            raise TooMuchWork

    # ---------------------------------------------------------------- texts

    def _script(self, text: str, depth: int) -> None:
        """Judge a shell text, the whole or one behind ``-c``."""
        try:
            if depth > MAX_DEPTH:
                raise NotRead("commands run commands too deeply")
            odd = misleading_character(text)
            if odd:
                raise NotRead(f"it holds the character {odd}")
            commands = read(text)
        except (NotRead, RecursionError) as problem:
            why = str(problem) if isinstance(problem, NotRead) else "it is nested too deeply"
            self._not_read(text, f"it cannot be read surely: {why}")
            return
        if any(one.loop and one.words and one.words[0].text in _MOVES for one in commands):
            self._bases.add(None)  # what stands before it in the loop runs again after it
            self._all.add(None)
        left: list[tuple[tuple[int, ...], set[str | None], set[str | None]]] = []  # folders to return to after a subshell
        for command in commands:
            while left and command.scope[: len(left[-1][0])] != left[-1][0]:
                _, self._bases, self._all = left.pop()
            while len(left) < len(command.scope):
                left.append((command.scope[: len(left) + 1], set(self._bases), set(self._all)))
            key = (command, frozenset(self._bases), self._trusted)
            if key not in self._seen or (command.words and command.words[0].text in _MOVES):
                self._seen.add(key)
                self._command(command, depth)
            if command.after not in ("&&", "||", "|", "|&"):
                self._bases = set(self._all)
        if left:
            _, self._bases, self._all = left[0]

    def _not_read(self, text: str, why: str) -> None:
        """Ask about a text that was not read, and look in it for denied commands and for Moryflow's own folder."""
        self._ask(text, why)
        for command in rough_commands(text) if self._denies else ():
            self._deny(command)
        self._refuse_names(text)

    def _deny(self, command: str) -> None:
        """Add the denial of a rule that would deny `command`, by the name of its program with or without its folder."""
        words = command.split(" ", 1)
        for view in dict.fromkeys((command, " ".join((os.path.basename(words[0]), *words[1:])))):  # noqa: PTH119
            if view and self._policy.denies(view):
                self._add(self._policy.by_text("bash", f"shell:{view}"))

    # ---------------------------------------------------------------- one command

    def _command(self, command: SimpleCommand, depth: int, granted: CompiledRule | None = None) -> None:
        """Judge a command: its redirections, then by the rules, then its words, then what it runs."""
        self._spend(1)
        for redirect in command.redirects:
            self._redirect(redirect)
        words = (*changing(command.assigned), *command.words)
        if not words:
            if command.redirects and not command.grouped:
                self._ask(" ".join(one.word.text for one in command.redirects), "a redirection without a command")
            return
        guards = guards_of(command)
        guarded = any(guard.of_program for guard in guards)
        name = name_of(command.words[0]) if command.words else ""
        if name in ADDS_WORDS or "code" in program(name).kinds or any(guard.place >= ANYTHING for guard in guards):
            self._unseen()
        answers = self._by_rules(command, words, guards, granted)
        allowed = [one.rule for one in answers if one.decision == "allow" and one.rule is not None]
        exact = len(allowed) == len(answers) and all(compile_rule(rule).exact for rule in allowed)
        own = judge_own_folder(self._policy, self._resolve, self._bases, command, guarded=guarded)
        self._add_all(own)
        if command.words:
            path = self._resolve(command.words[0].text, "read", None).path if "/" in command.words[0].text else None
            named = Word(path) if path and is_own(path) else command.words[0]  # a link to the program is the program
            self._add_all(judge_own_program((named, *command.words[1:])))
            self._runs_written(command.words)
            if name == "git":
                self._repository(command.words)
            self._paths(command.words, guarded=guarded, exact=exact)
            if self._denies:
                self._denied_inside(command, guarded=guarded)
            self._inside(command, depth, allowed, exact=exact)
        if name == "cd":
            self._move(command)
        elif name in _MOVES - {"eval"}:
            self._all.add(None)
            self._bases.add(None)

    def _by_rules(
        self, command: SimpleCommand, words: Sequence[Word], guards: Sequence[UncoveredWords], granted: CompiledRule | None
    ) -> list[Judgement]:
        """Judge a command by the rules, in each folder that it may run in."""
        kinds = program(name_of(command.words[0])).kinds if command.words else {"text"}
        line = CommandLine(words, len(words) - len(command.words), guards, known=bool(kinds) and "sends" not in kinds)
        confined = self._policy.confined
        answers: list[Judgement] = []
        for folder, base in {self._folder(base): base for base in sorted(self._bases, key=str)}.items():

            def probe(compiled: CompiledRule, folder: str = folder) -> RuleHit | None:
                return line.probe(compiled, folder, str(self._policy.vault), self._named_folder, confined)

            answer = self._policy.by_command(f"shell:{line.plain}", line.programs, probe)
            if answer.decision == "ask" and granted is not None and answer.bypass != "never":
                hit = line.probe(granted, folder, str(self._policy.vault), self._named_folder, confined)
                by_default = answer.rule is None or answer.rule.source == "default"
                if by_default and hit is not None and hit.decision == "allow":
                    answer = answer._replace(decision="allow", reason="", rule=granted.rule)
            if answer.decision == "ask":
                answer = self._question(answer, line, command, folder, base)
            answers.append(answer)
            self._add(answer)
        return answers

    def _question(
        self, answer: Judgement, line: CommandLine, command: SimpleCommand, folder: str, base: str | None
    ) -> Judgement:
        """Return the question about a command: its reason, and what *always* would store."""
        contents = contents_of(command.words, base, str(self._policy.vault)) if command.words else {}
        runs_text = bool(command.words and program(name_of(command.words[0])).kinds & {"code", "shell"})
        unseen = any(guard.place >= ANYTHING for guard in line.guards) or (runs_text and fed_text(command) is not None)
        stored = None
        if not unseen:
            stored = rule_to_remember(
                line.words, answer, folder, contents, spelled=max((guard.place + 1 for guard in line.guards), default=0)
            )
        reason = answer.reason
        if answer.rule is None or answer.rule.source == "default":
            reason = line.guards[0].why if line.guards else f"no rule covers {shortened(line.plain)!r}"
        ended = self._policy.configured.last_for(line.programs, lambda one: line.ended(one, folder, str(self._policy.vault)))
        if ended is not None:
            place = f" ({place_of(ended.rule)})"
            why = f"{ended.note} since it was allowed" if ended.note else f"it is allowed in {ended.rule.folder} only"
            reason = f"{why}{place}; {reason}"
        lapsed = ended is not None and bool(ended.note)
        return answer._replace(reason=reason, remember=stored, contents=FrozenDict(contents or {}), lapsed=lapsed)

    def _denied_inside(self, command: SimpleCommand, *, guarded: bool) -> None:
        """Look for a denied command behind a program: every suffix of its words, and the texts among them."""
        words = command.words
        texts, name = [word.text for word in words], name_of(words[0])
        lower = name.lower()
        for spelling in {lower, name.partition(".")[0], lower.removesuffix(".exe"), name.replace("git-", "git ")} - {name, ""}:
            self._deny(" ".join((spelling, *texts[1:])))
        known = program(name)
        runs_known = any(inner_words(command)) or any(inner_texts(command))
        if runs_known or not (guarded or known is UNKNOWN or known.kinds & {"code", "state"}):
            return  # what it runs is judged by itself, or it runs nothing
        fed = [redirect.body for redirect in command.redirects if redirect.body]
        for start in range(1, min(len(texts), MAX_SUFFIXES)):
            self._deny(" ".join(texts[start:]))
            self._deny(" ".join((name, *texts[start + 1 :])))
        for text in (*fed, *texts[1:MAX_SUFFIXES]):
            if re.search(r"[ =:,]", text):
                for piece in (text, *re.split(r"[=:,]", text)[1:]):
                    for inner in rough_commands(piece):
                        self._deny(inner)

    def _inside(self, command: SimpleCommand, depth: int, allowed: Sequence[Rule], *, exact: bool) -> None:
        """Judge the commands that a command runs."""
        before = self._trusted
        self._trusted = before or (exact and fed_text(command) is None)  # a rule does not show what is fed
        if depth >= MAX_DEPTH:
            self._ask(" ".join(word.text for word in command.words), "commands run commands too deeply")
        else:
            for place, assigned, inner in inner_words(command):
                grant = rest_of(allowed[0], command.words, place) if len(set(allowed)) == 1 else None
                self._command(SimpleCommand(inner, assigned, piped=command.piped), depth + 1, grant)
            for text in inner_texts(command):
                bases, after = set(self._bases), set(self._all)
                self._script(text, depth + 1)
                if command.words[0].text == "eval":
                    self._all |= after
                else:
                    self._bases, self._all = bases, after
        self._trusted = before

    def _runs_written(self, words: Sequence[Word]) -> None:
        """Ask before a command runs a file that this text has written: no rule has seen its content."""
        if not self._written:
            return
        name = name_of(words[0])
        run = [words[0]] if "/" in words[0].text else []
        if program(name).kinds & {"code", "shell"} and (place := script_of(words)):
            run.append(words[place])
        run += [Word(text) for text in SOUGHT.get(name, "").split()]
        for word in run:
            if any(self._resolve(word.text, "read", base).path in self._written for base in self._bases if base):
                self._ask(" ".join(one.text for one in words), f"it runs {word.text}, which was written a moment before")
                self._unseen()
                return

    def _repository(self, words: Sequence[Word]) -> None:
        """Ask before git works in a repository that is not the vault's own, or with a folder as remote."""
        place = git_place(words)
        plain = " ".join(word.text for word in words)
        folders = [words[at + 1].text for at in range(1, place - 1) if words[at].text == "-C"]
        for base in filter(None, self._bases):
            where = os.path.normpath(os.path.join(base, *folders))  # noqa: PTH118
            found = foreign_repository(where, str(self._policy.vault))
            if found:
                self._ask(
                    plain, f"{found} is a git repository other than this folder's own; its configuration can run programs"
                )
            verb = words[place].text if place < len(words) else ""
            operands = [word.text for word in words[place + 1 :] if not word.text.startswith("-")]
            if verb in GIT_SENDS - {"archive"} and operands and Path(where, operands[0]).is_dir():
                self._ask(plain, f"{operands[0]} is a folder; a repository in it can run programs")
        if any(folder is None for folder in self._bases):
            self._ask(plain, "it is not known in which folder git runs")

    # ---------------------------------------------------------------- paths

    def _paths(self, words: Sequence[Word], *, guarded: bool, exact: bool) -> None:
        """Judge the words of a command as the paths that they may be."""
        name = name_of(words[0])
        known = program(name)
        if name in WRAPPERS or ("text" in known.kinds and name != "man"):
            return
        verb = words[place].text if name == "git" and (place := git_place(words)) < len(words) else ""
        writes = "write" in known.kinds or verb in GIT_CHANGES
        writes = writes or (name == "sed" and any(re.match(r"-[nErsuz]*i|--in-p", word.text) for word in words))
        reads = not writes and bool(known.kinds & {"read", "text", "verb"})
        if not reads or name == "git" or operand_count(words) == 0:
            self._working_folder()
        pieces = path_words(words)
        if writes and (any(word.why for word in words) or verb == "clean"):
            self._changes_here()
        for place, piece in enumerate(pieces):
            word = Word(piece.text, piece.why, tilde=piece.tilde)
            if piece.why:
                continue
            if writes and (guarded or "copy" not in known.kinds or place == len(pieces) - 1):
                self._path(
                    piece.text,
                    word,
                    "edit",
                    unsure=False,
                    exact=exact,
                    whole=guarded or known.kinds.isdisjoint({"safe", "copy"}),
                )
                self._written.update(
                    self._paths_at(piece.text, word.tilde) if name in ("cp", "mv", "tee", "ln", "install") else ()
                )
            else:
                unsure = not (reads or writes) or guarded or name == "ln"
                self._path(piece.text, word, "read", unsure=unsure, exact=exact, whole=guarded or name == "ln")

    def _changes_here(self) -> None:
        """Refuse a command that changes files it does not name, in a folder that holds Moryflow's own."""
        for base in filter(None, self._bases):
            limit = hard_limit(self._policy, self._resolve(".", "edit", base), "edit", whole=True)
            if limit is not None:
                self._add(limit)

    def _working_folder(self) -> None:
        """Judge the folder that a command works in: the vault is allowed, any other counts as read."""
        for base in sorted(self._bases, key=str):
            if base is None:
                self._ask("cd", "the folder that it works in is not known before it runs")
            elif base != str(self._policy.vault):
                answer = judge_file(self._policy, self._resolve(".", "read", base), "read", whole=False)
                if answer.decision != "allow":
                    self._add(answer)

    def _path(self, text: str, word: Word, domain: str, *, unsure: bool, exact: bool, whole: bool = False) -> None:
        """Judge a path in every folder that it may start from.

        :param unsure: the program is not known to read it only: what runs later, and Moryflow's own folder, count as written.
        """
        if (text in NEUTRAL and not (whole and domain == "edit")) or (unsure and "\n" in text) or len(text) > 4096 or not text:
            return
        self._spend(1)
        path = text if word.tilde or not text.startswith("~") else f"./{text}"
        for base in sorted(self._bases, key=str):
            if base is None and not (word.tilde or text.startswith("/")):
                if domain == "edit" or not unsure or re.search("[./]", text):
                    self._ask(text, f"{text!r} is in a folder that is not known before it runs")
                continue
            target = self._resolve(path, domain, base)
            if target.error is not None:
                if domain == "edit" or (not unsure and ("/" in text or base != str(self._policy.vault))):
                    self._ask(text, f"{text!r} cannot be resolved: {target.error}")
                continue
            if unsure:
                limit = hard_limit(self._policy, target, "edit", whole=whole)
                if limit is not None and not serves_commands(self._policy, target):
                    self._add(limit)
                    continue
            bank = bank_refused(target) if domain == "edit" else None
            answer = bank or judge_file(self._policy, target, domain, whole=whole and domain == "edit")
            if (
                answer.decision == "allow"
                and unsure
                and not exact
                and re.search("[./]", text)
                and target.text.startswith("vault:")
            ):
                later = judge_file(self._policy, target, "edit", whole=False)
                answer = answer if later.decision == "allow" else later._replace(decision="ask")
            if (
                answer.decision == "deny"
                and domain == "edit"
                and answer.rule is not None
                and answer.rule.source == "default"
                and exact
            ):
                continue
            if answer.decision == "deny" or (answer.decision == "ask" and not (exact and unsure)):
                own = answer.decision == "ask" and answer.rule is not None and answer.rule.source != "default"
                self._add(answer._replace(reason=f"{answer.target}: {answer.reason}") if own else answer)  # where it leads

    def _redirect(self, redirect: Redirect) -> None:
        operator, word, _ = redirect
        if operator in ("<<", "<<-", "<<<") or is_neutral_copy(redirect) or (not word.why and word.text in NEUTRAL):
            return
        shown = f"{operator} {word.text}"
        if word.why:
            self._unseen()
            self._add_all(judge_own_pattern(self._policy, self._resolve, word))
            self._ask(shown, f"{shortened(word.text, 40)}, where it writes or reads, is {word.why}")
            return
        if word.text.startswith(("/dev/tcp/", "/dev/udp/")):
            self._ask(shown, f"{word.text} is a network connection")
            return
        self._path(word.text, word, "read" if operator in ("<", "<&") else "edit", unsure=False, exact=False)
        if operator not in ("<", "<&"):
            self._written.update(self._paths_at(word.text, word.tilde))

    def _paths_at(self, text: str, tilde: bool) -> Iterator[str]:
        """Yield where a path leads from each folder; for a folder, also the files that are put into it by their name."""
        for base in filter(None, self._bases):
            path = self._resolve(text if tilde or not text.startswith("~") else f"./{text}", "read", base).path
            yield from (path,) if path else ()

    def _move(self, command: SimpleCommand) -> None:
        """Follow ``cd``: the next command runs in the new folder, any later one may run in either."""
        if command.piped or command.after in ("|", "|&", "&"):
            return  # it moves a shell of its own
        words = [word for word in command.words[1:] if not re.fullmatch(r"-[LPe@]+|--", word.text)]
        if words and words[0].why:
            self._add_all(judge_own_pattern(self._policy, self._resolve, words[0]))
        new: set[str | None] = set()
        sure = command.surely
        for base in self._bases:
            unclear = len(words) != 1 or words[0].why or words[0].text[:1] in ("-", "+", "")
            if unclear or base is None or "CDPATH" in self._whole:
                new.add(None)
                sure = False
                continue
            text = words[0].text
            target = self._resolve(text if words[0].tilde or text.startswith("/") else f"./{text}", "read", base)
            new.add(target.path if target.error is None and target.path else None)
            if target.lexical and target.path:
                kind, _, rest = target.lexical.partition(":")
                new.add(f"{self._policy.vault}{rest}".rstrip("/") if kind == "vault" else rest)
            exists = target.identity is not None and os.access(f"{target.path}/.", os.X_OK)
            sure = sure and exists and not self._written and not re.search(r"[^./].*\.\.", text)
        self._all = set(new) if sure else self._all | new
        self._all = self._all if len(self._all) <= MAX_BASES else {None}
        if command.after not in ("&&", "||"):
            self._bases = set(self._all)
        elif command.after == "&&":
            self._bases = set(new)

    def _resolve(self, path: str, domain: str, base: str | None) -> Target:
        key = (path, domain, base)
        if key not in self._targets:
            self._targets[key] = self._policy.resolve(path, domain, base)
        return self._targets[key]

    def _folder(self, base: str | None) -> str:
        """Return the name of a folder in rules, with links followed."""
        if base == str(self._policy.vault):
            return "vault:/"
        target = self._resolve(".", "read", base) if base is not None else None
        return UNKNOWN_FOLDER if target is None or target.error is not None else target.text

    def _named_folder(self, text: str) -> str:
        place, _, path = text.partition(":")
        return self._folder(f"{self._policy.vault}{path}".rstrip("/") if place == "vault" else path)
