"""``python -m moryflow``."""

import sys

from moryflow.cli import main

sys.exit(main())
