"""Benchmark helper, no test: how long one move of a calculator's slider takes in a real browser.

From the input event to the changed figure in the page, through JupyterLab's websocket, the kernel
and back. Run it with ``python -m tests.widgets.slider_probe``.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from tests.browser.lab import lab_and_page

CODE = "from workbench_widgets import *\n{face}"
FACES = {
    "MemoryCalculator": (
        'model="llama-3-8b", gpu=["h100-sxm", "a100-80"], gpus=8, strategy="fsdp"',
        ("seq_len", ".wbm-numbers"),
    ),
    "CostCalculator": (
        'model="llama-3-8b", gpu="h100", gpus=8, strategy="fsdp", tokens="100B"',
        ("seq_len", ".wbm-numbers"),
    ),
    "Planner": (
        'model="llama-3-8b", tokens="100B", spot=True',
        ("budget_usd", ".wbm-head"),
    ),
}
"""Face -> its options, the slider that is moved, and where something then changes."""
# One move after the other: each waits until the numbers in the page have changed.
MOVES = """\
const [count, field, selector, done] = arguments;
const slider = document.querySelector(`[data-field="${field}"] input[type="range"]`);
const watched = document.querySelector(selector);
const times = [];
const move = (at) => {
  if (at === count) return done(times);
  const begun = performance.now();
  const seen = new MutationObserver(() => {
    seen.disconnect();
    times.push(performance.now() - begun);
    setTimeout(() => move(at + 1), 220);
  });
  seen.observe(watched, { subtree: true, childList: true, characterData: true, attributes: true });
  slider.value = String(Math.round(slider.max / 4) + (at % Math.round(slider.max / 2)));
  slider.dispatchEvent(new Event('input', { bubbles: true }));
};
move(0);
"""
# As many input events as a fast hand makes: one per frame.
DRAG = """\
const [count, done] = arguments;
const slider = document.querySelector('[data-field="seq_len"] input[type="range"]');
const shown = () => document.querySelector('.wbm-numbers dd').textContent;
let at = 0, drawn = 0, before = shown(), begun = performance.now();
const frame = () => {
  if (shown() !== before) { drawn += 1; before = shown(); }
  if (at === count) return done([drawn, performance.now() - begun]);
  slider.value = String(3 + (at % 10));
  slider.dispatchEvent(new Event('input', { bubbles: true }));
  at += 1;
  requestAnimationFrame(frame);
};
frame();
"""


def measure_slider(name: str, moves: int = 60) -> tuple[float, float]:
    """Print and return (p50, p95) of one move in milliseconds, end to end in the browser."""
    options, (field, watched) = FACES[name]
    with tempfile.TemporaryDirectory() as folder, lab_and_page(Path(folder)) as (lab, page):
        page.open(lab.notebook("slider.ipynb", CODE.format(face=f"{name}({options})")))
        page.run_cell(0)
        page.one(".wbm-headline")
        ready = "return !document.querySelector('.wbp-searching:not([hidden])')"
        page.until("the first answer", lambda: page.js(ready))
        page.driver.execute_async_script(MOVES, 10, field, watched)  # the first ones warm caches
        page.comm_bytes()
        times = sorted(page.driver.execute_async_script(MOVES, moves, field, watched))
        each = page.comm_bytes() / moves
        assert page.errors() == []
        if field == "seq_len":
            drawn, spent = page.driver.execute_async_script(DRAG, 120)
            print(f"{name}: drag of 120 moves in {spent / 1000:.2f} s, drawn {drawn} times")
    p50, p95 = statistics.median(times), times[int(0.95 * len(times))]
    print(f"{name}: event to figure p50 {p50:.1f} ms, p95 {p95:.1f} ms, worst {times[-1]:.1f}")
    print(f"{name}: websocket, a settled move with all that follows: {each / 1000:.1f} kB")
    return p50, p95


if __name__ == "__main__":
    for face in FACES:
        measure_slider(face)
