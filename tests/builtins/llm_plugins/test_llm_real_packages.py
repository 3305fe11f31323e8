"""Ten real packages for the tool ``llm``, each run through the doors of the host, without the network."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import ssl
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from moryflow_sdk import ConfigError, ToolError

from .conftest import LlmHost, keys_of

SQLITE = "llm-tools-sqlite"


def test_a_model_of_llm_echo_answers_a_turn_and_knows_the_earlier_ones(llm_host: LlmHost) -> None:
    """The history reaches a package that reads only the conversation, and its counts are the turn's (S4.7)."""
    llm_host.agree("llm-echo")
    session = llm_host.session(model="llm/echo")
    first = llm_host.ask("", "one two", session)
    said = json.loads(llm_host.ask("", "three", session).text)
    assert first.usage.input == 2 and said["prompt"] == "three"
    assert [each["prompt"] for each in said["previous"]] == ["one two"]
    assert "Working folder" in said["system"]


def test_a_call_that_llm_echo_asks_for_runs_in_the_host_and_comes_back(llm_host: LlmHost) -> None:
    """The package gets schemas of ours and never runs a tool itself (S2.14)."""
    (llm_host.vault / "seen.txt").touch()
    llm_host.agree("llm-echo")
    asked = {"prompt": "look", "tool_calls": [{"name": "ls", "arguments": {"path": "."}}]}
    said = json.loads(llm_host.ask("llm/echo", json.dumps(asked)).text)
    assert [(each["name"], "seen.txt" in each["output"]) for each in said["tool_results"]] == [("ls", True)]
    assert llm_host.until("tool.result", tool="ls").data["status"] == "ok"


def test_a_key_comes_from_the_store_of_llm_by_the_name_that_the_model_asks_for(llm_host: LlmHost, tmp_path: Path) -> None:
    """Without it the turn ends with the command that sets it; the key stands in no file of ours (S4.7)."""
    llm_host.agree("llm-echo")
    without = llm_host.ask("llm/echo-needs-key", "hi")
    assert without.end_reason == "model_error" and without.exit_code == 7
    assert "llm keys set echo-needs-key" in str(without.error)
    keys_of(tmp_path / "llm", **{"echo-needs-key": "sk-of-a-test"})
    assert llm_host.ask("llm/echo-needs-key", '{"raw": "with a key"}').text == "with a key"
    kept = b"".join(path.read_bytes() for path in llm_host.home.rglob("*") if path.is_file())
    assert b"sk-of-a-test" not in kept


def test_a_tool_is_asked_about_until_a_rule_allows_it(llm_host: LlmHost) -> None:
    """llm-tools-simpleeval: its function declares no domain (S2.14)."""
    llm_host.agree("llm-tools-simpleeval", allow=False)
    assert llm_host.call_tool("llm__simple_eval", expression="2 * 21").result.status == "denied"
    rule = {"domain": "tool", "pattern": "tool:llm__simple_eval", "decision": "allow"}
    llm_host.configure({"agents": {"runtime": {"permission": {"rules": [rule]}}}})
    llm_host.wait(llm_host.host.refresh())
    assert llm_host.call_tool("llm__simple_eval", expression="2 * 21").result.output == "42"


def test_a_toolbox_keeps_its_state_within_a_session_and_not_beyond(llm_host: LlmHost) -> None:
    """llm-tools-quickjs: what the first call defines, the second call finds."""
    pytest.importorskip("llm_tools_quickjs", reason="quickjs has no wheels for this Python", exc_type=ImportError)
    llm_host.agree("llm-tools-quickjs")
    name = "llm__QuickJS_execute_javascript"
    calls = [{"name": name, "arguments": {"javascript": script}} for script in ("var n = 41; n", "n + 1")]
    llm_host.run("count", [{"calls": [call]} for call in calls] + ["done"])
    results = [event.data["output"] for event in llm_host.events if event.type == "tool.result"]
    assert results == ["41", "42"]
    assert "is not defined" in llm_host.call_tool(name, javascript="n").result.output
    assert llm_host.call_tool("llm__quickjs", javascript="function execute() { return 4 * 5 }").result.output == "20"


def test_a_toolbox_gets_its_arguments_from_the_settings(llm_host: LlmHost, tmp_path: Path) -> None:
    """llm-tools-sqlite: its connection may only be used on the thread that made it."""
    with sqlite3.connect(tmp_path / "my.db") as database:
        database.execute("create table birds as select 'robin' as name")
    llm_host.agree(SQLITE, toolboxes={"SQLite": {"path": str(tmp_path / "my.db")}})
    query = {"name": "llm__SQLite_query", "arguments": {"sql": "select name from birds"}}
    schema = {"name": "llm__SQLite_schema", "arguments": {}}
    llm_host.run("look", [{"calls": [schema]}, {"calls": [query]}, "done"])
    assert "CREATE TABLE birds" in llm_host.seen() and '[{"name": "robin"}]' in llm_host.seen()


def test_a_toolbox_without_its_arguments_is_named_with_the_setting(llm_host: LlmHost) -> None:
    """A package may bring ten tools of which one waits: the others are offered."""
    llm_host.agree(SQLITE, "llm-tools-simpleeval")
    assert "llm__SQLite_query" not in llm_host.host.tools and "llm__simple_eval" in llm_host.host.tools
    assert "its toolbox SQLite waits for its arguments: path" in llm_host.problems()


def test_llm_tools_datasette_asks_the_server_that_the_settings_name(llm_host: LlmHost) -> None:
    asked: list[str] = []

    class Datasette(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'[{"n": 1}]')

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Datasette) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        llm_host.agree("llm-tools-datasette", toolboxes={"Datasette": {"url": f"http://127.0.0.1:{server.server_port}/db"}})
        result = llm_host.call_tool("llm__Datasette_query", sqlite_sql="select 1 as n").result
        server.shutdown()
    assert json.loads(result.output) == [{"n": 1}]
    assert asked == ["/db.json?sql=select+1+as+n&_shape=array"]


def test_llm_tools_rag_searches_with_an_embedding_model_of_another_package(llm_host: LlmHost, tmp_path: Path) -> None:
    """Tools of llm find the embedding models of all packages, and `llm embed` prints what one gives (issue F)."""
    llm_host.write_package("llm-lengths", "llm_lengths_embed", EMBEDDER)
    llm_host.agree("llm-lengths", "llm-tools-rag")
    assert "llm__RAG_get_collections" in llm_host.host.tools
    import llm
    import sqlite_utils

    (tmp_path / "llm").mkdir()
    shelf = llm.Collection("birds", sqlite_utils.Database(tmp_path / "llm" / "embeddings.db"), model_id="lengths")
    for name in ("owl", "nightingale"):
        shelf.embed(name, name, store=True)
    assert json.loads(llm_host.call_tool("llm__RAG_get_collections").result.output) == ["birds"]
    found = llm_host.call_tool("llm__RAG_get_relevant_documents", query="tit", collection_name="birds", number=1)
    assert [each["id"] for each in json.loads(found.result.output)] == ["owl"]
    assert llm_host.command("llm", "embed", "lengths", "owl", "tit ") == "[3, 5.0]\n[4, 5.0]\n"


EMBEDDER = """
import llm

class Lengths(llm.EmbeddingModel):
    model_id = "lengths"
    def embed_batch(self, items):
        return [[len(item), 5.0] for item in items]

@llm.hookimpl
def register_embedding_models(register):
    register(Lengths())
"""


@pytest.mark.parametrize(("package", "prefix"), [("llm-fragments-dir", "dir"), ("llm-fragments-symbex", "symbex")])
def test_a_fragment_that_the_user_names_is_loaded_before_the_model_is_asked(
    llm_host: LlmHost, package: str, prefix: str
) -> None:
    """It is a call like any other, from the folder in which the agent works (S2.14)."""
    (llm_host.vault / "src").mkdir()
    (llm_host.vault / "src" / "birds.py").write_text("def sing(loud: bool) -> str:\n    return 'tweet'\n", encoding="utf-8")
    llm_host.agree(package)
    llm_host.run(f"what is in @{prefix}:src ?", ["a bird"])
    assert "def sing(loud: bool) -> str" in llm_host.seen()
    assert llm_host.until("tool.result", tool=f"llm__fragment_{prefix}").data["status"] == "ok"


def test_a_fragment_is_asked_about_too(llm_host: LlmHost) -> None:
    """A loader is code that may read anything, so the words that name it are no consent (S2.14)."""
    llm_host.agree("llm-fragments-dir", allow=False)
    llm_host.run(f"what is in @dir:{llm_host.vault} ?", ["nothing"], on_ask="deny")
    assert llm_host.until("tool.result", tool="llm__fragment_dir").data["status"] == "denied"


def test_a_template_is_a_command_and_counts_as_written_by_somebody_else(llm_host: LlmHost, tmp_path: Path) -> None:
    """llm-templates-fsspec: its code and its model are not used (S2.12)."""
    file = tmp_path / "ask.yaml"
    file.write_text("system: Be kind.\nprompt: 'Summarize: $input'\nmodel: gpt-4\nfunctions: 'x = 1'\n", encoding="utf-8")
    llm_host.agree("llm-templates-fsspec")
    result = llm_host.slash(f"/llm:fsspec {file} the letter")
    assert (result.prompt, result.foreign) == ("Be kind.\n\nSummarize: the letter", True)
    assert result.text.endswith("its functions, model are not used")


def test_llm_templates_github_loads_from_where_it_says(
    llm_host: LlmHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a tunnel that ends here: nothing leaves this machine."""
    name = "raw.githubusercontent.com"
    openssl = shutil.which("openssl") or pytest.skip("there is no openssl here to make a certificate with")
    pair = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert"), "-subj", f"/CN={name}"]
    names = ["-addext", f"subjectAltName=DNS:{name}", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([openssl, "req", "-x509", *names, *pair], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert"))
    asked: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        asked.append(connection.recv(65536).partition(b"\r\n")[0])
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        with context.wrap_socket(connection, server_side=True) as inner:
            asked.append(inner.recv(65536).partition(b"\r\n")[0])
            inner.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 22\r\n\r\nprompt: 'Say $input.'\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{listener.getsockname()[1]}")
        Thread(target=serve, args=(listener,), daemon=True).start()
        llm_host.agree("llm-templates-github")
        assert llm_host.slash("/llm:gh ada/greet hello").prompt == "Say hello."
    assert asked == [b"CONNECT raw.githubusercontent.com:443 HTTP/1.1", b"GET /ada/llm-templates/main/greet.yaml HTTP/1.1"]


def test_a_template_that_cannot_be_loaded_is_an_error_with_the_usage(llm_host: LlmHost) -> None:
    """llm-templates-github, which has the name of its entry point from the package before it."""
    llm_host.agree("llm-templates-fsspec", "llm-templates-github")
    with pytest.raises(ToolError, match="GitHub template format") as raised:
        llm_host.slash("/llm:gh a/b/c/d")
    assert raised.value.next_step == "/llm:gh NAME [WORDS]"
    with pytest.raises(ConfigError, match="needs the name"):
        llm_host.slash("/llm:gh")
