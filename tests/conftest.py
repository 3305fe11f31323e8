"""What holds for every test."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

# Options for this run, such as the number of processes, are not for the runs of pytest that some tests start.
os.environ.pop("PYTEST_ADDOPTS", None)

# Programs that tests start (git, uv, a shell) look into the home of whoever runs them and write there; they get another.
os.environ["HOME"] = tempfile.mkdtemp(prefix="moryflow-tests-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)

# On a busy machine one example in thousands takes long for no reason of its own; hypothesis would call that a failure.
settings.register_profile("moryflow", deadline=None)
settings.load_profile("moryflow")
