"""The export in JupyterLab: files follow the controls, refusals have reasons, saving, looks."""

from __future__ import annotations

import pytest

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("nbformat", reason="nbformat is not installed")

from tests.browser.lab import Lab, Page
from tests.browser.looks import both_themes_and_three_widths, type_into

pytestmark = pytest.mark.full

CELL = "from workbench_widgets import Export\nExport({options})"
TWO = "'gpt', nodes=2, processes_per_node=8, gpu='h100', strategy='fsdp', arguments='--steps 500'"


@pytest.fixture
def show(lab: Lab, page: Page, store):
    """Open a notebook with one export in it."""

    def open_it(name: str, options: str) -> None:
        page.open(lab.notebook(f"{name}.ipynb", CELL.format(options=options)))
        page.run_cell(0)
        page.one(".wbm-headline")

    return open_it


def test_files_refusals_and_saving(page: Page, show) -> None:
    show("export", f"{TWO}, checkpoints='volume:v', checkpoint_every=50")
    page.until("the file", lambda: "num_nodes: 2" in page.text(".wbx-text"))
    second = page.one(".wbx-tabs button:nth-child(2)")
    second.click()
    page.until("launch.sh", lambda: "--num_machines 2" in page.text(".wbx-text"))
    page.js(
        "const one = document.querySelector('[data-field=provider] select');"
        "one.value = 'runpod'; one.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    page.until("refused", lambda: "non-trivial" in page.text(".wbx-reasons"))
    able = page.one(".wbx-engines tr[data-able='true'] button[aria-label='Show dstack']")
    page.js("arguments[0].click()", able)
    page.until("dstack", lambda: "type: task" in page.text(".wbx-text"))
    type_into(page, "nodes", "3")
    page.until("three", lambda: "nodes: 3" in page.text(".wbx-text"))
    page.js("document.querySelector('.wbx-save button').click()")
    page.until("saved", lambda: "files in" in page.text(".wbx-save"))
    assert not page.errors()


@pytest.mark.parametrize("kind", ["files", "refused"])
def test_both_themes_and_widths(page: Page, show, kind: str) -> None:
    more = ", provider='nebius', checkpoints='volume:v', checkpoint_every=50"
    show(f"export-{kind}", TWO + (more if kind == "files" else ", provider='runpod', spot=True"))
    page.one(".wbx-engines tr")
    both_themes_and_three_widths(page, f"export-{kind}")
