"""Write ``constraints.txt`` anew: every dependency, extras, tests and build included, pinned with its hashes (R31).

Run it from a checkout: ``python tests/packaging/refresh_constraints.py`` (``--upgrade`` to move to the newest releases).
The file holds names, versions, markers and hashes, and neither an address nor a path, so that it works with any index.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "constraints.txt"
HEADER = """\
# Every dependency of Moryflow, pinned with the hashes of its release files. Made by tests/packaging/refresh_constraints.py.
# Use: python3 -m pip install --require-hashes -r constraints.txt
"""


def main() -> int:
    """Resolve for all supported Pythons and platforms and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upgrade", action="store_true", help="move to the newest releases that fit together")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = resolve(Path(folder), upgrade=options.upgrade)
    problem = complaint(text)
    if problem:
        print(f"constraints.txt was not written: {problem}", file=sys.stderr)
        return 1
    TARGET.write_text(HEADER + text, encoding="utf-8")
    print(f"{TARGET.name}: {len(re.findall('^[a-z0-9]', text, re.MULTILINE))} packages")
    return 0


def resolve(folder: Path, *, upgrade: bool) -> str:
    """Return the pinned requirements as ``uv pip compile`` prints them."""
    wanted = folder / "build.in"
    wanted.write_text("\n".join(build_requirements()), encoding="utf-8")
    output = folder / "constraints.txt"
    if TARGET.exists() and not upgrade:
        shutil.copy(TARGET, output)
    command = [
        uv(folder), "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--all-extras",
        "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate", "--no-header",
        "--output-file", str(output), str(ROOT / "pyproject.toml"), str(wanted),
    ]  # fmt: skip
    # Wheels that this machine was told to look at are not what others get.
    environment = {name: value for name, value in os.environ.items() if not name.endswith("FIND_LINKS")}
    subprocess.run(command, check=True, env=environment)
    return output.read_text(encoding="utf-8").removeprefix(HEADER)


def build_requirements() -> list[str]:
    """What building needs; isolation would otherwise fetch it unpinned."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)["build-system"]["requires"]


def uv(folder: Path) -> str:
    """Return the path of ``uv``, installing it into a temporary environment where there is none."""
    beside = Path(sys.executable).with_name("uv")
    found = shutil.which("uv") or (str(beside) if beside.exists() else None)
    if found:
        return found
    environment = folder / "uv"
    venv.create(environment, with_pip=True)
    subprocess.run([str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv"], check=True)
    return str(environment / "bin" / "uv")


def complaint(text: str) -> str:
    """Say what must not be in the file and is."""
    for line in text.splitlines():
        if "://" in line or line.lstrip().startswith(("-i", "--index", "--extra", "--find", "-f")):
            return f"it would carry an address: {line}"
    unhashed = [line for line in text.splitlines() if re.match(r"[a-z0-9]", line) and not line.endswith("\\")]
    return f"no hashes for {unhashed[0]}" if unhashed else ""


if __name__ == "__main__":
    sys.exit(main())
