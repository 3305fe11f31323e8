"""``moryflow plugin``: install, look at and switch plugins. Only `check` and `enable` run their code, in the probe."""

from __future__ import annotations

import click

from moryflow.cli.noun_group import NounGroup
from moryflow.cli.options import document_options

from .plugin_bisect import bisect
from .plugin_check import check
from .plugin_install import install, sync, update
from .plugin_key import key
from .plugin_list import info, list_plugins
from .plugin_switch import disable, enable, uninstall


@click.group("plugin", cls=NounGroup)
@document_options
def command() -> None:
    """Install, list, check and switch plugins; a broken one can always be listed, disabled and removed."""


for verb in (list_plugins, info, install, uninstall, enable, disable, update, check, sync, bisect, key):
    command.add_command(verb)
