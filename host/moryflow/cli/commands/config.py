"""``moryflow config``: the effective values, where they come from, mistakes, and edits that keep comments."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.findings import unknown_names
from moryflow.cli.open_host import from_host, own_home
from moryflow.cli.options import Flags, document_options, noun
from moryflow.cli.terminal import as_json, columns, plain, say, show, streams

if TYPE_CHECKING:
    from moryflow_sdk import Rule

    from moryflow.config import Config, Origin, Problem
    from moryflow.config.schema import Known
    from moryflow.runtime.host import Host


command = noun("config", "Show, explain, check and change the configuration.")


@command.command("show")
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@document_options
def show_config(flags: Flags, everything: bool) -> None:
    """Show the settings in force and where each comes from. Secrets are left out."""
    from moryflow.config.values import effective, leaves, without_secrets

    config, known = reading(flags)
    value = without_secrets(effective(config, known if everything else ()), known)
    table = columns((path, json.dumps(item, ensure_ascii=False), where(config.origin(path))) for path, item in leaves(value))
    show(flags, value, table or f"nothing is set; {config.path} would hold it")


def where(origin: Origin) -> str:
    """Return the text for an origin: its layer, or the file and line."""
    place = f"{origin.file}:{origin.line}" if origin.file and origin.line else origin.file or ""
    return f"{origin.source} {place}".strip() if origin.source not in ("user", "inline") or not place else place


def tell_overridden(config: Config, key: str, flags: Flags) -> None:
    """Warn if an environment variable overrides the value of `key` that was just written."""
    origin = config.origin(key)
    if origin.source == "environment" and not flags.quiet:
        say(f"moryflow: the new value has no effect here: the variable {origin.file} overrides it\n  next: unset {origin.file}")


@command.command("path")
@document_options
def path(flags: Flags) -> None:
    """Print the path of the user's file, whether it exists or not."""
    from moryflow.config import config_file

    file = config_file(own_home(), os.environ)
    show(flags, {"path": str(file), "exists": file.exists()}, str(file))


@command.command("get")
@click.argument("key")
@document_options
def get(flags: Flags, key: str) -> None:
    """Print the value in force for KEY, or its default if nothing sets it. Secrets are left out."""
    from moryflow.config.values import masked_value

    config, known = reading(flags)
    value = masked_value(key, value_of(config, known, key), known)
    show(flags, value, plain(value) if isinstance(value, str) else as_json(value))


@command.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@document_options
def set_key(flags: Flags, key: str, value: str) -> None:
    """Set KEY in the user's file. VALUE is JSON, or plain text; comments in the file stay."""
    from moryflow.config.values import check_value, masked_value, set_value

    config, known = checked_config(flags)
    parsed = check_value(known, key, value)
    changed = set_value(config.path, key, parsed)
    parsed = masked_value(key, parsed, known)
    text = f"{key} = {json.dumps(parsed, ensure_ascii=False)} ({config.path})" if changed else f"{key} has that value already"
    show(flags, {"key": key, "value": parsed, "changed": changed, "file": str(config.path)}, text)
    tell_overridden(config, key, flags)


@command.command("unset")
@click.argument("key")
@document_options
def unset_key(flags: Flags, key: str) -> None:
    """Remove KEY from the user's file, so that its default holds again."""
    from moryflow.config.values import unset

    config, _ = checked_config(flags)
    changed = unset(config.path, key)
    text = f"{key} is not set any more ({config.path})" if changed else f"{key} is not set in {config.path}"
    show(flags, {"key": key, "changed": changed, "file": str(config.path)}, text)


@command.command("explain")
@click.argument("key")
@document_options
def explain(flags: Flags, key: str) -> None:
    """Show which layer won for KEY, where it is set, and what the other layers say."""
    from moryflow.config.values import default_of, masked_value, refuse_unknown

    config, known = reading(flags)
    if not config.setters(key):
        refuse_unknown(known, key)
    default = masked_value(key, default_of(known, key), known)
    layers = [{"value": masked_value(key, value, known), **origin._asdict()} for value, origin in config.setters(key)]
    layers.append({"value": default, "source": "default", "file": None, "line": None})
    document = {"key": key, "value": layers[0]["value"], "origin": config.origin(key)._asdict(), "layers": layers}
    rows = [
        (" " if index else "*", json.dumps(layer["value"], ensure_ascii=False), _place(layer))
        for index, layer in enumerate(layers)
    ]
    notes = [plain(str(problem)) for problem in config.problems if key in problem.message]
    show(flags, document, "\n".join([key, columns(rows), *notes]))


def _place(layer: dict[str, Any]) -> str:
    place = f"{layer['file']}:{layer['line']}" if layer["line"] else layer["file"] or ""
    return f"{layer['source']}  {place}".rstrip()


@command.command("schema")
@document_options
def schema(flags: Flags) -> None:
    """Print the JSON Schema of the whole configuration, plugins included."""
    from moryflow.config.schema import json_schema
    from moryflow.plugins.manifest import settings_of_plugins

    document = json_schema(from_host(flags, lambda host: settings_of_plugins(host.plugin_set), quiet=True))
    click.echo(as_json(document), file=streams.stdout())


@command.command("check")
@document_options
def check(flags: Flags) -> int:
    """Report every mistake in the configuration; exit code 3 if a deny rule or a file is lost.

    With --strict, a warning fails the check too.
    """
    from moryflow.plugins.manifest import settings_of_plugins

    def work(host: Host) -> tuple[Config, list[Problem]]:
        config = host.config.checked(settings_of_plugins(host.plugin_set))
        return config, [*config.problems, *_plugins(host), *unknown_names(host), *_agents(host), *_remarks(host, config)]

    config, problems = from_host(flags, work, quiet=True)
    failed = any(problem.fatal for problem in problems) or (flags.strict and bool(problems))
    document = {"ok": not failed, "file": str(config.path), "problems": [problem._asdict() for problem in problems]}
    lines = [f"{'error' if problem.fatal else 'warning'}: {plain(str(problem))}" for problem in problems]
    show(flags, document, "\n".join(lines) or f"{config.path}: no problems found")
    return 3 if failed else 0


# ---------------------------------------------------------------- What the commands know about settings


def checked_config(flags: Flags) -> tuple[Config, tuple[Known, ...]]:
    """Return the configuration, checked against the plugins' settings too, and the settings models of host and plugins."""
    from moryflow.config.schema import host_models
    from moryflow.plugins.manifest import settings_of_plugins

    def work(host: Host) -> tuple[Config, tuple[Known, ...]]:
        known = settings_of_plugins(host.plugin_set)
        return host.config.checked(known), (*host_models(), *known)

    return from_host(flags, work, quiet=True)


def reading(flags: Flags) -> tuple[Config, tuple[Known, ...]]:
    """Return what :func:`checked_config` does, for a command that only reads; warn if the user's file is broken."""
    config, known = checked_config(flags)
    if config.torn is not None:
        say(f"moryflow: {config.torn}")
    return config, known


def _plugins(host: Host) -> Iterator[Problem]:
    """Yield a problem for each plugin that could not be loaded because of its settings."""
    from moryflow.config import Problem

    for record in host.plugin_set.records:
        if record.status == "failed" and record.stage == "config":
            text = f"{record.error}; plugin {record.name} is not loaded"
            yield Problem(record.file or str(host.config.path), record.line, None, text, record.hint, code="plugin")


def _agents(host: Host) -> Iterator[Problem]:
    """Yield a problem for each invalid rule of an agent; it fails the check, whichever file the rule is in."""
    from moryflow.config import Problem

    for agent in host.agents.values():
        for rule in (rule for rule in agent.rules if rule.problem):
            text = f"a permission rule of the agent {agent.id}: {rule.problem}"
            yield Problem(rule.file or agent.source, rule.line, None, text, "moryflow agent check", True, "rule_invalid")


def _remarks(host: Host, config: Config) -> Iterator[Problem]:
    """Yield the problems that plugins find in the rules.

    A plugin's function ``check_rules`` gets the rules in matching order and yields ``(rule, sentence)``, or ``(rule,
    sentence, True)`` if a deny is lost and the check must fail.
    """
    from moryflow.config import MAX_PROBLEMS, Problem

    for plugin in host.plugin_set.plugins.values():
        check: Any = getattr(plugin.object, "check_rules", None)
        if check is None:
            continue
        try:
            found = [_remark(*remark) for remark in check(config.rules())]
        except Exception as error:  # a plugin's own check may raise anything; the others still count
            yield Problem(plugin.name, None, None, f"its check of the rules failed: {error}", code="plugin")
            continue
        yield from found[:MAX_PROBLEMS]
        if rest := found[MAX_PROBLEMS:]:
            fatal = any(problem.fatal for problem in rest)
            text = f"{plugin.name} has {len(rest)} more remarks on the rules"
            yield Problem(str(config.path), None, None, text, "moryflow permission lint", fatal, "rule_remark")


def _remark(rule: Rule, sentence: str, fatal: bool = False) -> Problem:
    from moryflow.config import Problem

    return Problem(rule.file or rule.source, rule.line, None, sentence, fatal=fatal, code="rule_remark")


def value_of(config: Config, known: Sequence[Known], key: str) -> Any:
    """Return the value in force for `key`.

    :raises ConfigError: it is not set and has no default.
    """
    from moryflow_sdk import ConfigError
    from moryflow_sdk.support.texts import did_you_mean

    from moryflow.config import MISSING, value_at
    from moryflow.config.values import effective, leaves

    tree = effective(config, known)
    found = value_at(tree, key.split("."))
    if found is MISSING:
        names = [name for name, _ in leaves(tree)]
        raise ConfigError(
            f"{key!r} is not set and has no default{did_you_mean(key, names)}", next_step="moryflow config show --all"
        )
    return found


# ---------------------------------------------------------------- The system prompt


SECTION = "agents.runtime.prompt"
PARAMETERS = ("temperature", "topP", "maxTokens")


prompt = noun("prompt", "Show, replace and restore the system prompt.")


@prompt.command("show")
@document_options
def show_prompt(flags: Flags) -> None:
    """Show the prompt of agents that have none of their own, and the overridden parameters."""
    document = _current(checked_config(flags)[0])
    params = [f"{name}: {document['params'].get(name, 'the model default')}" for name in PARAMETERS]
    head = [f"mode: {document['mode']}", *(params if document["mode"] == "custom" else [])]
    show(flags, document, "\n".join([*head, "", plain(document["text"])]))


def _current(config: Config) -> dict[str, Any]:
    from moryflow.agents import DEFAULT_PROMPT

    section = config.section(SECTION)
    custom = section.get("mode") == "custom"
    text = section.get("text") if custom else None
    params = {key: value for key, value in (section.get("params") or {}).items() if value is not None}
    return {"mode": "custom" if custom else "default", "text": text or DEFAULT_PROMPT, "params": params if custom else {}}


@prompt.command("edit")
@click.option("-f", "--file", "source", type=click.Path(path_type=Path), help="Take the text from a file.")
@document_options
def edit_prompt(flags: Flags, source: Path | None) -> None:
    """Write a prompt of your own, starting from yours, or from the built-in one. It replaces the built-in prompt completely."""
    from moryflow_sdk import ConfigError

    from moryflow.cli.terminal.stdin import as_text
    from moryflow.config.values import set_value

    config, _ = checked_config(flags)
    if source is not None:
        text = as_text(source.read_bytes(), str(source))
    elif not sys.stdin.isatty():
        raise ConfigError("no editor can be opened here", next_step="moryflow config prompt edit --file FILE")
    else:
        with streams.lend_stdout():
            text = click.edit(config.section(SECTION).get("text") or _current(config)["text"], extension=".md") or ""
    if not text.strip():
        raise ConfigError("nothing was changed: the text is empty", next_step="moryflow config prompt reset")
    set_value(config.path, f"{SECTION}.text", text)
    set_value(config.path, f"{SECTION}.mode", "custom")
    show(flags, {"mode": "custom", "file": str(config.path)}, f"the prompt is yours now ({config.path})")


@prompt.command("reset")
@document_options
def reset_prompt(flags: Flags) -> None:
    """Go back to the built-in prompt and the model's own parameters. Yours are kept, and used again in the mode custom."""
    from moryflow.config.values import set_value

    config, _ = checked_config(flags)
    if changed := config.section(SECTION).get("mode") == "custom":
        set_value(config.path, f"{SECTION}.mode", "default")
    kept = f"the built-in prompt is used; yours is kept (moryflow config set {SECTION}.mode custom)"
    show(flags, {"changed": changed}, kept if changed else "the built-in prompt is used already")


command.add_command(prompt)
