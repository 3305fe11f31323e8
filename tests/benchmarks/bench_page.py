"""The page of ``moryflow serve`` in a real Chromium: its weight, its first paint, an answer that streams, 2,000 cards."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import Figure

ANSWER = "A sentence with **bold** and `code` in it, and one more.\n\n- an item\n- another\n\n" * 80
BUILT = Path(__file__).resolve().parents[2] / "host" / "moryflow" / "server" / "page"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LOADS = 5
STEPS, CALLS = 50, 40
NEVER = {"maxAttempts": 10**6, "maxToolCalls": 10**6, "sameToolThreshold": 10**6}
KEYS = """() => {
    window.keys = [];
    const pressed = (event) => requestAnimationFrame(() => setTimeout(() => keys.push(performance.now() - event.timeStamp)));
    addEventListener("keydown", pressed, {capture: true});
}"""
"""Notes for each key how long it took until a frame with its effect was drawn, in milliseconds."""


def figures() -> list[Figure]:
    """Return (name, value, unit, target) of every figure; the weight alone where there is no Chromium."""
    data = b"".join(path.read_bytes() for path in sorted(BUILT.iterdir()) if path.suffix in (".js", ".css", ".html"))
    weight = [("page: everything compressed", len(gzip.compress(data)) / 1024, "KB", 80)]
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        return weight
    with tempfile.TemporaryDirectory() as folder:
        vault = Path(folder, "vault")
        vault.mkdir()
        (vault / "answers.json").write_text(json.dumps([ANSWER]))
        calls = [
            [{"name": "read", "arguments": {"path": "notes.md", "limit": CALLS * step + n}} for n in range(CALLS)]
            for step in range(STEPS)
        ]
        (vault / "cards.json").write_text(json.dumps([*({"calls": each} for each in calls), "Done."]))
        (vault / "notes.md").write_text("A note.\n" * 40)
        home = Path(folder, "home")
        home.mkdir(mode=0o700)
        (home / "config.jsonc").write_text(json.dumps({"agents": {"runtime": {"doomLoop": NEVER}}}))
        (home / "config.jsonc").chmod(0o600)
        command = [sys.executable, "-m", "moryflow", "serve", "--json", "--port", "0", "--vault", str(vault)]
        environ = {**os.environ, "MORYFLOW_HOME": str(home)}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as server:
            assert server.stdout is not None
            try:
                return weight + _measured(chromium, json.loads(server.stdout.readline())["link"], vault)
            finally:
                server.terminate()


def _measured(chromium: str, link: str, vault: Path) -> list[Figure]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(link)
        page.wait_for_selector(".sessions .new")
        paints = [_paint(page) for _ in range(LOADS)]
        streamed = _streamed(page, vault)
        loaded, key = _cards(page, vault)
        browser.close()
    return [
        ("page: first paint, median", statistics.median(paints), "ms", 150),
        ("page: script time of a streamed answer of 7 KB", streamed, "ms", None),
        (f"page: all of a session with {STEPS * CALLS:,} cards, from the last 200 to the first", loaded, "ms", None),
        (f"page: from a key to the next frame beside {STEPS * CALLS:,} cards, median", key, "ms", 50),
    ]


def _paint(page: Any) -> float:
    page.reload()
    page.wait_for_function(f"() => {PAINTED} !== undefined")
    return float(page.evaluate(PAINTED))


def _streamed(page: Any, vault: Path) -> float:
    """Return how long scripts ran while an answer came, in milliseconds."""
    _open(page, _post(page, "/sessions", {"model": f"script:{vault / 'answers.json'}"})["id"])
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    before = _script(client)
    page.fill("#message", "Go.")
    page.press("#message", "Enter")
    page.locator(".assistant:not(.live) .markdown").wait_for()
    return _script(client) - before


def _cards(page: Any, vault: Path) -> tuple[float, float]:
    """Return how long a long session takes to be shown whole, and a key its effect beside it, in milliseconds."""
    session = _post(page, "/sessions", {"model": f"script:{vault / 'cards.json'}"})["id"]
    _post(page, f"/sessions/{session}/prompt", {"text": "Go.", "max_steps": 10 * STEPS})
    _open(page, session)
    page.locator(".markdown", has_text="Done.").wait_for(timeout=300_000)
    _open(page, session)
    page.locator(".card").last.wait_for()
    begun = time.perf_counter()
    while (cards := page.locator(".card").count()) < STEPS * CALLS:
        page.locator(".older").click()
        page.wait_for_function("cards => document.querySelectorAll('.card').length > cards", arg=cards)
    loaded = (time.perf_counter() - begun) * 1000
    page.evaluate(KEYS)
    page.locator("#message").press_sequentially("a line of text", delay=100)
    return loaded, float(page.evaluate("() => keys.sort((a, b) => a - b)[keys.length >> 1]"))


def _post(page: Any, path: str, body: object) -> Any:
    ask = "([path, body]) => fetch(path, {method: 'POST', headers: {'Content-Type': 'application/json', Authorization: "
    ask += "'Bearer ' + sessionStorage.getItem('moryflow.token')}, body: JSON.stringify(body)}).then(reply => reply.json())"
    return page.evaluate(ask, [path, body])


def _open(page: Any, session: str) -> None:
    page.evaluate("id => { location.hash = id; location.reload(); }", session)
    page.wait_for_selector(".composer #message")


def _script(client: Any) -> float:
    metrics = client.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "ScriptDuration")) * 1000
