"""Install a model's runtime on first use: size said before, a question (or -y), a progress bar."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
from moryflow_sdk import ConfigError


async def ensure_model(host: Any, wish: str | None, *, yes: bool, quiet: bool = False) -> None:
    """Install what the chosen model still needs, if it is one that can be installed.

    :raises ConfigError: it is needed and was refused, or nobody could be asked.
    """
    name = wish or host.config.get("model")
    if not name:
        return
    for provider in host.plugin_set.providers:
        if provider.find(name) is None:
            continue
        if hasattr(provider, "install") and not provider.installed():
            size = provider.download_size() / 1e6
            text = f"The model {name!r} is not installed yet; it is {size:.0f} MB to download. Install it now?"
            if not yes and not (sys.stdin.isatty() and click.confirm(text, err=True, default=True)):
                raise ConfigError(
                    f"the model {name!r} is not installed ({size:.0f} MB)", next_step="moryflow model install, or add -y"
                )
            await install(provider, name, quiet=quiet)
        return


def provider_of(host: Any, name: str) -> Any:
    """Return the provider that can install the model `name`.

    :raises ConfigError: nobody knows it, or it needs no installation.
    """
    for provider in host.plugin_set.providers:
        if provider.find(name) is not None:
            if not hasattr(provider, "install"):
                raise ConfigError(f"the model {name!r} needs no installation", next_step=f"moryflow run -m {name} …")
            return provider
    raise ConfigError(f"unknown model {name!r}", next_step="moryflow model list")


async def install(provider: Any, name: str, *, quiet: bool = False) -> None:
    """Run a provider's installation with a progress bar on standard error."""
    size = provider.download_size()
    if not quiet:
        click.echo(f"installing {name!r}: {size / 1e6:.0f} MB to download", err=True)
    bar = ProgressBar() if sys.stderr.isatty() and not quiet else None

    def progress(text: str, done: int, total: int) -> None:
        if bar:
            bar.show(text, done, total)
        elif not quiet and not total:
            click.echo(f"  {text}", err=True)

    await asyncio.to_thread(provider.install, progress)
    if bar:
        bar.end()
    if not quiet:
        click.echo(f"installed {name!r}", err=True)


class ProgressBar:
    """One line that grows."""

    width = 30

    def show(self, text: str, done: int, total: int) -> None:
        share = min(done / total, 1.0) if total else 0.0
        filled = "█" * round(share * self.width)
        figures = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB" if total else ""
        sys.stderr.write(f"\r\x1b[K{filled:<{self.width}} {share:4.0%} {figures} {text[:40]}")
        sys.stderr.flush()

    def end(self) -> None:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
