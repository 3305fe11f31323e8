"""``permission allow|ask|deny``: write one rule to the configuration, checked before and remarked on after (S0.48, D4)."""

from __future__ import annotations

from typing import Any

import click
from moryflow_sdk import DOMAINS, CommandContext, ConfigError, Rule, Turn
from moryflow_sdk.patterns import compile_rule

from .mistakes import mistake
from .presetting import in_force
from .remarks import remarks
from .text import visible

_EPILOG = "The rule is added at the end of yours, and the last that matches decides. Hard limits and other gates stay."


def _command(decision: str, about: str) -> click.Command:
    @click.command(decision, help=about, epilog=_EPILOG)
    @click.argument("domain", type=click.Choice(DOMAINS), metavar="DOMAIN")
    @click.argument("pattern")
    @click.pass_obj
    def command(context: CommandContext, domain: str, pattern: str) -> None:
        rule = checked(Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision}))
        document = context.run(lambda turn: _add(turn, rule))
        for warning in document["warnings"]:
            click.echo(visible(f"moryflow: {warning}"), err=True)
        said = "added" if document["added"] else "holds already"
        context.print(document, text=f"{said}: {decision} {domain} {visible(pattern)} ({document['where']})")

    return command


def checked(rule: Rule) -> Rule:
    """Return `rule` if it can ever match.

    :raises ConfigError: its pattern is none, or is written as targets never are.
    """
    pattern = compile_rule(rule)
    problem = pattern.problem or (mistake(rule, pattern) if rule.pattern.strip() else "it is empty")
    if problem:
        step = f"write it as `moryflow permission explain {rule.domain} INPUT` shows the target"
        raise ConfigError(f"the pattern {rule.pattern[:80]!r} cannot match: {problem}", next_step=step)
    return rule


async def _add(turn: Turn, rule: Rule) -> dict[str, Any]:
    mine = [one for one in turn.rules.all() if one.source == "user"]
    there = in_force([one for one in mine if one.domain == rule.domain], rule)
    where = await turn.rules.append(rule, scope="user")
    row = _row(rule)
    found = remarks([*(one for one in mine if _row(one) != row), rule], turn.home)
    warnings = [one.sentence for one in found if rule in (one.rule, one.by)]
    return {"v": 1, "type": "rule", "added": not there, "rule": row, "where": where, "warnings": warnings}


def _row(rule: Rule) -> dict[str, str]:
    return {"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision}


allow = _command("allow", "Let every call whose target matches PATTERN run without a question.")
ask = _command("ask", "Ask about every call whose target matches PATTERN.")
deny = _command("deny", "Refuse every call whose target matches PATTERN, in every mode.")
