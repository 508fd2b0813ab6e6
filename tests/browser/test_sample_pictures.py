"""Pictures that a model drew while it trained, in the page without Jupyter and over the comm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.lab import Page
from tests.browser.looks import FOLDER
from tests.browser.ui_server import UiServer
from tests.widgets.sample_runs import SampleRun

pytest.importorskip("PIL")
PATIENCE = 120
PROMPT = "a red field with a <b>white</b> square"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UiServer]:
    (tmp_path / "runs").mkdir()
    one = UiServer(tmp_path / "runs")
    yield one
    assert one.close() == 0


@pytest.mark.full
def test_the_step_that_is_chosen_is_shown(page: Page, server: UiServer, tmp_path: Path) -> None:
    from PIL import Image

    run = SampleRun(tmp_path / "runs", "drawn", gpus=1, processes=1)
    run.write(60)
    directory = tmp_path / "runs" / "drawn"
    (directory / "samples").mkdir()
    steps = (0, 20, 40)
    for step in steps:
        image = Image.new("RGB", (64 + step, 64), (200, 40, 40))
        image.paste((250, 250, 250), (20, 20, 44, 44))
        image.save(directory / "samples" / f"step-{step}.png")
    view = json.loads((directory / "view.json").read_text())
    answers = [[f"samples/step-{step}.png", "samples/../run.json"] for step in steps]
    view["text_samples"] = {"prompts": [PROMPT, "text"], "steps": list(steps), "answers": answers}
    view["text_samples"]["steps_left_out"] = 0
    (directory / "view.json").write_text(json.dumps(view))
    page.driver.get(f"{server.url}#/run/drawn")
    widths = (
        "return [...document.querySelectorAll('.wb-samples img')].map((one) => one.naturalWidth)"
    )
    page.until("the newest", lambda: page.js(widths) == [104], PATIENCE)
    page.one(".wb-area-samples button[aria-label='Earlier step']").click()
    page.until("the one before", lambda: page.js(widths) == [84], PATIENCE)
    assert page.js("return document.querySelector('.wb-samples img').alt") == PROMPT
    assert "samples/../run.json" in page.text(".wb-samples")
    assert page.js("return document.querySelectorAll('.wb-samples b').length") == 0
    FOLDER.mkdir(exist_ok=True)
    page.js("document.querySelector('.wb-area-samples').scrollIntoView({block: 'center'})")
    page.driver.save_screenshot(str(FOLDER / "sample_pictures.png"))
    assert page.errors() == []
