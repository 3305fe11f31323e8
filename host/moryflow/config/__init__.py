"""The configuration: its layers, the effective settings, the origin of each, and what is wrong with them.

:func:`load_config` reads the layers (``load.py``) and checks them against the known settings (``checks.py``).
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from moryflow_sdk import Rule
from moryflow_sdk.support.rule_entries import ANY_DOMAIN, MEANWHILE, not_understood, read_entries
from moryflow_sdk.support.secrets import know, know_environment, secret_values

from moryflow.base.paths import VOLUME, repository_of

from .jsonc import JsoncError, JsoncNode, tree

if TYPE_CHECKING:
    from .schema import Known


Place = Sequence[str | int]
MISSING: Any = object()


@dataclass(frozen=True)
class Layer:
    """The values of one source. `text` is kept to find lines.

    :param file: the file, or the name to show instead (``--config``, a flag).
    :param lost: why rules of the source may be missing in `value`; empty if none can be missing.
    :param names: for the environment: top-level key → the variable it comes from.
    """

    source: SourceName
    value: dict[str, Any]
    file: str = ""
    text: str = ""
    is_file: bool = False
    names: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""

    @cached_property
    def _tree(self) -> JsoncNode | None:
        try:
            return tree(self.text) if self.text else None
        except (JsoncError, ValueError, IndexError):
            return None

    def find(self, path: Place) -> Any:
        """Return the value at `path`, or :data:`MISSING`."""
        return value_at(self.value, path)

    def position(self, path: Place) -> tuple[int | None, int | None]:
        """Return line and column of `path`, or of the nearest container that is in the text."""
        node = self._tree
        if node is None:
            return None, None
        for name in path:
            child = node.child(name)
            if child is None:
                break
            node = child
        line = bisect_right(self._line_starts, node.begin)
        return line, node.begin - self._line_starts[line - 1] + 1

    @cached_property
    def _line_starts(self) -> list[int]:
        """The offset of each line. Cached: counting lines again for each of thousands of rules takes seconds."""
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def label(self, path: Place) -> str:
        """Return the file, variable or flag that `path` comes from."""
        return self.names.get(dotted(path[:1]), self.file) if self.names else self.file

    def problem(
        self, path: Place, message: str, hint: str = "", *, code: str, fatal: bool = False, asks: bool = False
    ) -> Problem:
        """Return a problem with the line and column of `path`."""
        line, column = self.position(path)
        said = f"{message}; {MEANWHILE}" if asks else message
        return Problem(self.label(path), line, column, said, hint, fatal or asks, code, asks)

    def without(self, path: Place) -> Layer:
        """Return the layer without the value at `path`."""
        return replace(self, value=_without(self.value, list(path)))


def _without(value: Any, path: list[str | int]) -> Any:
    head, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        if rest:
            return {key: _without(item, rest) if key == head else item for key, item in value.items()}
        return {key: item for key, item in value.items() if key != head}
    if not isinstance(value, list):
        return value
    if rest:
        return [_without(item, rest) if index == head else item for index, item in enumerate(value)]
    return [item for index, item in enumerate(value) if index != head]


def step_into(value: Any, name: str | int) -> Any:
    """Return the member or item called `name`, or :data:`MISSING`."""
    if isinstance(value, Mapping):
        return value.get(name, MISSING)
    if isinstance(value, list) and isinstance(name, int) and name < len(value):
        return value[name]
    return MISSING


def value_at(value: Any, path: Place) -> Any:
    """Return the value at `path` in `value`, or :data:`MISSING`."""
    for name in path:
        value = step_into(value, name)
    return value


def dotted(path: Place) -> str:
    """Return a path as people write it: ``agents.runtime.hooks.tool.after[0].prependText``."""
    text = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
    return text.removeprefix(".")


def nested(path: Sequence[str], value: Any) -> dict[str, Any]:
    """Return `value` wrapped in one mapping per name of `path`."""
    for name in reversed(path):
        value = {name: value}
    return value


def merged(below: Any, above: Any) -> Any:
    """Merge `above` into `below`: mappings are merged, any other value of `above` replaces that of `below`."""
    if not isinstance(below, Mapping) or not isinstance(above, Mapping):
        return above
    return {**below, **{key: merged(below[key], item) if key in below else item for key, item in above.items()}}


SourceName = Literal["default", "user", "secrets", "environment", "inline", "flag"]

# How many problems are reported per file; the others are only counted.
MAX_PROBLEMS = 50


class Problem(NamedTuple):
    """One thing that is wrong: where, what, and a hint.

    :param code: the kind of problem, for example ``config_syntax`` or ``rule_invalid``.
    :param fatal: a deny rule, a limit or the disabling of a plugin may be lost, so ``config check`` fails and runs report
        the problem.
    :param asks: because of it every call is asked about, in every mode, until it is solved.
    """

    file: str
    line: int | None
    column: int | None
    message: str
    hint: str = ""
    fatal: bool = False
    code: str = "config_value"
    asks: bool = False

    @property
    def where(self) -> str:
        """``file:line:column`` as far as it is known."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part)

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" + (f" ({self.hint})" if self.hint else "")


class Origin(NamedTuple):
    """The layer that a value comes from. For the environment, `file` is the name of the variable."""

    source: SourceName
    file: str | None = None
    line: int | None = None


# The path of the permission rules.
RULES = ("agents", "runtime", "permission", "rules")


def read_rules(layer: Layer, path: Place = RULES) -> tuple[list[Rule], list[Problem]]:
    """Return the rules of `layer` at `path` in order, and the problems. A rule that cannot be read gets a stand-in."""
    entries = layer.find(path)
    rules, faults = read_entries(
        entries if isinstance(entries, list) else [],
        _source(layer),
        layer.file if layer.is_file else None,
        line=lambda index: layer.position((*path, index))[0],
    )
    problems: list[Problem] = []
    for fault in faults[:MAX_PROBLEMS]:
        place = (*path, fault.index, fault.key) if fault.key else (*path, fault.index)
        problems.append(layer.problem(place, fault.message, fault.hint, code=fault.code, fatal=not fault.harmless))
    if rest := faults[MAX_PROBLEMS:]:
        fatal = not all(fault.harmless for fault in rest)
        problems.append(layer.problem(path, f"{len(rest)} more rules are wrong", code="rule_invalid", fatal=fatal))
    return rules, problems


class FolderSettings(NamedTuple):
    """What the user's configuration sets for one folder and those below it; empty texts and no rules where it does not."""

    path: Path
    model: str = ""
    agent: str = ""
    rules: tuple[Rule, ...] = ()
    queue: str = ""
    volume: str = ""


def read_folders(layer: Layer) -> tuple[list[FolderSettings], list[Problem]]:
    """Return the settings by folder of `layer`, and the problems. A list of rules that is none makes every call there ask."""
    folders, problems = list[FolderSettings](), list[Problem]()
    found = layer.find(("folders",))
    for name, given in found.items() if isinstance(found, Mapping) else ():
        place = ("folders", name)
        if not (name.startswith(("/", "~")) and isinstance(given, Mapping)):
            said = f"{'.'.join(place)}: a folder begins with / or ~, and its value is an object"
            problems.append(layer.problem(place, said, code="config_value", fatal=holds_deny(given), asks=holds_deny(given)))
            continue
        rules, wrong = read_rules(layer, (*place, "rules"))
        problems += wrong
        if not isinstance(given.get("rules", []), list):
            said = f"{'.'.join(place)}.rules must be a list of rules"
            problems.append(layer.problem(place, said, code="rule_invalid", fatal=True))
            rules = [_asking(layer, said, layer.position(place)[0])]
        texts = {key: value for key in ("model", "agent", "queue", "volume") if isinstance(value := given.get(key), str)}
        folders.append(FolderSettings(Path(os.path.realpath(Path(name).expanduser())), rules=tuple(rules), **texts))
    return folders, problems


def _source(layer: Layer) -> Literal["inline", "user"]:
    return "user" if layer.source == "user" else "inline"


# Sections in which a word like `deny` belongs to someone else.
_OF_OTHERS = (("plugins",), ("models",), ("mcp",), ("agents", "runtime", "hooks"))


def _misplaced_rules(layer: Layer) -> str:
    """Return a sentence if `layer` seems to have rules in a place where none are read; no setting has such a value."""
    read = [RULES] if isinstance(layer.find(RULES), list) else []
    read += [("folders",)] if isinstance(layer.find(("folders",)), Mapping) else []
    for place in (*_OF_OTHERS, *read):
        layer = layer.without(place)
    return "rules stand in a place where none are read" if holds_deny(layer.value) else ""


def holds_deny(value: Any) -> bool:
    """Whether `value`, which is in a place that is not read, holds what may be meant as a deny, or to ask."""
    if isinstance(value, Mapping):
        members = (*value, *value.values())  # other systems write {"deny": [...]}
        return value.get("decision", "allow") != "allow" or any(map(holds_deny, members))
    if isinstance(value, list):
        return any(map(holds_deny, value))
    return isinstance(value, str) and value.strip().casefold() in ("deny", "ask")


# Problem codes of a file that cannot be used at all.
_TORN = ("config_missing", "config_syntax", "config_encoding", "config_unreadable", "config_limits", "config_permissions")


def config_file(home: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the path of the user's file: ``config.jsonc`` in `home`, or what ``MORYFLOW_CONFIG`` names."""
    named = (os.environ if environ is None else environ).get("MORYFLOW_CONFIG", "").strip()
    return Path(named).expanduser() if named else home / "config.jsonc"


def load_config(
    home: Path,
    *,
    inline: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    last: Config | None = None,
) -> Config:
    """Read all layers. An error in the user's file becomes a problem, and the default applies.

    :param inline: ``--config``: JSON text or a path.
    :param flags: dotted key → value; ``None`` values are flags that were not given.
    :param last: the settings until now; what it read of a file applies while that file cannot be read.
    :raises ConfigError: `inline` cannot be read, and `last` has not read it.
    """
    from .load import environment_layer, flag_layer, inline_layer, secrets_layer, user_layers

    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    path = config_file(home, environ)
    before = last.read if last is not None else {}
    user = user_layers(home, path, problems, before.get("user"))
    torn = any(problem.code in _TORN for problem in problems)
    secrets = secrets_layer(home, problems, before.get("secrets"))
    given = inline_layer(inline, problems, before.get("inline")) if inline is not None else Layer("inline", {}, "--config")
    layers = [*user, secrets, environment_layer(environ), given, flag_layer(flags or {})]
    know_environment(environ)
    for layer in layers:
        know(secret_values(layer.value))
    config = Config(tuple(layer for layer in layers if layer.value or layer.lost), tuple(problems), path)._host_checked()
    good = before.get("user") if torn else next(iter(user), Layer("user", {}, str(path), is_file=True))
    config.read = {"secrets": secrets, "inline": given, **({} if good is None else {"user": good})}
    return config


def store_url(home: Path) -> str:
    """Return the PostgreSQL database that ``MORYFLOW_STORE`` or the setting ``store.url`` names, or ``""``."""
    if url := os.environ.get("MORYFLOW_STORE", "").strip():
        return url
    with suppress(OSError, UnicodeDecodeError):
        if '"store"' in config_file(home, os.environ).read_text(encoding="utf-8"):  # most files need no parser for this
            return load_config(home, environ=os.environ).get("store.url") or ""
    return ""


class Config:
    """The effective settings, and the origin of each. A configuration never changes; :meth:`checked` makes a new one.

    :ivar path: the user's file, whether it exists or not; edits are written to it.
    :ivar read: what was read last of each file that could be read, by source, before any check.
    """

    def __init__(self, layers: tuple[Layer, ...], problems: tuple[Problem, ...], path: Path) -> None:
        self.layers, self.problems, self.path = layers, problems, path
        self._value: dict[str, Any] = {}
        self._rules, self._folders = list[Rule](), list[FolderSettings]()
        self.read: dict[SourceName, Layer] = {}
        for layer in layers:
            self._value = merged(self._value, layer.value)

    def get(self, dotted: str, default: Any = None) -> Any:
        """Return the value at `dotted` (``agents.runtime.mode.default``), or `default` if no layer sets it."""
        value = value_at(self._value, dotted.split(".") if dotted else ())
        return default if value is MISSING else value

    def section(self, dotted: str) -> Mapping[str, Any]:
        """Return the object at `dotted`; an empty one if there is no object."""
        value = self.get(dotted)
        return value if isinstance(value, Mapping) else {}

    def origin(self, dotted: str) -> Origin:
        """Return the strongest layer that sets `dotted`, or something below it."""
        return next((origin for _, origin in self.setters(dotted)), Origin("default"))

    def setters(self, dotted: str) -> list[tuple[Any, Origin]]:
        """Return every layer's value for `dotted`, the strongest first."""
        path = dotted.split(".")
        found = [(layer, layer.find(path)) for layer in reversed(self.layers)]
        return [
            (value, Origin(layer.source, layer.label(path) or None, layer.position(path)[0]))
            for layer, value in found
            if value is not MISSING
        ]

    def rules(self, vault: str | Path | None = None) -> list[Rule]:
        """Return the permission rules in matching order: the user's rules, inline rules, then those for the folder `vault`."""
        return [*self._rules, *(rule for entry in self.folders(vault) for rule in entry.rules)]

    def folders(self, vault: str | Path | None) -> list[FolderSettings]:
        """Return the settings for the folder `vault`, those of folders above it first."""
        if vault is None or not self._folders:
            return []
        here = Path(os.path.realpath(self.place(vault)))
        return sorted((one for one in self._folders if here.is_relative_to(one.path)), key=lambda one: len(one.path.parts))

    def chosen(self, key: Literal["model", "agent"], vault: str | Path | None) -> str | None:
        """Return the model, or the id of the agent, that is set for the folder `vault` or for all."""
        dotted_key = "model" if key == "model" else "agents.runtime.agent.id"
        if self.origin(dotted_key).source in ("user", "default"):  # what is typed or in the environment counts more
            for entry in reversed(self.folders(vault)):
                if value := getattr(entry, key):
                    return value
        return self.get(dotted_key)

    def queue_of(self, vault: str | Path) -> str:
        """Return the queue of workers that take sessions of the folder or workspace `vault`; empty if none is set."""
        folder, _ = repository_of(str(vault))
        if folder.startswith(VOLUME):
            return folder.partition("/")[0]
        return next((entry.queue for entry in reversed(self.folders(folder)) if entry.queue), "")

    @property
    def volumes(self) -> dict[str, Path]:
        """The folders that have a name in the cluster, by ``volume:NAME``."""
        return {f"{VOLUME}{entry.volume}": entry.path for entry in self._folders if entry.volume}

    def place(self, vault: str | Path) -> Path:
        """Return the path of the folder or volume `vault` on this machine; a volume that is not here is a path that is not."""
        name, _, below = str(vault).partition("/")
        return self.volumes[name] / below if name in self.volumes else Path(vault)

    @property
    def files(self) -> list[Path]:
        """The user's file, and the one that ``--config`` names; a file need not exist."""
        return [self.path, *(Path(layer.file) for layer in self.read.values() if layer.source == "inline" and layer.is_file)]

    @property
    def torn(self) -> Problem | None:
        """The problem because of which the user's file could not be read as a configuration, if there is one."""
        return next((item for item in self.problems if item.code in _TORN and item.file == str(self.path)), None)

    def keep(self, home: Path) -> None:
        """Store a copy of the user's file if it is good, in case a later start cannot read it. A host calls this at start."""
        from .load import good_copy, keep

        if self.torn is None:
            own = next((layer.text for layer in self.layers if layer.source == "user" and layer.value), "")
            keep(good_copy(home, self.path), own)

    def without(self, *places: Place) -> Config:
        """Return the configuration without the values at `places`."""
        layers = list(self.layers)
        for place in places:
            layers = [layer.without(place) if layer.find(place) is not MISSING else layer for layer in layers]
        return self._with(layers, list(self.problems))

    def checked(self, known: Iterable[Known]) -> Config:
        """Return the configuration checked against the plugins' settings too: bad values dropped, unknown keys reported."""
        if not any(layer.value for layer in self.layers):
            return self
        from .checks import drop_bad_values, unknown_keys
        from .schema import host_models

        known = tuple(known)
        layers, problems = [], list(self.problems)
        for layer in self.layers:
            problems.extend(unknown_keys(layer, (*host_models(), *known)))
            clean, bad = drop_bad_values(layer, known)
            layers.append(clean)
            problems.extend(bad)
        return self._with(layers, problems)

    def _host_checked(self) -> Config:
        if not self.layers:
            return self
        from .checks import checked_servers, drop_bad_values, normalised
        from .schema import host_models

        layers, problems, lost, folders = [], list(self.problems), list[Rule](), list[FolderSettings]()
        for layer in self.layers:
            layer = normalised(layer)
            found, wrong = read_folders(layer)
            folders += found
            problems += wrong
            lost += [_asking(layer, item.message, item.line) for item in wrong if item.asks]
            if reason := layer.lost or _misplaced_rules(layer):
                lost.append(_asking(layer, reason, None))
            layer, bad_servers = checked_servers(layer)
            clean, bad = drop_bad_values(layer, host_models(), strict=True)
            lost += [_asking(layer, problem.message, problem.line) for problem in bad if problem.asks]
            problems.extend([*bad_servers, *bad, *_rules_shape(clean)])
            layers.append(clean)
        checked = self._with(layers, problems)
        checked._rules = [*lost, *checked._rules]
        for layer in layers:
            rules, bad = read_rules(layer)
            checked._rules += rules
            checked.problems += tuple(bad)
        checked._folders = folders
        return checked

    def _with(self, layers: list[Layer], problems: list[Problem]) -> Config:
        config = Config(tuple(layers), tuple(problems), self.path)
        config._rules, config._folders = self._rules, self._folders
        rules = [rule for layer in layers for rule in _rules_of(layer)]
        if rules:
            config._value = merged(config._value, {"agents": {"runtime": {"permission": {"rules": rules}}}})
        return config


def _asking(layer: Layer, problem: str, line: int | None) -> Rule:
    """Return a rule because of which every call is asked about, in every mode, until `problem` is solved."""
    file = layer.file if layer.is_file else None
    return not_understood(ANY_DOMAIN, problem.removesuffix(f"; {MEANWHILE}"), source=_source(layer), file=file, line=line)


def _rules_of(layer: Layer) -> list[Any]:
    rules = layer.find(RULES)
    return rules if isinstance(rules, list) else []


def _rules_shape(layer: Layer) -> list[Problem]:
    for end in range(1, len(RULES)):
        section = layer.find(RULES[:end])
        if section is not MISSING and not isinstance(section, Mapping):
            message = f"{'.'.join(RULES[:end])} must be an object; it is ignored"
            return [layer.problem(RULES[:end], message, code="config_type", fatal=holds_deny(section))]
    rules = layer.find(RULES)
    if rules is MISSING or isinstance(rules, list):
        return []
    return [layer.problem(RULES, "permission.rules must be a list of rules", code="rule_invalid", fatal=True)]
