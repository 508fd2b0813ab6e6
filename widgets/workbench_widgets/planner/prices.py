"""The planner's "refresh prices": every provider asked at once, one row for each outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from workbench.describe import live_prices
from workbench.describe.live_prices import ProviderAnswer
from workbench.errors import sentence

SECONDS = 15.0


class PriceRefresh:
    """Asks once at a time, in a daemon thread; ``on_state`` gets a plain document at every turn."""

    def __init__(
        self, on_state: Callable[[dict[str, Any]], None], on_done: Callable[[], None]
    ) -> None:
        self._on_state, self._on_done = on_state, on_done
        self._lock = threading.Lock()
        self._busy = False

    def start(self) -> None:
        """Ask every provider that answers without a key; nothing happens while one is asked."""
        with self._lock:
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="workbench-prices", daemon=True).start()

    def _run(self) -> None:
        rows = {name: _waiting(name) for name in live_prices.WITHOUT_KEY}

        def show(state: str, problem: str = "") -> None:
            done = sum(row["state"] != "waiting" for row in rows.values())
            share = done / max(1, len(rows))
            self._on_state(
                {"state": state, "share": share, "rows": [*rows.values()], "problem": problem}
            )

        def arrived(answer: ProviderAnswer) -> None:
            rows[answer.provider] = _row(answer)
            show("running")

        show("running")
        problem = ""
        try:
            live_prices.refresh(seconds=SECONDS, on_answer=arrived)
        except Exception as error:  # noqa: BLE001 - whatever it is, the page has to say it
            problem = sentence(error)
        with self._lock:
            self._busy = False
        show("done", problem)
        self._on_done()


def _waiting(provider: str) -> dict[str, Any]:
    return {"provider": provider, "state": "waiting", "says": "asking"}


def _row(answer: ProviderAnswer) -> dict[str, Any]:
    if answer.error is None:
        count = len(answer.offers)
        text = "1 offer" if count == 1 else f"{count:,} offers"
        return {"provider": answer.provider, "state": "good", "says": text}
    fallback = ""
    if answer.fetched_at:
        fallback = f"; its {len(answer.offers):,} offers of {answer.fetched_at[:10]} are used"
    return {"provider": answer.provider, "state": "bad", "says": f"{answer.error}{fallback}"}
