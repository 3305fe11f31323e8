"""Plugins of the command-line tool ``llm``: what the packages that the user named register is offered as models, tools,
fragments behind an ``@``, and commands.

The setting ``packages`` holds, by package, the hash of the files that the user agreed to; ``moryflow llm add`` writes it.
Nothing else is imported, and without a package neither is ``llm``. A package that has changed, or fails, is named and left
out; the others work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from moryflow_sdk import Command, Diagnostic, ModelProvider, PluginContext, Tool, config_of, hookimpl
from moryflow_sdk.support.settings import Meta, Settings

if TYPE_CHECKING:
    from .packages import LlmPackage

name = "llm_plugins"
config_path = "agents.runtime.llmPlugins"


class LlmSettings(Settings):
    """Plugins of the command-line tool `llm`."""

    packages: Annotated[dict[str, str], Meta("the packages to load, each with the hash that `moryflow llm add` wrote")] = {}
    toolboxes: Annotated[
        dict[str, dict[str, Any]], Meta('arguments of toolboxes by their name, such as `{"SQLite": {"path": "/data/my.db"}}`')
    ] = {}


config_model = LlmSettings


@hookimpl(timeout=60.0)
async def models(ctx: PluginContext) -> Sequence[ModelProvider]:
    """Offer the models as ``llm/NAME``."""
    packages, _ = await _loaded(ctx)
    found = [model for package in packages for model in package.models]
    if not found:
        return []
    from .provider import LlmModels

    return [LlmModels(found)]


@hookimpl(timeout=60.0)
async def tools(ctx: PluginContext) -> Sequence[Tool | Diagnostic]:
    """Offer tools and fragment loaders, and name the packages that are left out."""
    packages, problems = await _loaded(ctx)
    if not packages:
        return problems
    from .tool_calls import fragment_tools, tools_of

    settings = config_of(ctx, LlmSettings)
    found: list[Tool | Diagnostic] = []
    for package in packages:
        try:
            found += [*tools_of(package, settings.toolboxes), *fragment_tools(package)]
        except Exception as error:  # its own code describes its tools
            text = f"its tools are left out: {type(error).__name__}: {error}"
            found.append(Diagnostic(file=package.label, code="llm_import", message=text))
    taken: dict[str, Tool] = {}
    for item in found:
        other = taken.setdefault(item.name, item) if isinstance(item, Tool) else None
        if isinstance(item, Diagnostic):
            problems.append(item)
        elif other is not item and other is not None:
            text = f"its tool {item.name} is left out: {other.source} has one of that name"
            problems.append(Diagnostic(file=item.source, code="tool_duplicate", message=text))
    return [*taken.values(), *problems]


@hookimpl(timeout=60.0)
async def commands(ctx: PluginContext) -> Sequence[Command]:
    """Add ``moryflow llm``, and template loaders as ``/llm:prefix NAME``."""
    own = Command(name="llm", help="Offer what packages written for the tool llm bring.", cli=_group)
    packages, _ = await _loaded(ctx)
    if not any(package.templates for package in packages):
        return [own]
    from .templates import template_command

    return [own, *(template_command(prefix, loader) for each in packages for prefix, loader in each.templates.items())]


def doctor(config: LlmSettings) -> Iterator[tuple[str, str, str]]:
    """Say for ``moryflow doctor`` which packages are named, and what is wrong with them."""
    if not config.packages:
        yield "ok", "off: no package is named", ""
        return
    from .packages import load_packages

    packages, problems = load_packages(config.packages)
    for problem in problems:
        yield "warning", problem.sentence, problem.next_step
    if packages:
        yield "ok", "; ".join(f"{package.label}: {package.summary}" for package in packages), ""


async def _loaded(ctx: PluginContext) -> tuple[Sequence[LlmPackage], list[Diagnostic]]:
    """Return the packages that are loaded, and why others are not."""
    named = config_of(ctx, LlmSettings).packages
    if not named:
        return [], []
    if ctx.profile == "remote":
        text = "packages of llm are not loaded under the profile remote"
        return [], [Diagnostic(file=", ".join(named), code="llm_off", message=text)]
    import asyncio

    from moryflow_sdk.support.threads import on_daemon_thread

    from .packages import load_packages

    return await asyncio.wrap_future(on_daemon_thread(lambda: load_packages(named), "moryflow-llm-plugins"))


def _group() -> Any:
    from .cli import group

    return group
