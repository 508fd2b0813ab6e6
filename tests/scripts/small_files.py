"""Runs a script under which no file may grow beyond 150 kB, as on a full disk.

    python small_files.py SCRIPT ARGUMENTS

Writing more fails with EFBIG: Python ignores the signal that comes with it.
"""

from __future__ import annotations

import resource
import runpy
import sys
from pathlib import Path

resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).parent)
runpy.run_path(sys.argv[0], run_name="__main__")
