"""The fixtures for plugin authors, used the way an author would."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from moryflow.testing import IsolatedHost, LoopbackServer
from moryflow_sdk import Message, ModelProvider, ModelRequest, TextDelta
from moryflow_sdk.support.scripted import ScriptedModel

SHOUT = '''
    """Shouts."""
    from typing import Annotated
    from moryflow_sdk import ToolResult, hookimpl, tool

    @tool
    def greet(name: Annotated[str, "Who"]) -> str:
        """Greet NAME."""
        return f"hello {name}"

    @hookimpl
    def tools():
        """Offer it."""
        return [greet]

    @hookimpl
    def tool_after(result):
        """Shout."""
        return result.replace(output=result.output.upper())
'''


def test_a_plugin_is_tested_in_a_few_lines(moryflow: IsolatedHost) -> None:
    """An isolated host, a scripted model, and what the model was sent (CONTRACT 3)."""
    moryflow.plugin(SHOUT)
    moryflow.allow_all()
    result = moryflow.run("go", [{"calls": [{"name": "greet", "arguments": {"name": "ann"}}]}, "done"])
    assert (result.end_reason, result.text, result.exit_code) == ("completed", "done", 0)
    answer = moryflow.model.requests[-1].messages[-1]
    assert (answer.role, answer.text) == ("tool", "HELLO ANN")
    assert [event.type for event in moryflow.events if event.type.startswith("tool.")].count("tool.result") == 1


def test_one_hook_chain_is_called_alone(moryflow: IsolatedHost, fire: Callable[..., Any]) -> None:
    """The value after the chain, and who was called (CONTRACT 3)."""
    moryflow.plugin(SHOUT)
    fired = fire("tool_after", call={"tool": "greet", "args": {}}, result={"output": "quiet"})
    assert fired.value["output"] == "QUIET"
    assert any(entry["plugin"] == "plugin_under_test" for entry in fired.chain)


def test_one_tool_is_called_without_a_model(moryflow: IsolatedHost) -> None:
    """Through the whole chain (invariant 1)."""
    moryflow.plugin(SHOUT)
    moryflow.allow_all()
    assert moryflow.call_tool("greet", name="bob").result.output == "HELLO BOB"
    assert moryflow.model.requests == []


def test_a_conversation_goes_on(moryflow: IsolatedHost) -> None:
    """The second turn sees the first (S1.4)."""
    talk = moryflow.session()
    moryflow.run("one", ["first"], session=talk)
    moryflow.run("two", ["second"], session=talk)
    assert [message.text for message in moryflow.model.requests[-1].messages][-3:] == ["one", "first", "two"]


async def test_it_works_in_async_tests_too(moryflow: IsolatedHost) -> None:
    """The host has a loop of its own (CONTRACT 3)."""
    assert moryflow.run("go", ["fine"]).text == "fine"


def test_a_trace_is_the_same_text_in_every_run(moryflow: IsolatedHost) -> None:
    """What plugins did, without ids, times and places (CONTRACT 3)."""
    moryflow.plugin(SHOUT)
    moryflow.allow_all()
    moryflow.run("go", [{"calls": [{"name": "greet", "arguments": {"name": str(moryflow.vault)}}]}, "done"])
    upper = str(moryflow.vault).upper()
    said = f'{{"output": "HELLO {upper}", "was": {{"output": "hello <vault>"}}}}'
    assert moryflow.trace() == f"1.1 tool.after greet plugin_under_test: changed {said}"


def test_time_passes_when_the_test_says_so(moryflow: IsolatedHost) -> None:
    """A pause of hours before the model is asked again costs the test nothing (D55)."""
    turn = moryflow.begin("go", [{"error": {"code": "rate_limit", "retry_after": 6000}}, "done"])
    assert moryflow.until("session.status", status="retry").data["attempt"] == 2
    assert not turn.done()
    moryflow.advance(6001)
    assert turn.result(300).text == "done"


def test_a_package_looks_installed_without_being_it(moryflow: IsolatedHost, tmp_path: Path) -> None:
    """Entry points of metadata that was only written, gone again with the host (CONTRACT 3)."""
    before = list(sys.path)
    written = moryflow.distribution("acme-tools", {"moryflow.plugins": {"acme": "acme_plugin_under_test"}}, version="2.0")
    (written.parent / "acme_plugin_under_test.py").write_text(dedent(SHOUT), encoding="utf-8")
    (record,) = [record for record in moryflow.host.plugin_set.records if record.name == "acme"]
    assert (record.status, record.tier, record.version) == ("loaded", "installed", "2.0")
    moryflow.close()
    assert sys.path == before
    with pytest.raises(ValueError, match="pyproject"):
        moryflow.project(tmp_path)


def test_the_real_home_is_out_of_reach(moryflow: IsolatedHost, tmp_path: Path) -> None:
    """Home and vault are temporary (CONTRACT 3)."""
    assert moryflow.host.home == moryflow.home and moryflow.home.is_relative_to(tmp_path)
    assert os.environ["MORYFLOW_HOME"] == str(moryflow.home)


def test_settings_are_merged(moryflow: IsolatedHost) -> None:
    """One call does not undo another (CONTRACT 3)."""
    moryflow.configure({"agents": {"runtime": {"mode": {"default": "full_access"}}}})
    moryflow.allow_all()
    assert moryflow.host.config.get("agents.runtime.mode.default") == "full_access"
    assert moryflow.host.config.rules()


async def test_a_scripted_model_is_made_from_a_list(scripted_model: Callable[..., Any]) -> None:
    """For code that takes a provider (CONTRACT 3)."""
    model = scripted_model(["Hello"])
    assert isinstance(model, ModelProvider) and isinstance(model, ScriptedModel)
    request = ModelRequest(model=model.info, messages=(Message(role="user", text="hi"),))
    assert [event.text async for event in model.stream(request) if isinstance(event, TextDelta)] == ["Hello"]


def test_a_model_server_on_loopback_is_at_hand(loopback_server: LoopbackServer) -> None:
    """For code that speaks HTTP (CONTRACT 3)."""
    assert loopback_server.url.startswith("http://127.0.0.1:")


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MORYFLOW_HOME": str(folder / "real-home")}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


BROKEN = """
    from moryflow_sdk import hookimpl, tool

    @tool(domain="read")
    def look(path: str) -> str:
        return path

    @hookimpl
    def tools():
        return [look]

    @hookimpl
    def tool_before(call):
        raise RuntimeError("never tried")
"""


@pytest.mark.slow
def test_the_conformance_checks_pass_for_a_good_plugin_and_name_what_is_wrong_with_a_bad_one(tmp_path: Path) -> None:
    """``pytest --moryflow-plugin PATH`` (CONTRACT 3)."""
    good, bad, worse = (tmp_path / name for name in ("good.py", "bad.py", "worse.py"))
    good.write_text(dedent(SHOUT), encoding="utf-8")
    bad.write_text(dedent(BROKEN), encoding="utf-8")
    worse.write_text("import nothing_of_that_name\n", encoding="utf-8")
    passed = run_pytest(tmp_path, "--moryflow-plugin", str(good))
    assert passed.returncode == 0, passed.stdout
    some = "it_loads or turn_works or rules_can_judge"
    failed = run_pytest(tmp_path, "--moryflow-plugin", str(bad), "--moryflow-plugin", str(worse), "-k", some)
    assert failed.returncode == 1
    for words in ("add targets=", "never tried", "nothing_of_that_name", "What to do:"):
        assert words in failed.stdout
    assert not (tmp_path / "real-home").exists()


def test_the_pytest_plugin_imports_nothing_for_others() -> None:
    """It is loaded in every pytest run of the environment (STYLE)."""
    code = """
import sys
import moryflow_sdk
before = set(sys.modules)
import pytest
import moryflow.testing.plugin
mine = {name for name in sys.modules if name.startswith("moryflow")} - before
assert mine == {"moryflow", "moryflow.testing", "moryflow.testing.plugin"}, mine
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


CLOCKS = """
    import datetime as dt
    import time
    from datetime import datetime
    from time import monotonic

    from moryflow_sdk import hookimpl, tool

    STARTED = monotonic()

    @tool(domain="read")
    def age() -> str:
        past = dt.datetime.fromtimestamp(0)
        assert isinstance(past, datetime) and isinstance(datetime.now(), dt.datetime)
        return f"{time.time():.0f} {datetime.now(dt.timezone.utc).timestamp():.0f} {monotonic() - STARTED:.0f}"

    @hookimpl
    def tools():
        return [age]
"""


def test_code_that_asks_the_clock_sees_time_pass(moryflow: IsolatedHost) -> None:
    """``time`` and ``datetime`` in the plugin's modules, and nowhere else (CONTRACT 3)."""
    moryflow.plugin(CLOCKS, "clocks")
    before = [int(number) for number in moryflow.call_tool("age").result.output.split()]
    real = time.time, time.monotonic
    moryflow.advance(86_400)
    after = [int(number) for number in moryflow.call_tool("age").result.output.split()]
    assert all(86_399 <= late - early < 87_000 for early, late in zip(before, after, strict=True))
    assert (time.time, time.monotonic) == real


def test_a_session_is_compacted_on_demand(moryflow: IsolatedHost) -> None:
    """As ``/compact`` does; the scripted model writes the summary (CONTRACT 3)."""
    moryflow.configure({"agents": {"runtime": {"compaction": {"protectedTurns": 1, "keepRecentTokens": 10}}}})
    session = moryflow.session()
    for number in range(4):
        moryflow.run(f"question {number} " + "word " * 400, [f"answer {number} " + "word " * 400], session=session)
    moryflow.model.add("## Progress\nFour questions were asked.")
    done = moryflow.compact(session, "the answers")
    assert done["tokens_after"] < done["tokens_before"]
    assert "the answers" in str(moryflow.model.requests[-1])
