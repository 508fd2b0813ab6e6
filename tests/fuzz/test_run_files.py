"""Whatever the files of a run hold: its readers answer or refuse in our words, at once."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from rich.console import Console

import workbench as wb
from tests.fuzz import junk
from workbench.cli import live
from workbench.cli.tables import runs_table, summary_table
from workbench.diagnose import offline
from workbench.observe.prediction_error.comparison import compare, read_prediction_error
from workbench.observe.prediction_error.steady_steps import Steady
from workbench.observe.pulse import read_pulse
from workbench.recover import checkpoints
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.starts import read_attempts

# A longer search: WORKBENCH_FUZZ_EXAMPLES=1000 pytest tests/fuzz --hypothesis-profile=soak
EXAMPLES = int(os.environ.get("WORKBENCH_FUZZ_EXAMPLES", "15"))
quick = settings(
    max_examples=EXAMPLES,
    phases=[Phase.explicit, Phase.generate],  # shrinking takes minutes: each example is a store
    suppress_health_check=list(HealthCheck),
)
DOCUMENTS = {
    "run": junk.RUN,
    "state": junk.STATE,
    "exit": junk.EXIT,
    "view": junk.VIEW,
    "comparison": junk.COMPARISON,
}
LINES = {"rank_metrics": junk.METRIC, "system": junk.SYSTEM, "attempts": junk.ATTEMPT, "saved": junk.SAVED}  # fmt: skip


def healthy(root: Path, run_id: str = "spoilt") -> RunPaths:
    """A run with every file there is, all well."""
    paths = RunPaths(root / run_id)
    paths.directory.mkdir(parents=True)
    paths.make_folders()
    for name, document in DOCUMENTS.items():
        if name != "exit":
            getattr(paths, name).write_bytes(junk.encoded(document))
    for rank in (0, 1):
        paths.rank_metrics(rank).write_bytes(junk.encoded(junk.METRIC) + b"\n")
        paths.rank_log(rank).write_text("hello\n")
    for name in ("system", "attempts", "saved"):
        getattr(paths, name).write_bytes(junk.encoded(LINES[name]) + b"\n")
    paths.findings.write_bytes(junk.encoded({"findings": [junk.FINDING]}))
    return paths


def ask_handle(paths: RunPaths) -> None:
    run = wb.attach("spoilt", paths.directory.parent)
    listed = {row["run"]: row["state"] for row in wb.runs(paths.directory.parent)}
    assert listed["sound"] == "interrupted"
    for answer in (
        read_prediction_error(paths).document(),
        run.summary(),
        run.view(),
        run.document,
        run.status.message,
        run.command,
    ):
        json.dumps(answer, ensure_ascii=False).encode()
    steady = Steady(steps=9, step_seconds=1.0, tokens=8)
    compare(RunRecord.of(run.document), run.view(), steady).document()
    assert isinstance(run.metrics(), list)
    run.logs(tail=20)
    assert repr(run)
    assert run.outcome is None or isinstance(run.outcome, str)


def draw_terminal(paths: RunPaths) -> None:
    run = wb.Run(paths)
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    console.print(runs_table(wb.runs(paths.directory.parent)))
    console.print(summary_table(run.summary()))
    status, view = run.status, run.view()
    console.print(live.render(run.directory, view, status.state, status.outcome, status.message))
    live.one_line(run.view(), status.state)


def ask_history(paths: RunPaths) -> None:
    read_attempts(paths)
    for one in checkpoints.list_checkpoints(paths):
        json.dumps(one.document())
        checkpoints.verify(one)


def diagnose(paths: RunPaths) -> None:
    for finding in offline.diagnose(paths):
        json.dumps(finding.document())


def draw_page(paths: RunPaths) -> None:
    pytest.importorskip("workbench_widgets")
    from workbench.pages.run_rows import read_table
    from workbench.pages.snapshots import snapshot_of

    json.dumps(read_table(paths.directory.parent))
    snapshot_of(paths.directory)


READERS = [ask_handle, draw_terminal, ask_history, diagnose, draw_page]


def hold(reader: Callable[[RunPaths], None], spoil: Callable[[RunPaths], None]) -> None:
    """Spoil a healthy run beside a sound one; the reader may answer, or refuse in our words."""
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        paths = healthy(root / "runs")
        healthy(root / "runs", "sound")
        spoil(paths)
        with contextlib.suppress(wb.WorkbenchError):
            reader(paths)
    finally:
        shutil.rmtree(root)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@quick
@given(st.data())
def test_documents_with_wrong_values(
    reader: Callable[[RunPaths], None], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(DOCUMENTS)))
    content = data.draw(junk.spoilt(DOCUMENTS[name]).map(junk.encoded) | junk.raw)
    hold(reader, lambda paths: getattr(paths, name).write_bytes(content))


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
@quick
@given(st.data())
def test_lines_with_wrong_values(reader: Callable[[RunPaths], None], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(LINES)))
    line = junk.spoilt(LINES[name]).map(junk.encoded) | junk.raw
    content = b"\n".join(data.draw(st.lists(line, max_size=4))) + data.draw(
        st.sampled_from([b"", b"\n"])
    )

    def spoil(paths: RunPaths) -> None:
        path = paths.rank_metrics(1) if name == "rank_metrics" else getattr(paths, name)
        path.write_bytes(content)

    hold(reader, spoil)


@quick
@given(junk.spoilt({"findings": [junk.FINDING]}).map(junk.encoded) | junk.raw)
def test_findings_with_wrong_values(content: bytes) -> None:
    hold(diagnose, lambda paths: paths.findings.write_bytes(content))


@quick
@given(junk.spoilt(junk.MANIFEST).map(junk.encoded) | junk.raw)
def test_manifests_with_wrong_values(content: bytes) -> None:
    def spoil(paths: RunPaths) -> None:
        folder = paths.checkpoints / "step-00000020"
        folder.mkdir()
        (folder / "model.bin").write_bytes(b"12345")
        (folder / "manifest.json").write_bytes(content)

    def read(paths: RunPaths) -> None:
        ask_history(paths)
        newest, passed = checkpoints.newest_intact(paths)
        assert newest is None or newest.step == 20
        assert all(isinstance(one, str) for one in passed)

    hold(read, spoil)


@quick
@given(junk.pulses)
def test_pulses_of_any_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank-0.pulse"
        path.write_bytes(content)
        pulse = read_pulse(path)
        assert pulse is None or pulse.age_seconds(1.0) >= 0


def drawn(document: dict[str, Any], **wrong: Any) -> bytes:
    return junk.encoded({**document, **wrong})


@quick
@given(st.sampled_from(sorted(junk.RUN)), junk.values)
@example("processes", 10**9)
@example("created_at", 1e300)
@example("arguments", [1, None])
def test_a_wrong_value_of_run_json_is_unknown_not_fatal(key: str, value: Any) -> None:
    """Known keys one by one: the run is listed, and what is wrong is not handed on."""

    def read(paths: RunPaths) -> None:
        (row,) = [one for one in wb.runs(paths.directory.parent) if one["run"] == "spoilt"]
        assert row["processes"] is None or 1 <= row["processes"] <= 16_384
        assert isinstance(row["name"], str)
        assert row["state"] in {"interrupted", "starting"}

    hold(read, lambda paths: paths.run.write_bytes(drawn(junk.RUN, **{key: value})))
