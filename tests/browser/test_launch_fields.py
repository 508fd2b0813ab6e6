"""The launch form in a real browser: a script is picked, its fields filled in, two ranks started."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

import workbench as wb
from tests.browser.lab import Lab, Page
from tests.browser.looks import CLIPPED, FOLDER, OVERFLOW

pytestmark = pytest.mark.full

SCRIPT = """import argparse, sys
from pathlib import Path
p = argparse.ArgumentParser()
g = p.add_argument_group("model")
g.add_argument("--width", type=int, default=8, help="units of the layer")
o = p.add_argument_group("optimizer")
o.add_argument("--lr", type=float, default=0.1, help="peak learning rate")
o.add_argument("--kind", choices=("sgd", "adam"), default="sgd")
o.add_argument("--nesterov", action="store_true", help="look ahead")
p.add_argument("--data-dir", type=Path, required=True, help="folder of the data")
args = p.parse_args()
import torch
from accelerate import Accelerator
a = Accelerator()
m = torch.nn.Linear(args.width, 1)
m, s = a.prepare(m, torch.optim.SGD(m.parameters(), lr=args.lr))
for step in range(3):
    loss = m(torch.randn(4, args.width)).pow(2).mean()
    a.backward(loss); s.step(); s.zero_grad()
print("given", *sys.argv[1:])
"""
CELL = "from workbench_widgets import Launcher\nform = Launcher(store={store!r}, cpu=True, processes=2, warm=True)\nform"
FIELD = ".wbf [data-field='{}'] :is(input, select)"
SIZES = ((1440, 2200), (800, 3000))


def fill(page: Page, name: str, text: str) -> None:
    one = page.one(FIELD.format(name))
    page.js("arguments[0].scrollIntoView({block: 'center'})", one)
    one.click()
    one.send_keys(Keys.CONTROL, "a")
    one.send_keys(text)


def looks(page: Page, name: str) -> None:
    """Screenshots to be looked at; asserted is that nothing of the fields is clipped."""
    FOLDER.mkdir(exist_ok=True)
    for shade in ("Light", "Dark"):
        page.theme(f"JupyterLab {shade}")
        for width, height in SIZES:
            page.driver.set_window_size(width, height)
            page.focus_mode()
            page.js("document.querySelector('.jp-OutputArea-output').scrollIntoView()")
            page.driver.save_screenshot(str(FOLDER / f"{name}-{shade.lower()}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
            assert not page.js(CLIPPED.replace(".wbm :is", ".wbf :is"))


def there(page: Page, name: str) -> object:
    return page.js("return document.querySelector(arguments[0])", FIELD.format(name))


def text_of_arguments(page: Page) -> str:
    return page.js("return document.querySelector('.wbf > .wbm-field > input').value")


FILE = (
    "return [...document.querySelectorAll(arguments[0] + ' .wbf-files button')]"
    ".find((one) => one.textContent === arguments[1])"
)


def pick(page: Page, scope: str, *names: str) -> None:
    page.one(f"{scope} .wbf-row > .wb-button").click()
    for name in names:
        page.until(name, functools.partial(page.js, FILE, scope, name))
        page.js(FILE, scope, name).click()


def test_a_script_is_picked_filled_in_and_launched(lab: Lab, page: Page, store: Path) -> None:
    project = lab.root / "project"
    (project / "texts").mkdir(parents=True, exist_ok=True)
    (project / "mine.py").write_text(SCRIPT)
    page.open(lab.notebook("fields.ipynb", CELL.format(store=str(store))))
    page.run_cell(0)
    page.until("the recipe's fields", lambda: there(page, "--micro-batch"))
    looks(page, "launch_fields_recipe")
    page.theme("JupyterLab Light")
    page.driver.set_window_size(1440, 1600)
    page.one(".wb-form select option:last-child").click()  # "A script …"
    page.until("a hint", lambda: "path of a Python script" in page.text(".wb-form .wbm-headline"))
    assert not page.text(".wb-form .wb-banner")
    pick(page, ".wbf-path", "project/", "mine.py")
    page.until("its fields", lambda: there(page, "--nesterov"))
    assert "nothing was run" in page.text(".wbf .wbf-note")
    assert "Required: --data-dir" in page.text(".wbf-summary")
    fill(page, "--lr", "fast")
    page.until(
        "the sentence", lambda: "give a number" in page.text("[data-field='--lr'] .wbm-problem")
    )
    button = page.one(".wb-form button.jupyter-button")
    page.until("Launch is off", lambda: button.get_attribute("disabled"))
    looks(page, "launch_fields_refused")
    page.theme("JupyterLab Light")
    page.driver.set_window_size(1440, 1600)
    fill(page, "--lr", "0.01")
    page.one(FIELD.format("--nesterov")).click()
    page.one(FIELD.format("--kind") + " option:last-child").click()
    scope = "[data-field='--data-dir']"
    pick(page, scope, "project/")
    page.driver.save_screenshot(str(FOLDER / "launch_fields_browse.png"))
    page.until("inside", lambda: page.text(f"{scope} .wbf-place") == "project/")
    page.one(f"{scope} .wbf-browser .wb-button").click()
    words = {"--lr 0.01", "--nesterov", "--kind adam", "--data-dir project"}
    page.until("the text follows", lambda: all(one in text_of_arguments(page) for one in words))
    page.until("Launch is on", lambda: not button.get_attribute("disabled"))
    button.click()
    page.until("a run", lambda: list(wb.runs(store)))
    run = wb.attach("last", store)
    run.wait()
    assert run.status.outcome == "succeeded", run.logs(rank=0)
    given = next(line for line in run.logs(rank=0).splitlines() if line.startswith("given"))
    assert all(one in given for one in words)
    assert page.errors() == []
