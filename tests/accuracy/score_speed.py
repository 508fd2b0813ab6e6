"""Scores of the time estimate: throughput rows, scaling series, GPU-hours."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.accuracy.rows import NotExpressedError, Row, counts, is_stated, stratum
from tests.accuracy.speed_rows import LADDER, least_recompute, speed_case, speed_of
from workbench.errors import WorkbenchError
from workbench.estimate.step_time import step_time


@dataclass
class Score:
    """Errors by stratum, and what was skipped and why."""

    errors: dict[str, list[float]] = field(default_factory=dict)
    skipped: collections.Counter[str] = field(default_factory=collections.Counter)
    table: list[dict[str, object]] = field(default_factory=list)

    def add(self, row: Row, measured: float, predicted: float, **more: object) -> None:
        self.errors.setdefault(stratum(row), []).append(abs(predicted / measured - 1))
        line = {"id": row["id"], "measured": measured, "predicted": predicted, **more}
        self.table.append(line)

    def skip(self, row: Row, why: str) -> None:
        self.skipped[why] += 1
        self.table.append({"id": row["id"], "skipped": why})


def scorable(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if counts(row, frozenset({"measured"}))]


def score_throughput(rows: list[Row]) -> Score:
    """Tokens per second and GPU, predicted without calibration."""
    score = Score()
    for row in scorable(rows):
        try:
            speed = speed_of(row)
            case = speed.case
            found = step_time(case.workload, case.strategy, case.cluster)
        except (NotExpressedError, WorkbenchError) as error:
            score.skip(row, str(error))
            continue
        score.add(
            row,
            speed.tokens_per_second_per_gpu,
            found.tokens_per_second_per_gpu,
            stratum=case.stratum,
            step=found,
        )
    return score


def score_scaling(rows: list[Row]) -> tuple[list[float], Score]:
    """Points by which the predicted efficiency differs from the measured one."""
    series: dict[tuple[str, str], Row] = {
        (row["series_id"], row["n_gpus"]): row for row in rows if row["n_gpus"]
    }
    score, points = Score(), []
    for row in scorable(rows):
        if row["n_gpus"] == row["baseline_n_gpus"]:
            continue  # the baseline itself is 100 % by definition
        base = series.get((row["series_id"], row["baseline_n_gpus"])) or _baseline(row)
        try:
            act = _shared_recompute(row, base)
            rates = [_rate({**one, "act_ckpt": act}) for one in (row, base)]
            measured = float(row["efficiency_pct"])
        except (NotExpressedError, WorkbenchError, ValueError) as error:
            score.skip(row, str(error))
            continue
        predicted = 100 * rates[0] / rates[1]
        points.append(abs(predicted - measured))
        score.add(row, measured, predicted, stratum=stratum(row))
    return points, score


def _shared_recompute(row: Row, base: Row) -> str:
    """A series changes its GPUs only: where recompute is not stated, the tighter end decides."""
    if is_stated(row["act_ckpt"]):
        return row["act_ckpt"]
    return max((least_recompute(one) for one in (row, base)), key=LADDER.index)


def _baseline(row: Row) -> Row:
    """The same job on the baseline's GPUs, where the file lacks its row: fewer data ranks."""
    before, after = int(row["n_gpus"]), int(row["baseline_n_gpus"])
    dp = int(float(row["dp"] or 0)) or 1
    base = {**row, "n_gpus": row["baseline_n_gpus"]}
    if "tensor" in row["scaling_type"]:
        return {**base, "tp": row["baseline_n_gpus"]}
    base["dp"] = str(max(1, dp * after // before))
    per_node = int(float(row["gpus_per_node"] or 8))
    base["n_nodes"] = str(max(1, after // per_node))
    if row["global_batch"] and "strong" not in row["scaling_type"]:
        base["global_batch"] = str(max(1, int(float(row["global_batch"])) * after // before))
    if "strong" in row["scaling_type"]:
        base["grad_accum"] = ""
    return base


def _rate(row: Row) -> float:
    case = speed_case(row)
    return step_time(case.workload, case.strategy, case.cluster).tokens_per_second_per_gpu


def score_hours(rows: list[Row]) -> Score:
    """GPU-hours of a whole run from its tokens and the predicted rate."""
    score = Score()
    for row in scorable(rows):
        if not row["tokens_b"] or not row["gpu_hours"]:
            score.skip(row, "tokens or GPU-hours are not given")
            continue
        try:
            tokens = float(row["tokens_b"]) * 1e9
            score.add(row, float(row["gpu_hours"]), tokens / _rate(row) / 3600)
        except (NotExpressedError, WorkbenchError) as error:
            score.skip(row, str(error))
    return score


def median(values: list[float]) -> float | None:
    return round(statistics.median(values), 4) if values else None
