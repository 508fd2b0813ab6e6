"""What the browser tests of the calculators share: screenshots, typing, what must not be clipped."""

from __future__ import annotations

import time
from pathlib import Path

from selenium.webdriver.common.keys import Keys

from tests.browser.lab import Page

FOLDER = Path(__file__).with_name("screenshots")
CLIPPED = """
return [...document.querySelectorAll('.wbm :is(h2, h3, h4, button, label, dt, dd, summary, .wbm-value, .wbc-how, .wbm-doubt)')]
  .filter((one) => one.getClientRects().length && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== 'inline')
  .map((one) => one.textContent)
"""
OVERFLOW = """
const over = (one) => one.scrollWidth > one.clientWidth + 1;
const beyond = (root) => [...root.querySelectorAll('*')]
  .filter((one) => one.getBoundingClientRect().right > root.getBoundingClientRect().right + 1);
return [...document.querySelectorAll('.wb-root')].filter(over)
  .flatMap((root) => ['wider than its face:', ...beyond(root).slice(0, 5).map((one) => one.outerHTML.slice(0, 160))]);
"""
UNLABELLED = """
return [...document.querySelectorAll('.wbm :is(button, input, select, progress)')].filter((one) =>
  !one.textContent.trim() && !one.getAttribute('aria-label') && !one.labels?.length).map((one) => one.outerHTML)
"""
SIZES = ((1600, 1750), (800, 3100), (500, 4200))


def type_into(page: Page, field: str, text: str) -> None:
    """Replace what a field of the controls says and press Enter."""
    one = page.one(f"[data-field={field}] input")
    page.js("arguments[0].focus()", one)
    one.send_keys(Keys.CONTROL, "a")
    one.send_keys(text, Keys.ENTER)


def both_themes_and_three_widths(page: Page, name: str) -> None:
    """Screenshots to be looked at; asserted is that nothing is clipped, unlabelled or overflows."""
    FOLDER.mkdir(exist_ok=True)
    for theme in ("JupyterLab Light", "JupyterLab Dark"):
        page.theme(theme)
        for width, height in SIZES:
            page.driver.set_window_size(width, height)
            page.focus_mode()
            time.sleep(0.7)
            page.js(
                "document.querySelector('.jp-OutputArea-output').scrollIntoView({block: 'start'})"
            )
            shade = theme.split()[1].lower()
            page.driver.save_screenshot(str(FOLDER / f"{name}-{shade}-{width}.png"))
            assert not (wider := page.js(OVERFLOW)), wider
            clipped = page.js(CLIPPED)
            assert not clipped, (width, clipped)
    unlabelled, errors = page.js(UNLABELLED), page.errors()
    assert not unlabelled, unlabelled
    assert not errors, errors
