"""axe-core on what the browser shows: its findings above "minor", one line for each element."""

from __future__ import annotations

from typing import Any

from selenium_axe_python import Axe

from tests.browser.lab import Page

ABOVE_MINOR = ("moderate", "serious", "critical")
# A colour in transition has the contrast of neither end. JupyterLab's body has no height and clips:
# axe-core would take all in it for hidden and judge no contrast. On what is scrolled out of a table or
# of the log axe-core itself fails: tables are shown whole, lines of the log are left out.
STILL = """
*, *::before, *::after { transition: none !important; animation: none !important; }
body { min-height: 100vh !important; }
.wb-table-box { max-height: none !important; overflow: visible !important; }
"""
# plotly.js's drawings are thousands of nodes, which a label above them describes.
LEFT_OUT = (".main-svg", ".wb-line")
STYLE = """
if (!document.getElementById('still')) {
  const style = document.createElement('style');
  style.id = 'still';
  style.textContent = arguments[0];
  document.head.append(style);
}
"""


def findings(page: Page, within: str) -> list[str]:
    """What axe-core objects to below the elements of a selector, above "minor"."""
    page.js(STYLE, STILL)
    axe = Axe(page.driver)
    if not page.js("return 'axe' in window"):
        axe.inject()
    left_out = ", ".join(f"[{one!r}]" for one in LEFT_OUT)
    told: dict[str, Any] = axe.run(f"{{include: [[{within!r}]], exclude: [{left_out}]}}")
    broken = [rule["id"] for rule in told["incomplete"] if rule.get("error")]
    assert not broken, f"axe-core failed in {broken}"
    read = [rule for rule in told["passes"] if rule["id"] == "color-contrast" and rule["nodes"]]
    assert read, f"axe-core saw no text below {within}"
    return [
        f"{rule['id']} ({rule['impact']}): {node['html'][:160]} | {_reasons(node)}"
        for rule in told["violations"]
        if rule["impact"] in ABOVE_MINOR
        for node in rule["nodes"]
    ]


def _reasons(node: dict[str, Any]) -> str:
    return "; ".join(one["message"] for one in (*node["any"], *node["all"], *node["none"]))
