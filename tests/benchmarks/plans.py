"""How fast plans are found: combinations of layout and offer per second, the whole table at once.

Usage: python -m tests.benchmarks.plans
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from workbench.describe import Model, Workload, prices
from workbench.planning import Plans, plan

CASES = (
    ("llama-3-8b", 4096, 3e11),
    ("gpt2", 1024, 1e10),
    ("llama-3-70b", 4096, 1e12),
    ("mixtral-8x7b", 4096, 1e11),
)


def measure(name: str, seq_len: int, tokens: float) -> tuple[float, Plans]:
    """CPU seconds of one search over the embedded table, nothing remembered from before."""
    workload = Workload(model=Model.catalog(name), seq_len=seq_len, micro_batch=1, precision="bf16")
    offers = prices.offers(live=False, own=False)
    began = time.process_time()
    found = plan(workload, tokens=tokens, offers=offers, terms=prices.terms)
    return time.process_time() - began, found


def rows(rounds: int = 3, models: int | None = None) -> Iterator[dict[str, float | str]]:
    """Best of several rounds for every case, or for the first `models` of them."""
    for name, seq_len, tokens in CASES[:models]:
        seconds, found = min(
            (measure(name, seq_len, tokens) for _ in range(rounds)), key=lambda one: one[0]
        )
        yield {
            "model": name,
            "seconds": seconds,
            "combinations": found.combinations,
            "combinations_per_second": found.combinations / seconds,
            "plans": len(found.plans),
        }


def whole_catalog() -> tuple[float, float]:
    """(combinations per second, seconds) for one 8 B model over the whole table, one core."""
    row = next(rows())
    return float(row["combinations_per_second"]), float(row["seconds"])


if __name__ == "__main__":
    for row in rows():
        text = f"{row['model']:<14}{row['seconds']:6.2f} s{row['combinations']:>10,} combinations"
        sys.stdout.write(f"{text}{row['combinations_per_second']:>10,.0f} per s\n")
