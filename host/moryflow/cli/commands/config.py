"""``moryflow config``: what holds, where it comes from, what is wrong, and edits that keep comments."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.noun_group import NounGroup
from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal.text import as_json, columns, plain, show

from .config_prompt import prompt

if TYPE_CHECKING:
    from moryflow.config.layers import Origin


@click.group("config", cls=NounGroup)
@document_options
def command() -> None:
    """Show, explain, check and change the configuration."""


command.add_command(prompt)


@command.command("show")
@click.option("--all", "everything", is_flag=True, help="Include defaults.")
@document_options
@click.pass_context
def show_config(ctx: click.Context, everything: bool) -> None:
    """Show the settings in force and where each comes from. Secrets are left out."""
    from moryflow.runtime.settings import effective, leaves, without_secrets

    from .config_settings import reading

    config, known = reading(ctx)
    value = without_secrets(effective(config, known if everything else ()), known)
    table = columns((path, json.dumps(item, ensure_ascii=False), where(config.origin(path))) for path, item in leaves(value))
    show(flags_of(ctx), value, table or f"nothing is set; {config.path} would hold it")


def where(origin: Origin) -> str:
    """Return an origin as a person reads it."""
    place = f"{origin.file}:{origin.line}" if origin.file and origin.line else origin.file or ""
    return f"{origin.source} {place}".strip() if origin.source not in ("user", "inline") or not place else place


@command.command("path")
@document_options
@click.pass_context
def path(ctx: click.Context) -> None:
    """Print the path of the user's file, whether it exists or not."""
    import os

    from moryflow.base.paths import home_folder
    from moryflow.config import config_file

    file = config_file(home_folder(None, os.environ), os.environ)
    show(flags_of(ctx), {"path": str(file), "exists": file.exists()}, str(file))


@command.command("get")
@click.argument("key")
@document_options
@click.pass_context
def get(ctx: click.Context, key: str) -> None:
    """Print the value in force for KEY, or its default if nothing sets it. Secrets are left out."""
    from moryflow.runtime.settings import shown_at

    from .config_settings import reading, value_of

    config, known = reading(ctx)
    value = shown_at(key, value_of(config, known, key), known)
    show(flags_of(ctx), value, plain(value) if isinstance(value, str) else as_json(value))


@command.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@document_options
@click.pass_context
def set_key(ctx: click.Context, key: str, value: str) -> None:
    """Set KEY in the user's file. VALUE is JSON, or plain text; comments in the file stay."""
    from moryflow.config.edit import set_value
    from moryflow.runtime.settings import check_value, shown_at

    from .config_settings import checked_config

    config, known = checked_config(ctx)
    parsed = check_value(known, key, value)
    changed = set_value(config.path, key, parsed)
    parsed = shown_at(key, parsed, known)
    text = f"{key} = {json.dumps(parsed, ensure_ascii=False)} ({config.path})" if changed else f"{key} has that value already"
    show(flags_of(ctx), {"key": key, "value": parsed, "changed": changed, "file": str(config.path)}, text)


@command.command("unset")
@click.argument("key")
@document_options
@click.pass_context
def unset_key(ctx: click.Context, key: str) -> None:
    """Remove KEY from the user's file, so that its default holds again."""
    from moryflow.config.edit import unset

    from .config_settings import checked_config

    config, _ = checked_config(ctx)
    changed = unset(config.path, key)
    text = f"{key} is not set any more ({config.path})" if changed else f"{key} is not set in {config.path}"
    show(flags_of(ctx), {"key": key, "changed": changed, "file": str(config.path)}, text)


@command.command("explain")
@click.argument("key")
@document_options
@click.pass_context
def explain(ctx: click.Context, key: str) -> None:
    """Show which layer won for KEY, where it is set, and what the other layers say."""
    from moryflow.runtime.settings import default_of, refuse_unknown, shown_at

    from .config_settings import reading

    config, known = reading(ctx)
    if not config.setters(key):
        refuse_unknown(known, key)
    default = shown_at(key, default_of(known, key), known)
    layers = [{"value": shown_at(key, value, known), **origin._asdict()} for value, origin in config.setters(key)]
    layers.append({"value": default, "source": "default", "file": None, "line": None})
    document = {"key": key, "value": layers[0]["value"], "origin": config.origin(key)._asdict(), "layers": layers}
    rows = [
        (" " if index else "*", json.dumps(layer["value"], ensure_ascii=False), _place(layer))
        for index, layer in enumerate(layers)
    ]
    notes = [plain(str(problem)) for problem in config.problems if key in problem.message]
    show(flags_of(ctx), document, "\n".join([key, columns(rows), *notes]))


def _place(layer: dict[str, Any]) -> str:
    place = f"{layer['file']}:{layer['line']}" if layer["line"] else layer["file"] or ""
    return f"{layer['source']}  {place}".rstrip()


@command.command("schema")
@document_options
@click.pass_context
def schema(ctx: click.Context) -> None:
    """Print the JSON Schema of the whole configuration, plugins included."""
    from moryflow.config.schema import json_schema

    from .config_settings import plugin_settings

    click.echo(as_json(json_schema(plugin_settings(ctx))))


@command.command("check")
@document_options
@click.pass_context
def check(ctx: click.Context) -> int:
    """Report every mistake in the configuration; exit code 3 if a deny rule or a file is lost.

    With --strict, a warning fails the check too.
    """
    from .config_settings import config_with_problems

    config, problems = config_with_problems(ctx)
    flags = flags_of(ctx)
    failed = any(problem.fatal for problem in problems) or (flags.strict and bool(problems))
    document = {"ok": not failed, "file": str(config.path), "problems": [problem._asdict() for problem in problems]}
    lines = [f"{'error' if problem.fatal else 'warning'}: {plain(str(problem))}" for problem in problems]
    show(flags, document, "\n".join(lines) or f"{config.path}: nothing is wrong")
    return 3 if failed else 0
