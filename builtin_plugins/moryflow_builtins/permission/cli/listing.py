"""``permission rules``: all rules in force, in matching order."""

from __future__ import annotations

import click
from moryflow_sdk import DOMAINS, CommandContext, Rule, Turn
from moryflow_sdk.patterns import compile_rule
from moryflow_sdk.verdicts import stored_words

from moryflow_builtins.permission.deciding import policy_of
from moryflow_builtins.permission.judged import place_of, rule_json

from .text import table


@click.command()
@click.option("--domain", type=click.Choice(DOMAINS), help="Only rules of this domain.")
@click.option("--session", metavar="ID", help="Include what was granted in this session.")
@click.pass_obj
def command(context: CommandContext, domain: str | None, session: str | None) -> None:
    """List the rules: defaults, then yours, then inline ones. The last that matches decides."""

    async def work(turn: Turn) -> list[Rule]:
        policy = policy_of(turn)
        layers = (policy.configured, *policy.narrowing)
        return [rule for layer in layers for rule in layer.rules if domain in (None, rule.domain)]

    rules: list[Rule] = context.run(work, session=session)
    rows = [(rule.source, rule.domain, rule.decision, _pattern(rule), _place(rule)) for rule in rules]
    document = [{**(rule_json(rule) or {}), "problem": compile_rule(rule).problem or None} for rule in rules]
    context.print(document, text="\n".join(table(rows, limit=100)) or "no rules")


def _pattern(rule: Rule) -> str:
    """Return the pattern of a rule, and what the rule is bound to."""
    return stored_words(rule.pattern, rule.folder, rule.contents)


def _place(rule: Rule) -> str:
    problem = compile_rule(rule).problem
    place = "" if rule.source == "default" else place_of(rule)
    return f"{place}  (not usable: {problem})" if problem else place
