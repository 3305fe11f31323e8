"""Where things are: Moryflow's own folder, and the folder to work in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moryflow_sdk import ConfigError
from moryflow_sdk.own_files import LOST_HINT, leads_nowhere


def home_folder(home: Path | str | None, environ: Mapping[str, str]) -> Path:
    """Return Moryflow's own folder; it need not exist yet.

    :raises ConfigError: nothing says where it is, because this user has no home; or it is a link that leads nowhere.
    """
    try:
        folder = Path(home or environ.get("MORYFLOW_HOME") or Path.home() / ".moryflow").expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError("this user has no home folder", next_step="export MORYFLOW_HOME=DIR") from error
    if not folder.exists() and (lost := leads_nowhere(folder)):
        raise ConfigError(f"Moryflow's own folder is not there: {lost}", where=str(folder), next_step=LOST_HINT)
    return folder


def readable_vault(vault: Path | str | None) -> Path:
    """Return the vault, resolved.

    :raises ConfigError: it does not exist, is no folder, or cannot be read.
    """
    given, hint = str(vault or "."), "give a folder with --vault DIR"
    try:
        folder = Path(vault or ".").resolve()
        next(iter(folder.iterdir()), None)
    except FileNotFoundError as error:
        raise ConfigError("the vault does not exist", where=given, next_step=hint) from error
    except NotADirectoryError as error:
        raise ConfigError("the vault is not a folder", where=given, next_step=hint) from error
    except OSError as error:
        problem = f"the vault cannot be read: {error.strerror}"
        raise ConfigError(problem, where=given, next_step="check its permissions") from error
    return folder
