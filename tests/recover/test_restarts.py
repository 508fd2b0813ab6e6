"""Which failures are worth another attempt, after how long, and when it is enough."""

from __future__ import annotations

import pytest

from workbench.recover.policy import Recovery
from workbench.recover.restarts import Failure, Restarts


def failure(step=10, **about):
    return Failure(message="Rank 1 was killed by SIGKILL (9)", last_step=step, **about)


def test_waits_double_up_to_five_minutes():
    restarts = Restarts(Recovery(restarts=12))
    decisions = [restarts.decide(failure(10 * n, exit_code=-9)) for n in range(1, 14)]
    assert [one.wait_seconds for one in decisions[:9]] == [2, 4, 8, 16, 32, 64, 128, 256, 300]
    assert all(one.restart for one in decisions[:12])
    assert not decisions[12].restart
    assert "all 12 are used up" in decisions[12].why
    assert "from the beginning" in decisions[0].why


def test_none_by_default_and_the_checkpoint_is_named():
    assert "--restarts" in Restarts(Recovery()).decide(failure(exit_code=-9)).why
    decision = Restarts(Recovery(restarts=1)).decide(failure(exit_code=-9, checkpoint_step=8))
    assert "step 8" in decision.why
    assert "Restart 1 of 1 in 2 s" in decision.why


@pytest.mark.parametrize(
    "about",
    [
        {"exit_code": -9},
        {"exit_code": -11, "step": 0},
        {"hang": True},
        {"preempted": True},
        {"exception": "RuntimeError: Connection closed by peer [127.0.0.1]:3000", "exit_code": 1},
        {"exception": "DistBackendError: NCCL error in: ...", "exit_code": 1, "step": 0},
        {"exception": "RuntimeError: Gloo connectFullMesh failed", "exit_code": 1, "step": 0},
        {"exception": "gaierror: [Errno -3] Temporary failure in name resolution", "step": 0},
        {"exception": "HfHubHTTPError: 503 Server Error: Service Unavailable for url", "step": 0},
        {"exception": "OSError: [Errno 116] Stale file handle: '/data/a'", "step": 0},
        {"exception": "ValueError: a rare case of the data", "exit_code": 1},
        {"out_of_memory": True, "exit_code": -9},
    ],
)
def test_infrastructure_and_rare_errors_are_tried_again(about):
    assert Restarts(Recovery(restarts=3)).decide(failure(**about)).restart


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"exception": "ModuleNotFoundError: No module named 'x'", "step": 0}, "import"),
        ({"exception": "SyntaxError: invalid syntax", "step": 0}, "mistake"),
        ({"exception": "torch.OutOfMemoryError: CUDA out of memory. Tried"}, "memory"),
        ({"exception": "RuntimeError: DefaultCPUAllocator: can't allocate memory"}, "memory"),
        ({"exception": "OSError: [Errno 28] No space left on device"}, "full disk"),
        ({"exit_code": 2, "step": 0}, "arguments"),
        ({"exception": "KeyboardInterrupt: ", "exit_code": -2}, "interrupted"),
        ({"exception": "ValueError: shapes", "exit_code": 1, "step": 0}, "before its first step"),
    ],
)
def test_errors_of_the_user_are_not(about, said):
    decision = Restarts(Recovery(restarts=3)).decide(failure(**about))
    assert not decision.restart
    assert said in decision.why


def test_the_same_error_at_the_same_step_is_no_accident():
    restarts = Restarts(Recovery(restarts=9))
    same = {"exception": "ValueError: bad sample 17", "where": "t.py:3 in f", "exit_code": 1}
    assert restarts.decide(failure(20, checkpoint_step=15, **same)).restart
    again = restarts.decide(failure(20, checkpoint_step=18, **same))
    assert not again.restart
    assert "same error at step 20 twice" in again.why
    restarts = Restarts(Recovery(restarts=9))
    assert restarts.decide(failure(20, **same)).restart
    assert restarts.decide(failure(33, **same)).restart


def test_a_script_that_has_trained_may_fail_once_before_it_steps_again():
    restarts = Restarts(Recovery(restarts=9))
    assert restarts.decide(failure(500, exit_code=-9)).restart
    odd = {"exception": "RuntimeError: mount is not ready", "where": "t.py:3 in f", "exit_code": 1}
    assert restarts.decide(failure(400, first_step=400, checkpoint_step=400, **odd)).restart
    again = restarts.decide(failure(400, first_step=400, checkpoint_step=400, **odd))
    assert "same error at step 400 twice" in again.why


def test_two_attempts_without_progress_are_a_crash_loop():
    restarts = Restarts(Recovery(restarts=100))
    assert restarts.decide(failure(50, checkpoint_step=40, exit_code=-9)).restart
    assert restarts.decide(failure(45, checkpoint_step=40, exit_code=-9)).restart
    loop = restarts.decide(failure(44, checkpoint_step=40, exit_code=-9))
    assert not loop.restart
    assert "beyond step 50" in loop.why
    restarts = Restarts(Recovery(restarts=100))
    for step, saved in ((50, 40), (45, 40), (46, 43), (44, 43), (60, 43), (50, 43)):
        assert restarts.decide(failure(step, checkpoint_step=saved, exit_code=-9)).restart


def test_killed_for_memory_is_tried_once_more_and_hangs_as_told():
    restarts = Restarts(Recovery(restarts=9))
    assert restarts.decide(failure(5, out_of_memory=True, exit_code=-9)).restart
    assert "twice" in restarts.decide(failure(9, out_of_memory=True, exit_code=-9)).why
    still = Restarts(Recovery(restarts=9, restart_on_hang=False))
    assert "switched off" in still.decide(failure(5, hang=True)).why
