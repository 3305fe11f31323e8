"""Record the terminal of the front page: ``python tests/packaging/record_terminal.py`` writes ``docs/terminal.svg``.

A real ``moryflow chat`` runs in tmux, in a home and a folder of its own; a loopback server stands for the model. What the
terminal shows at the end becomes the picture, with no path of this machine in it. It needs tmux.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moryflow.testing import LoopbackServer, replies
from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "terminal.svg"
WIDTH, HEIGHT = 86, 44
LAST = "it returns the sum\n- nothing else had to change"
CODE = "def total(prices):\n    return sum(prices) / len(prices)\n"
TEST = """\
import unittest
from shop import total


class Total(unittest.TestCase):
    def test_two(self):
        self.assertEqual(total([2, 3]), 5)

    def test_one(self):
        self.assertEqual(total([4]), 4)

    def test_none(self):
        self.assertEqual(total([]), 0)


unittest.main()
"""
SETTINGS: dict[str, Any] = {
    "model": "acme/large",
    "models": {"providers": {"acme": {"models": {"large": {"inputPrice": 2, "outputPrice": 8}}}}},
}
COLOURS = [
    (60, 64, 72),
    (240, 113, 120),
    (140, 200, 110),
    (229, 192, 100),
    (110, 170, 240),
    (200, 140, 230),
    (90, 195, 200),
    (222, 225, 230),
]
THEME = TerminalTheme(
    (24, 26, 31),
    (222, 225, 230),
    COLOURS,
)
FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>A conversation with moryflow chat</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""rich's own, without the fonts that it loads from elsewhere."""


def main() -> int:
    """Record and write the picture."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, LoopbackServer(*answers()) as server:
        shown = session(Path(folder), server).replace(folder, "~")
    wrong = [secret for secret in (folder, "sk-", os.sep + "tmp") if secret in shown]
    if "--show" in sys.argv:
        print(shown)
    if wrong:
        raise SystemExit(f"the terminal shows {wrong}")
    PICTURE.write_text(picture(shown), encoding="utf-8")
    print(f"wrote {PICTURE.name}")
    return 0


def answers() -> list[replies.Reply]:
    """Return what the model answers."""
    return [
        replies.calls(("read", {"path": "shop.py"}), said="I look at the function first."),
        replies.calls(
            ("edit", {"path": "shop.py", "old_string": "sum(prices) / len(prices)", "new_string": "sum(prices)"}),
            said="`total` returns the average. I make it return the sum:",
        ),
        replies.calls(("bash", {"command": "python3 test_shop.py", "description": "Run the tests"})),
        replies.text(f"The three tests pass now. `total` divided by the number of prices:\n\n- **shop.py**: {LAST}"),
    ]


def session(folder: Path, server: LoopbackServer) -> str:
    """Hold the conversation in tmux and return its screen, with colours."""
    vault, home = folder / "shop", folder / "home"
    vault.mkdir()
    home.mkdir(mode=0o700)
    (vault / "shop.py").write_text(CODE, encoding="utf-8")
    (vault / "test_shop.py").write_text(TEST, encoding="utf-8")
    SETTINGS["models"]["providers"]["acme"]["baseUrl"] = server.url
    (home / "config.jsonc").write_text(json.dumps(SETTINGS), encoding="utf-8")
    (home / "config.jsonc").chmod(0o600)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {
        "PATH": path, "HOME": str(folder), "MORYFLOW_HOME": str(home),
        "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8",
    }  # fmt: skip

    def tmux(*words: str) -> str:
        return subprocess.run(
            ["tmux", "-S", str(folder / "tmux"), *words], env=environ, check=True, capture_output=True, text=True
        ).stdout

    tmux(
        "-f",
        "/dev/null",
        "new-session",
        "-d",
        "-x",
        str(WIDTH),
        "-y",
        str(HEIGHT),
        "-c",
        str(vault),
        "env 'PS1=$ ' bash --norc --noprofile",
    )
    try:
        return talk(tmux)
    finally:
        tmux("kill-server")


def talk(tmux: Callable[..., str]) -> str:
    """Type what a person types, each when the terminal is ready for it."""
    for wanted, keys in (
        ("$", "moryflow chat"),
        (">", "The tests of total() fail. Mend it."),
        ("[o]nce", "o"),
    ):
        wait_for(tmux, wanted)
        tmux("send-keys", "-l", keys)
        tmux("send-keys", "Enter")
    wait_for(tmux, LAST.partition("- ")[2])
    time.sleep(1)
    return tmux("capture-pane", "-p", "-e")


def wait_for(tmux: Callable[..., str], wanted: str) -> None:
    """Wait until the screen shows `wanted`."""
    ending = time.monotonic() + 60
    while wanted not in (shown := tmux("capture-pane", "-p")):
        if time.monotonic() > ending:
            raise SystemExit(f"{wanted!r} did not appear:\n{shown}")
        time.sleep(0.2)
    time.sleep(0.7)


def picture(shown: str) -> str:
    """Return the screen as SVG."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(shown.rstrip()))
    return console.export_svg(
        title="moryflow chat", theme=THEME, code_format=FORMAT, unique_id="terminal", font_aspect_ratio=0.61
    )


if __name__ == "__main__":
    sys.exit(main())
