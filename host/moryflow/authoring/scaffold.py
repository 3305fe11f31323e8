"""Scaffold a tool, an agent or a plugin. The templates are files in ``templates``; they have only ``$name`` placeholders."""

from __future__ import annotations

import builtins
import keyword
import re
import shlex
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import replace_file

_TEMPLATES = Path(__file__).with_name("templates")
LONGEST = 40
_TOOL = re.compile(r"[a-z][a-z0-9_]*\Z")
_AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\Z")
# Names that already mean something in the files that are written: a function of such a name would replace it.
_USED_NAMES = frozenset(dir(builtins)) | {
    "config_model", "create_tools", "default", "hookimpl", "tool", "tool_after", "tools",
}  # fmt: skip
_PLUGIN = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")


@dataclass(frozen=True)
class Scaffold:
    """Files that are about to be written, by path, and the commands to type next."""

    files: Mapping[Path, str]
    following: tuple[str, ...]

    @property
    def existing(self) -> list[Path]:
        """Those of the files that exist already, with other content."""
        return [path for path, text in self.files.items() if path.exists() and not _same(path, text)]

    def write(self) -> None:
        """Write the files and their folders. Only their owner may change them, or Moryflow would refuse to run them.

        :raises OSError: a file cannot be written.
        """
        for path, text in self.files.items():
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
            try:
                replace_file(path.resolve(), text.encode())
            except OSError as error:
                error.filename = str(path)
                raise
            path.chmod(0o744 if text.startswith("#!") else 0o644)


# The languages a tool can be written in, with the suffix of its file.
LANGUAGES = {"python": "py", "bash": "sh", "javascript": "js"}


def tool_scaffold(name: str, folder: Path, taken: frozenset[str] = frozenset(), language: str = "python") -> Scaffold:
    """Return a tool in one file.

    :param taken: the names of built-in tools.
    :raises ConfigError: the name cannot be that of a tool.
    """
    _check(name, _TOOL, "a tool", "lower-case letters, digits and _, beginning with a letter", name.lower().replace("-", "_"))
    if keyword.iskeyword(name):
        raise ConfigError(f"{name!r} is a keyword of Python", next_step=f"moryflow new tool my_{name}")
    if name in _USED_NAMES:
        raise ConfigError(f"{name!r} means something else in such a file", next_step=f"moryflow new tool my_{name}")
    _check_free(name, taken, "a tool", f"my_{name}")
    file = folder / f"{name}.{LANGUAGES[language]}"
    text = _fill(_TEMPLATES / f"tool.{LANGUAGES[language]}.in", name=name, file=str(file))
    return Scaffold({file: text}, (f"moryflow tool run {name} --name Ada", f"$EDITOR {shlex.quote(str(file))}"))


def agent_scaffold(name: str, folder: Path, taken: frozenset[str] = frozenset()) -> Scaffold:
    """Return an agent: a Markdown file.

    :param taken: the ids of built-in agents.
    :raises ConfigError: the name cannot be an agent's id.
    """
    from moryflow_sdk.support.agent_files import RESERVED

    _check(name, _AGENT, "an agent", "letters, digits, - and _", re.sub(r"\s+", "-", name.strip()))
    _check_free(name, RESERVED | taken, "an agent", f"my-{name}")
    file = folder / f"{name}.md"
    text = _fill(_TEMPLATES / "agent.md.in", name=name, title=_title(name))
    edit = f"$EDITOR {shlex.quote(str(file))}"
    return Scaffold({file: text}, (edit, "moryflow agent check", f'moryflow run --agent {name} "Hello"'))


def plugin_scaffold(
    name: str, folder: Path, taken: frozenset[str] = frozenset(), tools: frozenset[str] = frozenset()
) -> Scaffold:
    """Return a plugin: a project with its package, manifest, tests and settings.

    :param folder: where the project's own folder is made.
    :param taken: the names of built-in plugins.
    :param tools: the names of built-in tools; if the plugin's tool would have one of them, it gets another name.
    :raises ConfigError: the name cannot be that of a plugin.
    """
    short = name.removeprefix("moryflow-")
    near = re.sub(r"[\s_]+", "-", name.strip().lower())
    _check(short, _PLUGIN, "a plugin", "lower-case letters, digits and -, beginning with a letter", near)
    _check_free(short, taken, "a plugin", f"my-{short}")
    tool = short.replace("-", "_")
    tool = f"{tool}_tool" if keyword.iskeyword(tool) or tool in _USED_NAMES | tools else tool
    words = {"name": short, "project": f"moryflow-{short}", "package": f"moryflow_{short.replace('-', '_')}", "tool": tool}
    root = folder / words["project"]
    files = {
        root / _path_in(path.relative_to(_TEMPLATES / "plugin"), words["package"]): _fill(path, title=_title(short), **words)
        for path in sorted((_TEMPLATES / "plugin").rglob("*.in"))
    }
    following = (
        f"cd {shlex.quote(str(root))}",
        "python3 -m pytest",
        "moryflow plugin install -e .",
        f"moryflow tool run {tool} --name Ada",
    )
    return Scaffold(files, following)


def _path_in(template: Path, package: str) -> Path:
    name = template.name.removesuffix(".in")
    parts = [package if part == "package" else part for part in template.parts[:-1]]
    return Path(*parts, ".gitignore" if name == "gitignore" else name)


def _fill(template: Path, **words: str) -> str:
    return Template(template.read_text(encoding="utf-8")).safe_substitute(words)


def _title(name: str) -> str:
    return re.sub(r"[-_]+", " ", name).strip().capitalize()


def _check(name: str, pattern: re.Pattern[str], what: str, rule: str, near: str) -> None:
    kind = what.rpartition(" ")[2]
    if not pattern.match(name):
        near = unicodedata.normalize("NFKD", near)
        near = re.sub(r"[^A-Za-z0-9_-]+", "", near.replace(" ", "_" if kind == "tool" else "-")).strip("-_")[:LONGEST]
        hint = f"; did you mean {near!r}?" if pattern.match(near) else ""
        step = f"moryflow new {kind} {near}" if hint else f"moryflow new {kind} hello"
        raise ConfigError(f"{name!r} cannot be the name of {what}: {rule}{hint}", next_step=step)
    if len(name) > LONGEST:
        raise ConfigError(f"the name is longer than {LONGEST} characters", next_step=f"moryflow new {kind} {name[:12]}")


def _check_free(name: str, taken: frozenset[str], what: str, near: str) -> None:
    if name in taken:
        kind = what.rpartition(" ")[2]
        raise ConfigError(f"Moryflow itself has {what} named {name!r}", next_step=f"moryflow new {kind} {near}")


def _same(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False
