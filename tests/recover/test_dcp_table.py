"""The table of a distributed checkpoint: what another layout needs is there, by the right name."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import checkpoint as dcp

from workbench.recipes import checkpoint_files
from workbench.recover import contents, dcp_table
from workbench.recover.checkpoints import list_checkpoints, newest_intact, verify
from workbench.store.layout import RunPaths

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
SHAPES = {"blocks.0.down.weight": [3, 4], "head.weight": [2, 3]}


def saved(folder: Path, shapes: dict[str, list[int]], record: dict[str, Any] | None) -> Path:
    """As the recipes write it, without manifest."""
    state = dict[str, torch.Tensor]()
    for name, shape in shapes.items():
        state |= {f"{name}{end}": torch.ones(shape) for end in ("", ".exp_avg", ".exp_avg_sq")}
        state[f"{name}.step"] = torch.ones(())
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    if record is not None:
        (folder / "options.json").write_text(json.dumps({"format": "portable", **record}))
    return folder


def test_a_whole_one_is_readable_and_its_tensors_are_known(tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", SHAPES, {"weights": SHAPES})
    assert dcp_table.why_unreadable(folder) == ""
    table = dcp_table.read_table(folder)
    assert table.sizes["blocks.0.down.weight"] == (3, 4)
    assert table.sizes["head.weight.step"] == ()
    assert contents.why_broken(folder) == ""


def test_a_wrappers_name_in_a_weight_makes_a_checkpoint_broken_for_all_who_ask(
    tmp_path: Path,
) -> None:
    """What the release of 2026-11 wrote under FSDP with recompute: only the same layout read it."""
    paths = RunPaths(tmp_path / "run")
    for step, name in (
        (4, "blocks.0.down.weight"),
        (8, "blocks.0._checkpoint_wrapped_down.weight"),
    ):
        folder = paths.checkpoints / f"step-{step:08d}"
        saved(folder, {name: [3, 4]}, {})
        checkpoint_files.seal(folder, step=step)
    wrong, right = list_checkpoints(paths)
    assert (wrong.step, wrong.problem, verify(right)) == (8, "", "")
    assert "the name of a wrapper" in verify(wrong)
    found, passed = newest_intact(paths)
    assert found == right
    assert "_checkpoint_wrapped_down" in passed[0]


@pytest.mark.parametrize(
    ("shapes", "problem"),
    [
        ({"head.weight": [2, 3]}, "the weight blocks.0.down.weight is not in it"),
        (SHAPES | {"head.weight": [3, 2]}, "the weight head.weight has the shape [3, 2]"),
    ],
)
def test_the_weights_are_held_against_those_of_the_whole_model(
    tmp_path: Path, shapes: dict[str, list[int]], problem: str
) -> None:
    folder = saved(tmp_path / "a", shapes, {"weights": SHAPES})
    assert problem in dcp_table.why_unreadable(folder)
    (folder / "options.json").unlink()  # someone's own: its names are its own
    assert dcp_table.why_unreadable(folder) == ""


def test_missing_moments_cut_files_and_missing_files_are_seen(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    dcp.save({"w": torch.ones(2, 2)}, checkpoint_id=folder, no_dist=True)
    (folder / "options.json").write_text(
        json.dumps({"format": "portable", "weights": {"w": [2, 2]}})
    )
    assert "the optimizer's exp_avg of w is not in it" in dcp_table.why_unreadable(folder)
    (part,) = folder.glob("*.distcp")
    os.truncate(part, part.stat().st_size // 2)
    assert "is cut short" in dcp_table.why_unreadable(folder)
    part.unlink()
    assert f"{part.name} is missing" in dcp_table.why_unreadable(folder)


class Evil:
    """Makes a folder when it is unpickled."""

    def __reduce__(self) -> Any:
        return (os.mkdir, (os.environ["EVIL"],))


def test_a_table_runs_no_code_and_damage_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "canary"))
    folder = saved(tmp_path / "a", SHAPES, {"weights": SHAPES})
    table = folder / dcp_table.TABLE
    good = table.read_bytes()
    for bad in (
        pickle.dumps(Evil()),
        pickle.dumps(os.path.join),
        good[: len(good) // 2],
        b"",
        b"x",
    ):
        table.write_bytes(bad)
        assert dcp_table.why_unreadable(folder) == f"{dcp_table.TABLE} cannot be read"
        assert contents.why_broken(folder)
    assert not (tmp_path / "canary").exists()
