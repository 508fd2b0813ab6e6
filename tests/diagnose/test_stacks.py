"""Stacks, collectives and pulses as ranks write them, and the words made of them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.diagnose.evidence import Evidence
from workbench.diagnose.facts import Facts, RankFacts, rank_facts
from workbench.diagnose.hang import flight_recorder
from workbench.diagnose.hang.detection import compute_alike, saved_step
from workbench.diagnose.hang.explanation import Standstill, describe
from workbench.diagnose.hang.stacks import Frame, Stack, answer, ask, groups, parse
from workbench.observe.pulse import Pulse, read_pulse
from workbench.store import processes
from workbench.store.findings import is_for_good
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.store.schema import PULSE_FORMAT, PULSE_MAGIC, STACK_SIGNAL

TORCH = "/venv/lib/python3.11/site-packages/torch"
BARRIER = f"""Thread 0x00007f0d5c9fe6c0 (most recent call first):
  File "/repo/workbench/launching/capture/control_requests.py", line 93 in _look
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f0e8a3ff740 (most recent call first):
  File "{TORCH}/distributed/distributed_c10d.py", line 5168 in barrier
  File "{TORCH}/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/train.py", line 31 in main
  File "/home/me/train.py", line 60 in <module>
"""
BACKWARD = f"""Current thread 0x00007f0e8a3ff740 (most recent call first):
  File "{TORCH}/autograd/graph.py", line 865 in _engine_run_backward
  File "{TORCH}/_tensor.py", line 625 in backward
  File "/home/me/train.py", line 40 in main
  File "/home/me/train.py", line 60 in <module>
"""
LOADER = f"""Current thread 0x00007f0e8a3ff740 (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "{TORCH}/utils/data/dataloader.py", line 1288 in _try_get_data
  File "/home/me/train.py", line 22 in main
  File "/home/me/train.py", line 60 in <module>
"""


def stack(text: str) -> Stack:
    found = parse(text)
    assert found is not None
    return found


def test_a_stack_in_words() -> None:
    assert stack(BARRIER).place == "barrier at train.py:31"
    assert stack(BARRIER).waits_for_peers
    assert stack(BACKWARD).place == "backward at train.py:40"
    assert stack(LOADER).place == "data loading at train.py:22"
    assert not stack(LOADER).waits_for_peers
    assert parse("") is None
    assert parse("Current thread 0x00 (most recent call first):\n  <no Python frame>\n") is None


def test_a_dump_that_is_still_being_written_is_no_answer() -> None:
    for end in range(len(BARRIER) - 1):
        assert parse(BARRIER[:end]) is None, BARRIER[:end]
    assert stack(BARRIER + LOADER[:80]) == stack(BARRIER)  # asked twice, the second half there
    assert stack(LOADER.replace('  File "/home/me/train.py", line 60 in <module>', "  ..."))


def test_ranks_at_the_same_place_are_one_group_and_outliers_come_first() -> None:
    stacks = {rank: stack(BACKWARD) for rank in range(7)} | {3: stack(LOADER)}
    assert [ranks for _, ranks in groups(stacks)] == [(3,), (0, 1, 2, 4, 5, 6)]


def pulse(steps: int, phase: str) -> Pulse:
    return Pulse(beats=1, steps=steps, phase=phase, time=0.0, monotonic=0.0)


def still(stacks: dict[int, Stack], phases: list[str], **more: object) -> Standstill:
    ranks = {
        rank: RankFacts(alive=True, process_state="S", pulse=pulse(19, phase))
        for rank, phase in enumerate(phases)
    }
    known = {"step": 19, "steps": 19, "ranks": ranks, "silent": dict.fromkeys(ranks, 20.0)}
    return Standstill(
        **{**known, "stacks": stacks, "collectives": {}, "busy": set(), "mute": set(), **more}
    )


def test_ranks_that_all_compute_in_their_own_code_do_not_hang(tmp_path: Path) -> None:
    facts = Facts(phase="running", elapsed_seconds=60.0, started_at=0.0)
    evidence = Evidence(RunPaths(tmp_path), RunRecord(device="cpu"), facts)
    own = {rank: Stack((Frame("/home/me/train.py", 18, "evaluate"),)) for rank in range(2)}
    phases = ["forward"] * 2
    assert compute_alike(still(own, phases, busy={0, 1}), evidence)
    assert not compute_alike(still(own, phases, busy={0}), evidence)
    waiting = dict.fromkeys(range(2), stack(BARRIER))
    assert not compute_alike(still(waiting, phases, busy={0, 1}), evidence)
    evidence.run = RunRecord(device="cuda")
    assert not compute_alike(still(own, phases, busy={0, 1}), evidence)


@pytest.mark.parametrize(("why_not", "step"), [("", 12), ("Nobody knows how.", None)])
def test_a_hang_offers_no_checkpoint_that_resume_would_refuse(
    why_not: str, step: int | None
) -> None:
    saved = [SimpleNamespace(step=step, saved_at=None) for step in (12, 6, None)]
    facts = Facts(
        phase="running",
        elapsed_seconds=60.0,
        started_at=0.0,
        checkpoints=saved,
        why_not_resumable=lambda: why_not,
    )
    assert saved_step(facts) == step


def test_different_collectives_are_a_deadlock() -> None:
    found = describe(
        still({0: stack(BACKWARD), 1: stack(BARRIER)}, ["backward", "forward"]), 20, "15 s"
    )
    assert (found.kind, found.rank, found.step) == ("deadlock", 1, 20)
    assert "rank 1 waits in barrier at train.py:31" in found.cause
    assert "rank 0 waits in backward at train.py:40" in found.cause


def test_equal_numbers_of_different_collectives_are_a_deadlock_whatever_the_stacks() -> None:
    """Both stacks may look alike, or one be missing: what the ranks counted is proof enough."""
    last = {
        rank: flight_recorder.LastCollective("default_pg", 5, name, "")
        for rank, name in enumerate(("broadcast", "barrier"))
    }
    phases = ["backward", "backward"]
    for stacks in ({0: stack(BACKWARD), 1: stack(BACKWARD)}, {0: stack(BACKWARD)}, {}):
        found = describe(still(stacks, phases, collectives=last), 20, "15 s")
        assert found.kind == "deadlock"
        assert "(broadcast, call 5)" in found.cause
        assert "(barrier, call 5)" in found.cause
        assert "backward pass" not in found.cause.partition("Deadlock")[0]
        assert "resume" not in found.next
    level = {
        rank: flight_recorder.LastCollective("default_pg", 5, "all_reduce", "") for rank in (0, 1)
    }
    assert not flight_recorder.mismatched(level)
    assert not flight_recorder.mismatched(
        {0: last[0], 1: flight_recorder.LastCollective("tp", 5, "barrier", "")}
    )
    assert not flight_recorder.mismatched(
        {0: last[0], 1: flight_recorder.LastCollective("default_pg", 4, "x", "")}
    )


def test_the_next_move_of_a_hang_exists() -> None:
    stacks = {0: stack(BACKWARD), 1: stack(LOADER)}
    phases = ["backward", "forward"]
    assert "no checkpoint" in describe(still(stacks, phases), 20, "15 s").next
    found = describe(still(stacks, phases, saved_step=12), 20, "15 s")
    assert "resume it from its checkpoint of step 12" in found.next


def test_what_a_rank_has_not_done_is_told_as_it_is() -> None:
    elsewhere = stack(BARRIER)
    stacks = {0: stack(LOADER), 1: stack(LOADER)}
    found = describe(still({0: elsewhere}, ["backward"] * 2, mute={0}), 20, "15 s")
    assert "finished the backward pass of step 20, but not the step" in found.cause
    first = still(stacks, ["starting", "starting"], step=0, busy={1}, mute={1})
    assert "Rank 1 has not entered its first backward pass" in describe(first, 20, "15 s").cause


def test_the_rank_that_waits_for_data_is_named_among_eight() -> None:
    stacks = {rank: stack(BACKWARD) for rank in range(8)} | {5: stack(LOADER)}
    phases = ["backward"] * 8
    phases[5] = "forward"
    found = describe(still(stacks, phases), 20, "15 s")
    assert (found.kind, found.rank) == ("hang", 5)
    assert "its data loader" in found.cause


OWN = Stack((Frame("/home/me/train.py", 18, "evaluate"),))


@pytest.mark.parametrize(
    ("stacks", "seconds", "severity"),
    [
        ({0: stack(BACKWARD), 1: OWN}, 40, "warning"),  # it evaluates alone
        ({0: stack(BACKWARD), 1: OWN}, 900, "error"),
        ({0: stack(BACKWARD), 1: stack(LOADER)}, 40, "warning"),
        ({0: stack(LOADER), 1: stack(LOADER)}, 40, "warning"),  # storage that answers late
        ({0: stack(BACKWARD), 1: stack(BACKWARD)}, 40, "error"),  # all wait: for nobody
        ({0: stack(BACKWARD), 1: stack(BARRIER)}, 40, "error"),
    ],
)
def test_a_rank_that_may_only_be_late_is_named_and_not_given_up(
    stacks: dict[int, Stack], seconds: float, severity: str
) -> None:
    found = describe(still(stacks, ["backward", "forward"], mute=set()), seconds, "15 s")
    assert found.severity == severity
    assert is_for_good(found) is (severity == "error")
    if OWN in stacks.values():
        assert (found.kind, found.rank) == ("hang", 1)
        assert "it stands in evaluate() at train.py:18. The other ranks wait" in found.cause
        assert ("ends by itself" in found.next) is (severity == "warning")


def test_without_stacks_the_pulse_tells() -> None:
    found = describe(still({}, ["backward", "forward", "backward"]), 20, "15 s")
    assert (found.kind, found.rank) == ("hang", 1)
    assert found.confidence < 0.7


def test_all_at_the_same_place_blames_nobody() -> None:
    found = describe(still({0: stack(BACKWARD), 1: stack(BACKWARD)}, ["backward"] * 2), 20, "15 s")
    assert (found.kind, found.rank) == ("hang", None)


LIB = "/usr/lib/python3.11"
TRAIN = ("/home/me/train.py", 22, "main")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["threading.py", "queue.py"], "an item of a queue"),
        (["multiprocessing/connection.py", "multiprocessing/queues.py"], "a multiprocessing queue"),
        (["threading.py"], "another thread"),
        (["socket.py", "http/client.py"], "over the network"),
        ([], "it stands in main() at train.py:22."),  # sleep, input, a lock: C alone
    ],
)
def test_who_waits_for_something_of_its_own_is_not_told_that_the_network_failed(
    files: list[str], said: str
) -> None:
    frames = [*(Frame(f"{LIB}/{file}", 1, "get") for file in files), Frame(*TRAIN)]
    waits = Stack(tuple(frames))
    alone = describe(still({0: waits}, ["forward"]), 40, "15 s")
    assert (alone.kind, alone.rank, alone.severity) == ("hang", None, "warning")
    assert said in alone.cause
    assert "train.py:22" in alone.cause
    both = describe(still({0: waits, 1: waits}, ["forward"] * 2), 40, "15 s")
    assert "NCCL" not in alone.next + both.next * bool(files)
    assert said in both.cause or "If that waits for other ranks" in both.cause
    for found in (alone, describe(still({0: waits}, ["forward"]), 900, "15 s")):
        assert "other ranks" not in found.cause


def test_a_dataset_that_waits_in_the_main_process_is_no_loader_without_an_answer() -> None:
    frames = [
        Frame(f"{LIB}/queue.py", 171, "get"),
        Frame("/home/me/data.py", 9, "__getitem__"),
        Frame(f"{TORCH}/utils/data/dataloader.py", 780, "_next_data"),
        Frame(*TRAIN),
    ]
    found = describe(still({0: Stack(tuple(frames))}, ["forward"]), 40, "15 s")
    assert "get at data.py:9 and waits for an item of a queue" in found.cause


def dump(paths: RunPaths, rank: int, last: int, name: str = "all_reduce") -> None:
    entries = [
        {
            "collective_seq_id": number,
            "op_id": number,
            "is_p2p": False,
            "profiling_name": f"gloo:{name}",
            "process_group": ["0", "default_pg"],
            "input_sizes": [[11]],
        }
        for number in range(1, last + 1)
    ]
    paths.rank_trace(rank).write_text(json.dumps({"entries": entries, "version": "2.10"}))


def test_the_latest_collectives_are_compared(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    dump(paths, 0, 4)
    dump(paths, 1, 3)
    last = {rank: flight_recorder.last_collective(paths, rank) for rank in (0, 1)}
    said, behind = flight_recorder.compare(last)
    assert behind == (1,)
    assert "rank 1 all_reduce #3" in said
    assert flight_recorder.counted(paths, 1, 0.0) == 3
    assert flight_recorder.last_collective(paths, 1, time.time() + 60) is None
    paths.rank_trace(1).write_text('{"version":"2.10"}')
    assert flight_recorder.counted(paths, 1, 0.0) == 0
    paths.rank_trace(1).write_text('{"entries": [3, {"op_id"')
    assert flight_recorder.counted(paths, 1, 0.0) is None
    assert flight_recorder.last_collective(paths, 1) is None


def test_a_pulse_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.pulse"
    assert read_pulse(path) is None
    path.write_bytes(struct.pack(PULSE_FORMAT, PULSE_MAGIC, 7, 42, 2, 1e9, 5.0))
    found = read_pulse(path)
    assert found is not None
    assert (found.steps, found.phase, found.age_seconds(8.0)) == (42, "backward", 3.0)
    for bad in (b"", b"x" * 64, struct.pack(PULSE_FORMAT, PULSE_MAGIC, 7, 42, 99, 1e9, 5.0)):
        path.write_bytes(bad)
        assert read_pulse(path) is None
    path.write_bytes(struct.pack(PULSE_FORMAT, PULSE_MAGIC, 7, 42, 2, float("nan"), 5.0))
    assert read_pulse(path) is None


RANK = """
import faulthandler, sys, time
file = open(sys.argv[1], "a")
if sys.argv[2] == "listens":
    faulthandler.register({signal}, file=file, all_threads=True, chain=False)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("word", ["listens", "deaf"])
def test_only_who_listens_is_asked(tmp_path: Path, word: str) -> None:
    """The signal would end a process that has no handler for it."""
    paths = RunPaths(tmp_path)
    paths.make_folders()
    script = tmp_path / "rank.py"
    script.write_text(RANK.format(signal=STACK_SIGNAL))
    listens = word == "listens"
    command = [sys.executable, str(script), str(paths.rank_stack(0)), word]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            process = processes.identify(child.pid)
            facts = rank_facts(paths, 0, process)
            assert facts.alive
            assert facts.rss_bytes
            offset = ask(paths, 0, process)
            assert (offset == 0) is listens
            if listens:
                deadline = time.monotonic() + 120
                while (found := answer(paths, 0, 0)) is None and time.monotonic() < deadline:
                    time.sleep(0.05)
                assert found is not None
                assert found.place.partition(":")[0].endswith("rank.py")
            assert child.poll() is None
        finally:
            child.kill()
    assert not rank_facts(paths, 0, process).alive
    assert os.getpid() != child.pid
