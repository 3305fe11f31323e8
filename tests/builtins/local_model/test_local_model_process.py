"""The process that serves the model: reachable by its owner only, and never outliving it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from textwrap import dedent

import pytest
from moryflow import open_host
from moryflow_builtins.local_model import LOCAL, LOCAL_135M, LocalModel
from moryflow_builtins.local_model.runtime import SMOLLM2, Process, Runtime
from moryflow_sdk import Finished, Message, ModelError, ModelRequest, TextDelta, ToolSchema
from moryflow_sdk.models import Purpose

REAL = os.environ.get("MORYFLOW_TEST_LOCAL_MODEL", "")
real = pytest.mark.skipif(
    not REAL or not Runtime(Path(REAL)).installed(),
    reason="needs a home where `moryflow model install` was run, named by MORYFLOW_TEST_LOCAL_MODEL",
)

STAND_IN = '''
"""Serves what the real runtime serves, without a model."""
import json, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

print("noise on standard output", flush=True)

class CommonParams(SimpleNamespace):
    def __init__(self):
        names = ("model", "cpuparams", "cpuparams_batch", "sampling")
        super().__init__(**{name: SimpleNamespace() for name in names})

class Server:
    def __init__(self, params):
        if open(params.model.path).read() == "broken!":
            raise RuntimeError("failed to load the weights")
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                size = int(self.headers["content-length"])
                request = json.loads(self.rfile.read(size))
                allowed = self.headers["authorization"] == "Bearer " + params.api_keys[0]
                self.send_response(200 if allowed else 401)
                self.end_headers()
                seen = {"tools": "tools" in request, "cwd": os.getcwd(), "argv": sys.argv, "env": sorted(os.environ)}
                seen["offered"] = [tool["function"] for tool in request.get("tools", [])]
                seen["stop"], seen["longest"] = request.get("stop"), request.get("max_tokens")
                words = request["messages"][-1]["content"]
                said = words if words.startswith("```json") else json.dumps(seen | {"words": words})
                answer = {"choices": [{"message": {"content": said}, "finish_reason": "stop"}]}
                self.wfile.write(json.dumps(answer if allowed else {"error": "no"}).encode())
            def log_message(self, *_):
                pass
        http = ThreadingHTTPServer((params.hostnames[0], params.port), Handler)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        self.listening_address = "http://127.0.0.1:%d" % http.server_address[1]
'''


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    """A runtime whose library is a stand-in; the process around it is the real one."""
    found = Runtime(tmp_path / "home", SMOLLM2._replace(size=7))
    package = found.folder / "xllamacpp"
    package.mkdir(parents=True)
    found.file.write_text("weights", encoding="utf-8")
    (package / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    return found


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def gone(pid: int, seconds: float = 200.0) -> bool:
    end = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


LS = ToolSchema(
    name="ls",
    description="List a folder. Hidden files too.",
    parameters={
        "type": "object",
        "properties": {"path": {"type": "string", "description": "long"}, "limit": {"type": "integer"}},
        "required": ["path"],
    },
)


async def say(local: LocalModel, text: str = "hi", purpose: Purpose = "main") -> tuple[str, Finished]:
    info = local.info
    tools = (LS,) if info.tools else ()
    request = ModelRequest(model=info, messages=(Message(role="user", text=text),), tools=tools, purpose=purpose)
    events = [event async for event in local.stream(request)]
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, TextDelta)), events[-1]


async def test_it_answers_and_ends_with_its_provider(runtime: Runtime) -> None:
    """Its process ends with it, and its tools are described in few words (ARCHITECTURE 8, R1)."""
    local = LocalModel(LOCAL, lambda: runtime)
    assert local.default({}) == "local"
    try:
        [ls] = json.loads((await say(local))[0])["offered"]
        assert not json.loads((await say(local, '<file path="a.md">\n# A\n</file>\n\nWhat is it?'))[0])["offered"]
        assert ls["description"] == "List a folder" and ls["parameters"]["properties"] == {"path": {"type": "string"}}
        assert local._process is not None and local._process._child is not None
        pid = local._process._child.pid
        assert alive(pid)
    finally:
        await local.aclose()
    assert gone(pid)


async def test_a_call_that_it_writes_as_json_runs_and_its_result_is_answered_without_tools(runtime: Runtime) -> None:
    """So small a model rarely writes a call as its template asks, and does not stop calling by itself (ARCHITECTURE 8)."""
    local = LocalModel(LOCAL, lambda: runtime)
    written = '```json\n{"name": "ls", "arguments": {"path": "."}}\n```'
    try:
        text, end = await say(local, written)
        assert not text and [(call.name, call.arguments) for call in end.tool_calls] == [("ls", '{"path": "."}')]
        text, end = await say(local, written.replace("ls", "rm"))
        assert text.startswith("```json") and not end.tool_calls
        question, call = Message(role="user", text="What is here?"), Message(role="assistant", tool_calls=end.tool_calls)
        result = Message(role="tool", text="a.md", call_id="1")
        request = ModelRequest(model=local.info, messages=(question, call, result), tools=(LS,))
        seen = "".join([event.text async for event in local.stream(request) if isinstance(event, TextDelta)])
        assert "a.md" in json.loads(seen)["words"] and "What is here?" in json.loads(seen)["words"]
        assert not json.loads(seen)["tools"]
    finally:
        await local.aclose()


async def test_its_answer_ends_before_a_heading_and_before_a_second_paragraph(runtime: Runtime) -> None:
    """So small a model goes on with the document up to its limit; a summary keeps its headings and its length (S4.7)."""
    local = LocalModel(LOCAL_135M, lambda: runtime)
    try:
        answer, _ = await say(local)
        summary, _ = await say(local, purpose="compact")
    finally:
        await local.aclose()
    seen, of_summary = json.loads(answer), json.loads(summary)
    assert {"\n#", "\n\nA", "\n\nZ"} <= set(seen["stop"]) and of_summary["stop"] is None
    # A list, or code, after a blank line belongs to the answer.
    assert not {"\n\n", "\n\n1", "\n\n-", "\n\n`"} & set(seen["stop"])
    assert seen["longest"] < 256 and of_summary["longest"] is None and not seen["tools"]


async def test_it_is_given_neither_keys_nor_the_working_directory(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A vault must not bring code into it, and the key is not in its arguments (R13, R23)."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-SECRET")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("json.py", "sitecustomize.py", "xllamacpp.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')", encoding="utf-8")
    local = LocalModel(LOCAL_135M, lambda: runtime)
    try:
        answer, _ = await say(local)
    finally:
        await local.aclose()
    assert "OPENAI_API_KEY" not in answer and str(runtime.folder) in answer and "sk-" not in answer


def test_nobody_without_the_key_is_answered(runtime: Runtime) -> None:
    """Other users of the machine reach loopback too (R1)."""
    process = Process(runtime)
    try:
        url, key = process.start().result(300)
        assert url.startswith("http://127.0.0.1:") and len(key) >= 32
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", data=b"{}"), timeout=300)
        assert caught.value.code == 401
    finally:
        process.stop()


def test_it_ends_when_its_owner_is_killed(runtime: Runtime, tmp_path: Path) -> None:
    """kill -9 leaves nobody to clean up; the pipe ends by itself (R1)."""
    code = f"""
        import time
        from pathlib import Path
        from moryflow_builtins.local_model.runtime import Process
        from moryflow_builtins.local_model.runtime import Runtime
        process = Process(Runtime(Path({str(runtime.home)!r}), Runtime(Path()).weights._replace(file={runtime.file.name!r})))
        process.start().result(300)
        print(process._child.pid, flush=True)
        time.sleep(600)
    """
    owner = subprocess.Popen([sys.executable, "-c", dedent(code)], stdout=subprocess.PIPE, encoding="utf-8")
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert alive(pid)
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    assert gone(pid)


async def test_a_process_that_died_is_started_again(runtime: Runtime) -> None:
    """The next call works (invariant 9)."""
    local = LocalModel(LOCAL_135M, lambda: runtime)
    try:
        await say(local)
        assert local._process is not None and local._process._child is not None
        first = local._process._child
        first.kill()
        first.wait()
        assert (await say(local))[0]
    finally:
        await local.aclose()


async def test_weights_that_do_not_load_are_named(runtime: Runtime) -> None:
    """With the runtime's own words and the command that helps (S4.7)."""
    runtime.file.write_text("broken!", encoding="utf-8")
    local = LocalModel(LOCAL_135M, lambda: runtime)
    with pytest.raises(ModelError) as caught:
        await say(local)
    await local.aclose()
    assert "failed to load the weights" in caught.value.message and "moryflow model install" in caught.value.next_step


async def test_a_runtime_that_crashes_is_named(runtime: Runtime) -> None:
    """A build for another processor ends at its first instruction (S4.7)."""
    (runtime.folder / "xllamacpp" / "__init__.py").write_text("import os; os.abort()", encoding="utf-8")
    local = LocalModel(LOCAL_135M, lambda: runtime)
    with pytest.raises(ModelError) as caught:
        await say(local)
    await local.aclose()
    assert caught.value.code == "missing" and "does not start" in caught.value.message


QUESTIONS = (
    ("What is this project? One sentence.", r"host for LLM agents"),
    ("Which Python version does it need?", r"3\.11"),
    ("Which command runs the tests?", r"pytest -n auto"),
    ("Where are sessions stored?", r"SQLite"),
    ("Is there telemetry?", r"(?i)\bno\b"),
    ("What is a Markdown file in Moryflow?", r"agent"),
    ("Which command opens a conversation that asks before anything risky?", r"moryflow chat"),
    ("Which command shows all sessions in a browser?", r"moryflow serve"),
    ("What makes a Python function a tool?", r"type hints"),
    ("Which file does the lock file plugin tell the agent to edit instead?", r"pyproject\.toml"),
    ("Which page is about security?", r"(?i)security"),
    ("Do I need a key to start?", r"(?i)\bno\b"),
)


@real
@pytest.mark.slow
async def test_the_real_model_answers_from_a_page_and_calls_a_tool() -> None:
    """At least eight of twelve questions about the README are answered right (ARCHITECTURE 8, README)."""
    page = Path(__file__).parents[3].joinpath("README.md").read_text(encoding="utf-8")
    async with await open_host(Path(REAL), environ={}) as host:
        right = 0
        for question, expected in QUESTIONS:
            session = await host.new_session(Path(__file__).parent, model="local")
            turn = await session.prompt(question, files=[{"path": "README.md", "text": page}])
            right += re.search(expected, turn.text) is not None
        assert right >= 8
        session = await host.new_session(Path(__file__).parent, model="local")
        ran: list[str] = []
        session.subscribe(lambda event: ran.append(event.data["output"]) if event.type == "tool.result" else None)
        await session.prompt("List the files here.")
        assert any("test_local_model" in output for output in ran)


@real
async def test_the_real_model_refuses_what_does_not_fit() -> None:
    """The error says that the window is too small (S1.9)."""
    local = LocalModel(LOCAL, lambda: Runtime(Path(REAL)))
    try:
        with pytest.raises(ModelError) as caught:
            await say(local, "word " * 20_000)
        assert caught.value.code == "context"
    finally:
        await local.aclose()
