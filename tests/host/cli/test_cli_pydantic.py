"""What other packages plug into the libraries under the program stays out of it."""

from __future__ import annotations

import os
import sys
from typing import Any


def test_a_package_that_plugs_into_pydantic_is_not_imported(cli: Any) -> None:
    """No installed code runs in the host without consent, and nothing of it can spoil a start (D8)."""
    site, seen = cli.vault.parent / "site", cli.vault.parent / "seen"
    info = site / "pydantic_friend-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pydantic-friend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pydantic]\nfriend = pydantic_friend:plugin\n")
    (site / "pydantic_friend.py").write_text(f"open({str(seen)!r}, 'w').close()\nplugin = 5 / 0\n")
    cli.environ["PYTHONPATH"] = os.pathsep.join([str(site), *filter(None, sys.path)])

    done = cli("tool", "run", "hello", "--name", "Ada")

    assert (done.returncode, done.stderr) == (0, "")
    assert "Hello, Ada!" in done.stdout
    assert not seen.exists()
