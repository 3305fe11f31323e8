"""``permission rules``, ``allow``, ``ask``, ``deny``: list the rules, and write one to the configuration."""

from __future__ import annotations

from typing import Any

import click
from moryflow_sdk import DOMAINS, CommandContext, ConfigError, Rule, Turn, thaw
from moryflow_sdk.inside_tool import refuse_inside_tool
from moryflow_sdk.patterns import compile_rule
from moryflow_sdk.targets import command_in
from moryflow_sdk.verdicts import stored_words

from moryflow_builtins.permission.gate import policy_of
from moryflow_builtins.permission.judgement import place_of, rule_json

from .lint import mistake, remarks
from .presets import in_force
from .text import table, visible

_EPILOG = "The rule is added at the end of yours, and the last that matches decides. Hard limits and other gates stay."


def _adds(decision: str, about: str) -> click.Command:
    @click.command(decision, help=about, epilog=_EPILOG)
    @click.argument("domain", type=click.Choice(DOMAINS), metavar="DOMAIN")
    @click.argument("pattern")
    @click.option("--workdir", metavar="DIR", help="For a command: only in this folder of the vault.")
    @click.pass_obj
    def command(context: CommandContext, domain: str, pattern: str, workdir: str | None) -> None:
        refuse_inside_tool(f"moryflow permission {decision}")
        if workdir is not None and domain != "bash":
            raise click.UsageError("--workdir says where a command runs; it goes with the domain bash only")
        rule = checked(Rule.model_validate({"domain": domain, "pattern": pattern, "decision": decision}))
        document = context.run(lambda turn: _add(turn, rule, workdir))
        for warning in document["warnings"]:
            click.echo(visible(f"moryflow: {warning}"), err=True)
        said = "added" if document["added"] else "holds already"
        shown = visible(stored_words(pattern, document["rule"].get("folder"), {}))
        context.print(document, text=f"{said}: {decision} {domain} {shown} ({document['where']})")

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


async def _add(turn: Turn, rule: Rule, workdir: str | None) -> dict[str, Any]:
    if workdir is not None:
        rule = rule.replace(folder=_folder(turn, workdir))
    mine = [one for one in turn.rules.all() if one.source == "user"]
    there = in_force([one for one in mine if one.domain == rule.domain], rule)
    where = await turn.rules.append(rule, scope="user")
    row = _row(rule)
    found = remarks([*(one for one in mine if _row(one) != row), rule], turn.home)
    warnings = [one.sentence for one in found if rule in (one.rule, one.by)]
    return {"v": 1, "type": "rule", "added": not there, "rule": row, "where": where, "warnings": warnings}


def _folder(turn: Turn, workdir: str) -> str:
    """Return a folder as rules name it.

    :raises ConfigError: no command runs there.
    """
    target = command_in(turn.files.resolve(workdir or ".", as_stored=True), "")
    if target.folder is None or target.error is not None:
        raise ConfigError(f"--workdir: {target.error}", next_step="name a folder of the vault")
    return target.folder.text


def _row(rule: Rule) -> dict[str, Any]:
    bound_to = {key: thaw(value) for key in ("folder", "contents") if (value := getattr(rule, key))}
    return {"domain": rule.domain, "pattern": rule.pattern, "decision": rule.decision, **bound_to}


allow = _adds("allow", "Let calls whose target matches PATTERN run unasked; of commands, what a wildcard covers.")
ask = _adds("ask", "Ask about every call whose target matches PATTERN.")
deny = _adds("deny", "Refuse every call whose target matches PATTERN, in every mode.")


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
