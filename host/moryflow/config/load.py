"""Build the layers: user file, secrets, environment, inline, flags. Nothing in a file can stop the host.

From a file that is not trusted or does not parse, deny rules and settings that loosen nothing are salvaged.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from moryflow_sdk import DOMAINS, ConfigError
from moryflow_sdk.support.own_files import LOST_HINT, Doubt, doubt_about, leads_nowhere
from moryflow_sdk.support.rule_entries import MEANWHILE

from moryflow.config import MISSING, RULES, Layer, Problem, dotted, lost_rules, merged, nested

from .jsonc import JsoncError, blank, is_blank, parse, position


def user_layers(home: Path, path: Path, problems: list[Problem], before: Layer | None = None) -> list[Layer]:
    """Read the user's file. If it is missing, the defaults apply; if it is unreadable or emptied, its last good version does.

    :param before: what this process read of it last; otherwise the last good version is the copy on the disk.
    """
    layer = Layer("user", {}, str(path), is_file=True)

    @cache  # a file of 20,000 rules is not parsed a second time unless that is needed
    def good() -> _Good:
        return _Good(before, "the previous settings apply until it is fixed") if before else _good_copy(home, path)

    try:
        found = read_source(path)
    except FileNotFoundError:
        if path == home / "config.jsonc":
            return []
        message, hint = "there is no such file", "MORYFLOW_CONFIG names it"
        fault = Problem(str(path), None, None, message, hint, fatal=True, code="config_missing")
        return _replacement_layers(good(), layer, fault, problems)
    except Unreadable as error:
        fault = Problem(str(path), None, None, error.message, error.hint, fatal=True, code=error.code)
        return _replacement_layers(good(), replace(layer, text=error.text), fault, problems, trusted=error.trusted)
    layer = replace(layer, text=found.text)
    if emptied := _emptied(found.text, good().layer if is_blank(found.text) else None):
        hint = "write {} for no settings"
        fault = Problem(str(path), None, None, emptied, hint, fatal=True, code="config_syntax")
        return _replacement_layers(good(), layer, fault, problems, trusted=not found.distrust)
    try:
        layer = _parsed_layer(layer, problems)
    except JsoncError as error:
        message = f"this is not JSON with comments: {error.message}"
        fault = Problem(str(path), error.line, error.column, message, fatal=True, code="config_syntax")
        return _replacement_layers(good(), layer, fault, problems, trusted=not found.distrust)
    if not found.distrust:
        return [layer]
    return [_distrusted(layer, found.distrust, problems, good=good().layer)]


class _Good(NamedTuple):
    """The last good version of the user's file, and the hint that says so."""

    layer: Layer | None
    hint: str


def _good_copy(home: Path, path: Path) -> _Good:
    copy = good_copy(home, path)
    text = copied_text(copy)
    hint = f"until it is fixed, the last good version applies: {copy}"
    try:
        return _Good(_parsed_layer(Layer("user", {}, str(copy), text, is_file=True), []) if text else None, hint)
    except JsoncError:
        return _Good(None, "")


def _replacement_layers(
    last: _Good, layer: Layer, fault: Problem, problems: list[Problem], *, trusted: bool = True
) -> list[Layer]:
    """Return the layers that replace a file that cannot be read, and report it. If it is not `trusted`, they allow nothing."""
    kept, json5 = salvage_layer(layer)
    kept = _finite(kept, problems)
    good = last.layer
    if not trusted:
        kept, good = replace(denies_of(kept), lost=kept.lost), _without_loosening(good, good) if good else None
    if good is not None:
        hint = last.hint
        layers = [good, denies_of(kept)]
    elif json5 and fault.code == "config_syntax":
        hint = "it is JSON5: write names and texts in double quotes; until it is fixed, only what loosens nothing applies"
        layers = [kept]
    else:
        rest = ", and what can still be read of deny rules and disabled plugins" if layer.text else ""
        hint = f"defaults apply until it is fixed{rest}"
        layers = [kept]
    problems.append(fault._replace(hint=f"{fault.hint}; {hint}" if fault.hint else hint))
    return layers


def _emptied(text: str, before: Layer | None) -> str:
    """Return a message if `text` holds no settings and `before` did: an editor, or a full disk, may have left it so."""
    if before is None or not before.value or not is_blank(text):
        return ""
    return "the file holds only comments" if text.strip() else "the file is empty"


def _distrusted(layer: Layer, why: Doubt, problems: list[Problem], *, good: Layer | None = None) -> Layer:
    """Return the settings that loosen nothing, from a file that others may have written, and report it."""
    message = f"this file gives no allow rules and loosens nothing, because {why.reason}"
    problems.append(Problem(layer.file, None, None, message, why.step, code="config_permissions"))
    return _without_loosening(layer, good)


def _without_loosening(layer: Layer, good: Layer | None) -> Layer:
    """Return the asks, denies and harmless settings of `layer`. Only plugins that `good` disables too stay disabled: others may
    be gates."""
    kept = without_allows(layer)
    before, now = (each.find(("disabledPlugins",)) if each else MISSING for each in (good, layer))
    if not (isinstance(before, list) and isinstance(now, list)):
        return kept
    return replace(kept, value={**kept.value, "disabledPlugins": [name for name in now if name in before]})


def _parsed_layer(layer: Layer, problems: list[Problem]) -> Layer:
    """Return `layer` with the values of its text.

    :raises JsoncError: the text is not a configuration.
    """
    value = parse(layer.text)
    if not isinstance(value, dict):
        raise JsoncError("a configuration is an object: { … }", 1, 1)
    return _finite(replace(layer, value=value), problems)


def _finite(layer: Layer, problems: list[Problem]) -> Layer:
    """Drop numbers that became infinite, for example 1e400."""
    places: list[tuple[str | int, ...]] = []
    _walk(layer.value, (), places.append)
    message = "the number is too large; the default is used"
    problems.extend(layer.problem(place, f"{dotted(place)}: {message}", code="config_value") for place in places)
    for place in reversed(places):
        layer = layer.without(place)
    return layer


def _walk(value: Any, path: tuple[str | int, ...], report: Callable[[tuple[str | int, ...]], None]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        report(path)
    elif isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            _walk(item, (*path, name), report)


SECRETS = "secrets.json"
"""The file for the keys of plugins: people show each other the other file. No tool may read a file of this name."""


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
        layer = _parsed_layer(replace(layer, text=found.text), problems)
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
        return _parsed_layer(Layer("inline", {}, "--config", inline), problems)
    except JsoncError as error:
        where = f"--config:{error.line}:{error.column}"
        raise ConfigError(f"the inline configuration is not JSON: {error.message}", where=where) from error


def _inline_file(path: Path, problems: list[Problem], before: Layer | None) -> Layer:
    layer = Layer("inline", {}, str(path), is_file=True)
    try:
        found = read_source(path)
        if emptied := _emptied(found.text, before):
            raise ConfigError(emptied, where=str(path))
        layer = _parsed_layer(replace(layer, text=found.text), problems)
    except FileNotFoundError as error:
        raise ConfigError("there is no such file", where=str(path), next_step="pass JSON text or the path of a file") from error
    except Unreadable as error:
        raise ConfigError(error.message, where=str(path), next_step=error.hint) from error
    except JsoncError as error:
        where = f"{path}:{error.line}:{error.column}"
        raise ConfigError(f"this is not JSON with comments: {error.message}", where=where, next_step="fix it") from error
    return _distrusted(layer, found.distrust, problems) if found.distrust else layer


def _switch(text: str) -> bool:
    return text.strip().casefold() not in ("", "0", "false", "no", "off")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


ENVIRONMENT: Mapping[str, tuple[str, Callable[[str], Any], bool]] = {
    "MORYFLOW_MODEL": ("model", str.strip, False),
    "MORYFLOW_PLUGINS": ("onlyPlugins", _names, True),
    "MORYFLOW_SAFE_MODE": ("safeMode", _switch, False),
    "MORYFLOW_STRICT": ("strict", _switch, False),
    "MORYFLOW_TRACE": ("trace", _switch, False),
    "MEMORY_BANK_GUARD_MODE": ("agents.runtime.memoryBank.guardMode", lambda text: text.strip().casefold(), False),
}
"""Variable → its dotted key, how it is parsed, and whether it counts if it is empty."""


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


MAX_BYTES = 4 * 1024 * 1024
"""The most bytes of a configuration file; a larger one is a mistake."""


class Unreadable(Exception):
    """A file cannot be read as text; `code` is the problem code.

    :ivar text: what can be read of it; only for denies and settings that loosen nothing.
    :ivar trusted: whether only the user can have written that.
    """

    def __init__(self, message: str, code: str, hint: str = "", data: bytes = b"", trusted: bool = True) -> None:
        super().__init__(message)
        self.message, self.code, self.hint = message, code, hint
        self.text = data.replace(b"\0", b"").decode("utf-8", "replace")  # without NULs, ASCII in UTF-16 can be read
        self.trusted = trusted


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
        raise Unreadable(message, code, hint, data, trusted=not distrust)
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


Lines = dict[tuple[str | int, ...], int]
Fits = Callable[[Any], bool]

HARMLESS: Mapping[str, Fits] = {
    "$schema": lambda value: isinstance(value, str),
    "language": lambda value: isinstance(value, str),
    "model": lambda value: isinstance(value, str),
    "limits": lambda value: True,
    "agents.runtime.agent": lambda value: True,
    "agents.runtime.truncation": lambda value: isinstance(value, dict),
    "onlyPlugins": lambda value: True,
    "safeMode": lambda value: value is not False,
    "strict": lambda value: value is not False,
    "profile": lambda value: value != "local",
}
"""Settings that are taken even from a file that others can write to, or that is not plain JSONC: they loosen nothing. A wrong
value of the last ones may be meant to restrict; the checks of all layers decide."""

_JSON5_BYTES = 64 * 1024
"""The largest file that is tried as JSON5: json5 needs about 15 ms per kilobyte."""
_FLAT_OBJECT = re.compile(r'\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\}', re.DOTALL)
_SPEAKS_OF_RULES = re.compile(r"permission|decision|deny", re.IGNORECASE)
_SPEAKS_OF_LIMITS = re.compile(
    r"(?<![\w./-])(limits|disabledPlugins|onlyPlugins|safeMode|profile|agent)(?![\w./-])[\"']?+"
    r'(?!\s*[,}\]]|\s*[:=]?\s*(?:false|null|"local"))'
)
_SWITCH = re.compile(r'"(disabledPlugins|onlyPlugins|safeMode|profile)"\s*:\s*(\[[^\[\]{}]*+\]|true|"remote")')


def salvage_layer(layer: Layer) -> tuple[Layer, bool]:
    """Return the settings that are taken from a text that is not JSONC, and whether it is JSON5."""
    value = _as_json5(layer.text)
    if value is not None:
        kept = without_allows(Layer(layer.source, value, layer.file, is_file=True))
        own = {"disabledPlugins": value["disabledPlugins"]} if "disabledPlugins" in value else {}
        return replace(kept, value=merged(kept.value, own)), True
    rules = list(salvage_denies(layer.text))
    lines: Lines = {(*RULES, index): line for index, (_, line) in enumerate(rules)}
    value = merged(dict(_switches(layer.text)), nested(RULES, [rule for rule, _ in rules]) if rules else {})
    lost = "the file cannot be read, and rules in it may be lost" if _SPEAKS_OF_RULES.search(layer.text) else ""
    if not lost and any(word not in value for word in _SPEAKS_OF_LIMITS.findall(_blanked(layer.text))):
        lost = "the file cannot be read, and limits, disabled plugins or the agent in it may be lost"
    return Layer(layer.source, value, layer.file, is_file=True, lines=lines, lost=lost), False


def without_allows(layer: Layer) -> Layer:
    """Return `layer` with only the settings that loosen nothing and the rules that are not plainly an allow."""
    from .checks import misspelt_limits  # only a file with something wrong comes here

    misspelt = (problem.message.removesuffix(f"; {MEANWHILE}") for problem in misspelt_limits(layer) if problem.asks)
    lost = next((rule.problem for rule in lost_rules(layer)), "") or next(misspelt, "")
    value: dict[str, Any] = {}
    for name, fits in HARMLESS.items():
        found = layer.find(name.split("."))
        if found is not MISSING and fits(found):
            value = merged(value, nested(name.split("."), found))
    rules = layer.find(RULES)
    if not isinstance(rules, list):
        return Layer(layer.source, value, layer.file, is_file=True, lost=lost)
    kept = [(index, rule) for index, rule in enumerate(rules) if not _is_exactly(rule, "allow")]
    value = merged(value, nested(RULES, [rule for _, rule in kept]))
    lines: Lines = {}
    for place, (index, _) in enumerate(kept):
        if line := layer.position((*RULES, index))[0]:
            lines[(*RULES, place)] = line
    return Layer(layer.source, value, layer.file, is_file=True, lines=lines, lost=lost)


def denies_of(layer: Layer) -> Layer:
    """Return only the denies of a salvaged layer, and rules that may be one, to add them to the last good version."""
    rules = layer.find(RULES)
    kept = [rule for rule in rules if not _is_exactly(rule, "ask")] if isinstance(rules, list) else []
    return Layer(layer.source, nested(RULES, kept) if kept else {}, layer.file, is_file=True, lines=layer.lines)


def _as_json5(text: str) -> dict[str, Any] | None:
    if "\ufffd" in text or len(text) > _JSON5_BYTES:
        return None
    import json5

    try:
        value = json5.loads(text, allow_duplicate_keys=False)
        json.dumps(value, ensure_ascii=False).encode()  # half of a surrogate pair could not be printed later
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_exactly(rule: Any, decision: str) -> bool:
    """Whether `rule` has this `decision` and no other keys than domain, pattern and decision."""
    return isinstance(rule, Mapping) and rule.keys() == {"domain", "pattern", "decision"} and rule["decision"] == decision


def _blanked(text: str) -> str:
    with contextlib.suppress(JsoncError):
        return blank(text)
    return text


def _switches(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings that restrict plugins or the profile, as far as they can still be read."""
    for match in _SWITCH.finditer(_blanked(text)):
        with contextlib.suppress(ValueError):
            value = json.loads(match[2])
            if isinstance(value, {"safeMode": bool, "profile": str}.get(match[1], list)):
                yield match[1], value


def salvage_denies(text: str) -> Iterator[tuple[dict[str, str], int]]:
    """Yield each deny rule that can still be read in a text that does not parse, with its line."""
    text = _blanked(text)
    for match in _FLAT_OBJECT.finditer(text):
        try:
            pairs = json.loads(match.group(), object_pairs_hook=list)
        except (ValueError, RecursionError):
            continue
        rule = {key: value for key, value in pairs if isinstance(value, str)}
        decisions = [value for key, value in pairs if key == "decision"]
        if "deny" in decisions and rule.get("domain") in DOMAINS and "pattern" in rule:
            yield {**{key: rule[key] for key in ("domain", "pattern")}, "decision": "deny"}, position(text, match.start())[0]
