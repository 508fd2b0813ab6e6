"""Entry point of the warm server's process: loads its files under a private name."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

_NAME = "_workbench_warm"

if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        _NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    importlib.import_module(f"{_NAME}.server").main()
