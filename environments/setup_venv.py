"""Makes (or repairs, or leaves alone) the project's virtual environment.

Standard library only, run by the system's Python: python3 environments/setup_venv.py --help
What it does and why stands in environments/venv.md.
"""

import sys

# This file alone must parse on old Pythons: no annotations, no f-strings before this line.
if sys.version_info < (3, 10):  # noqa: UP036 - the system's Python may be older than the project's
    sys.exit(
        "setup_venv: this is Python "
        + sys.version.split()[0]
        + " ("
        + sys.executable
        + "); the workbench needs 3.10 or newer.\n"
        + "Next: install a newer one (Debian, Ubuntu: apt-get install python3 python3-venv)\n"
        + "and name it, for example: make demo PYTHON=python3.12"
    )

from venv_setup.main import main

if __name__ == "__main__":
    sys.exit(main())
