"""Real wheels, a real pip (or uv) and an environment that is thrown away; no index is asked."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PLUGIN = """
from pathlib import Path
from moryflow_sdk import hookimpl, tool

@tool(domain="read")
def {name}_says() -> str:
    "Say the version."
    return "{version}"

@hookimpl
def tools():
    return [{name}_says]
"""


@dataclass
class Wheels:
    """A folder of wheels, as an index would give them."""

    folder: Path

    def add(
        self,
        name: str,
        version: str = "1.0",
        *,
        source: str | None = None,
        manifest: Mapping[str, Any] | str | None = None,
        requires: Sequence[str] = (),
        plugin: bool = True,
        files: Mapping[str, str] | None = None,
        points: str = "",
    ) -> Path:
        """Make the wheel of a package with one plugin of the same name."""
        info = f"{name}-{version}.dist-info"
        code = PLUGIN.format(name=name, version=version) if source is None else textwrap.dedent(source)
        content = {f"{name}/__init__.py": code, **(files or {})}
        points = points or (f"[moryflow.plugins]\n{name} = {name}\n" if plugin else "")
        if manifest is not None:
            text = manifest if isinstance(manifest, str) else toml({"name": name, "version": version, "api": 1, **manifest})
            content[f"{name}/plugin.toml"] = text
            points += f"[moryflow.manifest]\n{name} = {name}:plugin.toml\n"
        needs = "".join(f"Requires-Dist: {item}\n" for item in requires)
        content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
        content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        content[f"{info}/entry_points.txt"] = points
        path = self.folder / f"{name}-{version}-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            rows = []
            for place, text in content.items():
                archive.writestr(place, text)
                digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
                rows.append(f"{place},sha256={digest},{len(text.encode())}")
            archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]) + "\n")
        return path


def toml(values: Mapping[str, Any]) -> str:
    """Return a flat manifest with its tables."""
    plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, table in values.items():
        if isinstance(table, Mapping):
            lines += [f"[{key}]", *(f"{name} = {json.dumps(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


@dataclass
class Place:
    """An environment, a home, wheels, and ``moryflow`` run in all of them."""

    python: Path
    home: Path
    work: Path
    wheels: Wheels
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def site(self) -> Path:
        return next((self.python.parent.parent / "lib").glob("python*")) / "site-packages"

    @property
    def environment(self) -> dict[str, str]:
        """What a process is given: no index, the folder of wheels, the home."""
        kept = {name: os.environ[name] for name in ("LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.home.parent),
            "MORYFLOW_HOME": str(self.home),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels.folder),
            "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say: without isolation
            **self.environ,
        }

    def run(self, *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run ``moryflow``, with nobody at a terminal."""
        command = [str(self.python), "-m", "moryflow", *arguments]
        done = subprocess.run(
            command,
            cwd=self.work,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert code is None or done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        """Run ``moryflow`` and return the document it prints."""
        return json.loads(self.run(*arguments, "--json", code=code).stdout)

    def row(self, name: str) -> dict[str, Any]:
        """Return what ``plugin list`` says of a plugin."""
        return next(row for row in self.json("plugin", "list", "-q") if row["name"] == name)

    def names(self) -> set[str]:
        """Return the names in ``plugin list``."""
        return {row["name"] for row in self.json("plugin", "list", "-q")}

    @property
    def lock(self) -> dict[str, Any]:
        """What ``plugins.lock`` says is installed."""
        return json.loads((self.home / "plugins.lock").read_text("utf-8"))["installed"]

    def file(self, name: str, source: str) -> Path:
        """Write a plugin of the user's own."""
        path = self.home / "plugins" / f"{name}.py"
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(textwrap.dedent(source), "utf-8")
        path.chmod(0o600)
        return path

    def configure(self, **settings: Any) -> None:
        """Write the configuration."""
        (self.home / "config.jsonc").write_text(json.dumps(settings), "utf-8")
        (self.home / "config.jsonc").chmod(0o600)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """An environment that sees what this one has installed, and installs into its own folder."""
    home, work, links = tmp_path / "home", tmp_path / "work", tmp_path / "links"
    for folder in (home, work, links):
        folder.mkdir(mode=0o700)
    root = tmp_path / "env"
    venv.create(root, with_pip=False, symlinks=True)
    made = Place(root / "bin" / "python", home, work, Wheels(links))
    outer = [entry for entry in sys.path if entry.endswith("-packages")]
    lines = "".join(f"import site; site.addsitedir({entry!r})\n" for entry in outer)
    (made.site / "outer.pth").write_text(lines, "utf-8")
    info = made.site / "outer-1.0.dist-info"  # an environment is never empty; where packages are is where hosts look
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outer\nVersion: 1.0\n", "utf-8")
    return made
