"""Which packages of ``llm`` are loaded: those that the user agreed to, as they were then, each by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import forked_command
import pytest
from moryflow import open_host

from .conftest import LlmHost

TOOL = """
from pathlib import Path
import llm
Path({mark!r}).touch()

def {name}(text: str) -> str:
    "Say a text."
    return "{says} " + text

@llm.hookimpl
def register_tools(register):
    register({name})
"""


def moryflow(host: LlmHost, *words: str, code: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, with `code` run before it."""
    site = host.home.parent / "site"
    env = {"PATH": os.environ["PATH"], "HOME": str(host.home.parent), "MORYFLOW_HOME": str(host.home), "PYTHONPATH": str(site)}
    env |= {"LLM_USER_PATH": os.environ["LLM_USER_PATH"], **environ}
    if not code:
        return forked_command.run([sys.executable, "-m", "moryflow", *words], env=env, cwd=host.vault, text=True)
    script = f"{code}\nimport sys\nfrom moryflow.cli import main\nsys.exit(main({list(words)!r}))"
    return subprocess.run([sys.executable, "-c", script], env=env, cwd=host.vault, text=True, capture_output=True, check=False)


def test_without_a_named_package_nothing_is_offered_and_llm_is_not_imported(llm_host: LlmHost) -> None:
    """Ten packages are installed; a start pays for none of them (R12)."""
    said = "import atexit, sys\natexit.register(lambda: print('llm' in sys.modules, file=sys.stderr))"
    done = moryflow(llm_host, "tool", "list", code=said)
    assert done.returncode == 0 and "llm__" not in done.stdout and done.stderr.strip() == "False"
    assert moryflow(llm_host, "llm", "list").stdout == "no package was added; moryflow llm add NAME\n"


def test_a_package_is_shown_before_it_is_imported_and_loaded_when_the_user_agrees(llm_host: LlmHost, tmp_path: Path) -> None:
    """Nobody can be asked here, so nothing is added; -y answers (S2.14)."""
    llm_host.write_package("llm-said", "llm_said_one", TOOL.format(mark=str(tmp_path / "ran"), name="speak", says="one"))
    refused = moryflow(llm_host, "llm", "add", "llm-said")
    assert refused.returncode == 2 and "loads llm_said_one" in refused.stderr and "nobody can be asked" in refused.stderr
    assert not (tmp_path / "ran").exists() and "llm__" not in moryflow(llm_host, "tool", "list").stdout
    added = moryflow(llm_host, "llm", "add", "-y", "llm-said")
    assert added.stdout == "llm-said 0.1.0: tools speak\n" and (tmp_path / "ran").exists()
    assert "llm__speak" in moryflow(llm_host, "tool", "list").stdout
    assert moryflow(llm_host, "llm", "remove", "llm-said").stdout == "removed llm-said\n"
    assert "llm__speak" not in moryflow(llm_host, "tool", "list").stdout


def test_a_package_that_looks_for_models_finds_those_of_named_packages_alone(llm_host: LlmHost) -> None:
    """llm would load every installed package at the first question (R12)."""
    llm_host.write_package("llm-asks", "llm_asks_package", ASKS)
    llm_host.agree("llm-asks", "llm-fragments-dir")
    assert moryflow(llm_host, "tool", "run", "llm__known").stdout == "asked; echo: False\n"
    brings = {row["package"]: row["brings"] for row in json.loads(moryflow(llm_host, "llm", "list", "--json").stdout)}
    assert brings == {"llm-asks 0.1.0": "models llm/asked; tools known", "llm-fragments-dir 0.1": "fragments @dir:"}


ASKS = """
import llm, sys

class Asked(llm.Model):
    model_id = "asked"
    def execute(self, prompt, stream, response, conversation):
        yield "yes"

@llm.hookimpl
def register_models(register):
    register(Asked())

def known() -> str:
    "Name the models."
    names = [model.model_id for model in llm.get_models()]
    return ", ".join(name for name in names if name in ("asked", "echo")) + f"; echo: {'llm_echo' in sys.modules}"

@llm.hookimpl
def register_tools(register):
    register(known)
"""


def test_a_tool_cannot_add_a_package(llm_host: LlmHost) -> None:
    """An agent that installs a package cannot agree to it (S2.14)."""
    done = moryflow(llm_host, "llm", "add", "-y", "llm-tools-simpleeval", MORYFLOW_CALL="call_1")
    assert done.returncode == 2 and "was started by a tool" in done.stderr
    assert "no package was added" in moryflow(llm_host, "llm", "list").stdout


def test_a_package_that_changed_is_left_out_until_it_is_added_again(llm_host: LlmHost, tmp_path: Path) -> None:
    """The consent is for the content of its files, and the others work on (S2.14)."""
    source = TOOL.format(mark=str(tmp_path / "ran"), name="speak", says="one")
    file = llm_host.write_package("llm-said", "llm_said_two", source)
    moryflow(llm_host, "llm", "add", "-y", "llm-said", "llm-tools-simpleeval")
    file.write_text(source.replace("one", "two"), encoding="utf-8")
    listed = moryflow(llm_host, "tool", "list")
    assert "llm__speak" not in listed.stdout and "llm__simple_eval" in listed.stdout
    assert "llm-said: it has changed since you agreed to it; next: moryflow llm add llm-said" in listed.stderr
    rows = {row["package"]: row for row in json.loads(moryflow(llm_host, "llm", "list", "--json").stdout)}
    assert rows["llm-said"]["loaded"] is False and rows["llm-tools-simpleeval 0.1.1"]["loaded"] is True
    moryflow(llm_host, "llm", "add", "-y", "llm-said")
    assert "llm__speak" in moryflow(llm_host, "tool", "list").stdout


def test_a_change_of_an_editable_package_waits_too(llm_host: LlmHost, tmp_path: Path) -> None:
    """Its metadata does not list its files, so those are hashed that would be imported (S2.14)."""
    source = TOOL.format(mark=str(tmp_path / "ran"), name="speak", says="one")
    llm_host.write_package("llm-edited", "llm_edited_package", source).unlink()
    folder = llm_host.home.parent / "site" / "llm_edited_package"
    (folder / "parts").mkdir(parents=True)
    (folder / "__init__.py").write_text(source, encoding="utf-8")
    (folder / "parts" / "more.py").touch()
    moryflow(llm_host, "llm", "add", "-y", "llm-edited")
    assert "llm__speak" in moryflow(llm_host, "tool", "list").stdout
    (folder / "parts" / "more.py").write_text("x = 1", encoding="utf-8")
    assert "llm-edited: it has changed since you agreed to it" in moryflow(llm_host, "tool", "list").stderr


def test_a_running_host_names_a_new_version_and_keeps_to_what_it_can_import(llm_host: LlmHost, tmp_path: Path) -> None:
    """Code that is imported cannot be imported anew, so it says that it must start again."""
    source = TOOL.format(mark=str(tmp_path / "ran"), name="speak", says="one")
    file = llm_host.write_package("llm-again", "llm_said_three", source)
    llm_host.agree("llm-again")
    assert llm_host.call_tool("llm__speak", text="word").result.output == "one word"
    file.write_text(source.replace("one", "two"), encoding="utf-8")
    llm_host.agree("llm-again")
    llm_host.wait(llm_host.host.refresh())
    assert "llm__speak" not in llm_host.host.tools
    assert "another version of it is in use since the start" in llm_host.problems()


BLOCK = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "quickjs":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""


def test_a_package_that_lacks_a_module_is_named_and_the_rest_work(llm_host: LlmHost) -> None:
    """llm itself does not start then (R12)."""
    pytest.importorskip("llm_tools_quickjs", reason="quickjs has no wheels for this Python", exc_type=ImportError)
    llm_host.agree("llm-tools-quickjs", "llm-tools-simpleeval", "llm-echo")
    done = moryflow(llm_host, "tool", "run", "llm__simple_eval", "--expression", "6 * 7", code=BLOCK)
    assert (done.returncode, done.stdout) == (0, "42\n")
    missing = "llm-tools-quickjs: it cannot be imported: the module quickjs is missing; next: python -m pip install quickjs"
    assert missing in done.stderr
    doctor = moryflow(llm_host, "doctor", code=BLOCK).stdout
    assert "the module quickjs is missing" in doctor and "llm-echo 0.4: models llm/echo" in doctor
    itself = [sys.executable, "-c", f"{BLOCK}\nfrom llm.cli import cli\ncli(['--version'])"]
    assert subprocess.run(itself, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(
    "source", ["raise SystemExit(3)", "1 / 0", "import llm\n@llm.hookimpl\ndef register_tools(wrong): ..."]
)
def test_a_package_that_cannot_be_loaded_costs_nobody_else(llm_host: LlmHost, source: str) -> None:
    """Whatever its code does at import, it is named with the next command."""
    llm_host.write_package("llm-bad", f"llm_bad_{len(source)}", source)
    llm_host.agree("llm-bad", "llm-tools-simpleeval")
    assert "llm__simple_eval" in llm_host.host.tools
    assert "llm-bad: it cannot be loaded" in llm_host.problems() and "moryflow llm remove llm-bad" in llm_host.problems()


def test_a_package_that_is_gone_is_named(llm_host: LlmHost) -> None:
    llm_host.agree("llm-nowhere", "llm-tools-simpleeval")
    assert "llm-nowhere: no package of this name with a plugin of llm is installed" in llm_host.problems()
    assert "llm__simple_eval" in llm_host.host.tools


async def test_no_package_is_loaded_for_somebody_far_away(llm_host: LlmHost) -> None:
    """As for the user's own tools (S2.14)."""
    llm_host.agree("llm-tools-simpleeval", "llm-echo")
    async with await open_host(**{**llm_host.options, "profile": "remote"}) as host:
        assert "llm__simple_eval" not in host.tools
        record = next(each for each in host.plugin_set.records if each.name == "llm_plugins")
        assert "packages of llm are not loaded under the profile remote" in "".join(record.notes)


def test_safe_mode_runs_no_code_of_a_package(llm_host: LlmHost, tmp_path: Path) -> None:
    """Neither for its tools nor when a doctor looks at it (R12)."""
    llm_host.write_package("llm-said", "llm_said_safe", TOOL.format(mark=str(tmp_path / "ran"), name="speak", says="one"))
    llm_host.agree("llm-said")
    for words in (("tool", "list"), ("doctor",), ("llm", "list")):
        assert "speak" not in moryflow(llm_host, *words, "--safe-mode").stdout
    assert not (tmp_path / "ran").exists()
    assert "speak" in moryflow(llm_host, "doctor").stdout
