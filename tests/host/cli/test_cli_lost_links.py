"""Links of a person's own that lead nowhere, from the outside: each is named, and none is filled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

EXTERNAL = '{"agents": {"runtime": {"tools": {"external": {"enabled": true}}}}}'
LOST = ["agents/a.md", "agents", "commands/c.md", "commands", "tools/t.py", "tools", "plugins/p.py", "plugins/p", "plugins"]


@pytest.mark.parametrize("what", LOST)
def test_a_link_that_leads_nowhere_is_named(cli, what: str) -> None:
    """An agent, a tool or a plugin that is lost is not one that was never there (D42, D57, invariant 5)."""
    (cli.home / "config.jsonc").write_text(EXTERNAL)
    link = cli.home / what
    link.parent.mkdir(exist_ok=True)
    if link.is_dir():
        shutil.rmtree(link)
    link.symlink_to(cli.home / "not mounted")
    said = cli("doctor").stdout.replace(": this is", " is")
    assert f"{link} is a link that leads nowhere" in said


def test_a_package_whose_code_is_a_link_that_leads_nowhere_is_named(cli) -> None:
    """Likewise where the folder is there and its code is lost; a text beside it is nobody's business (invariant 5)."""
    package = cli.home / "plugins" / "mine"
    package.mkdir(parents=True)
    (package / "__init__.py").symlink_to("/not/mounted.py")
    (package.parent / "notes.txt").symlink_to("/not/mounted.txt")
    (package.parent / ".#mine.py").symlink_to("somebody@here.1234")  # how an editor locks a file
    found = cli("plugin", "check", "mine")
    assert found.returncode == 3 and "leads nowhere: /not/mounted.py" in found.stdout and "remove the link" in found.stdout
    assert cli("doctor").stdout.count("leads nowhere") == 1


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


def test_an_installation_that_could_not_be_written_is_not_in_the_lock(cli) -> None:
    """The next command would miss what was never there (R18)."""
    (cli.vault / "words.py").write_text("from moryflow_sdk import hookimpl\n@hookimpl\ndef chat_params(params): ...\n")
    shutil.rmtree(cli.home / "plugins")
    (cli.home / "plugins").write_text("")  # a file in the place of the folder
    assert cli("plugin", "install", "./words.py", "-y").returncode != 0
    assert "words.py" not in (cli.home / "plugins.lock").read_text()
