"""Judge everything a shell text runs, reads and writes; the most severe part decides (R6, R9)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from moryflow_builtins.permission.judged import MOST, Judged
from moryflow_builtins.permission.policy import Policy

from .facts import Facts, Inner, InnerText
from .inspect import inspect, name_of
from .line import Line, denies, forbidden
from .parser import parse
from .places import NEUTRAL, UNKNOWN, Places
from .remember import remembered
from .rough import disguised, rough_commands
from .syntax import Compound, NotParsed, Redirect, Script, Simple, Word
from .walk import After, Bases, Walker
from .words import Arg, argument, arguments
from .wrappers import harmless_assignment

MAX_INNER = 8
"""How deeply commands may run commands that run commands."""

_NETWORK = ("/dev/tcp/", "/dev/udp/")


class Judge:
    """Collects the answers about one command."""

    def __init__(self, policy: Policy, command: str) -> None:
        self._policy = policy
        self._command = command
        self._parts: dict[Judged, None] = {}
        self._seen: dict[tuple[str, Bases, bool], After] = {}
        self._approved = False
        self._depth = 0
        self._asked = 0
        self._changes = False
        self._denies = any(denies(rules) for rules in (policy.configured, *policy.narrowing))
        self._places = Places(policy, self.add)
        self._walker = Walker(self._simple, self._compound, self._redirect)

    @property
    def parts(self) -> Iterable[Judged]:
        """The answers so far."""
        return self._parts

    def script(self, script: Script, bases: Bases) -> After:
        """Judge a parsed text."""
        return self._walker.script(script, bases)

    def add(self, part: Judged) -> None:
        """Keep an answer. What was approved word for word is not asked about again, only refused."""
        if self._approved and part.domain == "bash" and part.decision == "ask" and part.bypass != "never":
            return
        self._parts.setdefault(part)

    def ask(self, target: str, reason: str) -> None:
        """Ask about something no rule can cover."""
        self.add(Judged("bash", f"shell:{target}", "ask", reason))

    def unsure(self, text: str, reason: str) -> None:
        """Ask about a text that may not be what it seems, and look for denied commands in it."""
        self.rough(text)
        self._places.limits(text)
        self.ask(text, reason)

    def rough(self, text: str) -> None:
        """Look for denied commands in a text that was not understood."""
        if not self._denies:
            return
        for command in rough_commands(text):
            for rules in (self._policy.configured, *self._policy.narrowing):
                hit = forbidden(rules, command)
                if hit is not None:
                    answer = self._policy.by_text("bash", f"shell:{command}")
                    self.add(replace(answer, reason=f"{answer.reason}; the text around it was not understood"))

    # -------------------------------------------------------------------------------- simple commands

    def _simple(self, command: Simple, bases: Bases) -> After:
        key = (command.raw, bases, self._approved)
        known = self._seen.get(key) if not any(redirect.body for redirect in command.redirects) else None
        if known is not None:
            return known
        assigned = tuple(arg for arg in _assignments(command) if not harmless_assignment(arg))
        args = tuple(arguments(command.words))
        if not assigned and not args and not command.redirects:
            return After(bases, bases)
        after = self._seen[key] = self._line(assigned, args, bases, _stdin(command), command.raw)
        return after

    def _line(self, assigned: tuple[Arg, ...], args: tuple[Arg, ...], bases: Bases, stdin: Word | None, raw: str) -> After:
        """Judge one command: by the rules, then by what it touches, then what it runs."""
        facts = Facts(stdin=stdin)
        if args:
            inspect(args, facts)
        line = Line(assigned, args, facts, " ".join(raw.split()))
        answer = self._by_rules(line)
        self.add(answer)
        exact = answer.decision == "allow" and answer.rule is not None and line.spelled_out_by(answer.rule)
        if facts.base is not None:
            bases = self._places.moved(facts.base, bases)
        self._files(facts, args, bases, exact=exact)
        self._hidden(facts, args)
        return self._inside(facts, bases, exact=exact)

    def _by_rules(self, line: Line) -> Judged:
        target = f"shell:{line.plain}"
        answer = self._policy.by_command(target, line.programs, line.probe)
        if answer.decision != "ask":
            return answer
        self._asked += 1
        stored = remembered(line, answer) if self._asked <= MOST else None
        return replace(answer, reason=_worded(answer, line), remember=stored)

    def _files(self, facts: Facts, args: Sequence[Arg], bases: Bases, *, exact: bool) -> None:
        self._changes |= bool(facts.writes) or not facts.known
        for path in facts.reads:
            self._places.file(path, "read", bases)
        for write in facts.writes:
            self._places.file(write.path, "edit", bases, whole=write.whole, asks=write.asks)
        if facts.reads_here or (not facts.known and args):
            self._places.here(bases)
        if facts.trusts_here and (found := self._places.repository(bases)):
            self.ask(" ".join(arg.text for arg in args), f"{found} looks like a git repository with a configuration of its own")
        for path in facts.perhaps:
            self._places.perhaps(path, bases, exact=exact)
        for code in facts.code:
            self._places.limits(code.text)

    def _hidden(self, facts: Facts, args: Sequence[Arg]) -> None:
        """Look for a denied command in other letters, or behind a program that is not known to run others."""
        if not self._denies or not args:
            return
        for text in disguised(name_of(args), [arg.text for arg in args[1:]], known=facts.known):
            if any(forbidden(rules, text) for rules in (self._policy.configured, *self._policy.narrowing)):
                self.ask(" ".join(arg.text for arg in args), f"it may run {text!r}, which a rule forbids")
                return

    def _inside(self, facts: Facts, bases: Bases, *, exact: bool) -> After:
        """Judge the commands this one runs, and say where the shell stands afterwards."""
        before = self._approved
        self._approved = before or exact
        after = After(bases, bases)
        for inner in facts.inner:
            after = self._inner(inner, bases, after)
        for text in facts.texts:
            moved = self._text(text, bases)
            after = After(moved, moved) if text.same_shell else after
        self._approved = before
        if facts.moved:
            return After(UNKNOWN, bases | UNKNOWN)
        if facts.moves is None:
            return after
        stays = frozenset(b for b in bases if self._changes or not self._places.surely_moves(facts.moves, b))
        return After(self._places.moved(facts.moves, bases), stays)

    def _inner(self, inner: Inner, bases: Bases, after: After) -> After:
        if not self._enter():
            return after
        here = self._places.moved(inner.base, bases) if inner.base else bases
        raw = " ".join(arg.text for arg in inner.args)
        moved = self._line((), inner.args, here, None, raw)
        self._depth -= 1
        return moved if inner.same_shell else after

    def _text(self, text: InnerText, bases: Bases) -> Bases:
        """Judge a shell text that is an argument of a command."""
        if not text.text.static or not self._enter():
            self.rough(text.text.text)
            return bases | UNKNOWN
        try:
            script, _ = parse(text.text.text)
        except NotParsed as problem:
            self.unsure(text.text.text, f"the text {_short(text.text.text)!r} is not understood: {problem}")
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

    def _compound(self, command: Compound) -> None:
        match command.kind:
            case "function":
                self.ask(f"{command.name}()", f"it defines the function {command.name}")
            case "for" | "select":
                words = " ".join(word.raw for word in command.words)
                self._as_line(f"{command.name}={words}", f"the loop sets the variable {command.name}", command)
            case "coproc":
                self.ask(command.raw, "it starts a co-process")
            case "arithmetic":
                self._as_line(command.raw, "arithmetic can change variables and run commands", command)
            case "test":
                self._test(command)
            case _:
                pass

    def _as_line(self, text: str, why: str, command: Compound) -> None:
        """Judge what is no command of its own by its text; only a rule that spells it out covers it."""
        facts = Facts(known=True)
        facts.guard(0, why)
        self.add(self._by_rules(Line((), (Arg(text),), facts, " ".join(command.raw.split()))))

    def _test(self, command: Compound) -> None:
        facts = Facts()
        args = (Arg("[["), *arguments(command.words), Arg("]]"))
        inspect(args, facts)
        self.add(self._by_rules(Line((), args, facts, " ".join(command.raw.split()))))
        for text in facts.texts:
            self._text(text, UNKNOWN)

    # -------------------------------------------------------------------------------- redirections

    def _redirect(self, redirect: Redirect, bases: Bases) -> None:
        if redirect.body:
            return
        if redirect.descriptor.startswith("{"):
            self.ask(redirect.target.raw, f"the redirection sets the variable {redirect.descriptor[1:-1]}")
        targets = arguments((redirect.target,))
        copies = redirect.operator in ("<&", ">&")
        for target in targets:
            if copies and target.static and target.text.rstrip("-").isdecimal() | (target.text == "-"):
                continue
            self._redirected(redirect, target, bases)
        if len(targets) != 1:
            self.ask(redirect.target.raw, "a redirection has several targets")

    def _redirected(self, redirect: Redirect, target: Arg, bases: Bases) -> None:
        if not target.static:
            self.ask(f"{redirect.operator} {target.text}", f"the target of a redirection is not known: {target.why}")
        if target.static and target.text in NEUTRAL:
            return
        if target.text.startswith(_NETWORK):
            self.ask(f"{redirect.operator} {target.text}", f"{target.text} is a network connection")
            return
        if redirect.operator in ("<", "<>", "<&"):
            self._places.file(target, "read", bases)
        if redirect.operator != "<":
            self._changes = True
            self._places.file(target, "edit", bases)


def _assignments(command: Simple) -> Iterable[Arg]:
    """Yield the assignments in front of a command as words."""
    for item in command.assignments:
        if len(item.words) != 1 or item.words[0].raw == item.raw:
            yield Arg(item.raw, "it assigns an array")
            continue
        value = argument(item.words[0])
        head = item.raw[: len(item.raw) - len(item.words[0].raw)]
        why = value.why or (f"{item.name} is assigned a path of the home folder" if value.tilde else "")
        yield Arg(head + value.text, why)


def _stdin(command: Simple) -> Word | None:
    """Return the text that is fed into a command by its last redirection of standard input."""
    inputs = [r for r in command.redirects if r.operator.startswith("<") and r.descriptor in ("", "0")]
    return inputs[-1].body[0] if inputs and inputs[-1].body else None


def _worded(answer: Judged, line: Line) -> str:
    """Say why a command is asked about."""
    if answer.rule is None or answer.rule.source != "default" or answer.rule.decision != "ask":
        return answer.reason
    dynamic = next((word.why for word in line.words if word.why), "")
    return dynamic or f"no rule covers {_short(line.plain)!r}"


def _short(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"
