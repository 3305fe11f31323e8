"""The page of ``moryflow serve`` in a real Chromium: its weight, its first paint, an answer that streams, 2,000 nodes."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Figure

ANSWER = "A sentence with **bold** and `code` in it, and one more.\n\n- an item\n- another\n\n" * 80
BUILT = Path(__file__).resolve().parents[2] / "host" / "moryflow" / "server" / "page"
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
LOADS = 5


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
        command = [sys.executable, "-m", "moryflow", "serve", "--json", "--port", "0", "--vault", str(vault)]
        environ = {**os.environ, "MORYFLOW_HOME": str(Path(folder, "home"))}
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
        browser.close()
    return [
        ("page: first paint, median", statistics.median(paints), "ms", 150),
        ("page: script time of a streamed answer of 7 KB", streamed, "ms", None),
    ]


def _paint(page: Any) -> float:
    page.reload()
    page.wait_for_function(f"() => {PAINTED} !== undefined")
    return float(page.evaluate(PAINTED))


def _streamed(page: Any, vault: Path) -> float:
    """Return how long scripts ran while an answer came, in milliseconds."""
    new = "model => fetch('/sessions', {method: 'POST', headers: {'Content-Type': 'application/json', Authorization: "
    new += "'Bearer ' + sessionStorage.getItem('moryflow.token')}, body: JSON.stringify({model})}).then(reply => reply.json())"
    session = page.evaluate(new, f"script:{vault / 'answers.json'}")["id"]
    page.evaluate("id => { location.hash = id; location.reload(); }", session)
    page.wait_for_selector("#message")
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    before = _script(client)
    page.fill("#message", "Go.")
    page.press("#message", "Enter")
    page.locator(".assistant:not(.live) .markdown").wait_for()
    return _script(client) - before


def _script(client: Any) -> float:
    metrics = client.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "ScriptDuration")) * 1000
