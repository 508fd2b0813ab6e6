"""The export's face without a browser: files follow the controls, refusals are shown, saving."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")
pytest.importorskip("yaml", reason="PyYAML is not installed")

from workbench_widgets import Export
from workbench_widgets.launch import export as export_module

import workbench as wb
from workbench.engines.refusals import ENGINES

TWO = {"nodes": 2, "processes_per_node": 8, "gpu": "h100"}


@pytest.fixture
def face(tmp_path: Path) -> Export:
    return Export("gpt", store=tmp_path / "runs", provider="nebius", **TWO)


def test_files_follow_the_controls(face: Export) -> None:
    assert face.export is not None
    assert "num_nodes: 2" in face.figure["files"][0]["text"]
    face._on_message(face, {"type": "change", "changes": {"nodes": 3}, "token": "1"}, [])
    assert "num_nodes: 3" in face.figure["files"][0]["text"]
    assert face.answered == "1"
    face.set(engine="dstack")
    assert face.figure["files"][0]["name"] == "task.dstack.yml"
    assert "type: task" in repr(face)


def test_a_refusal_has_reason_and_way_out_and_nothing_to_save(face: Export) -> None:
    face.set(provider="runpod")
    (refused,) = face.figure["refused"]
    assert "non-trivial" in refused["reason"]
    assert "--to runpod" in refused["instead"]
    assert face.export is None
    assert "Refused: SkyPilot at runpod" in repr(face)
    rows = {one["name"]: one["refused"] for one in face.figure["engines"]}
    assert set(rows) == set(ENGINES)
    assert rows["dstack"] == []
    with pytest.raises(wb.UsageError, match="Nothing to save"):
        face.save()
    face._on_message(face, {"type": "save"}, [])
    assert "Nothing to save" in face.saved


def test_saving_writes_the_folder_and_a_move_forgets_it(face: Export, tmp_path: Path) -> None:
    face._on_message(face, {"type": "save"}, [])
    folder = tmp_path / "exports" / "gpt-ddp-skypilot"
    assert str(folder) in face.saved
    assert {"skypilot.yaml", "launch.sh", "code"} <= {one.name for one in folder.iterdir()}
    assert (folder / "launch.sh").stat().st_mode & 0o111
    face.set(nodes=1)
    assert face.saved == ""


def test_engines_that_rent_nothing_are_not_asked_where_to(face: Export) -> None:
    """Their control is hidden, so what it says does not count."""
    assert "provider" not in face.controls["hidden"]
    face.set(engine="kubeflow")
    assert "provider" in face.controls["hidden"]
    assert face.figure["refused"] == []


def test_controls_that_the_engine_has_not_are_hidden_and_do_not_count(face: Export) -> None:
    face.set(max_hours=2, restarts=1, idle_minutes=9, image="a/b")
    hidden = {
        "torchrun": {"max_hours", "restarts", "idle_minutes", "image"},
        "runpod": {"restarts", "idle_minutes"},
        "slurm": {"idle_minutes", "image"},
        "kubeflow": {"idle_minutes"},
    }
    rows = {one["name"]: one["refused"] for one in face.figure["engines"]}
    for engine, names in hidden.items():
        assert all(one["what"] not in {"limit", "image"} for one in rows[engine]), engine
        face.set(engine=engine)
        limits = {"max_hours", "restarts", "idle_minutes", "image"}
        assert limits & set(face.controls["hidden"]) == names
        assert all(one["what"] != "limit" for one in face.figure["refused"]), engine


def test_what_cannot_be_is_said_at_the_control(face: Export) -> None:
    before = face.figure
    face._on_message(face, {"type": "change", "changes": {"what": "no_such.py"}, "token": "2"}, [])
    assert face.problem["field"] == "what"
    assert face.figure == before
    assert face.export is None
    face.set(what="gpt", arguments="--note 'open")
    assert "quotation" in face.problem["message"]
    with pytest.raises(TypeError, match="Export has no option 'node'"):
        Export("gpt", node=2)


def test_no_label_repeats_the_unit_beside_it() -> None:
    """There stood "Maximum $ $"."""
    fields = [field for group in export_module._fields(()) for field in group["fields"]]
    texts = {field["name"]: f"{field['label']} {field.get('unit', '')}".strip() for field in fields}
    assert (texts["max_usd"], texts["max_kwh"]) == ("Maximum $", "Maximum kWh")
    twice = [text for text in texts.values() if len(set(text.split())) < len(text.split())]
    assert not twice
