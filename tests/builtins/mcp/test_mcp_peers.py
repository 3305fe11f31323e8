"""Servers of other people, as npm and PyPI have them: listed, reviewed and called as a person would."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Servers
from .web_server import WebServer

pytestmark = pytest.mark.slow
PACKAGES = ("server-everything", "server-filesystem", "server-memory")


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, dict[str, object]]]:
    """A host with the three, installed from the registry of npm."""
    place = tmp_path_factory.mktemp("peers")
    if not (shutil.which("npm") and shutil.which("node")):
        pytest.skip("npm and node are not installed")
    names = [f"@modelcontextprotocol/{name}" for name in PACKAGES]
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place), *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not install the servers within 240 s")
    if done.returncode:
        pytest.skip(f"npm has no registry here: {done.stderr.strip()[-300:]}")
    host = Servers(place / "home", place / "vault")
    (host.vault / "notes.md").write_text("Hello, Ada!\n")
    modules = place / "node_modules" / "@modelcontextprotocol"

    def entry(name: str, *args: str, **more: object) -> dict[str, object]:
        return {"command": "node", "args": [str(modules / name / "dist" / "index.js"), *args], **more}

    entries = {
        "everything": entry("server-everything"),
        "files": entry("server-filesystem", str(host.vault)),
        "memory": entry("server-memory", env={"MEMORY_FILE_PATH": str(place / "memory.json")}),
    }
    found = host.review(entries, searchAbove=100_000)
    yield host, found
    host.close()


def test_everything_answers_with_text_numbers_images_and_progress(peers: tuple[Servers, object]) -> None:
    host, _ = peers
    assert host.call("everything", "echo", message="hi").result.output == "Echo: hi"
    assert "is 5" in host.call("everything", "get-sum", a=2, b=3).result.output
    assert len(host.call("everything", "get-tiny-image").result.images) == 1
    structured = host.call("everything", "get-structured-content", location="Chicago").result
    assert "temperature" in json.loads(structured.output)
    assert "completed" in host.call("everything", "trigger-long-running-operation", duration=1, steps=2).result.output


def test_filesystem_reads_the_vault_and_nothing_else(peers: tuple[Servers, object]) -> None:
    host, _ = peers
    path = Path(host.vault, "notes.md")
    assert "Hello, Ada!" in host.call("files", "read_text_file", path=str(path)).result.output
    denied = host.call("files", "read_text_file", path="/etc/passwd").result
    assert (denied.status, denied.code) == ("error", "mcp_error")


def test_memory_keeps_what_it_is_told(peers: tuple[Servers, object]) -> None:
    host, _ = peers
    entity = {"name": "Ada", "entityType": "person", "observations": ["wrote notes"]}
    host.call("memory", "create_entities", entities=[entity])
    assert "wrote notes" in host.call("memory", "read_graph").result.output


def test_everything_has_prompts(peers: tuple[Servers, object]) -> None:
    host, _ = peers
    commands = sorted(name for name in host.host.plugin_set.commands if name.startswith("everything:"))
    assert "everything:simple-prompt" in commands
    assert host.slash("/everything:simple-prompt").prompt.count("<mcp_prompt") == 1


@pytest.fixture(scope="module")
def pypi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Servers, Path]]:
    """A host with three servers of PyPI, installed where nothing else finds them."""
    place = tmp_path_factory.mktemp("pypi")
    names = [f"mcp-server-{name}" for name in ("git", "time", "fetch")]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place / "site"), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"pip did not install the servers: {done.stderr.strip()[-300:]}")
    host = Servers(place / "home", place / "vault")
    (host.vault / "notes.md").write_text("Hello, Ada!\n")
    subprocess.run(["git", "init", "-q", str(host.vault)], check=True)

    def entry(name: str, *args: str) -> dict[str, object]:
        return {"command": sys.executable, "args": ["-m", name, *args], "env": {"PYTHONPATH": str(place / "site")}}

    entries = {
        "git": entry("mcp_server_git", "--repository", str(host.vault)),
        "time": entry("mcp_server_time", "--local-timezone", "UTC"),
        "fetch": entry("mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"),
    }
    found = host.review(entries, searchAbove=100_000)
    assert [name for name, each in found.items() if isinstance(each, Exception)] == [], found
    yield host, place
    host.close()


def test_git_time_and_fetch_answer(pypi: tuple[Servers, Path]) -> None:
    host, _ = pypi
    assert "notes.md" in host.call("git", "git_status", repo_path=str(host.vault)).result.output
    assert "UTC" in host.call("time", "get_current_time", timezone="UTC").result.output
    web = WebServer()
    page = host.call("fetch", "fetch", url=f"{web.origin}/.well-known/oauth-authorization-server").result
    web.close()
    assert f"{web.origin}/token" in page.output


def test_the_prompt_of_fetch_is_a_command(pypi: tuple[Servers, Path]) -> None:
    host, _ = pypi
    web = WebServer()
    prompt = host.slash(f"/fetch:fetch {web.origin}/.well-known/oauth-authorization-server").prompt
    web.close()
    assert f"{web.origin}/token" in prompt
