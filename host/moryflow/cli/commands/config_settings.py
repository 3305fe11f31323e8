"""What the ``config`` commands know about settings: the host's and the plugins', their defaults, their checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from moryflow_sdk import ConfigError, Rule
from moryflow_sdk.support.texts import did_you_mean

from moryflow.cli.open_host import with_host
from moryflow.cli.terminal.text import plain
from moryflow.cli.unknown_names import unknown_names
from moryflow.config import Config
from moryflow.config.layers import MOST, Problem
from moryflow.config.schema import Known, host_models
from moryflow.runtime.settings import NOTHING, effective, leaves, settings_of_plugins, value_at

if TYPE_CHECKING:
    from moryflow.runtime.host import Host


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


def value_of(config: Config, known: Sequence[Known], key: str) -> Any:
    """Return what holds for `key`.

    :raises ConfigError: there is no such setting.
    """
    tree = effective(config, known)
    found = value_at(tree, key)
    if found is NOTHING:
        names = [name for name, _ in leaves(tree)]
        raise ConfigError(
            f"{key!r} is not set and has no default{did_you_mean(key, names)}", next_step="moryflow config show --all"
        )
    return found
