"""The samples of the source, configurations and agents, load and work as they stand (D74)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
HELLO = Path(__file__).parents[3] / "user_examples" / "tools" / "hello.py"


@pytest.mark.parametrize("name", ["first", "second"])
def test_every_sample_loads_and_works_as_it_stands(moryflow, name):
    """Both configurations beside both agents: nothing is reported, and each setting does what it says (S0.87, S0.91, D74)."""
    from moryflow.cli.findings import unknown_names
    from moryflow.plugins.manifest import settings_of_plugins

    shutil.copyfile(SAMPLES / f"{name}.jsonc", moryflow.home / "config.jsonc")
    for folder, source in (("agents", SAMPLES / f"{name}.md"), ("tools", HELLO)):
        (moryflow.home / folder).mkdir()
        shutil.copyfile(source, moryflow.home / folder / source.name)
    (moryflow.vault / "a.md").write_text("one\n", encoding="utf-8")
    host = moryflow.host
    assert host.config.checked(settings_of_plugins(host.plugin_set)).problems == ()
    assert list(unknown_names(host)) == [] and not any(record.error for record in host.plugin_set.records)
    moryflow.run("go", [{"calls": [{"name": "read", "arguments": {"path": "a.md"}}]}, "done"])
    asked, answered = moryflow.model.requests
    style = {"first": ("short bullet points", 512), "second": ("Markdown", 2048)}[name]
    assert "writing assistant." in asked.messages[0].text and f"You must reply in {style[0]}." in asked.messages[0].text
    assert (asked.params.temperature, asked.params.max_tokens) == (0.2, style[1])
    output = answered.messages[-1].text
    assert output == "[preview]\\none" if name == "first" else output.endswith("\\n[read completed]")
    assert host.tools["hello"].plugin == "external_tools"
