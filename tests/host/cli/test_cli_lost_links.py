"""Links of a person's own that lead nowhere, from the outside: each is named, and none is filled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


def test_a_lost_configuration_is_said_and_never_written_over(cli) -> None:
    """``config check``, ``config show`` and a run say it, ``config set`` leaves the place that it names alone (D26, D44)."""
    lost = cli.home / "not mounted" / "config.jsonc"
    (cli.home / "config.jsonc").unlink(missing_ok=True)
    (cli.home / "config.jsonc").symlink_to(lost)
    check = cli("config", "check")
    assert check.returncode == 3 and f"leads nowhere: {lost}" in check.stdout
    for command in (("config", "show"), ("config", "get", "model"), ("agent", "list"), ("agent", "list", "-q")):
        assert "leads nowhere" in cli(*command).stderr, command
    refused = cli("config", "set", "language", "en")
    assert refused.returncode == 2 and "nothing was written" in refused.stderr
    assert not lost.parent.exists()


def test_a_home_that_leads_nowhere_is_not_made(cli, tmp_path: Path) -> None:
    """No command makes a home at the place that a lost link names (D46)."""
    lost = tmp_path / "not mounted" / "home"
    cli.environ["MORYFLOW_HOME"] = str(tmp_path / "link")
    (tmp_path / "link").symlink_to(lost)
    for command in (("config", "set", "language", "en"), ("doctor",), ("run", "hi"), ("new", "tool", "x")):
        done = cli(*command)
        assert done.returncode == 2 and f"leads nowhere: {lost}" in done.stderr, command
    assert not lost.parent.exists()


MAKING = [("new", "tool", "words", "-y"), ("new", "agent", "words"), ("plugin", "install", "./words.py", "-y")]


@pytest.mark.parametrize("words", MAKING)
@pytest.mark.parametrize("what", ["the file", "the folder"])
def test_nothing_is_written_where_a_lost_link_leads(cli, tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    """A link is neither filled nor replaced by what a command makes, and no lock says that it is there (D46, R18)."""
    (cli.vault / "words.py").write_text("from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params): ...\n")
    folder = cli.home / ("plugins" if words[0] == "plugin" else f"{words[1]}s")
    file = folder / ("words.md" if words[1] == "agent" else "words.py")
    if folder.is_dir():
        shutil.rmtree(folder)
    if what == "the file":
        folder.mkdir()
    (file if what == "the file" else folder).symlink_to(tmp_path / "not mounted")
    done = cli(*words)
    assert done.returncode != 0 and "leads nowhere" in done.stderr and "remove the link" in done.stderr
    assert not (tmp_path / "not mounted").exists() and not (cli.home / "plugins.lock").exists()
