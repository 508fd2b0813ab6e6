"""The script as a user runs it: real processes, real pip, real kills; the tests build on each other."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from venv_setup import repair, state

from tests.environments.tiny_project import write_wheel

pytestmark = [pytest.mark.slow, pytest.mark.full]
MADE_BY = f"{sys.version_info[0]}.{sys.version_info[1]} {sys.base_prefix}"


@pytest.fixture(scope="module")
def ready(tiny):
    done = tiny.run()
    assert done.returncode == 0, done.stdout + done.stderr
    tiny.first = done.stdout
    return tiny


def wait_for(what, seconds=120):
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def marked(project):
    """Processes that the set-up of that project started."""
    mark = f"{repair.MARK}={project.venv}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def in_stage(project, name):
    return lambda: (found := state.load(project.venv)) and name in found.unfinished()


def test_first_run(ready):
    lines = ready.first.splitlines()
    assert len([line for line in lines if line.startswith("torch: torch==2.13.0 (")]) == 1
    assert "\r" not in ready.first, "no spinner where stdout is not a terminal"
    assert ready.python_says("import torch; print(torch.__version__)") == "2.13.0+cpu"
    assert (ready.venv / "constraints.txt").read_text() == "torch==2.13.0+cpu\n"
    assert "Successfully installed" in (ready.venv / "setup.log").read_text()
    record = json.loads((ready.venv / ".setup-state.json").read_text())
    assert list(record["stages"]) == ["venv", "torch", "project", "optional", "verify"]
    assert record["complete"]


def test_second_run_does_nothing_in_under_a_second(ready):
    before = (ready.venv / ".setup-state.json").stat().st_mtime_ns
    seconds, used = [], resource.getrusage(resource.RUSAGE_CHILDREN)
    for _ in range(3):
        began = time.monotonic()
        done = ready.run()
        seconds.append(time.monotonic() - began)
        assert "is ready" in done.stdout
    now = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = (now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime) / len(seconds)
    assert (ready.venv / ".setup-state.json").stat().st_mtime_ns == before
    assert cpu < 1, cpu
    if os.getloadavg()[0] < 2 * (os.cpu_count() or 1):  # else the clock measures the neighbours
        assert min(seconds) < 1, seconds


def test_a_changed_pyproject_installs_again_and_keeps_torch(ready):
    ready.touch()
    done = ready.run()
    assert "pyproject.toml changed" in done.stdout
    assert "torch 2.13.0+cpu is already in the environment and stays" in done.stdout
    assert "is ready" in ready.run().stdout


def test_killed_while_pip_works(ready):
    ready.touch()
    hang = ready.directory / "hang"
    hang.touch()
    process = ready.start()
    wait_for(in_stage(ready, "project"))
    wait_for(lambda: len(marked(ready)) > 1)  # pip, and the build that it started
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    left = marked(ready)
    assert left, "a killed script cannot take its pip with it"
    done = ready.start()
    wait_for(lambda: not set(left) & set(marked(ready)))
    hang.unlink()
    text = done.communicate(timeout=200)[0]
    assert done.returncode == 0, text
    # None of them is left. Which are ended by name and which continued their own when their reader
    # was gone is a race: a pip that writes to the broken pipe ends itself.
    assert not set(left) & set(marked(ready))
    assert "interrupted in: project" in text
    assert "is ready" in ready.run().stdout


def test_half_installed_packages_are_installed_again(ready):
    site = next(ready.venv.glob("lib/python3*/site-packages"))
    (site / "torch/__init__.py").write_text("cut short")
    (site / "~orch").mkdir()
    record = state.load(ready.venv)
    record.stages["torch"]["seconds"] = None
    state.save(ready.venv, record)
    text = ready.run().stdout
    assert "half-installed or damaged, will be installed again: torch==2.13.0" in text
    assert ready.python_says("import torch; print(torch.__version__)") == "2.13.0+cpu"
    assert not (site / "~orch").exists()


def test_damaged_packages_are_noticed_and_repaired(ready):
    """Also one that no extra asks for: it comes back in the version that it had."""
    write_wheel(ready.wheels, "notes", "3.1")
    pip = [ready.venv / "bin/pip", "install", "--no-index", f"--find-links={ready.wheels}", "notes"]
    subprocess.run(pip, check=True, capture_output=True)
    assert "is ready" in ready.run().stdout
    site = next(ready.venv.glob("lib/python3*/site-packages"))
    (site / "notes/__init__.py").unlink()
    (site / "torch/__init__.py").write_text("")
    text = ready.run().stdout
    assert "damaged packages: notes==3.1 (notes/__init__.py is missing), and 1 more" in text
    assert ready.python_says("import torch; print(torch.__version__)") == "2.13.0+cpu"
    assert ready.python_says("import notes; print(notes.__version__)") == "3.1"
    assert "is ready" in ready.run().stdout


def test_a_failing_deepspeed_is_said_and_the_set_up_goes_on(ready):
    ready.require('torch>=2.6; extra == "train"', 'deepspeed>=0.17; extra == "deepspeed"')
    ready.touch()
    extras = ("--extras", "train,deepspeed")
    done = ready.run(*extras)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "installing deepspeed failed" in done.stdout
    assert "Without deepspeed: strategies zero1, zero2 and zero3" in done.stdout
    again = ready.run(*extras)
    assert "is ready (train;" in again.stdout
    assert "Without deepspeed" in again.stdout, "said until it is there"
    build = "import os\nBUILT = os.environ\n"
    write_wheel(ready.wheels, "deepspeed", "0.19.8", {"deepspeed/__init__.py": build})
    later = ready.run(*extras, "--retry")
    assert "is ready (train, deepspeed;" in ready.run(*extras).stdout, later.stdout
    assert ready.python_says("import deepspeed; print(deepspeed.__name__)") == "deepspeed"
    ready.require('torch>=2.6; extra == "train"')


def test_a_place_that_cannot_be_written(ready, tmp_path):
    """Root writes everywhere but below a file."""
    (tmp_path / "file").touch()
    done = ready.run("--venv", tmp_path / "file" / "venv")
    assert done.returncode == 1
    assert "cannot be written: Not a directory" in done.stderr
    assert "WORKBENCH_VENV=DIR" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_says_how_to_go_on(ready):
    ready.touch()
    hang = ready.directory / "hang"
    hang.touch()
    process = ready.start()
    wait_for(lambda: len(marked(ready)) > 1)
    process.send_signal(signal.SIGINT)
    text = process.communicate(timeout=240)[0]
    hang.unlink()
    assert process.returncode == 130
    assert "interrupted; run the same command again" in text
    assert ready.run().returncode == 0


def test_a_failing_pip_shows_its_last_lines_and_the_log(ready):
    ready.touch()
    ready.require("not-there>=9")
    done = ready.run()
    ready.require('torch>=2.6; extra == "train"')
    assert done.returncode == 1
    assert "No matching distribution found for not-there>=9" in done.stderr
    assert f"The whole log: {ready.venv}/setup.log" in done.stderr
    assert "Traceback" not in done.stderr
    assert ready.run().returncode == 0


def test_run_by_the_environments_own_python(ready):
    ready.python, before = ready.venv / "bin/python", ready.python
    try:
        assert "is ready" in ready.run().stdout
    finally:
        ready.python = before


def test_two_at_once_wait_for_each_other(ready):
    ready.touch()
    both = [ready.start(), ready.start()]
    texts = [process.communicate(timeout=200)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    assert sum("installing the project" in text for text in texts) == 1, texts


def test_faults_of_an_environment(ready, tmp_path):
    record = state.load(ready.venv)
    assert repair.fault(ready.venv, MADE_BY, record) is None
    assert "made by Python" in repair.fault(ready.venv, "3.9 /usr", record)
    moved = tmp_path / "moved"
    shutil.copytree(ready.venv, moved, symlinks=True)
    assert "moved here from" in repair.fault(moved, MADE_BY, state.load(moved))
    assert "its commands start" in repair.fault(moved, MADE_BY, None)
    shutil.rmtree(next(moved.glob("lib/python3*/site-packages")) / "pip")
    assert repair.fault(moved, MADE_BY, None) == "it has no pip"
    (moved / "bin/python").unlink()
    assert "does not start" in repair.fault(moved, MADE_BY, None)


def test_something_else_is_never_deleted(ready, tmp_path):
    (tmp_path / "thesis.txt").write_text("ten years of work")
    done = ready.run("--venv", tmp_path)
    assert done.returncode == 1
    assert "is not a virtual environment" in done.stderr
    assert (tmp_path / "thesis.txt").exists()


def test_killed_while_the_environment_is_made(ready):
    process = ready.start("--rebuild")
    wait_for(in_stage(ready, "venv"))
    wait_for(lambda: (ready.venv / "bin").exists() or process.poll() is not None)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    text = ready.run().stdout
    assert "the set-up was interrupted while making it" in text
    assert ready.python_says("import torch; print(torch.__version__)") == "2.13.0+cpu"
    assert "is ready" in ready.run().stdout
