"""The public scripts that installed packages bring: run in every suite, no checkout needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_scripts.__main__ import attempt
from tests.real_scripts.table import SCRIPTS, Script

pytestmark = [pytest.mark.slow, pytest.mark.full]
INSTALLED = [script for script in SCRIPTS if not script.repository]


@pytest.mark.parametrize("script", INSTALLED[:1], ids=lambda script: script.name)
def test_an_installed_script_is_captured(script: Script, tmp_path: Path) -> None:
    good, row = attempt(script, tmp_path)
    assert good, row
