"""Fixtures for plugin authors, and ``pytest --moryflow-plugin PATH``.

pytest loads this module in every run of an environment that has Moryflow, so it imports nothing until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conformance import Subject
    from .isolated import IsolatedHost
    from .replies import LoopbackServer

OPTION = "--moryflow-plugin"
SETTINGS = "--moryflow-settings"
GROUPS = ("load", "hooks", "tools")
"""The modules of :mod:`.conformance`, in the order in which they run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options for the conformance checks."""
    group = parser.getgroup("moryflow")
    group.addoption(OPTION, action="append", default=[], metavar="PATH", help="check a Moryflow plugin (file or folder)")
    group.addoption(SETTINGS, default="{}", metavar="JSON", help="its settings for the checks, such as a key it needs")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Add the conformance checks to the tests that pytest collects."""
    if not config.getoption(OPTION):
        return
    from moryflow_sdk.support.own_files import leads_nowhere

    for path in map(Path, config.getoption(OPTION) or ()):
        if not path.exists():
            raise pytest.UsageError(f"{OPTION}: {path}: {leads_nowhere(path) or 'there is nothing there'}")
    _settings(config)

    # Without other arguments, run only the checks, and not the tests in the current folder as well.
    given = config.invocation_params.args
    alone = not any(argument for argument in config.args if argument in given)
    config.args[:] = [*([] if alone else config.args), *(f"{Path(__file__).parent}/conformance/{group}.py" for group in GROUPS)]
    if alone and config.pluginmanager.has_plugin("asyncio"):
        # No check is async, and pytest-asyncio would warn in a folder without settings for it.
        config.pluginmanager.unregister(name="asyncio")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each conformance check once for each plugin that ``--moryflow-plugin`` names."""
    if "plugin_under_test" in metafunc.fixturenames:
        paths = [Path(path).resolve() for path in metafunc.config.getoption(OPTION) or ()]
        metafunc.parametrize("plugin_under_test", paths, ids=[path.name for path in paths], scope="session")


def _settings(config: pytest.Config) -> dict[str, Any]:
    import json

    try:
        found = json.loads(str(config.getoption(SETTINGS)))
    except ValueError as error:
        raise pytest.UsageError(f"{SETTINGS}: it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise pytest.UsageError(f'{SETTINGS}: an object is needed, such as \'{{"api_key": "x"}}\'')
    return found


@pytest.fixture
def moryflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[IsolatedHost]:
    """An isolated host in a temporary home, with a scripted model; it cannot reach the real home."""
    from .isolated import IsolatedHost

    host = IsolatedHost(tmp_path / "moryflow-home", tmp_path / "vault")
    monkeypatch.setenv("MORYFLOW_HOME", str(host.home))
    for name in ("MORYFLOW_CONFIG", "MORYFLOW_MODEL", "MORYFLOW_PLUGINS", "MORYFLOW_SAFE_MODE", "MORYFLOW_STRICT"):
        monkeypatch.delenv(name, raising=False)
    yield host
    host.close()


@pytest.fixture(scope="session")
def plugin_subject(
    plugin_under_test: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[Subject]:
    """The plugin that ``--moryflow-plugin`` names, in a host that its checks share."""
    from .conformance import Subject

    subject = Subject(plugin_under_test, tmp_path_factory.mktemp("conformance"), _settings(pytestconfig))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MORYFLOW_HOME", str(subject.root / "home"))
        yield subject
        subject.close()


@pytest.fixture
def fire(moryflow: IsolatedHost) -> Callable[..., Any]:
    """Call one hook chain of the isolated host: ``fire("chat_params", params={"temperature": 0.5})``."""
    return moryflow.fire


@pytest.fixture
def scripted_model() -> Callable[..., Any]:
    """Make a model that answers from a list: ``scripted_model(["Hello"])``."""
    from moryflow_sdk.support.scripted import ScriptedModel

    return ScriptedModel


@pytest.fixture
def loopback_server() -> Iterator[LoopbackServer]:
    """A scripted model server on loopback; see :mod:`moryflow.testing.replies`."""
    from .replies import LoopbackServer

    with LoopbackServer() as server:
        yield server
