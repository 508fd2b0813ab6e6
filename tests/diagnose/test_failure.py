"""Why a run failed, from what it leaves behind: rank records and logs as torch writes them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import run_document
from workbench.describe import Cluster, Model, Strategy, Workload
from workbench.diagnose import failure
from workbench.diagnose.failure import explain
from workbench.diagnose.out_of_memory import OomKills, killed_for_memory
from workbench.store.commands import command_for
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankEnd
from workbench.store.record import read_end

CUDA = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.15 GiB of which 1.19 GiB is free."
)
CPU = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)"
)
KILLED = """Root Cause (first observed failure):
[0]:
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 11342)
"""
NCCL = (  # torch adds NCCL's version to whatever NCCL says
    "NCCL error in: ../NCCLUtils.cpp:77, invalid usage (run with NCCL_DEBUG=WARN for details), "
    "NCCL version 2.27.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL library."
)
WATCHDOG = (
    "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=40, OpType=ALLREDUCE) "
    "ran for 600000 milliseconds before timing out."
)
ECHO = "torch.distributed.DistBackendError: Connection closed by peer [127.0.0.1]:24893"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path)
    made.make_folders()
    made.run.write_text(json.dumps(run_document()))
    return made


def failed(paths: RunPaths, *exceptions: str | None, steps: int = 5, **more: Any) -> Finding:
    """One rank per exception; None: it left no word."""
    ends = {
        rank: None
        if text is None
        else RankEnd.of(
            {"ok": False, "time": 1.0 + rank, "exception": text, "where": "train.py:9 in main"}
            | more
        )
        for rank, text in enumerate(exceptions)
    }
    return explain(paths, ends, 1, steps)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (CUDA, "out-of-memory"),
        (CPU, "out-of-memory"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "missing-module"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("AssertionError: Torch not compiled with CUDA enabled", "no-gpu"),
        (
            "RuntimeError: The NVIDIA driver on your system is too old (found 11040)",
            "version-mismatch",
        ),
        ("ImportError: libcudnn.so.9: cannot open shared object file", "version-mismatch"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution",
            "version-mismatch",
        ),
        ("RuntimeError: Unable to find interface for: [0.0.0.1]", "network-interface"),
        (
            "RuntimeError: Expected to have finished reduction in the prior iteration",
            "unused-parameters",
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", "cuda-error"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-lost"),
        ("RuntimeError: CUDA error: out of memory", "out-of-memory"),
        (f"torch.distributed.DistBackendError: {NCCL}\nDuplicate GPU detected", "duplicate-gpu"),
        ("ValueError: boom", "rank-failed"),
        ("KeyError: 'Xidentifier'", "missing-key"),
    ],
)
def test_errors_people_have_met_before(paths: RunPaths, text: str, kind: str) -> None:
    found = failed(paths, text)
    assert (found.kind, found.rank, found.severity) == (kind, 0, "error")
    assert "train.py:9 in main" in found.evidence


def test_a_rank_that_gloo_aborts_tells_which_collective_its_python_was_in(paths: RunPaths) -> None:
    paths.launcher_log.write_text(KILLED.replace("-9", "-6"))
    paths.rank_log(1).write_text(
        "  what():  op.preamble.length <= op.nbytes. 11796 vs 4. Is there a distributed collective "
        "mismatch in your code?\nFatal Python error: Aborted\n\n"
        'Thread 0x01 (most recent call first):\n  File "/x/threading.py", line 1 in run\n\n'
        'Thread 0x02 (most recent call first):\n  File "/x/train.py", line 15 in evaluate\n\n'
    )
    found = explain(paths, {0: None, 1: None}, 1, 5)
    assert (found.kind, found.rank) == ("collective-mismatch", 1)
    assert "train.py:15" in found.evidence


def test_a_watchdog_that_aborts_its_process_is_a_timeout(paths: RunPaths) -> None:
    paths.launcher_log.write_text(KILLED.replace("-9", "-6"))
    paths.rank_log(1).write_text(f"{WATCHDOG}\nterminate called after throwing an instance of\n")
    found = explain(paths, {0: None, 1: None}, 1, 5)
    assert (found.kind, found.rank) == ("collective-timeout", 1)
    paths.rank_log(1).write_text("ModuleNotFoundError: No module named 'wandb' (tried, not needed)")
    other = explain(paths, {0: None, 1: None}, 1, 5)
    assert other.kind != "missing-module"
    assert "Crash in native code" in other.next


def test_the_echo_of_a_lost_peer_is_not_the_cause(paths: RunPaths) -> None:
    found = failed(paths, ECHO, CUDA)
    assert (found.kind, found.rank) == ("out-of-memory", 1)
    assert "2.00 GiB" in found.evidence


def test_who_left_early_is_the_cause_of_what_its_peers_say(paths: RunPaths) -> None:
    """Less data on one rank, or a return that it alone meets: the others lose their peer."""
    left = RankEnd(rank=1, time=1.0, steps=15, ok=True, exit_code=0)
    echo = {"ok": False, "time": 2.0, "steps": 16, "exception": ECHO, "where": "train.py:9"}
    ends = {0: RankEnd.of(echo), 1: left, 2: RankEnd.of(echo | {"rank": 2})}
    found = explain(paths, ends, 1, 16)
    assert (found.kind, found.rank) == ("rank-left", 1)
    assert found.cause.startswith("Rank 1 ended its script after step 15, with exit code 0, while")
    assert "same number of steps" in found.next
    assert "port" not in found.next
    paths.launcher_log.write_text(KILLED.replace("-9", "3"))  # it did not leave: SystemExit(3)
    for silent in (left, None):
        found = explain(paths, {**ends, 1: silent}, 1, 16)
        assert (found.kind, found.rank) == ("rank-failed", 1)
        assert found.cause.startswith("Rank 1 ended with exit code 3")
    boom = {0: RankEnd.of(echo | {"exception": "ValueError: boom"}), 1: left}
    assert explain(paths, boom, 1, 16).kind == "rank-failed"


def test_out_of_memory_says_what_saves_how_much(paths: RunPaths) -> None:
    model = Model(name="small", layers=12, hidden=768, heads=12, mlp_hidden=3072, vocab=50_304)
    workload = Workload(model=model, seq_len=1024, micro_batch=16)
    strategy = Strategy.parse("ddp", 2)
    parts = {"activations: blocks": 9 << 30, "optimizer states": 1 << 30}
    document = run_document(
        device="cuda",
        cluster=asdict(Cluster(name="here")),
        workload=asdict(workload),
        strategy=strategy.options(),
        predicted={"memory": {"parts": parts}},
    )
    paths.run.write_text(json.dumps(document))
    found = failed(paths, CUDA)
    assert "Largest estimated parts: activations: blocks 9" in found.next
    assert "Estimated savings" in found.next
    assert "saves" in found.next
    assert "GiB (--" in found.next


def test_a_script_that_refuses_its_arguments_is_quoted(paths: RunPaths) -> None:
    paths.rank_log(0).write_text(
        "usage: train.py [-h] [--steps STEPS]\ntrain.py: error: unrecognized arguments: --stepz 5\n"
    )
    ends = {0: RankEnd(time=1.0, exit_code=2)}
    found = explain(paths, ends, 1, 0)
    assert found.kind == "script-arguments"
    assert "unrecognized arguments: --stepz 5" in found.cause


def killed(paths: RunPaths) -> Finding:
    paths.launcher_log.write_text(KILLED)
    return failed(paths, None, None)


def test_a_kill_for_memory_is_told_from_any_other(paths: RunPaths) -> None:
    found = killed(paths)
    assert (found.kind, found.rank) == ("rank-killed", 1)
    assert found.cause == "Rank 1 was killed by SIGKILL (9)"
    assert f"start it again ({command_for(paths.directory, 'rerun')})" in found.next
    counter = paths.directory / "memory.events"
    counter.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    known = {"first": {str(counter): 2}, "last": {str(counter): 2}}
    (paths.control / "oom-kills.json").write_text(json.dumps(known))
    assert killed(paths).kind == "rank-killed"
    counter.write_text("low 0\noom 4\noom_kill 3\noom_group_kill 0\n")
    paths.system.write_text('{"time":1,"run_rss_bytes":314572800}\n')
    found = killed(paths)
    assert (found.kind, found.rank) == ("killed-for-memory", 1)
    assert "300 MiB" in found.evidence
    assert found.cause.endswith("SIGKILL (9): the kernel's memory killer")


def test_the_counters_of_this_machine_can_be_read_or_are_unknown(paths: RunPaths) -> None:
    OomKills(paths).look()
    assert killed_for_memory(paths) in {0, None}


def test_a_broken_memory_of_counters_is_unknown(paths: RunPaths) -> None:
    for text in ("", "[]", '{"first": 3}', '{"first": {"x": "y"}, "last": {}}'):
        (paths.control / "oom-kills.json").write_text(text)
        assert killed_for_memory(paths) is None


def test_a_launcher_that_failed_itself_is_quoted(paths: RunPaths) -> None:
    paths.launcher_log.write_text("Traceback (most recent call last):\nImportError: no numbers\n")
    told = failed(paths, None)
    assert (told.kind, told.rank) == ("launcher-failed", None)
    assert "ImportError: no numbers" in told.cause
    assert "launcher.log" in told.next


def test_a_full_disk_is_named_where_a_rank_left_no_word(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "first_shortage", lambda _: "only 0 B are free on the disk of /x")
    told = failed(paths, None)
    assert (told.kind, told.rank) == ("disk-full", 0)
    assert "only 0 B are free on the disk of /x" in told.evidence
    own = failed(paths, "ValueError: boom")
    assert own.kind == "rank-failed"
    assert "0 B" not in own.evidence
    which = failed(paths, "OSError: [Errno 28] No space left on device")
    assert "only 0 B are free on the disk of /x" in which.evidence


def test_an_error_is_told_without_its_colours(paths: RunPaths) -> None:
    """As torch.load writes "do those steps" in bold letters."""
    text = "RuntimeError: \x1b[1mdo those steps only if you trust it\x1b[0m"
    end = {"ok": False, "time": 1.0, "steps": 1, "rank": 0, "exception": text}
    (paths.metrics / "rank-0.end.json").write_text(json.dumps(end))
    known = read_end(paths, 0)
    assert known is not None
    assert known.exception == "RuntimeError: do those steps only if you trust it"


def test_an_exit_for_an_error_that_was_caught_is_told_with_that_error(paths: RunPaths) -> None:
    paths.rank_log(0).write_text("training failed\n")
    chain = [
        {"exception": "exit code 1", "relation": ""},
        {"exception": "ValueError: bad shard 3", "relation": "while handling"},
    ]
    end = RankEnd(ok=False, exit_code=1, where="train.py:3 in load", chain=chain)
    found = explain(paths, {0: end}, 1, 5)
    assert "exit code 1: training failed, while handling ValueError: bad shard 3" in found.cause
    assert found.next.startswith("Look at train.py:3 in load, where the error arose that")
