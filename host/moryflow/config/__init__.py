"""Configuration: layers, checks, origins, and edits that keep comments."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moryflow_sdk import Rule
from moryflow_sdk.support.secrets import know, know_environment, secret_values

from .layers import MISSING, RULES, Layer, Origin, Problem, holds_deny, lost_rules, merged, read_rules, value_at
from .load import environment_layer, flag_layer, good_copy, inline_layer, keep, secrets_layer, user_layers

if TYPE_CHECKING:
    from .schema import Known

__all__ = ["Config", "Origin", "Problem", "config_file", "load_config"]


_TORN = ("config_missing", "config_syntax", "config_encoding", "config_unreadable", "config_limits")
"""Classes of reports on a file of which nothing can be taken as it stands."""


def config_file(home: Path, environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's file: ``config.jsonc`` in `home`, or what ``MORYFLOW_CONFIG`` names."""
    named = (os.environ if environ is None else environ).get("MORYFLOW_CONFIG", "").strip()
    return Path(named).expanduser() if named else home / "config.jsonc"


def load_config(
    home: Path,
    *,
    inline: str | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Read all layers; whatever is wrong in the user's file becomes a problem, and the defaults hold.

    :param inline: ``--config``: JSON text or a path.
    :param flags: dotted key → value; ``None`` values are flags that were not given.
    :raises ConfigError: `inline` cannot be read.
    """
    environ = os.environ if environ is None else environ
    problems: list[Problem] = []
    path = config_file(home, environ)
    layers = [
        *user_layers(home, path, problems),
        *secrets_layer(home, problems),
        environment_layer(environ),
        inline_layer(inline, problems) if inline is not None else Layer("inline", {}, "--config"),
        flag_layer(flags or {}),
    ]
    know_environment(environ)
    for layer in layers:
        know(secret_values(layer.value))
    return Config(tuple(layer for layer in layers if layer.value or layer.lost), tuple(problems), path)._host_checked()


class Config:
    """The settings that hold, and where each comes from. Never changes; :meth:`checked` makes a new one.

    :ivar path: the user's file, whether it exists or not; edits go there.
    """

    def __init__(self, layers: tuple[Layer, ...], problems: tuple[Problem, ...], path: Path) -> None:
        self.layers, self.problems, self.path = layers, problems, path
        self._value: dict[str, Any] = {}
        self._rules: list[Rule] = []
        self._outlived = False
        for layer in layers:
            self._value = merged(self._value, layer.value)

    def get(self, dotted: str, default: Any = None) -> Any:
        """Return the value at `dotted` (``agents.runtime.mode.default``), or `default` where no layer sets it."""
        value = value_at(self._value, dotted.split(".") if dotted else ())
        return default if value is MISSING else value

    def section(self, dotted: str) -> Mapping[str, Any]:
        """Return the object at `dotted`; an empty one where there is none."""
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

    def rules(self) -> list[Rule]:
        """Return the permission rules in matching order: the user's, then inline ones."""
        return list(self._rules)

    @property
    def torn(self) -> Problem | None:
        """Why the user's file could not be read as a configuration, where that is so."""
        return next((item for item in self.problems if item.code in _TORN and item.file == str(self.path)), None)

    def after(self, newer: Config) -> Config:
        """Return the settings that hold once `newer` was read: those, unless its file is torn and this one's was not."""
        if newer.torn is None or (self.torn is not None and not self._outlived):
            return newer
        torn = newer.torn._replace(hint="the previous settings apply until it is fixed")
        kept = copy(self)
        kept._outlived = True
        kept.problems = (*(item for item in self.problems if item.code not in _TORN), torn)
        return kept

    def keep(self, home: Path) -> None:
        """Keep the user's file as it is now, for a start at which it cannot be read; a host does so when it begins."""
        if self.torn is None and all(item.code != "config_permissions" for item in self.problems):
            own = next((layer.text for layer in self.layers if layer.source == "user" and layer.value), "")
            keep(good_copy(home, self.path), own)

    def checked(self, known: Iterable[Known]) -> Config:
        """Return the configuration held against the plugins' settings too: bad values dropped, unknown keys reported."""
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
        from .checks import as_meant, checked_servers, drop_bad_values
        from .schema import host_models

        layers, problems, lost = [], list(self.problems), []
        for layer in self.layers:
            layer, slips = as_meant(layer)
            lost += lost_rules(layer)
            layer, bad_servers = checked_servers(layer)
            clean, bad = drop_bad_values(layer, host_models(), strict=True)
            problems.extend([*slips, *bad_servers, *bad, *_rules_shape(clean)])
            layers.append(clean)
        checked = self._with(layers, problems)
        checked._rules = [*lost, *checked._rules]
        for layer in layers:
            rules, bad = read_rules(layer)
            checked._rules += rules
            checked.problems += tuple(bad)
        return checked

    def _with(self, layers: list[Layer], problems: list[Problem]) -> Config:
        config = Config(tuple(layers), tuple(problems), self.path)
        config._rules = self._rules
        rules = [rule for layer in layers for rule in _listed(layer)]
        if rules:
            config._value = merged(config._value, {"agents": {"runtime": {"permission": {"rules": rules}}}})
        return config


def _listed(layer: Layer) -> list[Any]:
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
