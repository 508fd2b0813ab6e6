"""SKILL.md and llms.txt are what the commands say today."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.cli.agents_pages import pages

FOLDER = Path(__file__).resolve().parents[2] / "environments"


@pytest.mark.parametrize(("name", "text"), pages().items())
def test_the_page_is_up_to_date(name: str, text: str) -> None:
    written = (FOLDER / name).read_text("utf-8")
    assert written == text, "run: python -m workbench.cli.agents_pages"
