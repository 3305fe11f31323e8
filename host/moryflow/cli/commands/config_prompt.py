"""``moryflow config prompt``: the system prompt and its parameters, default or the person's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moryflow.cli.noun_group import NounGroup
from moryflow.cli.options import document_options, flags_of
from moryflow.cli.terminal import stdout
from moryflow.cli.terminal.text import plain, show

if TYPE_CHECKING:
    from moryflow.config import Config

SECTION = "agents.runtime.prompt"
PARAMETERS = ("temperature", "topP", "maxTokens")
MODEL_DEFAULT = "default"


@click.group("prompt", cls=NounGroup)
@document_options
def prompt() -> None:
    """Show, replace and restore the system prompt; override parameters one by one."""


@prompt.command("show")
@document_options
@click.pass_context
def show_prompt(ctx: click.Context) -> None:
    """Show the prompt of agents that have none of their own, and the overridden parameters."""
    from .config_settings import checked_config

    document = _current(checked_config(ctx)[0])
    params = [f"{name}: {document['params'].get(name, 'the model default')}" for name in PARAMETERS]
    head = [f"mode: {document['mode']}", *(params if document["mode"] == "custom" else [])]
    show(flags_of(ctx), document, "\n".join([*head, "", plain(document["text"])]))


def _current(config: Config) -> dict[str, Any]:
    """Return mode, text and overridden parameters; the default mode has none."""
    from moryflow.agents import DEFAULT_PROMPT

    section = config.section(SECTION)
    custom = section.get("mode") == "custom"
    text = section.get("text") if custom else None
    params = {key: value for key, value in (section.get("params") or {}).items() if value is not None}
    return {"mode": "custom" if custom else "default", "text": text or DEFAULT_PROMPT, "params": params if custom else {}}


@prompt.command("edit")
@click.option("-f", "--file", "source", type=click.Path(path_type=Path), help="Take the text from a file.")
@document_options
@click.pass_context
def edit_prompt(ctx: click.Context, source: Path | None) -> None:
    """Write a prompt of your own, starting from the current one. It replaces the built-in prompt completely."""
    from moryflow_sdk import ConfigError

    from moryflow.cli.terminal.stdin import as_text
    from moryflow.config.edit import set_value

    from .config_settings import checked_config

    config, _ = checked_config(ctx)
    if source is not None:
        text = as_text(source.read_bytes(), str(source))
    elif not sys.stdin.isatty():
        raise ConfigError("no editor can be opened here", next_step="moryflow config prompt edit --file FILE")
    else:
        with stdout.lent():
            text = click.edit(_current(config)["text"], extension=".md") or ""
    if not text.strip():
        raise ConfigError("nothing was changed: the text is empty", next_step="moryflow config prompt reset")
    set_value(config.path, f"{SECTION}.text", text)
    set_value(config.path, f"{SECTION}.mode", "custom")
    show(flags_of(ctx), {"mode": "custom", "file": str(config.path)}, f"the prompt is yours now ({config.path})")


@prompt.command("param")
@click.argument("name", type=click.Choice(PARAMETERS))
@click.argument("value")
@document_options
@click.pass_context
def set_param(ctx: click.Context, name: str, value: str) -> None:
    """Override one parameter, or give it back to the model with the value "default"."""
    from moryflow_sdk import ConfigError

    from moryflow.config.edit import set_value, unset
    from moryflow.runtime.settings import check_value

    from .config_settings import checked_config

    config, known = checked_config(ctx)
    if config.section(SECTION).get("mode") != "custom":
        raise ConfigError("parameters belong to a prompt of your own", next_step="moryflow config prompt edit")
    key = f"{SECTION}.params.{name}"
    if value == MODEL_DEFAULT:
        unset(config.path, key)
        show(flags_of(ctx), {"key": key, "value": None}, f"{name}: the model's default")
        return
    parsed = check_value(known, key, value)
    set_value(config.path, key, parsed)
    show(flags_of(ctx), {"key": key, "value": parsed}, f"{name}: {parsed}")


@prompt.command("reset")
@document_options
@click.pass_context
def reset_prompt(ctx: click.Context) -> None:
    """Go back to the built-in prompt and the model's own parameters; other settings stay."""
    from moryflow.config.edit import unset

    from .config_settings import checked_config

    changed = unset(checked_config(ctx)[0].path, SECTION)
    show(flags_of(ctx), {"changed": changed}, "the built-in prompt holds" if changed else "the built-in prompt holds already")
