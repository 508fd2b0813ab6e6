"""The budget of processor time: what fails, what is not charged, what the report says."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest

from tests import cpu_budget

WORK = '''
import subprocess, sys, time
import pytest

def work(seconds=0.25):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass

def test_own_work():
    work()

def test_work_of_a_child():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.25: pass"])

def test_waiting_is_free():
    time.sleep(0.3)

def test_nothing_of_python_runs():
    begin = time.monotonic()
    sum(range(2_000_000))
    sum(range(int(2_000_000 * 1.5 / (time.monotonic() - begin))))  # as when the machine is halted

@pytest.mark.slow
def test_marked():
    work()

STAYS = """
import subprocess, sys
spin = "import time; [None for _ in iter(time.process_time, None) if _ > 0.25 and exit(print())]"
grandchild = subprocess.Popen([sys.executable, "-c", spin], stdout=-1)
grandchild.stdout.readline()
print(flush=True)
sys.stdin.read()
grandchild.wait()
"""

def test_a_child_that_stays():
    global child
    child = subprocess.Popen([sys.executable, "-c", STAYS], stdin=-1, stdout=-1)

@pytest.mark.slow
def test_until_it_has_worked():
    assert child.stdout.readline()

def test_waiting_for_it_is_free():
    child.communicate()

@pytest.fixture(scope="module")
def shared():
    work()

def test_first_to_use_a_shared_fixture(shared):
    pass
'''


@pytest.fixture
def result(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.RunResult:
    pytester.makeini("[pytest]\nmarkers = slow")
    pytester.makepyfile(test_work=WORK)
    with monkeypatch.context() as patch:  # ends before this test itself is judged
        patch.setattr(cpu_budget, "BUDGET_SECONDS", 0.1)
        patch.setattr(cpu_budget, "HALT_SECONDS", 1.0)
        patch.setattr(cpu_budget, "spin", lambda: cpu_budget.SPIN_SECONDS)
        return pytester.runpytest_inprocess("-p", "tests.cpu_budget", "-rA", "--cpu-report", "2")


def test_what_costs_too_much_unmarked_fails(result: pytest.RunResult) -> None:
    result.assert_outcomes(passed=7, failed=2)
    text = result.stdout.str()
    # A wide terminal has the sentence in the summary's lines too.
    assert (
        len(re.findall(r"^\d+\.\d CPU s; a test that .* may take 0\.1\.", text, re.MULTILINE)) == 2
    )
    assert "FAILED test_work.py::test_own_work" in text
    assert "FAILED test_work.py::test_work_of_a_child" in text


def test_the_report_names_the_dearest_and_the_sum(result: pytest.RunResult) -> None:
    assert sum(" s  test_work.py::test_" in line for line in result.outlines) == 2
    own, shared, _ = next(line for line in result.outlines if line.endswith(" all")).split()
    assert float(own) >= 0.7
    assert float(shared) >= 0.2


def test_a_slow_machine_gets_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_budget, "spin", lambda: 2 * cpu_budget.SPIN_SECONDS)
    assert not cpu_budget.over_budget(1.9 * cpu_budget.BUDGET_SECONDS)
    assert cpu_budget.over_budget(2.1 * cpu_budget.BUDGET_SECONDS)


def test_an_earlier_child_that_was_not_seen_at_the_start_is_not_charged() -> None:
    spin = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", spin], stdin=-1, stdout=-1)
    assert child.stdout is not None
    assert child.stdout.readline()
    account = cpu_budget.Account()
    account.children.clear()
    child.kill()
    child.communicate()
    account.wall_begin = time.monotonic()  # however long the waiting took
    assert account.own_seconds() < 0.3
