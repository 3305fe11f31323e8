"""The toolbox of the file tools."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_SPEC = importlib.util.spec_from_file_location("files_toolbox", Path(__file__).parents[1] / "files" / "conftest.py")
assert _SPEC and _SPEC.loader
_FILES = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = _FILES
_SPEC.loader.exec_module(_FILES)
toolbox = _FILES.toolbox
