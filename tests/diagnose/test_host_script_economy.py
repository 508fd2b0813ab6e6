"""What runs out, what the script leaves out, and what costs money."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.diagnose.sample import Replay, gpu, kinds, row, sample
from workbench.diagnose.facts import RankFacts
from workbench.diagnose.out_of_memory import memory_action

GIB = 1 << 30


def test_memory_that_grows_until_it_is_gone(tmp_path: Path) -> None:
    """60 of 100 GiB and a GiB more each two seconds: full in a minute."""
    grows = [sample(1000.0 + n, memory_used_bytes=(50 + n // 2) * GIB) for n in range(90)]
    replay = Replay(tmp_path)
    assert kinds(replay.samples(grows[:20])) == []
    found = replay.samples(grows[20:])
    assert kinds(found) == ["host-memory"]
    assert "at this rate" in found[0].evidence
    assert found[0].cause.startswith("Other programs of this machine")  # the run has 1 GiB of it


@pytest.mark.parametrize(("part", "cause"), [(0.9, "The memory of the ranks"), (0.1, "Other prog")])
def test_whose_memory_grows(tmp_path: Path, part: float, cause: str) -> None:
    grown = [n // 2 * GIB for n in range(90)]
    own = [{"memory_used_bytes": 50 * GIB + n, "run_rss_bytes": int(GIB + part * n)} for n in grown]
    found = Replay(tmp_path).samples([sample(1000.0 + n, **one) for n, one in enumerate(own)])
    assert found[0].cause.startswith(cause)


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_memory_in_use_or_taken_at_once_is_no_trend(tmp_path: Path, share: float) -> None:
    used = [10 * GIB] * 60 + [int(share * 100) * GIB] * 120
    found = Replay(tmp_path).samples(
        [sample(1000.0 + n, memory_used_bytes=one) for n, one in enumerate(used)]
    )
    assert found == []


def test_a_disk_that_fills(tmp_path: Path) -> None:
    fills = [sample(1000.0 + n, disk_free_bytes=(200 - n) * GIB // 4) for n in range(120)]
    found = Replay(tmp_path).samples(fills)
    assert kinds(found) == ["disk"]


def test_checkpoints_that_come_and_go_do_not_fill_a_disk(tmp_path: Path) -> None:
    free = [(50 - (n // 20) % 3) * GIB for n in range(300)]
    found = Replay(tmp_path).samples(
        [sample(1000.0 + n, disk_free_bytes=one) for n, one in enumerate(free)]
    )
    assert found == []


def test_idle_processors_and_idle_gpus(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "gpu").mkdir()
    idle = [sample(1000.0 + 5 * n, run_cpu_percent=0.2) for n in range(130)]
    cpu = Replay(tmp_path / "cpu", recovery={"idle_minutes": 10.0})
    steps(cpu)
    assert kinds(cpu.samples(idle[:110])) == []
    assert kinds(cpu.samples(idle[110:])) == ["idle-machine"]
    cards = Replay(tmp_path / "gpu", device="cuda", recovery={"idle_minutes": 5.0})
    steps(cards)
    found = cards.samples([one | {"gpus": [gpu(0, util=0.0), gpu(1, util=1.0)]} for one in idle])
    assert kinds(found) == ["idle-gpus"]
    unknown = [one | {"gpus": []} for one in idle]
    later = cards.samples([one | {"time": one["time"] + 1000} for one in unknown])
    assert kinds(later) == ["gpu-lost"]  # what no one can read is not idle


def told(replay: Replay, **facts: object) -> None:
    for rank in range(2):
        replay.paths.rank_start(rank).write_text(json.dumps(facts))


def steps(replay: Replay, count: int = 40) -> list[str]:
    return kinds(replay.rows([row(n, 3.0 - n / 1000) for n in range(1, count)]))


def feed(**changed: object) -> dict[str, object]:
    known = {"sampler": "DistributedSampler", "distributed": True, "shuffle": True}
    return {"samplers": [known | {"iterations": 3, "set_epoch": True} | changed]}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (feed(), []),
        (feed(set_epoch=None, iterations=1), []),
        (feed(set_epoch=False), ["missing-set-epoch"]),
        (feed(set_epoch=False, shuffle=False), []),
        (feed(sampler="RandomSampler", distributed=False), ["no-distributed-sampler"]),
        (feed(distributed=None), []),
        ({"unused_parameters": {"count": 0, "find_unused_parameters": False}}, []),
        ({"unused_parameters": {"count": 2, "first": "head.bias"}}, ["unused-parameters"]),
        (
            {"unused_parameters": {"count": 0, "find_unused_parameters": True}},
            ["needless-find-unused"],
        ),
        (  # a head per task: other steps use it
            {"unused_parameters": {"count": 0, "sometimes": 4, "find_unused_parameters": True}},
            [],
        ),
        ({"unused_parameters": {"count": 2, "first": "head.bias", "last": False}}, []),
        ({"samplers": 3, "unused_parameters": []}, []),
        ({"wrapped_inside": 1}, ["wrapped-twice"]),
        ({"failed_passes": {"count": 9, "first_step": 16, "error": "E: x"}}, ["skipped-errors"]),
        ({"failed_passes": {"count": 9, "place": "data loader"}}, ["skipped-errors"]),
        ({"failed_passes": {"count": 1, "first_step": 16, "error": "E: x"}}, []),
        ({"failed_passes": {"count": 9, "error": "OutOfMemoryError: x"}}, []),  # a batch search
    ],
)
def test_what_the_script_leaves_out(tmp_path: Path, facts: dict, expected: list[str]) -> None:
    replay = Replay(tmp_path)
    told(replay, **facts)
    assert steps(replay) == expected
    assert replay.diagnoser.problems == {}


@pytest.mark.parametrize(
    ("strategy", "in_ddp", "expected"),
    [
        ({"name": "fsdp", "dp_shard": 2}, 2, ["not-sharded"]),
        ({"name": "zero3", "dp_shard": 2, "zero_stage": 3}, 2, ["not-sharded"]),
        ({"name": "fsdp", "dp_shard": 2}, 0, []),
        ({"name": "zero1", "dp_shard": 2, "zero_stage": 1, "engine": "torch"}, 2, []),  # is DDP
        ({"name": "ddp", "dp_replicate": 2}, 2, []),
    ],
)
def test_ddp_of_the_scripts_own_is_not_what_was_asked_for(
    tmp_path: Path, strategy: dict[str, object], in_ddp: int, expected: list[str]
) -> None:
    replay = Replay(tmp_path, strategy=strategy)
    looked = {"unused_parameters": {"count": 0, "find_unused_parameters": False}}
    for rank in range(2):
        replay.paths.rank_start(rank).write_text(json.dumps(looked if rank < in_ddp else {}))
    assert steps(replay) == expected


@pytest.mark.parametrize("shuffle", [True, False])
def test_data_that_the_script_splits_itself(tmp_path: Path, *, shuffle: bool) -> None:
    """By other data sets on the ranks, or by other batches where all read in order."""
    replay = Replay(tmp_path)
    for rank in range(2):
        facts = feed(distributed=False, shuffle=shuffle, data=rank if shuffle else None)
        replay.paths.rank_start(rank).write_text(json.dumps(facts))
    found = [row(n, [3.0, 3.1], fingerprints={0: n, 1: -n}) for n in range(1, 40)]
    assert kinds(replay.rows(found)) == []


@pytest.mark.parametrize(
    ("strategy", "other", "apart", "expected"),
    [
        ({"name": "ddp", "dp_replicate": 2}, 0, 0.0, ["same-data"]),
        ({"name": "fsdp", "dp_replicate": 1, "dp_shard": 2}, 0, 0.0, ["same-data"]),
        ({"name": "ddp", "dp_replicate": 2}, 1, 0.0, []),
        ({"name": "ddp", "dp_replicate": 2}, 0, 0.1, []),  # each takes its part of the batch
        ({"name": "tp", "tp": 2, "dp_replicate": 1, "dp_shard": 1}, 0, 0.0, []),
        ({"name": "pp", "pp": 2, "dp_replicate": 1, "dp_shard": 1}, 0, 0.0, []),
    ],
)
def test_ranks_that_train_on_the_same_batches(
    tmp_path: Path, strategy: dict, other: int, apart: float, expected: list[str]
) -> None:
    replay = Replay(tmp_path, strategy=strategy)
    found = replay.rows(
        [
            row(n, [3.0 - 0.1 * n, 3.0 - 0.1 * n + apart], fingerprints={0: n, 1: n + other})
            for n in range(1, 6)
        ]
    )
    assert kinds(found) == expected
    assert replay.diagnoser.problems == {}


def test_ranks_of_one_tensor_parallel_model_share_their_data(tmp_path: Path) -> None:
    replay = Replay(tmp_path, strategy={"name": "tp", "tp": 2, "dp_replicate": 1, "dp_shard": 1})
    told(replay, **feed(sampler="RandomSampler", distributed=False))
    assert steps(replay) == []


def test_a_group_of_another_size(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.facts = {"world_size": 1}
    assert steps(replay) == ["world-size"]


def test_no_steps_at_the_end(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    replay.look(1001.0)
    assert kinds(replay.diagnoser.end("no-steps", None)) == ["no-steps"]
    assert kinds(Replay(tmp_path).diagnoser.end("succeeded", None)) == []


@dataclass
class Saved:
    step: int
    saved_at: float | None
    by_script: bool = False


def test_checkpoints_too_far_apart_for_a_machine_that_may_vanish(tmp_path: Path) -> None:
    replay = Replay(tmp_path, recovery={"preemption": "aws"})
    replay.paths.saved.write_text('{"step": 5, "seconds": 2.0}\n')
    far = [Saved(n, 1000.0 + 3600 * n) for n in range(3)]
    replay.facts = {"checkpoints": far}
    assert kinds(replay.look(9000.0)) == ["checkpoint-interval"]
    near = [Saved(n, 1000.0 + 300 * n) for n in range(3)]
    replay.facts = {"checkpoints": near}
    replay.look(9010.0)
    assert kinds(replay.look(9050.0)) == []


def test_an_hour_without_a_checkpoint(tmp_path: Path) -> None:
    replay = Replay(tmp_path)
    steps(replay)
    assert kinds(replay.look(4000.0)) == []
    assert kinds(replay.look(4700.0)) == ["no-checkpoint"]


def test_silence_of_ranks_without_a_pulse(tmp_path: Path) -> None:
    """No hook's pulse, no stacks: the metrics alone tell, and no one is blamed."""
    replay = Replay(tmp_path)
    steps(replay)
    replay.facts = {"ranks": {rank: RankFacts(alive=True, process_state="S") for rank in range(2)}}
    found = []
    for second in range(40):
        found = replay.look(1004.0 + second)
    assert kinds(found) == ["hang"]
    assert found[0].rank is None
    replay.facts = {"ranks": {}, "stopping": True}
    replay.look(1050.0)
    assert kinds(replay.look(1055.0)) == []


@pytest.mark.parametrize(
    ("launched", "more", "waited", "raised"),
    [
        (2, {}, 30.0, True),
        (2, {}, 5.0, False),
        (2, {"group_world_size": 2}, 30.0, False),  # what they started is not their training
        (1, {}, 30.0, False),
    ],
)
def test_each_launched_process_spawns_a_group(
    tmp_path: Path, launched: int, more: dict[str, int], waited: float, *, raised: bool
) -> None:
    replay = Replay(tmp_path, processes=launched)
    for rank in range(launched):
        process = {"pid": 100 + rank, "start_ticks": 1, "boot_id": "b"}
        start = {"rank": rank, "process": process} | more
        replay.paths.rank_start(rank).write_text(json.dumps(start))
        for child in (1, 2):
            note = replay.paths.metrics / f"waits-{100 + rank}-{child}"
            note.touch()
            os.utime(note, (1000.0 + rank,) * 2)
    found = kinds(replay.look(1001.0 + waited))
    assert ("spawned-groups" in found) == raised


PRINTED = """step 5 loss 0.1
Traceback (most recent call last):
  File "/home/u/train.py", line 6, in main
    raise RuntimeError("shard 3 is truncated")
RuntimeError: shard 3 is truncated
"""


THREAD = """Exception in thread Thread-3 (_pin_memory_loop):
Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner
    self.run()
  File "/home/u/data.py", line 17, in read
    return torch.stack(parts)
  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 900, in stack
    raise RuntimeError("sizes differ")
RuntimeError: sizes differ
"""


@pytest.mark.parametrize(
    ("log", "place", "cause"),
    [
        (PRINTED, "(train.py:6)", "The script caught an error"),
        (THREAD, "(data.py:17)", "ended the thread Thread-3 (_pin_memory_loop) alone"),
    ],
)
def test_the_users_own_line_of_a_printed_error_is_named(
    tmp_path: Path, log: str, place: str, cause: str
) -> None:
    replay = Replay(tmp_path)
    replay.paths.rank_log(0).write_text(log)
    steps(replay, 6)
    (found,) = (
        one for one in replay.diagnoser.end("succeeded", None) if one.kind == "caught-error"
    )
    assert place in found.evidence
    assert cause in found.cause


@pytest.mark.parametrize(
    ("log", "outcome", "expected"),
    [
        (PRINTED + "Training aborted.\n", "succeeded", ["caught-error"]),
        (PRINTED, "failed", []),  # which is told with its cause
        (PRINTED + "".join(f"step {n} loss 0.1\n" for n in range(6, 20)), "succeeded", []),
        (PRINTED.replace("Traceback", "Exception ignored in: <x>\nTraceback"), "succeeded", []),
        ("step 5 loss 0.1\n", "succeeded", []),
    ],
)
def test_an_error_that_the_script_only_printed(
    tmp_path: Path, log: str, outcome: str, expected: list[str]
) -> None:
    replay = Replay(tmp_path)
    replay.paths.rank_log(1).write_text(log)
    steps(replay, 6)
    found = [one for one in replay.diagnoser.end(outcome, None) if one.kind == "caught-error"]
    assert kinds(found) == expected
    for one in found:
        assert (one.rank, one.step) == (1, 5)
        assert "RuntimeError: shard 3 is truncated (train.py:6)" in one.evidence
    assert replay.diagnoser.problems == {}


def test_memory_that_grows_in_each_step_is_called_a_leak(tmp_path: Path) -> None:
    paths = Replay(tmp_path).paths
    for kept, expected in ((512 << 20, "grew by 512 MiB a step"), (0, "halve the micro-batch")):
        held = [(300 << 20) + step * kept for step in range(12)]
        lines = [{"step": step, "memory_bytes": size} for step, size in enumerate(held, 1)]
        paths.rank_metrics(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert expected in memory_action(paths, 0)
