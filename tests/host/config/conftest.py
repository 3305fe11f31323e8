"""What the tests of the configuration share."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from moryflow.base.builtins import BUILTINS


@pytest.fixture(scope="session")
def known() -> tuple[Any, ...]:
    """The settings of the plugins that come with the host, by path."""
    modules = [importlib.import_module(name) for name in BUILTINS]
    return tuple((module.config_path, module.config_model) for module in modules if hasattr(module, "config_model"))
