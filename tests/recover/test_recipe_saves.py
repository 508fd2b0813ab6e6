"""The recipe's saves: what is kept, when one is due, what a full disk does, foreign formats."""

from __future__ import annotations

import enum
import itertools
import json
import os
import pickle
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import checkpoint_files
import checkpointing
import dcp_files
import pytest
import torch
from checkpointing import Alarm, Checkpoints
from dcp_files import CheckpointError
from torch.distributed import checkpoint as dcp

from tests.conftest import SCRIPTS
from tests.launch.ranks import printed
from workbench.estimate.interruptions import checkpoint_interval
from workbench.recipes import recipes
from workbench.recover import dcp_table

from .launching import run

SHAPE = (
    *("--layers", "1", "--hidden", "32", "--seq-len", "16", "--micro-batch", "2", "--warmup", "2"),
    *("--eval-every", "0", "--log-every", "1", "--steps", "12", "--fingerprint"),
)


def save(folder: Path, step: int, loss: float | None) -> None:
    partial = folder / f"partial-{step:08d}"
    partial.mkdir()
    (partial / "w").write_bytes(b"w")
    checkpoint_files.seal(partial, step=step, loss=loss)
    checkpoint_files.publish(partial, folder / f"step-{step:08d}")


@pytest.mark.parametrize(
    ("last", "best", "left"),
    [
        (None, None, [6, 5, 4, 3, 2, 1]),
        (2, None, [6, 5]),
        (1, 2, [6, 4, 2]),
        (None, 1, [6, 2]),
        (9, 9, [6, 5, 4, 3, 2, 1]),
    ],
)
def test_the_newest_and_the_best_are_kept(tmp_path, last, best, left):
    for step, loss in ((1, 9.0), (2, 1.0), (3, None), (4, 2.0), (5, 8.0), (6, 7.0)):
        save(tmp_path, step, loss)
    checkpoint_files.prune(tmp_path, last, best)
    assert [checkpoint_files.step_of(path) for path in checkpoint_files.named(tmp_path)] == left
    assert len(os.listdir(tmp_path)) == len(left)


def test_a_broken_newest_one_does_not_push_the_whole_one_out(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, None)
    (tmp_path / "step-00000002" / "w").unlink()
    checkpoint_files.prune(tmp_path, 1, None)
    assert checkpoint_files.newest_complete(tmp_path)[0] == tmp_path / "step-00000001"


def test_after_going_back_what_is_saved_is_not_dropped_for_what_was_given_up(tmp_path):
    for step in (20, 40, 60):
        save(tmp_path, step, None)
    save(tmp_path, 30, None)  # 40 and 60 were damaged, or not wanted: it continued from 20
    removed = checkpoint_files.prune(tmp_path, 1, None, step=30)
    assert [path.name for path in removed] == ["step-00000020"]
    left = [checkpoint_files.step_of(path) for path in checkpoint_files.named(tmp_path)]
    assert left == [60, 40, 30]


class Alone:
    """What these classes ask of Accelerate, for one process."""

    device, is_main_process, num_processes, process_index = torch.device("cpu"), True, 1, 0
    asked = 0

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        self.asked += 1
        return tensor


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(checkpointing.time, "perf_counter", lambda: clock.now)
    return clock


def test_an_alarm_rings_after_its_time_and_is_seldom_asked(clock):
    accelerator = Alone()
    alarm, rang = Alarm(accelerator, 60.0, 0), None
    for step in range(1, 2000):
        clock.now += 0.1
        if alarm.rings(step):
            rang = step
            break
    assert rang == pytest.approx(600, abs=2)
    assert accelerator.asked < 40
    assert not Alarm(accelerator, None, 0).rings(10**9)


def options(folder: Path, **more: Any) -> SimpleNamespace:
    given = dict.fromkeys(("checkpoint_minutes", "checkpoint_auto", "keep_last", "keep_best"))
    return SimpleNamespace(
        **{
            **given,
            "checkpoint_every": 0,
            "checkpoint_async": False,
            "checkpoint_dir": folder,
            **more,
        }
    )


class Store:
    """Writes one file, or fails, and takes `seconds` for it."""

    format, record = "test", {"strategy": "single"}

    def __init__(self, clock: Any, seconds: float = 0.0) -> None:
        self.clock, self.seconds, self.full = clock, seconds, False

    def save(self, folder, commit=None):
        self.clock.now += self.seconds
        folder.mkdir(parents=True)
        (folder / "w").write_bytes(b"w")
        if self.full:
            raise CheckpointError("[Errno 28] No space left on device (rank 1)")
        if commit:
            commit()


def test_youngs_interval_follows_what_a_save_really_costs(tmp_path, clock):
    store = Store(clock, seconds=9.0)
    checkpoints = Checkpoints(options(tmp_path, checkpoint_auto=4.0), Alone(), store)
    saves, step = [], 0
    while len(saves) < 4:
        step += 1
        clock.now += 1.0
        if checkpoints.due(step):
            checkpoints.save(step)
            saves.append(step)
    assert saves[0] == pytest.approx((2 * 1.0 * 4 * 3600) ** 0.5, abs=3)  # before one was measured
    gaps = [after - before for before, after in itertools.pairwise(saves)]
    assert gaps == [pytest.approx(checkpoint_interval(9.0, 4.0), abs=3)] * 3


def test_minutes_and_steps_join_and_a_failed_save_is_told(tmp_path, clock, capsys):
    store = Store(clock)
    every = options(tmp_path, checkpoint_every=4, checkpoint_minutes=1.0)
    checkpoints = Checkpoints(every, Alone(), store)
    checkpoints.save(5, 2.5)
    assert checkpoint_files.manifest_of(tmp_path / "step-00000005")["loss"] == 2.5
    due = []
    for step in range(6, 11):
        clock.now += 13
        if checkpoints.due(step):
            due.append(step)
    assert due == [8, 10]  # a multiple of four, and 65 seconds after the last save
    store.full = True
    checkpoints.save(16, float("nan"))
    said = capsys.readouterr().err
    assert "CHECKPOINT NOT SAVED at step 16: [Errno 28] No space left on device (rank 1)" in said
    assert "step-00000005" in said
    assert os.listdir(tmp_path) == ["step-00000005"]
    store.full = False
    checkpoints.save(17, float("nan"))
    assert checkpoint_files.manifest_of(tmp_path / "step-00000017")["loss"] is None


def test_saving_from_outside_leaves_the_name_to_who_asks_and_raises(tmp_path, clock):
    store, accelerator = Store(clock), Alone()
    checkpoints = Checkpoints(options(tmp_path), accelerator, store)
    assert accelerator.save_state(str(tmp_path / "partial-x")) == tmp_path / "partial-x"
    assert os.listdir(tmp_path / "partial-x") == ["w"]
    store.full = True
    with pytest.raises(OSError, match="No space"):
        accelerator.save_state(str(tmp_path / "partial-y"))
    checkpoints.close()
    assert "save_state" not in vars(accelerator)


class Evil:
    def __reduce__(self):
        return (os.mkdir, (os.environ["EVIL"],))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_table_of_contents_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.setenv("EVIL", str(tmp_path / "canary"))
    dcp.save({"w": torch.ones(3)}, checkpoint_id=tmp_path / "good", no_dist=True)
    assert set(dcp_files.Reader(tmp_path / "good").read_metadata().state_dict_metadata) == {"w"}
    table = tmp_path / "good" / ".metadata"
    for evil in (Evil(), {"state": [Evil()]}, os.path.join):
        table.write_bytes(__import__("pickle").dumps(evil))
        with pytest.raises(CheckpointError), dcp_files.one_error():
            dcp_files.Reader(tmp_path / "good").read_metadata()
    assert not (tmp_path / "canary").exists()


META = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
ENUM = b"ctorch.distributed.checkpoint.metadata\n_MEM_FORMAT_ENCODING\n"


class PicklesAsPython311(pickle.Pickler):
    """Members of enumerations as Python 3.11.0 to 3.11.3 write them: Debian 12 has 3.11.2."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return getattr, (type(value), value.name)
        return NotImplemented


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_table_of_contents_of_python_3_11_2_is_read(tmp_path):
    folder = tmp_path / "good"
    dcp.save({"w": torch.ones(3)}, checkpoint_id=folder, no_dist=True)
    metadata = dcp_files.Reader(folder).read_metadata()
    with (folder / ".metadata").open("wb") as file:
        PicklesAsPython311(file).dump(metadata)
    assert b"getattr" in (folder / ".metadata").read_bytes()
    again = dcp_files.Reader(folder).read_metadata()
    assert again.state_dict_metadata == metadata.state_dict_metadata
    assert again.storage_data == metadata.storage_data
    assert dcp_table.why_unreadable(folder) == ""
    assert dcp_table.read_table(folder).sizes == {"w": (3,)}


@pytest.mark.parametrize("kind", [b"cos\n_Environ\n", b"cbuiltins\nstr\n", META, ENUM])
def test_a_table_of_contents_gets_no_attribute_of_anything_else(tmp_path, kind):
    asked = b"cbuiltins\ngetattr\n(" + kind + b"V__init__\ntR."
    (tmp_path / ".metadata").write_bytes(asked)
    with pytest.raises(CheckpointError), dcp_files.one_error():
        dcp_files.Reader(tmp_path).read_metadata()


# --- Real processes ------------------------------------------------------------------------------

GPT = recipes()["gpt"].path
SMALL_FILES = SCRIPTS / "small_files.py"


def fingerprint(said: str) -> str:
    return re.findall(r"fingerprint ([0-9a-f]{64})", said)[0]


@pytest.mark.slow
def test_a_full_disk_costs_the_checkpoint_and_not_the_training(tmp_path):
    plain = run(GPT, [*SHAPE], "ddp2", 2, tmp_path / "plain")
    saving = [*SHAPE, "--checkpoint-every", "5", "--checkpoint-dir", "{}"]
    full = [str(GPT), *(word.format(tmp_path / "full" / "c") for word in saving)]
    failed = run(SMALL_FILES, full, "ddp2", 2, tmp_path / "full")
    printed(failed)
    assert failed.stderr.count("CHECKPOINT NOT SAVED at step 5") == 1
    assert "the disk is full, or files may not grow so large (rank 0)" in failed.stderr
    assert fingerprint(failed.stdout) == fingerprint(plain.stdout)
    assert list((tmp_path / "full" / "c").iterdir()) == []
    beside = [*full, "--checkpoint-async"]
    failed = run(SMALL_FILES, beside, "ddp2", 2, tmp_path / "full")
    printed(failed)
    assert failed.stderr.count("CHECKPOINT NOT SAVED") == 2
    assert fingerprint(failed.stdout) == fingerprint(plain.stdout)


@pytest.mark.full
def test_what_only_its_library_can_read_is_refused_elsewhere_in_a_sentence(tmp_path):
    place = ["--checkpoint-dir", str(tmp_path / "c")]
    muon = [*SHAPE, *place, "--optimizer", "muon"]
    first = run(GPT, [*muon, "--checkpoint-every", "6"], "ddp2", 2, tmp_path)
    kept = json.loads((tmp_path / "c" / "step-00000006" / "options.json").read_text())
    assert (kept["format"], kept["strategy"]) == ("accelerate", "ddp2")
    chosen = ["--resume", str(tmp_path / "c" / "step-00000006")]
    again = run(GPT, [*muon, *chosen], "ddp2", 2, tmp_path)
    assert fingerprint(again.stdout) == fingerprint(first.stdout)
    other = run(GPT, [*SHAPE, *place, *chosen], "single", 1, tmp_path)
    assert other.returncode != 0
    assert "written in the format 'accelerate' (ddp2, 2 processes, optimizer muon)" in other.stderr
    assert "Checkpoints of ddp, fsdp" in other.stderr
