"""The page ``docs/reference/cli.md``: every command with its arguments and options, from click itself."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "user_examples" / "reference" / "commands.txt"
PAGE = ROOT / "docs" / "reference" / "cli.md"
TELLING = re.compile("[{|*]")
"""An example with JSON, a pipe or a pattern shows what the usage does not."""
SHARED = ("--model", "--agent", "--mode", "--session", "--limit", "--all")
"""Options that mean the same below every noun: the page explains them once."""
BLOCK = re.compile(r"(<!-- begin: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page() -> str:
    """Return the page with its two blocks written anew: the common options, and the commands."""
    with tempfile.TemporaryDirectory() as home:
        before = os.environ.get("MORYFLOW_HOME")
        os.environ["MORYFLOW_HOME"] = home
        try:
            parts = {"options": _list(_root().params), "commands": "\n\n".join(_commands())}
        finally:
            os.environ.pop("MORYFLOW_HOME") if before is None else os.environ.update(MORYFLOW_HOME=before)
    return BLOCK.sub(lambda ends: f"{ends[1]}\n{parts[ends[2]]}\n\n{ends[3]}", PAGE.read_text(encoding="utf-8"))


def _root() -> click.Group:
    from moryflow.cli import cli

    return cli


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that a person can see, by the words that are typed."""
    with click.Context(_root(), info_name="moryflow") as ctx:
        yield from _below(_root(), ctx, "moryflow")


def _below(group: click.Group, ctx: click.Context, path: str) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is None or command.hidden:
            continue
        words = f"{path} {name}"
        yield words, command
        if isinstance(command, click.Group):
            yield from _below(command, click.Context(command, ctx, name), words)


def examples() -> dict[str, str]:
    """Return an example for each command: the longest name that a line begins with."""
    names = sorted((name for name, _ in commands()), key=len, reverse=True)
    found: dict[str, str] = {}
    for line, _ in example_lines():
        words = line[line.index("moryflow ") :]
        name = next((name for name in names if f"{words} ".startswith(f"{name} ")), None)
        if name is None:
            raise ValueError(f"{EXAMPLES.name}: there is no command in {line!r}")
        found.setdefault(name, line)
    return found


def example_lines() -> Iterator[tuple[str, str]]:
    """Yield each example, and why the tests do not run it where they do not."""
    for line in EXAMPLES.read_text(encoding="utf-8").splitlines():
        command, _, why_not = line.partition("  # not run: ")
        yield command, why_not


def parse(line: str) -> None:
    """Let click take the words of an example, without running it.

    :raises click.ClickException: it would be refused.
    """
    _, *words = shlex.split(line.split(" | ")[-1].split(" > ")[0])
    with click.Context(_root(), info_name="moryflow") as ctx:
        command: click.Command = _root()
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(ctx, words[0])
            if found is None:
                break
            command, words = found, words[1:]
        command.make_context(command.name, words, parent=ctx)


def _commands() -> Iterator[str]:
    """Yield a section for each noun: the command itself if it runs alone, a list of those below it, and examples."""
    lines = examples()
    said: dict[str, str] = {}
    for noun, found in groupby(commands(), key=lambda item: item[0].split()[1]):
        (name, first), *below = found
        yield f"## `moryflow {noun}`"
        if _runs(first) or not below:
            yield _first_sentence(first)
            if (usage := _usage(name, first)) != name:
                yield f"`{usage}`"
            yield from _options(noun, first, said)
        here: dict[str, str] = {}
        rows = [_row(words, command, here) for words, command in below if _runs(command)]
        if rows and _runs(first):
            yield "With a verb:"
        if rows:
            yield "\n".join(rows)
        own = [(words, command) for words, command in ((name, first), *below) if _runs(command)]
        if missing := [words for words, _ in own if words not in lines]:
            raise ValueError(f"{missing[0]} has no example: add one to {EXAMPLES.relative_to(ROOT)}")
        shown = [lines[words] for words, _ in own if TELLING.search(lines[words])]
        if shown:
            yield "```sh\n" + "\n".join(shown) + "\n```"


def _runs(command: click.Command) -> bool:
    return not isinstance(command, click.Group) or command.invoke_without_command


def _row(name: str, command: click.Command, said: dict[str, str]) -> str:
    """Return the entry of a command below a noun; of options that one before it has word for word, only the names."""
    rows = {f"    - {_spelling(param)}: {_about(param)}": param for param in _own(command)}
    again = [row for row, param in rows.items() if row in said or (param.opts[-1] in SHARED and "bytes" not in row)]
    new = [row for row in rows if row not in again]
    said.update(dict.fromkeys(new, name))
    usage = _usage(name, command).split(" ", 2)[2].replace("|", "/")
    also = f" Also {', '.join(f'`{rows[row].opts[-1]}`' for row in again)}." if again else ""
    first = re.sub(r"; [^()]*(?=\.$)", "", _first_sentence(command)) + also  # what is behind a semicolon, --help says
    return "\n".join([f"- `{usage}`: {first}", *new])


def _options(noun: str, command: click.Command, said: dict[str, str]) -> Iterator[str]:
    """Yield the list of a command's options; those that another command of this page has word for word are only named."""
    rows = {f"- {_spelling(param)}: {_about(param)}": param for param in _own(command)}
    known = [row for row in rows if row in said]
    if known:
        first = said[known[0]]
        names = ", ".join(f"`{rows[row].opts[-1]}`" for row in known)
        yield f"As [moryflow {first}](#moryflow-{first}): {names}."
    if new := [row for row in rows if row not in said]:
        yield "\n".join(new)
    said.update(dict.fromkeys(rows, noun) | said)


def _own(command: click.Command) -> list[click.Option]:
    """Return the options that not every command has."""
    common = {option.name or "" for option in _root().params}
    return [
        param
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden and param.name not in {*common, "help"}
        and not (param.opts == ["--output"] and "stream-json" not in getattr(param.type, "choices", ()))
    ]  # fmt: skip


def _first_sentence(command: click.Command) -> str:
    """Return what a command does; ``--help`` says the rest, the page which SESSION is meant."""
    paragraph = inspect.cleandoc(command.help or command.short_help or "").partition("\n\n")[0]
    said = re.split(r"(?<=\.) (?=[A-Z])", " ".join(paragraph.split()))[0]
    return _escaped(re.sub(r" \(default: the last one( of the folder)?\)", "", said))


def _usage(name: str, command: click.Command) -> str:
    return " ".join([name, *(_value(param) for param in command.params if isinstance(param, click.Argument))])


def _list(params: Sequence[click.Parameter]) -> str:
    shown = (param for param in params if isinstance(param, click.Option) and param.name != "help")
    return "\n".join(f"- {_spelling(param)}: {_about(param)}" for param in shown)


def _spelling(param: click.Option) -> str:
    flag = param.is_flag or param.count
    names = [*param.opts, *param.secondary_opts]
    names[-1] += "" if flag else f" {_value(param)}"
    return ", ".join(f"`{name.replace('|', '/')}`" for name in names)  # a | in code is shown as it is or ends the cell


def _value(param: click.Parameter) -> str:
    """Return what stands for a value; not as click writes it, which differs from version to version."""
    kind = param.type
    if param.metavar:
        return param.metavar
    if isinstance(param, click.Option):
        names = {"text": "TEXT", "choice": "WORD", "path": "PATH", "filename": "PATH", "file": "PATH"}
        return names.get(kind.name, "NUMBER")
    choices = "|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else ""
    name = choices or (param.name or "").upper()
    return (name if param.required else f"[{name}]") + ("..." if param.nargs == -1 else "")


def _about(param: click.Option) -> str:
    said = [_escaped(param.help or "")]
    if isinstance(param.type, click.Choice):
        *first, last = (f"`{choice}`" for choice in param.type.choices)
        said.append(f"{', '.join(first)} or {last}." if first else f"{last}.")
    default = param.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        said.append(f"Default: `{default}`.")
    if param.multiple:
        said.append("May be repeated.")
    return " ".join(filter(None, said))


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")
