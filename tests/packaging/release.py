"""Make a release in a folder: wheel and sdist, built twice and equal; both README commands from the wheel; SBOM; upgrade notes.

Usage: ``release.py [FOLDER] [--without-tests]`` (by default ``dist``). Nothing is uploaded and no tag is set.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SBOM_TOOL = "cyclonedx-bom==7.5.0"


def main() -> int:
    """Make the release; return 1 if one of its steps fails."""
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    out = Path(words[0] if words else "dist").resolve()
    if said := run("git", "status", "--porcelain").strip():
        print(f"there are changes that are not committed:\n{said}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        first, second = (build(Path(folder, name)) for name in ("first", "second"))
        if {path.name: digest(path) for path in first} != {path.name: digest(path) for path in second}:
            print("two builds of one commit differ", file=sys.stderr)
            return 1
        out.mkdir(exist_ok=True)
        wheel, sdist = (Path(shutil.copy(path, out)) for path in first)
    for path in (wheel, sdist):
        print(f"{digest(path)}  {path.name}  (built twice, equal)")
    version = wheel.name.split("-")[1]
    (out / "sbom.json").write_text(sbom(wheel), encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (out / "UPGRADE.md").write_text(upgrade_notes(changelog, version), encoding="utf-8")
    print(f"{out / 'sbom.json'}, {out / 'UPGRADE.md'}")
    for name in ("main",) if "--without-tests" in sys.argv else ("main", "tests"):
        from_wheel(name, wheel, sdist)
    return 0


def run(*command: str, cwd: Path = ROOT, environ: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed.

    :raises subprocess.CalledProcessError: it failed.
    """
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **(environ or {})}, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        done.check_returncode()
    return done.stdout


def build(folder: Path) -> list[Path]:
    """Build the last commit in `folder`, with its time as the time of every file; return the wheel and the sdist."""
    folder.mkdir()
    run("git", "archive", "--output", str(folder / "tree.tar"), "HEAD")
    tree = folder / "tree"
    with tarfile.open(folder / "tree.tar") as archive:
        archive.extractall(tree, filter="data")
    when = {"SOURCE_DATE_EPOCH": run("git", "log", "-1", "--format=%ct").strip()}
    run(sys.executable, "-m", "hatchling", "build", "-d", str(folder / "out"), cwd=tree, environ=when)
    return [next((folder / "out").glob(pattern)) for pattern in ("*.whl", "*.tar.gz")]


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sbom(wheel: Path) -> str:
    """Return a CycloneDX document of what an installation of `wheel` brings."""
    with tempfile.TemporaryDirectory() as folder:
        for name, what in (("product", str(wheel)), ("tool", SBOM_TOOL)):
            venv.create(Path(folder, name), with_pip=True)
            run(str(Path(folder, name, "bin", "python")), "-m", "pip", "install", "--quiet", what)
        tool = Path(folder, "tool", "bin", "cyclonedx-py")
        return run(str(tool), "environment", "--output-reproducible", str(Path(folder, "product", "bin", "python")))


def upgrade_notes(changelog: str, version: str) -> str:
    """Return the changelog's section on `version`, what plugins must know first.

    :raises ValueError: there is no such section.
    """
    found = re.search(rf"^## {re.escape(version)}.*?\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no section {version}")
    items = re.findall(r"^- (.*?)(?=^- |^#|\Z)", found[1], re.DOTALL | re.MULTILINE)
    entries = [" ".join(item.split()) for item in items]
    api = [f"- {entry.removeprefix('**API**').lstrip(': ')}" for entry in entries if entry.startswith("**API**")]
    rest = [f"- {entry}" for entry in entries if not entry.startswith("**API**")]
    parts = [
        f"# Moryflow {version}",
        "## For plugins",
        *api,
        "",
        "## For users",
        *rest,
        "",
        "Upgrade: `python3 -m pip install -U moryflow`;",
    ]
    parts += ["`moryflow doctor` says what is missing. An older Moryflow refuses a newer store: keep a copy of the home."]
    return "\n".join(parts) + "\n"


def from_wheel(name: str, wheel: Path, sdist: Path) -> None:
    """Run one of the README's commands, with the wheel in place of the clone, in the tree of the sdist."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- ci: {name} -->\n```sh\n(.*?)\n```", readme, re.DOTALL)
    assert found is not None, name
    command = re.sub(r"pip install (?:-e )?'?\.(\[dev\])?'?", lambda match: f"pip install '{wheel}{match[1] or ''}'", found[1])
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder, "env"), with_pip=True)
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        tree = next(Path(folder).glob("moryflow-*"))
        environ = {"PATH": f"{folder}/env/bin:{os.environ['PATH']}", "HOME": folder, "MORYFLOW_HOME": f"{folder}/home"}
        print(f"$ {command}")
        print(run("bash", "-c", command, cwd=tree, environ=environ).strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
