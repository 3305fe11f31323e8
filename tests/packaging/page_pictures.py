"""Take pictures of the page: ``python tests/packaging/page_pictures.py FOLDER`` writes ``page-light.png`` and the like.

A real ``moryflow serve`` with a scripted model, in a home and a folder of its own, and the system's Chromium: a wide window
and a phone, light and dark. No path of this machine is in them.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import Browser, sync_playwright

from tests.host.server.conftest import ASKS, CHROMIUM, FLAGS, Server, made_home, servers

OLD = "def total(prices):\n    return round(sum(prices), 2)\n\n\ndef tax(price):\n    return price * 0.19\n"
ANSWER = """\
Sums are now kept in **cents**, so nothing is rounded away.

| sum | before | now |
|---|---|---|
| 0.1 + 0.2 | 0.30000000000000004 | 0.30 |
"""
CHOICES = [{"label": "SQLite", "description": "one file, nothing to run"}, {"label": "PostgreSQL"}]
WIDE: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "has_touch": True,
    "is_mobile": True,
    "device_scale_factor": 2,
}


def main() -> int:
    """Write the pictures into the folder that is named."""
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp())
    home = made_home(folder)
    os.environ["MORYFLOW_HOME"] = str(home)
    with servers(folder, home) as start, sync_playwright() as playwright:
        server = start()
        session = _talk(server)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, size in (("page", WIDE), ("page-phone", PHONE)):
            for scheme in ("light", "dark"):
                _take(browser, server, session, to / f"{name}-{scheme}.png", {**size, "color_scheme": scheme})
        browser.close()
    return 0


def _talk(server: Server) -> str:
    (server.vault / "prices.py").write_text(OLD)
    edit = {"path": "prices.py", "old_string": "return round(sum(prices), 2)", "new_string": "return sum(prices)  # cents"}
    read = {"name": "read", "arguments": {"path": "prices.py"}}
    for prompt in ("Tidy the inbox", "Write the weekly review"):
        server.whole_turn(server.session("Done."), prompt)
    question = {"question": "Which database?", "options": CHOICES}
    asking = server.session({"calls": [{"name": "ask_user", "arguments": {"questions": [question]}}]})
    server.post(f"/sessions/{asking}/prompt", {"text": "Plan the store"}, 202)
    changed = {"calls": [{"name": "edit", "arguments": edit}]}
    session = server.session({"calls": [read]}, changed, ANSWER, ASKS, mode="full_access", confirm=True)
    server.whole_turn(session, "Keep sums in cents")
    return session


def _take(browser: Browser, server: Server, session: str, to: Path, how: dict[str, Any]) -> None:
    context = browser.new_context(**how)
    page = context.new_page()
    page.goto(server.post("/codes", {}, 201)["link"])
    page.locator("#message").wait_for()
    page.evaluate("id => { location.hash = id; }", session)
    page.locator(".composer #message").wait_for()
    page.locator(".diff .hljs-keyword").first.wait_for()
    page.evaluate("() => { document.querySelector('.session-head .vault').textContent = '~/notes'; }")
    page.evaluate("() => { document.querySelector('.model .choice').textContent = 'acme/large'; }")
    page.evaluate("() => document.fonts.ready.then(() => new Promise(requestAnimationFrame))")
    page.screenshot(path=to)
    context.close()


if __name__ == "__main__":
    raise SystemExit(main())
