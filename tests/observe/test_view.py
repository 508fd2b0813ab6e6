"""The bounded view: size, extremes, strict JSON, log tails."""

from __future__ import annotations

import json
import math
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.matrix import record
from workbench.observe import log_tails, view, view_json
from workbench.observe.events import MetricStream
from workbench.observe.log_tails import log_lines, log_text
from workbench.observe.svg import Line, chart, ticks
from workbench.observe.thinning import ThinnedTable
from workbench.observe.view import ViewBuilder
from workbench.observe.view_json import encode
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.schema import VIEW_MAX_BYTES


def run_document(processes: int, gpus: int = 0) -> dict[str, Any]:
    cards = [
        {
            "index": index,
            "name": "NVIDIA H100 80GB HBM3",
            "memory_bytes": 85520809984,
            "power_limit_w": 700.0,
        }
        for index in range(gpus)
    ]
    return {
        "run": "r",
        "name": "r",
        "strategy_name": "ddp",
        "processes": processes,
        "device": "cuda" if gpus else "cpu",
        "cluster": {"name": "h", "gpus": cards, "cpu_cores": 2, "memory_bytes": 2**34},
        "predicted": None,
        "steps_total": None,
        "seconds_total": None,
        "tokens_per_step": 4096,
        "usd_per_hour": 24.0,
    }


def now(**extra: Any) -> dict[str, Any]:
    known = {"phase": "running", "started_at": 1.7e9, "ended_at": None, "ranks": {}}
    return {**known, "elapsed_seconds": 100.0, **extra}


def directory(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    return paths


def sample(time: float, gpus: int) -> Any:
    return {
        "time": time,
        "cpu_percent": 50.123456,
        "memory_used_bytes": 2**33 + 12345,
        "run_rss_bytes": 2**32 + 999,
        "run_cpu_percent": 799.9,
        "disk_free_bytes": 123456789012,
        "gpus": [
            {
                "index": index,
                "util": 97.0,
                "memory_bytes": 71234567890,
                "temperature_c": 61,
                "power_w": 655.432,
            }
            for index in range(gpus)
        ],
    }


def test_a_million_steps_on_eight_ranks_stay_small(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    builder = ViewBuilder(paths, RunRecord.of(run_document(8, gpus=8)))
    for rank in range(8):
        paths.rank_log(rank).write_text("a line of text with some length\n" * 300)
    table = builder._steps
    rng = random.Random(0)
    for step in range(1, 1_000_001):
        loss = 99.0 if step == 777_777 else 2 + rng.random()
        table.append(
            {
                "step": step,
                "time": 1.7e9 + step * 0.1234,
                "loss": loss,
                "loss_min": loss,
                "loss_max": loss,
                "lr": 3e-4 / step,
                "grad_norm": rng.random(),
                "grad_norm_max": 1.234,
                "step_seconds": 0.1234 + rng.random(),
                "step_seconds_max": 1.5,
                "tokens": 4096,
            }
        )
    for second in range(5000):
        builder.add_sample(sample(1.7e9 + second, 8))
    data = encode(builder.snapshot(now()))
    assert len(data) <= VIEW_MAX_BYTES
    view = json.loads(data)
    assert max(view["series"]["loss_max"]) == 99.0  # the spike survived the thinning
    assert view["series"]["step"][-1] == 1_000_000
    lengths = {len(values) for values in view["series"].values()}
    assert len(lengths) == 1
    assert lengths.pop() > 100
    record(34, "view below 64 kB at a million steps of eight ranks, extremes kept")


def test_thinning_keeps_means_and_order() -> None:
    table = ThinnedTable({"step": "last", "y": "mean", "low": "min"}, 8)
    for step in range(1, 101):
        table.append({"step": step, "y": float(step), "low": float(step)})
    columns = table.columns()
    assert columns["step"] == sorted(columns["step"])
    assert columns["step"][-1] == 100
    assert min(columns["low"]) == 1
    assert len(columns["step"]) <= 9


def write_steps(paths: RunPaths, rank: int, steps: Iterable[int], **extra: Any) -> None:
    with paths.rank_metrics(rank).open("a") as file:
        for step in steps:
            line = {"step": step, "time": 1.7e9 + step, "loss": float(rank + step), **extra}
            file.write(json.dumps(line) + "\n")


def test_rows_are_means_over_ranks_and_wait_for_all(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    stream = MetricStream(paths, 2)
    write_steps(paths, 0, range(1, 4))
    assert stream.read() == []
    write_steps(paths, 1, range(1, 3))
    assert [(row.step, row.loss) for row in stream.read()] == [(1, 1.5), (2, 2.5)]
    assert [row.step for row in stream.read(final=True)] == [3]


def test_ranks_with_lines_of_different_length_stay_together(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    steps = 30_000  # several chunks of a megabyte each
    write_steps(paths, 0, range(1, steps + 1), memory_bytes=10**11, grad_norm=1.23456789)
    write_steps(paths, 1, range(1, steps + 1))
    stream, rows = MetricStream(paths, 2), []
    while len(rows) < steps:
        rows += stream.read()
    assert [row.step for row in rows] == list(range(1, steps + 1))
    assert all(row.loss == row.step + 0.5 for row in rows)


def test_fields_of_the_wrong_type_are_unknown_not_fatal(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    builder = ViewBuilder(paths, RunRecord.of(run_document(1)))
    wrong = {"step_seconds": "x", "tokens": None, "grad_norm": [1], "backward_at": "q", "lr": {}}
    write_steps(paths, 0, range(1, 3), memory_bytes="many", **wrong)
    with paths.rank_metrics(0).open("a") as file:
        file.write('{"step":3,"time":3.0,"loss":"nan"}\n')
    assert len(builder.read()) == 3
    assert json.loads(encode(builder.snapshot(now())))["series"]["loss"] == [1.0, 2.0, None]


def test_nan_and_infinity_become_null_in_the_view(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    builder = ViewBuilder(paths, RunRecord.of(run_document(1)))
    with paths.rank_metrics(0).open("w") as file:
        file.write('{"step":1,"time":1.0,"loss":2.0}\n{"step":2,"time":2.0,"loss":NaN}\n')
        file.write('{"step":3,"time":3.0,"loss":Infinity,"grad_norm":-Infinity}\n')
    builder.read()
    view = json.loads(encode(builder.snapshot(now())))
    assert "NaN" not in json.dumps(view)
    assert view["series"]["loss"] == [2.0, None, None]
    assert (view["nonfinite_step"], view["loss_last"]) == (2, 2.0)


def test_an_ended_run_has_no_process_on_its_cores(tmp_path: Path) -> None:
    builder = ViewBuilder(directory(tmp_path), RunRecord.of(run_document(1)))
    last = {"pid": 7, "cpu_percent": 3.0, "rss_bytes": 5}
    builder.add_sample({"time": 1.0, "busiest": [last]})
    assert builder.snapshot(now(ended_at=None))["host"]["processes"] == [last]
    assert builder.snapshot(now(phase="ended", ended_at=1.8e9))["host"]["processes"] == []


def test_cost_eta_and_rate(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    builder = ViewBuilder(paths, RunRecord.of({**run_document(1), "steps_total": 100}))
    write_steps(paths, 0, range(1, 51), step_seconds=0.5)
    builder.read()
    view = builder.snapshot(now(ended_at=None, started_at=1.7e9))
    assert view["eta_seconds"] == 25.0
    assert view["tokens_per_second"] == 8192
    assert view["usd_so_far"] == pytest.approx(24.0 * view["elapsed_seconds"] / 3600, rel=1e-3)


def test_a_time_limit_counts_from_the_first_step_of_each_attempt(tmp_path: Path) -> None:
    paths, moment = directory(tmp_path), time.time()
    builder = ViewBuilder(paths, RunRecord.of({**run_document(1), "seconds_total": 600}))
    starts = [{"event": "start", "attempt": 1, "time": moment - 9000}]

    def left() -> float | None:
        builder.read()
        return builder.snapshot(now(attempts=starts))["eta_seconds"]

    def write(step: int, at: float, **more: float) -> None:
        with paths.rank_metrics(0).open("a") as file:
            file.write(json.dumps({"step": step, "time": at, "loss": 1.0, **more}) + "\n")

    write(1, moment - 8990)
    write(2, moment - 8980, step_seconds=10.0)
    assert left() == 0.0
    starts.append({"event": "start", "attempt": 2, "time": moment - 60})
    assert left() is None  # it has made no step yet
    write(3, moment - 50)
    write(4, moment - 40, step_seconds=10.0)
    assert left() == pytest.approx(600 - 60, abs=5)
    write(4, moment - 20, rewound_from=4)  # the script went back by itself: its clock goes on
    assert left() == pytest.approx(600 - 60, abs=5)


@pytest.mark.parametrize("last", [4, 31, 32, 64])
def test_the_size_of_the_last_step_is_not_that_of_all(tmp_path: Path, last: int) -> None:
    """An epoch ends with a batch of what is left."""
    paths = directory(tmp_path)
    builder = ViewBuilder(paths, RunRecord.of({**run_document(1), "tokens_per_step": None}))
    for step in range(1, 14):
        count = last if step == 13 else 32
        write_steps(paths, 0, [step], step_seconds=1.0, samples=count, tokens=100 * count)
    builder.read(final=True)
    view = builder.snapshot(now())
    assert view["samples_per_second"] == pytest.approx(32, rel=0.01)
    assert view["tokens_per_second"] == pytest.approx(3200, rel=0.01)


def test_a_rate_is_of_steps_and_their_own_time(tmp_path: Path) -> None:
    paths = directory(tmp_path)
    builder = ViewBuilder(paths, RunRecord.of({**run_document(1), "tokens_per_step": None}))
    for step in range(1, 41):  # sentences of any length, and a checkpoint now and then
        count = 100 if step % 3 else 1000
        pause = 30.0 if step % 10 == 0 else 0.0
        write_steps(paths, 0, [step], step_seconds=count / 1000 + pause, tokens=count)
    builder.read(final=True)
    assert builder.recent.tokens_per_second == pytest.approx(1000)


def test_unknown_is_null_never_zero(tmp_path: Path) -> None:
    run = RunRecord.of({**run_document(1), "usd_per_hour": None})
    view = ViewBuilder(directory(tmp_path), run).snapshot(now())
    for key in (
        "loss_last",
        "eta_seconds",
        "tokens_per_second",
        "usd_so_far",
        "step_seconds_median",
    ):
        assert view[key] is None, key


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("10%\r50%\r100%\nok\n", ["100%", "ok"]),
        ("\x1b[31mred\x1b[0m\n", ["red"]),
        ("\x1b]52;c;ZXZpbA==\x07after\n", ["after"]),
        ("a\u202eb\x00c\x08\n", ["abc"]),
        ("windows\r\nlines\r\n", ["windows", "lines"]),
        ("x" * 5000, ["x" * 999 + "…"]),
        ("", []),
    ],
)
def test_log_lines(text: str, lines: list[str]) -> None:
    assert log_lines(text) == lines


@pytest.mark.parametrize("last", [10, 1251, 50_000, 1_250_000])
def test_the_last_tick_of_a_chart_is_whole(last: int) -> None:
    text = chart("loss", [Line(name="x", x=[1, last], y=[2, 1])], x_label="step", y_label="")
    places = re.findall(r'<text class="tick" x="([0-9.]+)" y="202" [^>]*>([^<]+)<', text)
    assert len(places) > 2
    assert all(float(x) + 3.2 * len(tick) < 640 for x, tick in places)  # 6.1 px a digit of 11 px


def test_svg_chart_escapes_and_skips_gaps() -> None:
    text = chart(
        "<b>",
        [Line(name="<i>", x=[1, 2, 3, 4], y=[1.0, None, 2.0, math.nan])],
        x_label="s",
        y_label="%",
    )
    assert "<b>" not in text
    assert "&lt;i&gt;" in text
    assert chart("empty", [Line(name="x", x=[1], y=[None])], x_label="", y_label="") == ""
    assert ticks(0, 1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def test_of_too_many_ranks_the_extreme_ones_stay(tmp_path: Path) -> None:
    """The failed, the one behind and the late one are there, whatever their numbers."""
    ranks = 1000
    builder = ViewBuilder(directory(tmp_path), RunRecord.of(run_document(ranks)))
    told = {rank: {"alive": True, "ended": None, "pid": 123456} for rank in range(ranks)}
    for rank, latest in builder.stream.ranks.items():
        latest.step, latest.late_seconds, latest.memory_bytes = 50, rank * 1e-6, 2**33 + rank
    told[700] |= {"alive": False, "ended": "RuntimeError: gone"}
    builder.stream.ranks[801].step = 12
    builder.stream.ranks[902].late_seconds = 3.5
    data = builder.encoded(now(ranks=told))
    view = json.loads(data)
    assert len(data) <= VIEW_MAX_BYTES
    assert {700, 801, 902} <= {one["rank"] for one in view["ranks"]}
    assert len(view["ranks"]) + view["ranks_hidden"] == ranks
    assert view["peak_memory_bytes"] == [2**33 + ranks - 1]


def test_the_comparison_is_made_now_and_then_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the medians of all steps, hardly new ones at each look."""
    made, real = list[str](), view.compare

    def note(run: Any, document: Any, steady: Any) -> Any:
        made.append(document["phase"])
        return real(run, document, steady)

    monkeypatch.setattr(view, "compare", note)
    builder = ViewBuilder(directory(tmp_path), RunRecord.of(run_document(1)))
    shown = [builder.snapshot(now())["comparison"] for _ in range(view._LOOKS_PER_COMPARISON)]
    assert made == ["running"]
    assert all(one == shown[0] for one in shown)
    assert builder.snapshot(now(phase="ended", ended_at=1.8e9))["comparison"]["final"]
    assert builder.snapshot(now(phase="ended", ended_at=1.8e9))["comparison"]["final"]
    assert made == ["running", "ended", "ended"]


def test_the_encoded_view_is_the_snapshot_and_encodes_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twelve looks over rising strides, a rewind, columns that begin late and GPUs."""
    paths = directory(tmp_path)
    run = RunRecord.of({**run_document(1, gpus=2), "tokens_per_step": None})
    quick, whole = ViewBuilder(paths, run), ViewBuilder(paths, run)
    encoded = list[object]()
    monkeypatch.setattr(
        view_json, "_text", lambda one, real=view_json._text: real(encoded.append(one) or one)
    )
    monkeypatch.setattr(view.time, "time", lambda: 1.7e9)
    first = 1
    for look in range(12):
        rows = range(first, first + 100)
        extra = {"grad_norm": 1.5} if look > 3 else {}
        samples = {"samples": 8} if look > 5 else {}
        write_steps(paths, 0, rows, step_seconds=0.5, **extra, **samples)
        first = rows[-1] - 30 if look == 7 else rows[-1] + 1
        for builder in (quick, whole):
            builder.read()
            builder.add_sample(sample(1.7e9 + look, 2))
        moment = now(elapsed_seconds=float(look), ended_at=None)
        data = quick.encoded(moment)
        assert json.loads(data) == json.loads(encode(whole.snapshot(moment)))
    encoded.clear()
    quick.encoded(now())
    assert len(encoded) < 200  # of 3,000: the rows that are not full, and those of the samples


def test_a_log_that_is_cut_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"line {number:03}\n" for number in range(200)))
    assert log_text(log, None).startswith("line 000\n")
    monkeypatch.setattr(log_tails, "_FULL_BYTES", 900)
    first, second, *_, last = log_text(log, None).splitlines()
    assert first == f"… only the last 900 B of {log}:"
    assert (second, last) == ("line 101", "line 199")
    assert log_text(tmp_path / "none.log", None) == ""


def test_a_tail_has_the_lines_that_were_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"line {n}\n" for n in range(500)))
    assert log_text(log, 300).splitlines() == [f"line {n}" for n in range(200, 500)]
    assert len(log_text(log, 900).splitlines()) == 500
    log.write_text("one\ntwo\n" + "".join(f"\r{n}%|###" for n in range(5000)))
    assert log_text(log, 3).splitlines() == ["one", "two", "4999%|###"]
    log.write_text(f"{'x' * 900}\n{'y' * 900}\n")
    assert [line[0] for line in log_text(log, 1).splitlines()] == ["y"]
    assert log_text(log, 0) == log_text(tmp_path / "nothing", 5) == ""


def test_a_tail_of_many_megabytes_is_whole_or_says_that_it_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines within the last 8 MiB came alone, and nothing said that some were missing."""
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"{n:05} {'x' * 900}\n" for n in range(12_000)))
    lines = log_text(log, 11_000).splitlines()
    assert (len(lines), lines[0][:5], lines[-1][:5]) == (11_000, "01000", "11999")
    assert len(log_text(log, 20_000).splitlines()) == 12_000
    monkeypatch.setattr(log_tails, "_FULL_BYTES", 90_701)  # 100 lines and a part
    said, *lines = log_text(log, 11_000).splitlines()
    assert said.startswith("… only the last ")
    assert (len(lines), lines[0][:5], lines[-1][:5]) == (100, "11900", "11999")
    assert log_text(log, 3).splitlines() == lines[-3:]
