"""Hours and dollars of a rehearsed run from its files alone; shares no code with what wrote them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Recount:
    """What the journals say."""

    hours: float
    lost_hours: float
    usd: float
    interruptions: int
    steps_repeated: int


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recount(folder: Path) -> Recount:
    """Add up what attempts.jsonl, rehearsal.jsonl, exit.json and the prices of run.json say."""
    run = json.loads((folder / "run.json").read_text())
    prices, begun = run["rehearsal"], run["created_at"]
    attempts = lines(folder / "attempts.jsonl")
    events = lines(folder / "rehearsal.jsonl")
    starts = [one for one in attempts if one["event"] == "start"]
    ends = [one for one in attempts if one["event"] == "end"]
    assert len(starts) == len(ends)
    seconds = json.loads((folder / "exit.json").read_text())["ended_at"] - begun
    saved = [one for one in events if one["event"] == "saved"]
    useful = ends[-1]["last_step"] * prices["seconds_per_step"]
    useful += sum(one["seconds"] for one in saved) + prices["start_seconds"]
    for before, after in zip(
        ends, starts[1:], strict=False
    ):  # nothing is begun where none was saved
        known = [one["step"] for one in saved if one["time"] <= before["time"] + 0.01]
        assert after["first_step"] == max(known, default=0)
    repeated = sum(
        before["last_step"] - after["first_step"]
        for before, after in zip(ends, starts[1:], strict=False)
    )
    return Recount(
        hours=seconds / 3600,
        lost_hours=(seconds - useful) / 3600,
        usd=_machines(events, prices) + (prices["once_usd"] or 0.0),
        interruptions=sum(one["event"] == "interrupted" for one in events),
        steps_repeated=repeated,
    )


def _machines(events: list[dict[str, Any]], prices: dict[str, Any]) -> float:
    """Each machine from its renting to its release, rounded up as its provider does."""
    open_since: dict[int, list[float]] = {}
    usd = 0.0
    rate, unit = prices["usd_per_machine_hour"] / 3600, prices["billing_seconds"]
    for one in sorted(events, key=lambda event: (event["time"], event["event"] != "released")):
        if one["event"] == "rented":
            open_since.setdefault(one["node"], []).append(one["time"])
        if one["event"] == "released":
            used = one["time"] - open_since[one["node"]].pop(0)
            used += prices["idle_seconds"] if one["why"] == "returned" else 0.0
            billed = math.ceil(used / unit - 1e-3) * unit
            usd += rate * max(prices["minimum_seconds"], billed)
    assert not any(open_since.values())
    return usd
