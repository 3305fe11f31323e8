"""``moryflow llm``: agree to a package, list what is loaded, take a package out again."""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution
from typing import Any

import click
from moryflow_sdk import CommandContext, ConfigError, Diagnostic, Turn, config_of
from moryflow_sdk.support.texts import visible

from . import LlmSettings, config_path
from .packages import LlmPackage, content_hash, find_distribution, load_packages, points_of

_PATH = tuple(config_path.split("."))


@click.group("llm")
def group() -> None:
    """Offer what packages written for the tool llm bring: models, tools, fragments, templates."""


@group.command("add")
@click.argument("names", nargs=-1, required=True)
@click.pass_obj
def add(context: CommandContext, names: tuple[str, ...]) -> None:
    """Show installed packages, and load them from now on if you agree. A package that changes waits until you add it again."""
    found: dict[str, Distribution] = {}
    for name in names:
        one = find_distribution(name)
        if one is None:
            text = f"no package {name!r} with a plugin of llm is installed"
            raise ConfigError(text, next_step=f"python -m pip install {name}")
        found[str(one.metadata["Name"])] = one
    _confirm(
        context,
        "\n".join([*map(_card, found.values()), "None of this is enforced: it is Python code that runs with your rights."]),
    )
    hashes = {name: content_hash(one) for name, one in found.items()}
    for name, hash in hashes.items():
        context.configure((*_PATH, "packages", name), hash)
    _show(context, load_packages(hashes))


@group.command("list")
@click.pass_obj
def list_packages(context: CommandContext) -> None:
    """List the packages that you added: what each brings, or why it is left out."""
    _show(context, load_packages(_settings(context).packages))


@group.command("embed")
@click.argument("model")
@click.argument("texts", nargs=-1, required=True)
@click.pass_obj
def embed(context: CommandContext, model: str, texts: tuple[str, ...]) -> None:
    """Print the vector that an embedding model gives each text, a JSON list a line."""
    packages, _ = load_packages(_settings(context).packages)
    found = next((each.embeddings[model] for each in packages if model in each.embeddings), None)
    if found is None:
        raise ConfigError(f"no package that you added has an embedding model {model!r}", next_step="moryflow llm list")
    try:
        vectors = [[*vector] for vector in found.embed_multi(texts)]
    except Exception as error:  # the boundary around the package's code
        text = f"{model}: {type(error).__name__}: {error}".split("\n", 1)[0]
        raise ConfigError(text, next_step="moryflow llm list") from error
    context.print(vectors, text="\n".join(map(json.dumps, vectors)))


@group.command("remove")
@click.argument("name")
@click.pass_obj
def remove(context: CommandContext, name: str) -> None:
    """Load a package no more. It stays installed."""
    if name not in _settings(context).packages:
        raise ConfigError(f"{name!r} was not added", next_step="moryflow llm list")
    context.configure((*_PATH, "packages", name), None)
    context.print({"name": name, "removed": True}, text=f"removed {name}")


def _settings(context: CommandContext) -> LlmSettings:
    async def work(turn: Turn) -> LlmSettings:
        return config_of(turn, LlmSettings)

    return context.run(work)


def _card(found: Distribution) -> str:
    """Return what is known of a package without importing it."""
    lines = [f"{found.metadata['Name']} {found.version}: {found.metadata['Summary'] or 'no description'}"]
    lines.append(f"  loads {', '.join(point.value for point in points_of(found))}")
    needs = [each for each in found.requires or () if "extra ==" not in each]
    lines.append(f"  needs {', '.join(needs) or 'nothing'}")
    return visible("\n".join([*lines, f"  {content_hash(found)[:19]}"]), keep="\n")


def _confirm(context: CommandContext, question: str) -> None:
    """Show `question` on standard error and ask, unless ``-y`` was given.

    :raises ConfigError: nobody can be asked.
    """
    click.echo(question, err=True)
    if context.yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError("nobody can be asked here, so nothing was added", next_step="the same command with -y")
    click.confirm("Load it from now on?", err=True, abort=True)


def _show(context: CommandContext, loaded: tuple[list[LlmPackage], list[Diagnostic]]) -> None:
    packages, problems = loaded
    rows: list[dict[str, Any]] = [{"package": each.label, "loaded": True, "brings": each.summary} for each in packages]
    rows += [{"package": each.file, "loaded": False, "error": each.message, "next": each.next_step} for each in problems]
    lines = [f"{each.label}: {each.summary}" for each in packages]
    lines += [f"{each.file}: not loaded: {each.message}\n  next: {each.next_step}" for each in problems]
    context.print(rows, text=visible("\n".join(lines), keep="\n") or "no package was added; moryflow llm add NAME")
