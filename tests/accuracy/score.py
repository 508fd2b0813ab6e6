"""Score the calculators against published measurements.

    python tests/accuracy/score.py --truth DIR [--json] [--rows]

DIR holds memory.csv, throughput.csv, scaling.csv and cost_hours.csv (or some of them) with the
columns of tests/accuracy/data.
Rows with primary=1, full_config>=1 and kind measured, oom or fits are scored; one that cannot be
expressed is skipped with its reason and counted. Errors are fractions; medians are means over
strata (GPU generation x one/multi-node x dense/MoE x train mode). Memory: strata of fewer than four
rows are one stratum, and 90th percentile, sign and share in range are over all rows.
"""

from __future__ import annotations

import argparse
import collections
import csv
import json
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.accuracy.rows import (
    Case,
    NotExpressedError,
    Row,
    case_of,
    counts,
    has_fixed_shape,
    metric_of,
)
from tests.accuracy.score_speed import (
    Score,
    median,
    score_hours,
    score_scaling,
    score_throughput,
)
from workbench.errors import WorkbenchError
from workbench.estimate.memory import training_memory
from workbench.estimate.parts import Estimate

_LEAST = 4
"""Rows of a stratum; smaller ones say nothing of their own."""


def read(path: Path) -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def scorable(row: Row) -> bool:
    return counts(row, frozenset({"measured", "oom", "fits"}))


def predict(row: Row) -> tuple[Case, Estimate]:
    case = case_of(row)
    return case, training_memory(case.workload, case.strategy, case.cluster, is_named=True)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, interpolated."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def score_memory(rows: list[Row]) -> tuple[dict[str, object], list[dict[str, object]]]:
    skipped: collections.Counter[str] = collections.Counter()
    errors: dict[str, list[float]] = collections.defaultdict(list)
    fixed: dict[str, list[float]] = collections.defaultdict(list)
    signed: list[float] = []
    inside: list[bool] = []
    widths: list[float] = []
    false_fits, false_unfits, table = [], [], []
    for row in filter(scorable, rows):
        try:
            case, estimate = predict(row)
        except (NotExpressedError, WorkbenchError) as error:
            skipped[str(error)] += 1
            table.append({"id": row["id"], "skipped": str(error)})
            continue
        line: dict[str, object] = {"id": row["id"], "stratum": case.stratum, "peak": estimate.peak}
        if row["kind"] == "oom" or row["result"] == "oom":
            line["oom"] = True
            if estimate.fits:
                false_fits.append(row["id"])
        elif row["kind"] == "fits":
            line["fits"] = True
            if not estimate.fits:
                false_unfits.append(row["id"])
        else:
            metric = metric_of(row)
            measured = float(row["mem_gib"]) * 2**30
            value = getattr(estimate, f"{metric}_bytes")
            errors[case.stratum].append(abs(value / measured - 1))
            signed.append(value / measured - 1)
            inside.append(estimate.low * value <= measured <= estimate.high * value)
            widths.append(estimate.high / estimate.low)
            if has_fixed_shape(row, case):
                fixed[case.stratum].append(abs(value / measured - 1))
            line |= {"metric": metric, "measured": measured, "predicted": value}
        table.append(line)
    strata, fixed_strata = _by_stratum(_merged(errors)), _by_stratum(_merged(fixed))
    document = {
        "scored": sum(map(len, errors.values())),
        "skipped": sum(skipped.values()),
        "median_error": _mean([one["median_error"] for one in strata.values()]),
        "p90_error": _over_all(errors, 0.9),
        "signed_median": round(statistics.median(signed), 4) if signed else None,
        "in_range": round(statistics.fmean(inside), 4) if inside else None,
        "high_over_low": round(statistics.median(widths), 4) if widths else None,
        "false_fits": len(false_fits),
        "false_unfits": len(false_unfits),
        "strata": strata,
        "fixed_shape": {
            "scored": sum(map(len, fixed.values())),
            "median_error": _mean([one["median_error"] for one in fixed_strata.values()]),
            "p90_error": _over_all(fixed, 0.9),
            "strata": fixed_strata,
        },
        "skipped_why": dict(skipped),
        "false_fits_ids": false_fits,
        "false_unfits_ids": false_unfits,
        "out_of_memory_rows": sum("oom" in line for line in table),
        "fits_rows": sum("fits" in line for line in table),
    }
    return document, table


def _merged(errors: dict[str, list[float]]) -> dict[str, list[float]]:
    """Strata of at least four rows; the rows of smaller ones as one, left out below four."""
    small = [one for found in errors.values() if len(found) < _LEAST for one in found]
    large = {name: found for name, found in errors.items() if len(found) >= _LEAST}
    return large | ({"other": small} if len(small) >= _LEAST else {})


def _over_all(errors: dict[str, list[float]], share: float) -> float | None:
    every = [one for found in errors.values() for one in found]
    return round(percentile(every, share), 4) if every else None


def _by_stratum(errors: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "rows": len(found),
            "median_error": round(statistics.median(found), 4),
            "p90_error": round(percentile(found, 0.9), 4),
        }
        for name, found in sorted(errors.items())
    }


def _mean(values: list[float]) -> float | None:
    return round(statistics.fmean(values), 4) if values else None


def show(document: dict[str, object]) -> None:
    print(f"memory: {document['scored']} rows scored, {document['skipped']} skipped")
    for why, count in document["skipped_why"].items():  # type: ignore[attr-defined]
        print(f"  skipped {count}: {why}")
    print(f"  {'stratum':<52}{'rows':>5}{'median':>9}{'p90':>9}")
    for name, one in document["strata"].items():  # type: ignore[attr-defined]
        print(f"  {name:<52}{one['rows']:>5}{one['median_error']:>9.1%}{one['p90_error']:>9.1%}")
    print(
        f"  {'mean over strata; p90 over all rows':<57}{document['median_error']:>9.1%}"
        f"{document['p90_error']:>9.1%}"
    )
    print(
        f"  {document['in_range']:.1%} inside the stated range, median high / low "
        f"{document['high_over_low']:.2f}; median error with its sign "
        f"{document['signed_median']:+.1%}"
    )
    fixed = document["fixed_shape"]
    print(
        f"  {'of it fixed shapes and a known metric':<52}{fixed['scored']:>5}"  # type: ignore[index]
        f"{fixed['median_error']:>9.1%}{fixed['p90_error']:>9.1%}"  # type: ignore[index]
    )
    print(
        f"  false fits {document['false_fits']} of {document['out_of_memory_rows']} out-of-memory "
        f"rows, false does-not-fit {document['false_unfits']} of {document['fits_rows']}"
    )


FILES = {"throughput": "throughput.csv", "scaling": "scaling.csv", "cost_hours": "cost_hours.csv"}


def score_time(folder: Path) -> tuple[dict[str, dict[str, object]], list[dict[str, object]]]:
    """Throughput, scaling and GPU-hours, as far as the folder has their files."""
    documents: dict[str, dict[str, object]] = {}
    table: list[dict[str, object]] = []
    for name, file in FILES.items():
        if not (folder / file).is_file():
            continue
        rows = read(folder / file)
        if name == "throughput":
            score = score_throughput(rows)
            documents[name] = _throughput(score)
        elif name == "scaling":
            points, score = score_scaling(rows)
            documents[name] = {
                "scored": len(points),
                "skipped": sum(score.skipped.values()),
                "median_error_points": median(points),
                "p90_error_points": round(percentile(points, 0.9), 4) if points else None,
                "skipped_why": dict(score.skipped),
            }
        else:
            score = score_hours(rows)
            errors = [one for found in score.errors.values() for one in found]
            documents[name] = {
                "scored": len(errors),
                "skipped": sum(score.skipped.values()),
                "median_error": median(errors),
                "skipped_why": dict(score.skipped),
            }
        table += score.table
    return documents, table


def _throughput(score: Score) -> dict[str, object]:
    strata = _by_stratum(score.errors)
    return {
        "scored": sum(map(len, score.errors.values())),
        "skipped": sum(score.skipped.values()),
        "median_error": _mean([one["median_error"] for one in strata.values()]),
        "p90_error": _mean([one["p90_error"] for one in strata.values()]),
        "strata": strata,
        "skipped_why": dict(score.skipped),
    }


def show_time(documents: dict[str, dict[str, object]]) -> None:
    for name, one in documents.items():
        print(f"{name}: {one['scored']} rows scored, {one['skipped']} skipped")
        for why, count in one["skipped_why"].items():  # type: ignore[attr-defined]
            print(f"  skipped {count}: {why}")
        for stratum, found in one.get("strata", {}).items():  # type: ignore[attr-defined]
            print(
                f"  {stratum:<52}{found['rows']:>5}{found['median_error']:>9.1%}"
                f"{found['p90_error']:>9.1%}"
            )
    if "throughput" in documents:
        one = documents["throughput"]
        print(f"tokens/s, mean over strata: {one['median_error']:.1%}, p90 {one['p90_error']:.1%}")
    if "scaling" in documents:
        one = documents["scaling"]
        print(f"scaling efficiency: median {one['median_error_points']:.1f} points off")
    if "cost_hours" in documents:
        print(f"GPU-hours: median {documents['cost_hours']['median_error']:.1%}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--truth", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--json", action="store_true", help="one object on standard output")
    parser.add_argument("--rows", action="store_true", help="every row with its ratio")
    options = parser.parse_args(arguments)
    path = options.truth / "memory.csv"
    times, rows = score_time(options.truth)
    if not path.is_file() and not times:
        print(
            f"{options.truth} has none of memory.csv, {', '.join(FILES.values())}. "
            "Give a folder with them.",
            file=sys.stderr,
        )
        return 2
    memory, table = score_memory(read(path)) if path.is_file() else (None, [])
    if options.json:
        print(json.dumps(({"memory": memory} if memory else {}) | times))
        return 0
    for line in [*table, *rows] if options.rows else ():
        print(_row(line))
    if memory:
        show(memory)
    show_time(times)
    return 0


def _row(line: dict[str, object]) -> str:
    """One row as text: ratio, both values."""
    ratio = ""
    if "measured" in line:
        predicted, measured = float(str(line["predicted"])), float(str(line["measured"]))
        unit, scale = ("GiB", 2**30) if "metric" in line else ("", 1)
        ratio = f"{predicted / measured:6.2f}  {predicted / scale:9.2f} of {measured / scale:9.2f} {unit}"
    return f"{line['id']:<22}{ratio}  {line.get('peak', '')}  {line.get('skipped', '')}"


if __name__ == "__main__":
    sys.exit(main())
