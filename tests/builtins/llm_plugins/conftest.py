"""A host with packages of ``llm``: real ones that are installed, and one that a test writes."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moryflow.testing.isolated import ALLOW_ALL, IsolatedHost, write_distribution

pytest.importorskip("llm", reason="the extra llm is not installed")

from moryflow_builtins.llm_plugins.packages import content_hash, find_distribution


class LlmHost(IsolatedHost):
    """An isolated host to which packages of ``llm`` can be added as a person would add them."""

    def agree(self, *names: str, toolboxes: dict[str, Any] | None = None, allow: bool = True) -> LlmHost:
        """Write the hash of each package into the configuration; with `allow`, rules allow its tools."""
        found = {name: find_distribution(name) for name in names}
        hashes = {name: content_hash(each) if each else "" for name, each in found.items()}
        settings: dict[str, Any] = {"llmPlugins": {"packages": hashes, "toolboxes": toolboxes or {}}}
        if allow:
            settings["permission"] = {"rules": [dict(rule) for rule in ALLOW_ALL]}
        self.configure({"agents": {"runtime": settings}})
        return self

    def write_package(self, name: str, module: str, source: str) -> Path:
        """Make a package of ``llm`` with one module appear installed; return the module's file."""
        site = self.home.parent / "site"
        folder = write_distribution(site, name, {"llm": {module: module}})
        (site / f"{module}.py").write_text(source, encoding="utf-8")
        (folder / "RECORD").write_text(f"{module}.py,,\n{folder.name}/METADATA,,\n{folder.name}/RECORD,,\n", encoding="utf-8")
        if str(site) not in sys.path:
            sys.path.insert(0, str(site))
            self._on_path.append(str(site))
        importlib.invalidate_caches()
        return site / f"{module}.py"

    def ask(self, model: str, prompt: str, session: Any = None) -> Any:
        """Run one turn with a model of a package."""
        return self.run(prompt, session=session or self.session(model=model))

    def problems(self) -> str:
        """What the plugin reports, as ``plugin list`` shows it."""
        record = next(each for each in self.host.plugin_set.records if each.name == "llm_plugins")
        return "\n".join(record.notes)

    def seen(self) -> str:
        """Everything that the scripted model has read in its last request."""
        return "\n".join(message.text for message in self.model.requests[-1].messages)


@pytest.fixture
def llm_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LlmHost]:
    """A host whose ``llm`` keeps its keys and databases in a folder of the test."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path / "llm"))
    monkeypatch.setenv("MORYFLOW_HOME", str(tmp_path / "home"))
    host = LlmHost(tmp_path / "home", tmp_path / "vault")
    yield host
    host.close()


def keys_of(folder: Path, **keys: str) -> None:
    """Write the store of keys as ``llm keys set`` does."""
    folder.mkdir(exist_ok=True)
    (folder / "keys.json").write_text(json.dumps(keys), encoding="utf-8")
