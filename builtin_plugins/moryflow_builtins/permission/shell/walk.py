"""Follow a script in the order it runs: which commands run, and in which folders.

A folder is an absolute path, or ``None`` when it is unknown. After a step the shell may be in one of several folders,
because a ``cd`` may have failed. The next command is judged in each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from .syntax import Chain, Command, Compound, Pipeline, Redirect, Script, Simple, Word, scripts_of

Bases = frozenset[str | None]
MAX_BASES = 8
UNKNOWN: Bases = frozenset((None,))


class FoldersAfter(NamedTuple):
    """The folders that the shell may be in after a step that succeeded, and after one that failed."""

    done: Bases
    failed: Bases

    @property
    def any(self) -> Bases:
        """The folders that the shell may be in, whether the step succeeded or failed."""
        return limit_bases(self.done | self.failed)


def limit_bases(bases: Bases) -> Bases:
    """Return `bases`, or :data:`UNKNOWN` when there are more than :data:`MAX_BASES`."""
    return bases if len(bases) <= MAX_BASES else UNKNOWN


class Walker:
    """Visits every simple command, compound head and redirection with the folders they may run in.

    A command that can never run is visited too, in the folders before it.

    :param on_simple: judges a simple command and returns the folders after it.
    :param on_compound: judges the head of a compound command.
    :param on_redirect: judges a redirection.
    """

    def __init__(
        self,
        on_simple: Callable[[Simple, Bases], FoldersAfter],
        on_compound: Callable[[Compound, Bases], None],
        on_redirect: Callable[[Redirect, Bases], None],
    ) -> None:
        self.on_simple = on_simple
        self.on_compound = on_compound
        self.on_redirect = on_redirect

    def script(self, script: Script, bases: Bases) -> FoldersAfter:
        """Visit the commands of `script`, which starts in one of `bases`, and return the folders after it."""
        after = FoldersAfter(bases, frozenset())
        for chain in script.chains:
            after = self._chain(chain, after.any)
        return after

    def _chain(self, chain: Chain, bases: Bases) -> FoldersAfter:
        after = self._pipeline(chain.pipelines[0], bases)
        for operator, pipeline in zip(chain.operators, chain.pipelines[1:], strict=True):
            if operator == "&&":
                following = self._pipeline(pipeline, after.done or bases)
                after = FoldersAfter(following.done, limit_bases(after.failed | following.failed))
            else:
                following = self._pipeline(pipeline, after.failed or bases)
                after = FoldersAfter(limit_bases(after.done | following.done), following.failed)
        return FoldersAfter(bases, frozenset()) if chain.background else after

    def _pipeline(self, pipeline: Pipeline, bases: Bases) -> FoldersAfter:
        if len(pipeline.commands) == 1:
            after = self._command(pipeline.commands[0], bases)
            return FoldersAfter(after.failed, after.done) if pipeline.negated else after
        for command in pipeline.commands:
            self._command(command, bases)
        return FoldersAfter(bases, bases)

    def _command(self, command: Command, bases: Bases) -> FoldersAfter:
        if isinstance(command, Simple):
            assigned = (word for one in command.assignments for word in one.words)
            self.expansions((*assigned, *command.words), bases)
            for redirect in command.redirects:
                self._redirect(redirect, bases)
            return self.on_simple(command, bases)
        self.on_compound(command, bases)
        self.expansions(command.words, bases)
        after = self._compound(command, bases)
        for redirect in command.redirects:
            self._redirect(redirect, bases)
        return after

    def _redirect(self, redirect: Redirect, bases: Bases) -> None:
        self.expansions((redirect.target, *redirect.body), bases)
        self.on_redirect(redirect, bases)

    def expansions(self, words: Iterable[Word], bases: Bases) -> None:
        """Visit the scripts inside words; they run in subshells."""
        for script in scripts_of(words):
            self.script(script, bases)

    def _compound(self, command: Compound, bases: Bases) -> FoldersAfter:
        match command.kind:
            case "group":
                return self.script(command.bodies[0], bases)
            case "if":
                return self._if(command.bodies, bases)
            case "while" | "for" | "select":
                return self._loop(command.bodies, bases)
            case "case":
                return self._case(command.bodies, bases)
            case "function":
                self.script(command.bodies[0], limit_bases(bases | UNKNOWN))
                return FoldersAfter(bases, bases)
            case _:  # a subshell and a co-process keep the folder to themselves
                for body in command.bodies:
                    self.script(body, bases)
                return FoldersAfter(bases, bases)

    def _if(self, bodies: tuple[Script, ...], bases: Bases) -> FoldersAfter:
        done: Bases = frozenset()
        failed: Bases = frozenset()
        condition = bases
        for index in range(0, len(bodies) - 1, 2):
            tested = self.script(bodies[index], condition)
            branch = self.script(bodies[index + 1], tested.done or bases)
            done, failed = done | branch.done, failed | branch.failed
            condition = tested.failed or bases
        if len(bodies) % 2:
            branch = self.script(bodies[-1], condition)
            return FoldersAfter(limit_bases(done | branch.done), limit_bases(failed | branch.failed))
        return FoldersAfter(limit_bases(done | condition), limit_bases(failed))

    def _loop(self, bodies: tuple[Script, ...], bases: Bases) -> FoldersAfter:
        """Visit a loop once; if its body changes the folder, visit it again with the folder unknown."""
        after = bases
        for body in bodies:
            after = self.script(body, after).any
        if not after <= bases:
            for body in bodies:
                self.script(body, UNKNOWN)
            return FoldersAfter(UNKNOWN, UNKNOWN)
        return FoldersAfter(bases, bases)

    def _case(self, bodies: tuple[Script, ...], bases: Bases) -> FoldersAfter:
        done, failed = bases, bases
        for body in bodies:
            after = self.script(body, limit_bases(done | failed))
            done, failed = limit_bases(done | after.done), limit_bases(failed | after.failed)
        return FoldersAfter(done, failed)
