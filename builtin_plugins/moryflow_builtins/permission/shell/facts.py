"""What is known about one command: what it reads, writes and runs, and what a wildcard does not cover."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .syntax import Word
from .trees import Tree
from .words import Arg

if TYPE_CHECKING:
    from .arrivals import Arrival
    from .checkouts import Checkout
    from .git_shown import Shown


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch that a command applies.

    :param files: the files that hold it; `outside`: named by a redirection, so in the folder of the shell.
    :param text: a here-document that holds it.
    :param strip: how many names are taken off the front of a path; ``None`` when it is not said.
    :param given: the file that is changed is an operand, whatever the patch says.
    """

    files: tuple[Arg, ...] = ()
    text: Arg | None = None
    strip: int | None = None
    directory: str = ""
    by_git: bool = False
    given: bool = False
    outside: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """Words that a wildcard does not cover.

    :param index: the last word that a rule has to spell out.
    :param why: what they do.
    :param unseen: no rule can spell it out, because it is not in the command.
    """

    index: int
    why: str
    unseen: bool = False


@dataclass(frozen=True, slots=True)
class Inner:
    """A command that another one runs, in the folder that the outer one works in.

    :param same_shell: it runs in this shell, so its ``cd`` counts.
    """

    args: tuple[Arg, ...]
    same_shell: bool = False


@dataclass(frozen=True, slots=True)
class InnerText:
    """A shell text that a command runs; `elsewhere` on another machine, where no path and no allow of ours counts.

    :param fed: it is not among the words of the command, so that no rule for the command covers it.
    """

    text: Arg
    same_shell: bool = False
    elsewhere: bool = False
    fed: bool = False


@dataclass(frozen=True, slots=True)
class Write:
    """A file that is changed.

    :param whole: everything below a folder is.
    :param asks: outside the vault it is asked about, not denied; the command is one that is always asked about.
    """

    path: Arg
    whole: bool = False
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Sought:
    """Files that a program looks for by itself and runs, in its order: ``make`` its makefile.

    :param upward: also in the folders above, up to the vault; `every`: not only the first that is there.
    """

    names: tuple[str, ...]
    upward: bool = False
    every: bool = False


@dataclass
class Facts:
    """Collected while a command is looked at.

    :ivar known: the program's operands are understood, so other words of it are not looked at as paths or commands.
    :ivar perhaps: words of a program that is not understood; they may be files.
    :ivar views: other ways to write the command, for rules that deny.
    :ivar base: a folder it works in instead of the current one.
    :ivar reads_here: it reads the folder it runs in; `trusts_here`: and takes configuration from it.
    :ivar brings_files: it makes files that the command does not name, as a checkout does.
    :ivar trees: folders that it reads with everything below them.
    :ivar refusals: why no rule and no mode lets it run; `insists`: why it is asked about in every mode.
    :ivar moves: where ``cd`` leads; `moved` when the folder changes in a way that is not known.
    :ivar patches: texts that say what it changes; `arrivals`: folders and archives whose content arrives somewhere.
    :ivar checkout: commits whose content it brings; `moves_names`: which names of git mean something else afterwards.
    :ivar shown: content that it prints from git's store.
    :ivar stdin: a here-document or here-string that is fed in; `stdin_file`: a file that is.
    :ivar runs: files whose content is run; `sought` those that the program finds by itself.
    :ivar code: texts in other languages that are run; only what no mode opens is looked for in them.
    """

    known: bool = False
    guards: list[Guard] = field(default_factory=list[Guard])
    reads: list[Arg] = field(default_factory=list[Arg])
    perhaps: list[Arg] = field(default_factory=list[Arg])
    writes: list[Write] = field(default_factory=list[Write])
    inner: list[Inner] = field(default_factory=list[Inner])
    texts: list[InnerText] = field(default_factory=list[InnerText])
    views: list[tuple[Arg, ...]] = field(default_factory=list[tuple[Arg, ...]])
    base: Arg | None = None
    reads_here: bool = False
    trusts_here: bool = False
    brings_files: bool = False
    refusals: list[str] = field(default_factory=list[str])
    insists: list[str] = field(default_factory=list[str])
    trees: list[Tree] = field(default_factory=list[Tree])
    moves: Arg | None = None
    moved: bool = False
    patches: list[Patch] = field(default_factory=list[Patch])
    arrivals: list[Arrival] = field(default_factory=list["Arrival"])
    checkout: Checkout | None = None
    shown: Shown | None = None
    moves_names: str = ""
    stdin: Word | None = None
    stdin_file: Arg | None = None
    code: list[Arg] = field(default_factory=list[Arg])
    runs: list[Arg] = field(default_factory=list[Arg])
    sought: list[Sought] = field(default_factory=list[Sought])

    def guard(self, index: int, why: str) -> None:
        """Note that a rule must spell out the words up to `index`."""
        self.guards.append(Guard(index, why))

    def unseen(self, why: str) -> None:
        """Note that something is run that the command does not show."""
        self.guards.append(Guard(0, why, unseen=True))
