"""Build the layers: user file, secrets, environment, inline, flags. Nothing in a file can stop the host.

A file that cannot be used, or that others can write, is named, and its last good version applies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import ConfigError
from moryflow_sdk.support.own_files import LOST_HINT, Doubt, doubt_about, leads_nowhere

from moryflow.config import Layer, Problem, merged, nested

from .jsonc import JsoncError, is_blank, parse


def user_layers(home: Path, path: Path, problems: list[Problem], before: Layer | None = None) -> list[Layer]:
    """Read the user's file. If it is missing, the defaults apply; if it cannot be used, its last good version does.

    :param before: what this process read of it last; otherwise the last good version is the copy on the disk.
    """
    layer = Layer("user", {}, str(path), is_file=True)

    @cache  # a file of 20,000 rules is not parsed a second time unless that is needed
    def good() -> _Good:
        return _Good(before, "the previous settings apply until it is fixed") if before else _good_copy(home, path)

    def unusable(message: str, hint: str, *, code: str, line: int | None = None, column: int | None = None) -> list[Layer]:
        last = good()
        lost = "the file is not used, and what it restricts may be lost" if _RESTRICTS.search(layer.text) else ""
        until = f"{'every call is asked about' if lost else 'the defaults apply'} until it is fixed"
        effect = last.hint if last.layer else until
        hint = f"{hint}; {effect}" if hint else effect
        problems.append(
            Problem(str(path), line, column, message, hint, fatal=True, code=code, asks=bool(lost and not last.layer))
        )
        return [last.layer or replace(layer, text="", lost=lost)]

    try:
        found = read_source(path)
    except FileNotFoundError:
        if path == home / "config.jsonc":
            return []
        return unusable("there is no such file", "MORYFLOW_CONFIG names it", code="config_missing")
    except Unreadable as error:
        layer = replace(layer, text=error.text)
        return unusable(error.message, error.hint, code=error.code)
    layer = replace(layer, text=found.text)
    if found.distrust:
        doubt = found.distrust
        return unusable(f"this file is not used, because {doubt.reason}", doubt.step, code="config_permissions")
    if emptied := _emptied(found.text, good().layer if is_blank(found.text) else None):
        return unusable(emptied, "write {} for no settings", code="config_syntax")
    try:
        layer = _parsed_layer(layer)
    except JsoncError as error:
        message = f"this is not JSON with comments: {error.message}"
        return unusable(message, "", code="config_syntax", line=error.line, column=error.column)
    return [layer]


# Settings that restrict: if they stand in a file that cannot be read, and no good version is there, every call asks.
_RESTRICTS = re.compile(
    r"permission|decision|deny|\b(limits|disabledPlugins|onlyPlugins|safeMode|profile|agent)\b[\"']?\s*[:=\[]", re.IGNORECASE
)


class _Good(NamedTuple):
    """The last good version of the user's file, and the hint that says so."""

    layer: Layer | None
    hint: str


def _good_copy(home: Path, path: Path) -> _Good:
    copy = good_copy(home, path)
    text = copied_text(copy)
    hint = f"until it is fixed, the last good version applies: {copy}"
    try:
        return _Good(_parsed_layer(Layer("user", {}, str(copy), text, is_file=True)) if text else None, hint)
    except JsoncError:
        return _Good(None, "")


def _emptied(text: str, before: Layer | None) -> str:
    """Return a message if `text` holds no settings and `before` did: an editor, or a full disk, may have left it so."""
    if before is None or not before.value or not is_blank(text):
        return ""
    return "the file holds only comments" if text.strip() else "the file is empty"


def _parsed_layer(layer: Layer) -> Layer:
    value = parse(layer.text)
    if not isinstance(value, dict):
        raise JsoncError("a configuration is an object: { … }", 1, 1)
    return replace(layer, value=value)


# The file for the keys of plugins: people show each other the other file. No tool may read a file of this name.
SECRETS = "secrets.json"


def secrets_layer(home: Path, problems: list[Problem], before: Layer | None = None) -> Layer:
    """Read the keys that ``plugin key set`` stored; anything else in that file is ignored.

    :param before: what this process read of it last; it applies while the file cannot be read.
    """
    path = home / SECRETS
    layer = Layer("secrets", {}, str(path), is_file=True)
    effect = "the keys that were read before apply" if before and before.value else "no key is read"
    hint = "fix it, or move it away and set the keys again: moryflow plugin key set"
    try:
        found = read_source(path)
        if emptied := _emptied(found.text, before):
            raise Unreadable(emptied, "secrets_syntax")
        layer = _parsed_layer(replace(layer, text=found.text))
    except FileNotFoundError:
        return layer
    except Unreadable as error:
        problems.append(Problem(str(path), None, None, f"{effect}: {error.message}", error.hint or hint, code=error.code))
        return before or layer
    except JsoncError as error:
        message = f"{effect}: this is not JSON: {error.message}"
        problems.append(Problem(str(path), error.line, error.column, message, hint, code="secrets_syntax"))
        return before or layer
    if found.distrust:
        message = f"no key is read, because {found.distrust.reason}"
        problems.append(Problem(str(path), None, None, message, found.distrust.step, code="secrets_permissions"))
        return replace(layer, value={})
    plugins = layer.value.get("plugins")
    return replace(layer, value={"plugins": plugins} if isinstance(plugins, dict) else {})


def inline_layer(inline: str, problems: list[Problem], before: Layer | None = None) -> Layer:
    """Read ``--config``: JSON text, or the path of a file.

    :param before: what this process read of the file last; it applies while the file cannot be read.
    :raises ConfigError: it cannot be read or parsed at the start. Unlike an error in the user's file, this ends the command.
    """
    if not inline.lstrip().startswith(("{", "[")):
        try:
            return _inline_file(Path(inline).expanduser(), problems, before)
        except ConfigError as error:
            if before is None:
                raise
            hint = "what was read of it before applies until it is fixed"
            problems.append(Problem(error.where or inline, None, None, error.message, hint, fatal=True, code="config_inline"))
            return before
    try:
        return _parsed_layer(Layer("inline", {}, "--config", inline))
    except JsoncError as error:
        where = f"--config:{error.line}:{error.column}"
        raise ConfigError(f"the inline configuration is not JSON: {error.message}", where=where) from error


def _inline_file(path: Path, problems: list[Problem], before: Layer | None) -> Layer:
    layer = Layer("inline", {}, str(path), is_file=True)
    try:
        found = read_source(path)
        if found.distrust:
            doubt = found.distrust
            raise ConfigError(f"it is not used, because {doubt.reason}", where=str(path), next_step=doubt.step)
        if emptied := _emptied(found.text, before):
            raise ConfigError(emptied, where=str(path))
        layer = _parsed_layer(replace(layer, text=found.text))
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), next_step="pass JSON text or the path of a file") from error
    except Unreadable as error:
        raise ConfigError(error.message, where=str(path), next_step=error.hint) from error
    except JsoncError as error:
        where = f"{path}:{error.line}:{error.column}"
        raise ConfigError(f"this is not JSON with comments: {error.message}", where=where, next_step="fix it") from error
    return layer


def _switch(text: str) -> bool:
    return text.strip().casefold() not in ("", "0", "false", "no", "off")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _without_password(url: str) -> str:
    return re.sub(r"(://[^/@:]*):[^@/]*@", r"\1@", url.strip())


# Variable → its dotted key, how it is parsed, and whether it counts if it is empty.
ENVIRONMENT: Mapping[str, tuple[str, Callable[[str], Any], bool]] = {
    "MORYFLOW_MODEL": ("model", str.strip, False),
    "MORYFLOW_PLUGINS": ("onlyPlugins", _names, True),
    "MORYFLOW_SAFE_MODE": ("safeMode", _switch, False),
    "MORYFLOW_STRICT": ("strict", _switch, False),
    "MORYFLOW_TRACE": ("trace", _switch, False),
    "MORYFLOW_STORE": ("store.url", _without_password, False),
    "MEMORY_BANK_GUARD_MODE": ("agents.runtime.memoryBank.guardMode", lambda text: text.strip().casefold(), False),
}


def environment_layer(environ: Mapping[str, str]) -> Layer:
    value: dict[str, Any] = {}
    names: dict[str, str] = {}
    for variable, (key, read, even_empty) in ENVIRONMENT.items():
        if variable in environ and (environ[variable].strip() or even_empty):
            value = merged(value, nested(key.split("."), read(environ[variable])))
            names[key.partition(".")[0]] = variable
    return Layer("environment", value, "environment", names=names)


def flag_layer(flags: Mapping[str, Any]) -> Layer:
    """Return the layer of the command line's flags; ``None`` is a flag that was not given."""
    value: dict[str, Any] = {}
    for key, setting in flags.items():
        if setting is not None:
            value = merged(value, nested(key.split("."), setting))
    return Layer("flag", value, "flag")


# The most bytes of a configuration file; a larger one is a mistake.
MAX_BYTES = 4 * 1024 * 1024


class Unreadable(Exception):
    """A file cannot be read as text; `code` is the problem code.

    :ivar text: what can be read of it, in which words that restrict are looked for.
    """

    def __init__(self, message: str, code: str, hint: str = "", data: bytes = b"") -> None:
        super().__init__(message)
        self.message, self.code, self.hint = message, code, hint
        self.text = data.replace(b"\0", b"").decode("utf-8", "replace")  # without NULs, ASCII in UTF-16 can be read


class Source(NamedTuple):
    """The text of a file, and why it must not loosen anything (``None``: it may); `mark`: it has a byte-order mark."""

    text: str
    distrust: Doubt | None = None
    mark: bool = False


def read_source(path: Path) -> Source:
    """Return the text of `path`.

    :raises FileNotFoundError: there is no such file.
    :raises Unreadable: it is not a regular file, too large, not UTF-8, or cannot be read.
    """
    data, distrust = _read(path)
    message, code, hint, text = "", "config_encoding", "save it as UTF-8", ""
    if len(data) > MAX_BYTES:
        message, code, hint = f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB", "config_limits", ""
    elif b"\0" in data:
        message = "the file is not UTF-8 text (it holds NUL bytes)"
    else:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            message = f"the file is not UTF-8 text (line {line})"
    if message:
        raise Unreadable(message, code, hint, data)
    return Source(text.removeprefix("\ufeff"), distrust, mark=text.startswith("\ufeff"))


def _read(path: Path) -> tuple[bytes, Doubt | None]:
    try:
        # Without O_NONBLOCK a named pipe instead of the file would block the host forever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        lost = leads_nowhere(path)
        if lost:
            raise Unreadable(lost, "config_unreadable", LOST_HINT) from error
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from error
    except OSError as error:
        raise Unreadable(f"the file cannot be read ({error.strerror})", "config_unreadable") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable("this is not a regular file", "config_unreadable", "put a text file there")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            data = stream.read(MAX_BYTES + 1)
        doubt = doubt_about(path, status)
    except OSError as error:
        raise Unreadable(f"the file cannot be read ({error.strerror})", "config_unreadable") from error
    finally:
        os.close(descriptor)
    return data, doubt


def good_copy(home: Path, path: Path) -> Path:
    """Return the path of the last good copy of `path`, in Moryflow's home folder."""
    if path == home / "config.jsonc":
        return home / "config.good.jsonc"
    from hashlib import sha256

    return home / f"config.good-{sha256(os.fsencode(path.absolute())).hexdigest()[:12]}.jsonc"


def copied_text(copy: Path) -> str:
    """Return the text of a good copy; empty if there is none, or if someone else could have written it."""
    with contextlib.suppress(FileNotFoundError, Unreadable):
        found = read_source(copy)
        return "" if found.distrust else found.text
    return ""


def keep(copy: Path, text: str) -> None:
    """Store `text` as the good copy, or remove the copy if `text` is empty. Errors of writing are ignored."""
    if not text:
        with contextlib.suppress(OSError):
            copy.unlink(missing_ok=True)
        return
    if copied_text(copy) == text:
        return
    from moryflow.base.atomic_write import write_atomically

    with contextlib.suppress(OSError, ConfigError):
        copy.unlink(missing_ok=True)  # writing would keep its mode, and it may be a link
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(copy, text.encode("utf-8"))
