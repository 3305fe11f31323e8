"""Judge everything that a shell text runs, reads and writes; the most severe part decides.

:func:`simple_commands` lists the commands of a text without judging them, for gates of other plugins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from moryflow_sdk import FrozenDict
from moryflow_sdk.support.patterns import compile_rule

from moryflow_builtins.permission.policy import MOST, CompiledRule, Judgement, Policy, RuleHit, place_of, shortened

from .command_line import CommandLine, CommandPlace, assignments, rough_commands, rule_to_remember, standard_input
from .effects import CommandEffects, EffectUnknown, InnerCommand, InnerText, Patch
from .file_judge import NEUTRAL, FileJudge
from .inspect import inspect, name_of
from .interpreters import CHANGE
from .moryflow_command import inspect_own_program, is_own, refusal_in_text
from .own_folder import OwnFolder
from .parser import parse
from .programs import REPLACING
from .syntax import Arg, Compound, NotParsed, Redirect, Script, Simple, arguments
from .walk import UNKNOWN, Bases, FoldersAfter, Walker
from .wrappers import harmless_assignment

MAX_INNER = 8
"""How many levels of commands that run commands are judged."""

MAX_WORK = 5000
"""How many commands and files of one text are judged, counted once for each possible folder; beyond it the judge gives up."""


class TooMuchWork(Exception):
    """The text holds more than :data:`MAX_WORK` allows to judge."""


_NETWORK = ("/dev/tcp/", "/dev/udp/")
Words = tuple[Arg, ...]


class Judge:
    """Judges one shell text and collects the judgements in :attr:`parts`."""

    def __init__(self, policy: Policy, command: str, folder: str) -> None:
        self._policy = policy
        self._command = command
        self._parts: dict[Judgement, None] = {}
        self._seen: dict[tuple[str, Bases, bool, int], FoldersAfter] = {}
        self._approved = False
        self._work = 0
        self._depth = 0
        self._asked = 0
        self._changes = False
        self._written: set[str] = set()
        self._moved_names = ""
        self._git_variable = ""
        self._denies = any(one.rule.decision == "deny" for rules in policy.layers for one in rules.of("bash"))
        self._file_judge = FileJudge(policy, folder, self.add)
        self._own_folder = OwnFolder(policy, command, folder, self._file_judge.resolve, self.add)
        self._walker = Walker(self._simple, self._compound, self._redirect)

    @property
    def parts(self) -> Iterable[Judgement]:
        """The judgements that were added, in order."""
        return self._parts

    def script(self, script: Script, bases: Bases) -> FoldersAfter:
        """Judge a parsed text."""
        if script.unsure:
            self.ask(self._command, f"the command cannot be read surely: {script.unsure}")
        return self._walker.script(script, bases)

    def add(self, part: Judgement) -> None:
        """Add a judgement. A command inside one that a rule allows word for word is not asked about, but may be denied."""
        if self._approved and part.domain == "bash" and part.decision == "ask" and part.bypass != "never" and not part.lapsed:
            return
        self._parts.setdefault(part)

    def ask(self, target: str, reason: str) -> None:
        """Ask about something that no rule can cover."""
        self.add(Judgement("bash", f"shell:{target}", "ask", reason))

    def give_up(self) -> None:
        """Ask, in every mode, about a command that is too long to judge."""
        self._approved = False
        reason = "the command is too long to check"
        self.ask_unsure(self._command, reason)
        self.add(Judgement("bash", f"shell:{shortened(self._command, 200)}", "ask", reason, bypass="never"))

    def _spend(self, effects: CommandEffects, words: int, bases: Bases) -> None:
        """Count the work of judging one command.

        :raises TooMuchWork: the whole text takes more than :data:`MAX_WORK`.
        """
        files = len(effects.reads) + len(effects.writes) + len(effects.possible_files)
        if effects.bulk_changes:
            files += sum(4 * len(change.sources) for change in effects.bulk_changes)
        self._work += len(bases) * (1 + files + words // 8)
        if self._work > MAX_WORK:
            raise TooMuchWork

    def ask_unsure(self, text: str, reason: str) -> None:
        """Ask about a text that may not be what it seems, and look for denied commands in it."""
        self.find_denied(text)
        self._own_folder.check_text(text)
        self._refuse_text(text)
        self.ask(text, reason)

    def find_denied(self, text: str) -> None:
        """Look for denied commands in a text that was not understood."""
        for command in filter(self._policy.denies, rough_commands(text) if self._denies else ()):
            answer = self._policy.by_text("bash", f"shell:{command}")
            self.add(answer._replace(reason=f"{answer.reason}; the text around it was not understood"))

    # -------------------------------------------------------------------------------- simple commands

    def _simple(self, command: Simple, bases: Bases) -> FoldersAfter:
        key = (command.raw, bases, self._approved, len(self._written))
        known = self._seen.get(key) if not any(redirect.body for redirect in command.redirects) else None
        if known is not None:
            return known
        assigned = tuple(arg for arg in assignments(command) if not harmless_assignment(arg))
        args = tuple(arguments(command.words))
        if not assigned and not args and not command.redirects:
            return FoldersAfter(bases, bases)
        text, file = standard_input(command)
        effects = CommandEffects(stdin=text, stdin_file=file)
        after = self._seen[key] = self._line(assigned, args, bases, effects, command.raw)
        return after

    def _line(
        self, assigned: Words, args: Words, bases: Bases, effects: CommandEffects, raw: str, granted: CompiledRule | None = None
    ) -> FoldersAfter:
        """Judge one command by the rules, then what it touches, then what it runs.

        :param granted: the part for this command of a rule that allows the command around it.
        """
        if args:
            inspect(args, effects)
        self._spend(effects, len(args), bases)
        line = CommandLine(assigned, args, effects, " ".join(raw.split()))
        answers = self._by_rules(line, bases, granted)
        self._just_written(line, bases)
        self._git_variable = self._git_variable or _git_variable(assigned, args)
        self._own_program(line, bases)
        exact = all(one.decision == "allow" and one.rule is not None and compile_rule(one.rule).exact for one in answers)
        changed = self._changes
        inner_bases = bases if effects.base is None else self._file_judge.after_cd(effects.base, bases)
        for patch in effects.patches:
            with self._ask_if_unknown(line.plain, "what the patch changes", exact=exact):
                self._patch(patch, inner_bases, bases if patch.outside else inner_bases, changed=changed)
        if effects.checkout is not None:
            with self._ask_if_unknown(line.plain, f"what git {effects.checkout.verb} brings", exact=exact):
                self._file_judge.checkout(effects.checkout, inner_bases, self._moved_names)
        if effects.git_output is not None:
            with self._ask_if_unknown(line.plain, f"what {effects.git_output.why} shows", exact=exact):
                self._file_judge.output(effects.git_output, inner_bases, self._moved_names, changed=changed)
        self._moved_names = (
            "all" if "all" in (self._moved_names, effects.moves_names) else effects.moves_names or self._moved_names
        )
        for change in effects.bulk_changes:
            self._file_judge.bulk_change(change, bases if change.outside else inner_bases, changed=changed, exact=exact)
        if effects.base is not None and effects.reads_here:
            self._file_judge.file(effects.base, "edit", bases, asks=True)
        self._files(line, inner_bases, exact=exact)
        self._own_folder.check_line(line, inner_bases, raw, exact=exact)
        self._judge_hidden(line)
        after = self._judge_inner(line, answers, inner_bases, exact=exact)
        return after if effects.base is None else FoldersAfter(bases, bases)

    def _by_rules(self, line: CommandLine, bases: Bases, granted: CompiledRule | None = None) -> Sequence[Judgement]:
        """Judge a command by the rules, once in each folder that it may run in."""
        folders = {self._file_judge.folder(base): base for base in sorted(bases, key=str)}
        answers = [self._in_folder(line, folder, base, granted) for folder, base in folders.items()]
        for answer in answers:
            self.add(answer)
        return answers

    def _just_written(self, line: CommandLine, bases: Bases) -> None:
        """Ask before a command runs a file that a redirection or ``tee`` writes before: no rule has seen its content."""
        if not self._written:
            return
        named = line.args[:1] if line.args and "/" in line.args[0].text else ()
        sought = (Arg(name) for files in line.effects.sought for name in files.names)
        for file in (*named, *line.effects.runs, *sought):
            if file.static and not self._written.isdisjoint(self._file_judge.resolved_paths(file, bases)):
                self.ask(line.plain, f"it runs {file.text}, which the command writes before")

    def _in_folder(self, line: CommandLine, folder: str, base: str | None, granted: CompiledRule | None) -> Judgement:
        where = CommandPlace(folder, self._file_judge.changed_file, self._file_judge.folder_named)
        answer = self._policy.by_command(f"shell:{line.plain}", line.programs, lambda rule: line.probe(rule, where))
        if answer.decision != "ask":
            return answer
        if granted is not None and (answer.rule is None or answer.rule.source == "default") and answer.bypass != "never":
            hit = line.probe(granted, where)
            if hit is not None and hit.decision == "allow":
                return answer._replace(decision="allow", reason="", rule=granted.rule)
        self._asked += 1
        contents = self._file_judge.contents(line.args, line.effects, base) if self._asked <= MOST else None
        stored = rule_to_remember(line, answer, folder, contents)
        ended = self._policy.configured.last_for(line.programs, lambda rule: line.why_not_allowed(rule, where))
        reason = _reason_of(answer, line) if ended is None else f"{_why_ended(ended)}; {_reason_of(answer, line)}"
        lapsed = ended is not None and bool(ended.note)
        return answer._replace(reason=reason, remember=stored, contents=FrozenDict(contents or {}), lapsed=lapsed)

    def _own_program(self, line: CommandLine, bases: Bases) -> None:
        """Refuse, in every mode, a ``moryflow`` command that changes permissions, plugins or configuration."""
        args, effects = line.args, line.effects
        named = args and args[0].static and "/" in args[0].text and not is_own(args[0].text)
        if named and any(is_own(path) for path in self._file_judge.resolved_paths(args[0], bases)):
            inspect_own_program(args, effects)
        for reason in effects.refusals:
            self._refuse(line.plain, reason)
        for reason in effects.always_asks:
            self.add(Judgement("bash", f"shell:{line.plain}", "ask", reason, bypass="never"))
        if any(guard.unseen for guard in effects.guards):
            self._refuse_text(self._command)

    def _refuse_text(self, text: str) -> None:
        """Refuse a text that is not understood but seems to run such a ``moryflow`` command."""
        reason = refusal_in_text(text)
        if reason:
            self._refuse(text, reason)

    def _refuse(self, text: str, reason: str) -> None:
        step = "run it yourself, outside the agent"
        self.add(Judgement("bash", f"shell:{text}", "deny", reason, "hard_limit", "never", next_step=step))

    def _files(self, line: CommandLine, bases: Bases, *, exact: bool) -> None:
        effects, changed = line.effects, self._changes
        self._changes |= bool(effects.writes) or effects.brings_files or not effects.known
        for path in dict.fromkeys(effects.reads):
            self._file_judge.file(path, "read", bases)
        name = name_of(line.args)
        for write in effects.writes:
            replaced = name in REPLACING
            self._file_judge.file(write.path, "edit", bases, whole=write.whole, asks=write.asks, replaced=replaced)
            if name == "tee":
                self._written.update(self._file_judge.resolved_paths(write.path, bases))
        for tree in effects.trees:
            self._file_judge.tree(tree, bases)
        if effects.reads_here or (not effects.known and line.args):
            self._file_judge.working_folder(bases)
        if effects.trusts_here and not (exact and effects.base is not None):
            self._repository(" ".join(arg.text for arg in line.args), bases, changed=changed)
        for path in dict.fromkeys(effects.possible_files):
            self._file_judge.possible_file(path, bases, known=effects.known, exact=exact)
        for code in effects.code:
            self._own_folder.check_code(code.text)
            self._refuse_text(code.text)

    @contextmanager
    def _ask_if_unknown(self, command: str, what: str, *, exact: bool) -> Iterator[None]:
        """Ask if the effect of `command` is unknown, unless a rule spells the command out."""
        try:
            yield
        except EffectUnknown as problem:
            if not exact:
                self.ask(command, f"{what} is not known: {problem}")

    def _patch(self, patch: Patch, bases: Bases, at: Bases, *, changed: bool) -> None:
        """Judge the files that a patch changes; `at`: the folders that the patch file itself may be in."""
        if changed and patch.files:
            raise EffectUnknown("it may be changed before it is read")
        for path in self._file_judge.paths_of_patch(patch, at):
            self._file_judge.file(Arg(path), "edit", bases | {str(self._policy.vault)} if patch.by_git else bases)

    def _repository(self, command: str, bases: Bases, *, changed: bool) -> None:
        """Ask before git uses a repository that is not the vault's own, or may not be by the time the command runs."""
        found = self._file_judge.repository(bases)
        if found:
            self.ask(command, f"{found} is a git repository other than the vault's own; its configuration can run programs")
        elif self._git_variable:
            self.ask(command, f"{self._git_variable} was set before, which can name another repository")
        elif changed and bases != {str(self._policy.vault)}:
            self.ask(command, "an earlier part of the command changes this folder, so its git repository is unknown")

    def _judge_hidden(self, line: CommandLine) -> None:
        """Ask if the line may run a denied command: spelled in other letters, or as the words of an unknown program."""
        for text in islice(filter(self._policy.denies, line.disguised if self._denies else ()), 1):
            self.ask(" ".join(arg.text for arg in line.args), f"it may run {text!r}, which a rule forbids")

    def _judge_inner(self, line: CommandLine, answers: Sequence[Judgement], bases: Bases, *, exact: bool) -> FoldersAfter:
        """Judge the commands that this one runs; return the folders that the shell may be in afterwards."""
        effects = line.effects
        before = self._approved
        self._approved = before or exact
        after = FoldersAfter(bases, bases)
        for inner in effects.inner:
            after = self._inner(inner, bases, after, line.grant_for(inner.args, [answer.rule for answer in answers]))
        for text in effects.texts:
            self._approved = before or (exact and not text.fed)
            moved = self._text(text, bases)
            after = FoldersAfter(moved, moved) if text.same_shell else after
        self._approved = before
        if effects.folder_unknown or (effects.moves is not None and "CDPATH" in self._command):
            return FoldersAfter(UNKNOWN, bases | UNKNOWN)
        if effects.moves is None:
            return after
        stays = frozenset(b for b in bases if self._changes or not self._file_judge.surely_moves(effects.moves, b))
        return FoldersAfter(self._file_judge.after_cd(effects.moves, bases), stays)

    def _inner(self, inner: InnerCommand, bases: Bases, after: FoldersAfter, granted: CompiledRule | None) -> FoldersAfter:
        if not self._enter():
            return after
        raw = " ".join(arg.text for arg in inner.args)
        moved = self._line((), inner.args, bases, CommandEffects(), raw, granted)
        self._depth -= 1
        return moved if inner.same_shell else after

    def _text(self, text: InnerText, bases: Bases) -> Bases:
        """Judge a shell text that is an argument of a command."""
        if not text.text.static or not self._enter():
            self.find_denied(text.text.text)
            self._own_folder.check_text(text.text.text, bases)
            self._refuse_text(text.text.text)
            return bases | UNKNOWN
        try:
            script, _ = parse(text.text.text)
        except NotParsed as problem:
            self.ask_unsure(text.text.text, f"the text {shortened(text.text.text)!r} is not understood: {problem}")
            self._depth -= 1
            return bases | UNKNOWN
        after = self.script(script, UNKNOWN if text.elsewhere else bases)
        self._depth -= 1
        return after.any

    def _enter(self) -> bool:
        if self._depth >= MAX_INNER:
            self.ask(self._command, "commands run commands too deeply")
            return False
        self._depth += 1
        return True

    # -------------------------------------------------------------------------------- compound commands

    def _compound(self, command: Compound, bases: Bases) -> None:
        match command.kind:
            case "function":
                self.ask(f"{command.name}()", f"it defines the function {command.name}")
            case "for" | "select":
                words = " ".join(word.raw for word in command.words)
                self._as_line(f"{command.name}={words}", f"the loop sets the variable {command.name}", command, bases)
            case "coproc":
                self.ask(command.raw, "it starts a co-process")
            case "arithmetic":
                self._as_line(command.raw, "arithmetic can change variables and run commands", command, bases)
            case "test":
                self._test(command, bases)
            case _:
                pass

    def _as_line(self, text: str, why: str, command: Compound, bases: Bases) -> None:
        """Judge the head of a loop, or arithmetic, by its text, as if it were a command; only an exact rule covers it."""
        effects = CommandEffects(known=True)
        effects.guard(0, why)
        self._by_rules(CommandLine((), (Arg(text),), effects, " ".join(command.raw.split())), bases)

    def _test(self, command: Compound, bases: Bases) -> None:
        effects = CommandEffects()
        args = (Arg("[["), *arguments(command.words), Arg("]]"))
        inspect(args, effects)
        self._by_rules(CommandLine((), args, effects, " ".join(command.raw.split())), bases)
        for text in effects.texts:
            self._text(text, UNKNOWN)

    # -------------------------------------------------------------------------------- redirections

    def _redirect(self, redirect: Redirect, bases: Bases) -> None:
        if redirect.body:
            return
        if redirect.descriptor.startswith("{"):
            self.ask(redirect.target.raw, f"the redirection sets the variable {redirect.descriptor[1:-1]}")
        targets = arguments((redirect.target,))
        self._spend(CommandEffects(), len(targets) * 8, bases)
        copies = redirect.operator in ("<&", ">&")
        for target in targets:
            if copies and target.static and target.text.rstrip("-").isdecimal() | (target.text == "-"):
                continue
            self._redirect_target(redirect, target, bases)
        if len(targets) != 1:
            self.ask(redirect.target.raw, "a redirection has several targets")

    def _redirect_target(self, redirect: Redirect, target: Arg, bases: Bases) -> None:
        if not target.static:
            self.ask(f"{redirect.operator} {target.text}", f"the target of a redirection is not known: {target.why}")
        if target.static and target.text in NEUTRAL:
            return
        if target.text.startswith(_NETWORK):
            self.ask(f"{redirect.operator} {target.text}", f"{target.text} is a network connection")
            return
        if redirect.operator in ("<", "<>", "<&"):
            self._file_judge.file(target, "read", bases)
        if redirect.operator != "<":
            self._changes = True
            self._written.update(self._file_judge.resolved_paths(target, bases) if target.static else ())
            self._own_folder.check_word(target, bases)
            self._own_folder.check_writes(target)
            if not target.static or None in bases:
                self._own_folder.check_whole()
            self._file_judge.file(target, "edit", bases)


def _git_variable(assigned: Sequence[Arg], args: Sequence[Arg]) -> str:
    """Return the variable of git that a command sets for later commands, as ``export GIT_DIR=…`` does; else nothing."""
    words = args[1:] if name_of(args) in CHANGE else () if args else assigned
    return next((word.text.partition("=")[0] for word in words if word.text.startswith("GIT_")), "")


def _why_ended(ended: RuleHit) -> str:
    """Return why a stored rule that names the command does not allow it here or any more."""
    rule = ended.rule
    place = f" ({place_of(rule)})"
    return f"{ended.note} since it was allowed{place}" if ended.note else f"it is allowed in {rule.folder} only{place}"


def _reason_of(answer: Judgement, line: CommandLine) -> str:
    """Return why a command is asked about."""
    if answer.rule is None or answer.rule.source != "default" or answer.rule.decision != "ask":
        return answer.reason
    dynamic = next((word.why for word in line.words if word.why), "")
    return dynamic or f"no rule covers {shortened(line.plain)!r}"


# ---------------------------------------------------------------- the commands of a text, for gates of other plugins


def simple_commands(text: str) -> tuple[str, ...]:
    """Return the commands in `text`, outer ones first, each in every spelling that a rule may use for it."""
    collector = _Collector()
    collector.text(text)
    return tuple(collector.found)


class _Collector:
    def __init__(self) -> None:
        self.found: dict[str, None] = {}
        self._depth = 0
        self._walker = Walker(self._simple, lambda command, bases: None, lambda redirect, bases: None)

    def text(self, text: str) -> None:
        """Collect the commands of a shell text; if it cannot be parsed, everything that may be a command."""
        self._depth += 1
        try:
            if self._depth > MAX_INNER:
                raise NotParsed("commands run commands too deeply")
            self._walker.script(parse(text)[0], UNKNOWN)
        except (NotParsed, RecursionError):
            self._add(rough_commands(text))
        self._depth -= 1

    def _add(self, commands: Iterable[str]) -> None:
        self.found |= dict.fromkeys(command for command in commands if command)

    def _simple(self, command: Simple, bases: Bases) -> FoldersAfter:
        text, file = standard_input(command)
        assigned = tuple(arg for arg in assignments(command) if not harmless_assignment(arg))
        self._line(assigned, tuple(arguments(command.words)), CommandEffects(stdin=text, stdin_file=file), command.raw)
        return FoldersAfter(bases, bases)

    def _line(self, assigned: Words, args: Words, effects: CommandEffects, raw: str) -> None:
        if not args:
            return
        inspect(args, effects)
        line = CommandLine(assigned, args, effects, " ".join(raw.split()))
        self._add((*line.views, *line.disguised))
        for inner in effects.inner:
            self._inner(inner.args)
        for part in effects.texts:
            self.text(part.text.text)
        for code in effects.code:
            self._add(rough_commands(code.text))

    def _inner(self, args: tuple[Arg, ...]) -> None:
        raw = " ".join(arg.text for arg in args)
        self._depth += 1
        if self._depth > MAX_INNER:
            self._add(rough_commands(raw))
        else:
            self._line((), args, CommandEffects(), raw)
        self._depth -= 1
