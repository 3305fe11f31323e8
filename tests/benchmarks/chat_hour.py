"""An hour of chat in tmux: what somebody does again and again, with the keys that it takes and what is on the screen after it.

``python tests/benchmarks/chat_hour.py [COLUMNS ROWS [FOLDER]]`` prints the table; FOLDER gets the screens as text. The scripted
model answers, so that nothing is measured but keys and screens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

QUESTION = {"question": "Which database?", "options": [{"label": "SQLite"}, {"label": "PostgreSQL"}]}
EDIT = {"path": "area.py", "old_string": "w * h", "new_string": "w + h"}
TURNS = [
    {"reasoning": "first this\nthen that", "text": "It holds three notes."},
    {"calls": [{"name": "edit", "arguments": EDIT}]}, "Done: **area** adds now.",
    {"calls": [{"name": "bash", "arguments": {"command": "touch made"}}]}, "Made.",
    {"calls": [{"name": "ask_user", "arguments": {"questions": [QUESTION]}}]}, "SQLite it is.",
    "Read.", {"text": "never said", "delay": 600},
]  # fmt: skip
# What is done: its name, the keys as tmux names them (of a text each letter is one), what is awaited, and the keys before.
TASKS: list[tuple[str, list[str], str, str]] = [
    ("show the keys", ["?"], "Shift-Tab mode", "-"),
    ("ask about a file", ["see @no", "Tab", "Enter"], "three notes", "10"),
    ("see the reasoning", ["C-o"], "then that", "not possible"),
    ("have a file changed", ["make it a sum", "Enter"], "adds now", "14"),
    ("take that back", ["/undo", "Enter", "u"], "1 file restored", "16"),
    ("a command of my own", ["!ls", "Enter"], "goes with your next prompt", "not possible"),
    ("allow a command once", ["touch it", "Enter", "o"], "Made.", "10 or 11"),
    ("answer the model's question", ["which db", "Enter", "1"], "SQLite it is", "not possible"),
    ("another mode", ["BTab", "a", "Enter"], "mode: agent", "12"),
    ("what it cost", ["/cst", "Enter"], "turn", "6"),
    ("paste 300 lines", ["PASTE", "Enter"], "Read.", "2, and 300 rows"),
    ("stop and leave", ["wait", "Enter", "C-d"], "goes on from here", "7"),
]


def tmux(*words: str) -> str:
    """Run tmux on a server of its own."""
    return subprocess.run(["tmux", "-L", "chat_hour", *words], capture_output=True, text=True, check=False).stdout


def until(seen: Callable[[], bool], what: str) -> None:
    """Wait until `seen` returns true."""
    ending = time.monotonic() + 60
    while not seen():
        if time.monotonic() > ending:
            raise SystemExit(f"{what!r} did not appear in:\n{tmux('capture-pane', '-p')}")
        time.sleep(0.1)


def asks() -> bool:
    """Whether answers are on offer."""
    return any(line.startswith("  [") and line.rstrip().endswith(">") for line in tmux("capture-pane", "-p").split("\n"))


def main(columns: str = "80", rows: str = "24", screens: str = "") -> None:
    """Play the hour at a size of the terminal."""
    root = Path(tempfile.mkdtemp())
    vault = root / "vault"
    vault.mkdir()
    (vault / "notes.txt").write_text("one\ntwo\nthree\n")
    (vault / "area.py").write_text("def area(w, h):\n    return w * h\n")
    (root / "paste").write_text("\n".join(f"line {number}" for number in range(300)))
    (root / "script.json").write_text(json.dumps(TURNS))
    (root / "home").mkdir(mode=0o700)
    rule = {"domain": "edit", "pattern": "vault:/**", "decision": "allow"}
    (root / "home/config.jsonc").write_text(json.dumps({"agents": {"runtime": {"permission": {"rules": [rule]}}}}))
    command = f"cd {vault}; MORYFLOW_HOME={root}/home {sys.executable} -m moryflow chat -m script:{root}/script.json; sleep 600"
    tmux("new-session", "-d", "-x", columns, "-y", rows, command)
    tmux("set-option", "history-limit", "10000")
    tmux("load-buffer", str(root / "paste"))
    all_keys = 0
    try:
        until(lambda: "asks first" in tmux("capture-pane", "-p"), "the status line")
        for number, (name, keys, awaited, before) in enumerate(TASKS, 1):
            pressed = 0
            for key in keys:
                named = key in ("Enter", "Tab", "BTab", "PASTE", "C-o", "C-d") or len(key) == 1
                pressed += 1 if named else len(key)
                if key == "u" or (key == "o" and number > 1) or key == "1":
                    until(asks, f"the answers of {name}")
                tmux("paste-buffer", "-p") if key == "PASTE" else tmux("send-keys", key)
                time.sleep(0.7)
            until(lambda awaited=awaited: awaited in tmux("capture-pane", "-p"), awaited)
            time.sleep(0.5)
            all_keys += pressed
            print(f"{name:30} {pressed:>4} keys   before: {before}")
            if screens:
                Path(screens).mkdir(exist_ok=True)
                Path(screens, f"{number:02}-{columns}x{rows}.txt").write_text(tmux("capture-pane", "-p").rstrip() + "\n")
        print(f"{'in all':30} {all_keys:>4} keys")
    finally:
        tmux("kill-server")


if __name__ == "__main__":
    os.environ.pop("TMUX", None)
    main(*sys.argv[1:])
