"""Every broken plugin of the corpus at once: the host is up, each is named with its file, and nothing is unguarded."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from moryflow import open_host

DATA = Path(__file__).parents[3] / "data"
LEFT_OUT = (
    "atexit_raise.py", "audit_hook.py", "patch_json.py", "patch_open.py", "register_async.py", "thread_nondaemon.py",
    "warnings_error.py",
)  # fmt: skip
"""They load, and change what the process of this test shares with them."""


def adapter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("extension_adapter", DATA / "extension_adapter.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_every_broken_plugin_is_named_and_the_host_goes_on(tmp_path):
    """Invariant 5; SECURITY §4: broken plugins, up within 5 s with 3 that work, each named with file and reason."""
    corpus = adapter()
    folder = tmp_path / "home" / "plugins"
    folder.mkdir(parents=True, mode=0o700)
    cases = {case["filename"]: case for case in corpus.cases("plugin") if case["filename"] not in LEFT_OUT}
    for name, case in cases.items():
        (folder / name).write_bytes(corpus.adapted(case))
    good = corpus.adapted({"text": "def register(api):\n    api.add_tool('good', lambda: 'fine', {'type': 'object'}, 'd')\n"})
    (folder / "good.py").write_bytes(good)
    for file in folder.iterdir():
        file.chmod(0o600)
    async with await open_host(tmp_path / "home", environ={}, wait=300) as host:
        records = {Path(record.source).name: record for record in host.plugin_set.records if record.tier == "user"}
        for name, case in cases.items():
            record = records[name]
            if case["expect"]["item"] == "rejected":
                assert record.error and str(folder / name) in f"{record.file} {record.source}", name
                assert not record.tools, name
        assert (await host.call_tool("good", {}, vault=tmp_path)).result.output == "fine"
        assert (await host.call_tool("bash", {"command": "true"}, vault=tmp_path)).result.status == "denied"
