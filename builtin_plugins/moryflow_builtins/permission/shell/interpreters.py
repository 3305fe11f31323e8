"""Interpreters of other languages, shells, and the builtins of a shell.

A rule covers the code that an interpreter runs only if that code is in the command. A builtin that changes what later commands
do needs a rule that spells it out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from .effects import CommandEffects, InnerText, Inspector, SoughtFiles, WrittenFile, read_options, spec
from .moryflow_command import inspect_module
from .syntax import Arg, file_pieces, join_words

_SHELLS = (
    "bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "yash", "rbash", "fish", "csh", "tcsh", "pwsh", "powershell",
)  # fmt: skip
_FOREIGN = frozenset({"fish", "csh", "tcsh", "pwsh", "powershell"})
_SCRIPTING = frozenset({"python", "perl", "ruby", "node", "php", "lua", "tclsh", "Rscript", "julia"})
_LANGUAGES: dict[str, str] = {
    # name: its options; c = code, r = a file of code that is run first, g = the program does something else entirely
    "python": "c=c m=c W=v X=v Q=v i=g",
    "perl": "e=c E=c M=c m=c I=r i=i x=i V=n d=g F=v l=n 0=n C=n s=n",
    "ruby": "e=c r=c I=r i=i C=d x=i F=v K=v E=v",
    "node": "e=c p=c eval=c print=c r=c require=c import=c loader=c experimental-loader=c env-file=r C=v conditions=v "
    "inspect=g inspect-brk=g test=g run=c",
    "php": "r=c B=c R=c E=c F=r f=r c=r d=c z=r S=g t=r a=g",
    "lua": "e=c l=c i=g",
    "tclsh": "",
    "wish": "",
    "expect": "c=c f=r b=r",
    "osascript": "e=c l=v",
    "Rscript": "e=c expr=c f=r",
    "R": "e=c f=r file=r",
    "julia": "e=c E=c L=r eval=c print=c load=r",
    "groovy": "e=c",
    "scala": "e=c",
    "jshell": "",
    "elixir": "e=c eval=c r=r",
    "erl": "-eval=c -s=c -run=c",
    "ghci": "e=c",
    "runghc": "e=c",
    "guile": "c=c e=c l=r s=r",
    "sbcl": "eval=c load=r script=r",
    "emacs": "eval=c execute=c f=c funcall=c l=r load=r batch=n script=r insert=r Q=n q=n",
    "vim": "c=c S=r s=r u=r U=r cmd=c W=w w=w i=w T=v V=n startuptime=w",
    "ed": "p=v",
    "gdb": "ex=c eval-command=c x=r command=r args=n iex=c ix=r init-eval-command=c p=v",
    "lldb": "o=c one-line=c s=r source=r O=c b=n",
    "sqlite3": "cmd=c init=r",
    "psql": "c=c command=c f=r file=r o=w output=w L=w log-file=w v=v h=v p=v U=v d=v",
    "mysql": "e=c execute=c u=v h=v P=v D=v init-command=c tee=w pager=x",
    "ts-node": "e=c eval=c p=c print=c r=c require=c",
    "ocaml": "e=c init=r I=r",
    "swipl": "g=c t=c l=r s=r f=r",
    "octave": "eval=c",
    "gnuplot": "e=c",
    "m4": "D=v I=r",
    "xsltproc": "o=w",
    "nu": "c=c e=c",
    "sage": "c=c",
    "bc": "",
    "dc": "e=c f=r expression=c file=r",
}
_ALIASES: dict[str, str] = {
    "pypy": "python", "ipython": "python", "ipython3": "python",
    "irb": "ruby", "jruby": "ruby", "nodejs": "node", "luajit": "lua", "texlua": "lua", "nvim": "vim", "vi": "vim",
    "view": "vim", "ex": "vim", "rvim": "vim", "vimdiff": "vim", "nano": "vim", "pico": "vim", "emacsclient": "emacs",
    "mariadb": "mysql", "tsx": "ts-node", "red": "ed", "kotlin": "groovy", "iex": "elixir", "runhaskell": "runghc",
    **dict.fromkeys(("xonsh", "elvish", "osh", "ysh", "ion", "hy"), "nu"), **dict.fromkeys(("ecl", "clisp"), "sbcl"),
    **dict.fromkeys(("racket", "raku", "rakudo", "clojure", "clj", "bb", "coffee", "babel-node", "esno", "qjs"), "groovy"),
    **dict.fromkeys(("d8", "js", "jjs", "hhvm", "janet", "fennel", "gforth", "gst", "pike", "escript"), "groovy"),
}  # fmt: skip
_VERSIONED = re.compile(r"(python|pypy|ruby|perl|php|lua|node|tclsh|guile)\d*(?:\.\d+)*")
STDIN = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_INFO_OPTIONS = ("--version", "--help", "-version")
_INFO_LETTERS = {
    "-V": frozenset({"python", "perl", "ed", "dc", "psql", "mysql", "lldb"}),
    "-v": frozenset({"node", "perl", "ruby", "php", "lua", "bc", "gdb", "julia", "groovy"}),
    "-h": frozenset({"node", "perl", "ruby", "php", "python", "bc", "dc", "ed", "gdb", "julia"}),
}
"""Letters that ask for the version or for help, with their languages; in others the letter means something else."""


def inspect_shell(args: Sequence[Arg], effects: CommandEffects) -> None:
    """A shell: the text of ``-c`` and a here-document are judged; anything else that it runs is not in the command."""
    table = spec("o=v O=v rcfile=x init-file=x init-command=x C=x D=v c=t command=t Command=t")
    text_follows = False
    index = 1
    while index < len(args) and args[index].text[:1] in ("-", "+") and args[index].text not in ("-", "--"):
        word = args[index].text
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if table.long.get(name) == "x":
                effects.guard(min(index + 1, len(args) - 1), f"{args[0].text} --{name} runs a file first")
                effects.runs.append(args[index].cut(len(word) - len(value)) if equals else args[min(index + 1, len(args) - 1)])
                index += 0 if equals else 1
        else:
            text_follows |= word.startswith("-") and "c" in word
            if word in ("-i", "-l") or any(letter in word for letter in "il"):
                effects.guard(index, f"{args[0].text} {word} runs start-up files first")
            index += word.count("o") + word.count("O")
        index += 1
    if index < len(args) and args[index].text in ("-", "--"):
        index += 1
    _run_shell(args, index, effects, text_follows=text_follows)


def _run_shell(args: Sequence[Arg], index: int, effects: CommandEffects, *, text_follows: bool) -> None:
    name = args[0].text
    if text_follows:
        if index < len(args):
            if not args[index].static:
                effects.guard_unseen(f"{name} -c runs a text that is known only when it runs")
            effects.texts.append(InnerText(args[index]))
            if name.rpartition("/")[2] in _FOREIGN:
                effects.guard(index, f"{name} reads a text in another way than bash")
        return
    reads_stdin = (
        index >= len(args)
        or args[index].text in STDIN
        or any(arg.text.startswith("-") and "s" in arg.text for arg in args[1:index])
    )
    if not reads_stdin:
        effects.reads.append(args[index])
        effects.runs.append(args[index])
        effects.scripts.append(args[index])
        effects.guard(index, f"{name} runs the commands in {args[index].text}")
    elif effects.stdin is not None:
        effects.texts.append(InnerText(effects.stdin_text, fed=True))
        if not effects.stdin_text.static:
            effects.guard_unseen(f"{name} runs a text that is known only when it runs")
    elif not _only_prints(args, ""):
        effects.guard_unseen(f"{name} runs whatever it reads")


def inspect_language(args: Sequence[Arg], effects: CommandEffects) -> None:
    """An interpreter of another language; neither its code nor the content of a script is understood here."""
    name = language_of(args[0].text.rpartition("/")[2])
    table = spec(_LANGUAGES[name])
    runs_code = in_place = False
    for found in read_options(args, table, stop_at_operand=True):
        if found.operand and found.value is not None:
            _run_file(args, found.place, effects, name, runs_code=runs_code)
            effects.writes += map(WrittenFile, args[found.place :]) if in_place else ()
            return
        in_place |= found.role == "i" and found.name == "i"
        if found.role == "c":
            runs_code = True
            effects.guard(found.place, f"{args[0].text} -{found.name} runs what it is given")
            effects.code += [found.value] if found.value is not None else []
            if name == "python" and found.name in ("c", "m"):
                effects.possible_files += [piece for arg in args[found.place + 1 :] for piece in file_pieces(arg)]
                if found.name == "m" and found.value is not None:
                    inspect_module(found.value, args[found.place + 1 :], effects)
                    stem = found.value.text.replace(".", "/")
                    effects.sought.append(SoughtFiles((f"{stem}/__init__.py", f"{stem}/__main__.py", f"{stem}.py"), every=True))
                return
        elif found.role in ("g", "i", "w", "x"):
            effects.guard(found.place, f"{args[0].text} -{found.name} does more than the rule shows")
        elif found.role == "r" and found.value is not None:
            effects.reads.append(found.value)
            effects.runs.append(found.value)
            effects.guard(found.place, f"{args[0].text} runs {found.value.text}")
    if not runs_code and not _only_prints(args, name):
        effects.guard_unseen(f"{args[0].text} runs whatever it reads")


def _run_file(args: Sequence[Arg], index: int, effects: CommandEffects, name: str, *, runs_code: bool) -> None:
    operands = args[index:]
    if name in ("vim", "ed", "emacs"):
        effects.writes += [WrittenFile(arg) for arg in operands if not arg.text.startswith(("+", "-"))]
        effects.guard(len(args) - 1, f"{args[0].text} is an editor that runs commands")
        if args[0].text.rpartition("/")[2] in ("ed", "red", "ex"):
            effects.guard_unseen(f"{args[0].text} runs whatever it reads")
        return
    if operands[0].text in STDIN:
        effects.guard_unseen(f"{args[0].text} runs whatever it reads")
        return
    inspect_module(operands[0], operands[1:], effects)
    effects.reads += operands if runs_code else operands[:1]
    if not runs_code:
        effects.runs.append(operands[0])
        effects.scripts += operands[:1] if name in _SCRIPTING else ()
        effects.guard(index, f"{args[0].text} runs the code in {operands[0].text}")
        effects.possible_files += operands[1:]


def _only_prints(args: Sequence[Arg], language: str) -> bool:
    """Whether the only word after the program makes it print its version or its usage and exit."""
    if len(args) != 2:
        return False
    word = args[1].text
    return word in _INFO_OPTIONS or language in _INFO_LETTERS.get(word, ())


def language_of(name: str) -> str:
    """Return the entry of the table that `name` is a version or an alias of."""
    name = _ALIASES.get(name, name)
    versioned = _VERSIONED.fullmatch(name)
    return _ALIASES.get(versioned.group(1), versioned.group(1)) if versioned and name not in _LANGUAGES else name


def is_language(name: str) -> bool:
    """Whether `name` is an interpreter, whatever its version."""
    return language_of(name) in _LANGUAGES


# ---------------------------------------------------------------- builtins of the shell

CHANGE = (
    "export", "declare", "typeset", "local", "readonly", "unset", "set", "shopt", "alias", "unalias", "hash", "enable",
    "ulimit", "umask", "read", "mapfile", "readarray", "let", "getopts", "shift", "complete", "compgen", "compopt", "bind",
    "history", "fc", "disown", "suspend", "logout", "dirs", "times", "trap",
)  # fmt: skip
"""Builtins that change the state of the shell."""

_PLAIN = ("exit", "return", "break", "continue", "bg", "fg", "caller", "help")
_COUNTS = re.compile(r"%[-+ #0-9.*']*[hljztL]*n")
_EMBEDS = ("$(", "`", "${")


def inspect_change(args: Sequence[Arg], effects: CommandEffects) -> None:
    """A builtin that changes the state of the shell: only a rule that spells it out covers it."""
    name = args[0].text
    effects.guard(0, f"{name} changes what later commands do")
    inspect_embedded(args, effects)
    operands = [arg for arg in args[1:] if not arg.text.startswith("-")]
    match name:
        case "trap" if operands:
            effects.texts.append(InnerText(operands[0], same_shell=True))
        case "alias":
            effects.texts += [InnerText(arg.cut(arg.text.index("=") + 1)) for arg in operands if "=" in arg.text]
        case "mapfile" | "readarray" | "complete" | "compgen" | "bind":
            found = [after for flag, after in pairwise(args[1:]) if flag.text in _CALLBACKS]
            effects.texts += [InnerText(after.cut(after.text.find(":") + 1 if name == "bind" else 0)) for after in found]
        case _:
            pass


_CALLBACKS = frozenset({"-C", "-F", "-x"})


def inspect_eval(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``eval`` joins its words and runs them in this shell."""
    words = args[2:] if len(args) > 1 and args[1].text == "--" else args[1:]
    text = join_words(words)
    if not text.static:
        effects.guard_unseen("eval runs a text that is known only when it runs")
    effects.texts.append(InnerText(text, same_shell=True))


def inspect_source(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``source`` runs a file in this shell."""
    if len(args) > 1 and args[1].text in STDIN:
        effects.guard_unseen(f"{args[0].text} runs whatever it reads")
        effects.texts += [InnerText(effects.stdin_text, same_shell=True)] if effects.stdin is not None else []
    effects.guard(min(1, len(args) - 1), f"{args[0].text} runs the commands in a file")
    effects.reads += args[1:2]
    effects.runs += args[1:2]
    effects.scripts += args[1:2]
    effects.folder_unknown = True


def inspect_cd(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``cd``, ``pushd`` and ``popd`` change the folder, sometimes to an unknown one."""
    operands = [arg for arg in args[1:] if arg.text not in ("-L", "-P", "-e", "-@", "-n", "--", "-LP", "-PL", "-Pe")]
    if not operands and args[0].text == "cd":
        effects.moves = Arg("~", tilde=True)
    elif (
        args[0].text == "popd"
        or len(operands) != 1
        or not operands[0].static
        or operands[0].text in ("-", "")
        or operands[0].text[:1] in "+"
    ):
        effects.folder_unknown = True
    else:
        effects.moves = operands[0]


def inspect_printf(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``printf -v`` and ``%n`` assign a variable."""
    if len(args) > 1 and args[1].text.startswith("-v"):
        effects.guard(min(2, len(args) - 1), "printf -v changes a variable")
        inspect_embedded(args, effects)
    elif any(_COUNTS.search(arg.text.replace("%%", "")) for arg in args[1:4]):
        effects.guard(len(args) - 1, "printf %n changes a variable")


def inspect_wait(args: Sequence[Arg], effects: CommandEffects) -> None:
    """``wait -p`` assigns a variable."""
    if any(arg.text.startswith("-") and "p" in arg.text for arg in args[1:]):
        effects.guard(len(args) - 1, "wait -p changes a variable")
        inspect_embedded(args, effects)


def inspect_embedded(args: Sequence[Arg], effects: CommandEffects) -> None:
    """Judge a substitution in literal words: arithmetic and subscripts run it although it was quoted."""
    for index, arg in enumerate(args[1:], 1):
        if arg.static and any(mark in arg.text for mark in _EMBEDS):
            effects.guard(index, f"{args[0].text} evaluates {arg.text!r}")
            effects.texts.append(InnerText(Arg(f': "{arg.text}"' if '"' not in arg.text else arg.text)))


INSPECTORS: dict[str, Inspector] = {
    **dict.fromkeys(_SHELLS, inspect_shell),
    **dict.fromkeys((*_LANGUAGES, *_ALIASES), inspect_language),
    **dict.fromkeys(CHANGE, inspect_change),
    **dict.fromkeys(_PLAIN, lambda args, effects: None),  # their words are neither files nor commands
    "eval": inspect_eval,
    "source": inspect_source,
    ".": inspect_source,
    "cd": inspect_cd,
    "pushd": inspect_cd,
    "popd": inspect_cd,
    **dict.fromkeys(("test", "[", "[["), inspect_embedded),
    "printf": inspect_printf,
    "wait": inspect_wait,
}
