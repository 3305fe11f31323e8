"""What holds for every test."""

from __future__ import annotations

import os

# Options for this run, such as the number of processes, are not for the runs of pytest that some tests start.
os.environ.pop("PYTEST_ADDOPTS", None)
