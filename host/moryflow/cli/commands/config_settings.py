"""What the ``config`` commands know about settings: the host's and the plugins', their defaults, their checks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError, Rule
from moryflow_sdk.support.secrets import masked

from moryflow.cli.lookup import did_you_mean
from moryflow.cli.open_host import settings_of_plugins, with_host
from moryflow.cli.terminal.text import plain
from moryflow.cli.unknown_names import unknown_names
from moryflow.config import Config
from moryflow.config.checks import drop_bad_values
from moryflow.config.layers import MOST, RULES, Layer, Problem, merged, nested, read_rules
from moryflow.config.schema import Known, defaults, host_models
from moryflow.config.unknown import unknown_keys

if TYPE_CHECKING:
    from moryflow.runtime.host import Host

_NOTHING: Any = object()


def checked_config(ctx: click.Context) -> tuple[Config, tuple[Known, ...]]:
    """Return the configuration, held against the plugins' settings too, and all models."""

    async def work(host: Host) -> tuple[Config, tuple[Known, ...]]:
        known = settings_of_plugins(host)
        return host.config.checked(known), (*host_models(), *known)

    return with_host(ctx, work, quiet=True)


def reading(ctx: click.Context) -> tuple[Config, tuple[Known, ...]]:
    """Do as :func:`checked_config` for a command that only shows, and say when the person's file counts for nothing in it."""
    config, known = checked_config(ctx)
    if config.torn is not None:
        click.echo(plain(f"moryflow: {config.torn}"), err=True)
    return config, known


def config_with_problems(ctx: click.Context) -> tuple[Config, list[Problem]]:
    """Return the configuration and all that is wrong with it, also what plugins say of the rules.

    A plugin's function ``check_rules`` is given the rules in matching order and yields ``(rule, sentence)``, or ``(rule,
    sentence, True)`` where a deny is lost and the check must fail.
    """

    async def work(host: Host) -> tuple[Config, list[Problem]]:
        config = host.config.checked(settings_of_plugins(host))
        return config, [*config.problems, *_plugins(host), *unknown_names(host), *_agents(host), *_remarks(host, config)]

    return with_host(ctx, work, quiet=True)


def _plugins(host: Host) -> Iterator[Problem]:
    """Yield the settings for which a plugin could not be loaded."""
    for record in host.plugin_set.records:
        if record.status == "failed" and record.stage == "config":
            text = f"{record.error}; plugin {record.name} is not loaded"
            yield Problem(record.file or str(host.config.path), record.line, None, text, record.hint, code="plugin")


def _agents(host: Host) -> Iterator[Problem]:
    """Yield the rules of agents that cannot be understood: they fail the check wherever they stand."""
    for agent in host.agents.values():
        for rule in (rule for rule in agent.rules if rule.problem):
            text = f"a permission rule of the agent {agent.id}: {rule.problem}"
            yield Problem(rule.file or agent.source, rule.line, None, text, "moryflow agent check", True, "rule_invalid")


def _remarks(host: Host, config: Config) -> Iterator[Problem]:
    for plugin in host.plugin_set.plugins.values():
        check: Any = getattr(plugin.object, "check_rules", None)
        if check is None:
            continue
        try:
            found = [_remark(*said) for said in check(config.rules())]
        except Exception as error:  # a plugin's own check may raise anything; the others still count
            yield Problem(plugin.name, None, None, f"its check of the rules failed: {error}", code="plugin")
            continue
        yield from found[:MOST]
        if rest := found[MOST:]:
            fatal = any(problem.fatal for problem in rest)
            text = f"{plugin.name} has {len(rest)} more remarks on the rules"
            yield Problem(str(config.path), None, None, text, "moryflow permission lint", fatal, "rule_remark")


def _remark(rule: Rule, sentence: str, fatal: bool = False) -> Problem:
    return Problem(rule.file or rule.source, rule.line, None, sentence, fatal=fatal, code="rule_remark")


def plugin_settings(ctx: click.Context) -> tuple[Known, ...]:
    """Return the models of the plugins' settings, by path."""

    async def work(host: Host) -> tuple[Known, ...]:
        return settings_of_plugins(host)

    return with_host(ctx, work, quiet=True)


def effective(config: Config, known: Sequence[Known]) -> dict[str, Any]:
    """Return the settings that hold: those of the layers, over the defaults of `known`."""
    return merged(defaults(known), config.get(""))


def leaves(value: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting with its dotted key; lists are one value."""
    for key, item in value.items():
        dotted = f"{path}.{key}" if path else key
        if isinstance(item, Mapping) and item:
            yield from leaves(item, dotted)
        else:
            yield dotted, item


def without_secrets(tree: Mapping[str, Any], known: Sequence[Known]) -> dict[str, Any]:
    """Return settings with ``[redacted]`` in the place of every secret: by its name, or by its type in a model of `known`."""
    shown = masked(tree)
    for path, model in known:
        section = _at(shown, path) if path else shown
        if section is not _NOTHING:
            shown = merged(shown, nested(path.split(".") if path else (), masked(section, [model])))
    return shown


def shown_at(key: str, value: object, known: Sequence[Known]) -> Any:
    """Return what is shown of the value of `key`."""
    return _at(without_secrets(nested(key.split("."), value), known), key)


def default_of(known: Sequence[Known], key: str) -> Any:
    """Return the default of `key`, ``None`` where it has none."""
    found = _at(defaults(known), key)
    return None if found is _NOTHING else found


def value_of(config: Config, known: Sequence[Known], key: str) -> Any:
    """Return what holds for `key`.

    :raises ConfigError: there is no such setting.
    """
    tree = effective(config, known)
    found = _at(tree, key)
    if found is _NOTHING:
        names = [name for name, _ in leaves(tree)]
        raise ConfigError(
            f"{key!r} is not set and has no default{did_you_mean(key, names)}", next_step="moryflow config show --all"
        )
    return found


def _at(tree: object, key: str) -> Any:
    for name in key.split("."):
        if not isinstance(tree, Mapping) or name not in tree:
            return _NOTHING
        tree = tree[name]
    return tree


def check_value(known: Sequence[Known], key: str, text: str) -> Any:
    """Return `text` as the value of `key`: as JSON where that is valid, else as plain text.

    :raises ConfigError: the key is not known, or the value is not valid for it.
    """
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    problems = _problems(known, key, value)
    if problems and isinstance(value, int | float | None) and not _problems(known, key, text):
        return text
    if problems:
        first = problems[0]
        hint = first.hint or f"moryflow config explain {key}"
        said = first.message
        for end in ("; the default holds", "; the entry is left out", "; it is ignored"):
            said = said.removesuffix(end)
        raise ConfigError(said, where="" if key in said else key, next_step=hint)
    return value


def refuse_unknown(known: Sequence[Known], key: str) -> None:
    """Say so when no setting is called `key`.

    :raises ConfigError: likewise.
    """
    for problem in unknown_keys(Layer("user", nested(key.split("."), None), key), known):
        where = "" if key in problem.message else key
        raise ConfigError(problem.message, where=where, next_step=problem.hint or "moryflow config show --all")


def _problems(known: Sequence[Known], key: str, value: object) -> list[Any]:
    layer = Layer("user", nested(key.split("."), value), key)
    host = len(host_models())
    _, of_host = drop_bad_values(layer, known[:host], strict=True)
    _, of_others = drop_bad_values(layer, known[host:])
    wrong_rules = _wrong_rules(layer) if key == ".".join(RULES) else []
    return [*unknown_keys(layer, known), *of_host, *of_others, *wrong_rules]


def _wrong_rules(layer: Layer) -> list[Any]:
    if not isinstance(layer.find(RULES), list):
        return [layer.problem(RULES, "the rules must be a list", code="rule_invalid")]
    return read_rules(layer)[1]
