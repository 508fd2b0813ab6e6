"""``workbench launch -m package.train``: found as Python would, recorded, resumed, never imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.describe import Strategy
from workbench.errors import UsageError
from workbench.launching.prepare.accelerate_config import CPU_RANKS, command
from workbench.launching.prepare.build_request import request
from workbench.launching.prepare.targets import resolve, target_of
from workbench.launching.resume.run_options import options_of
from workbench.launching.start.start import prepare
from workbench.store.run_record import RunRecord


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project" / "mymodel"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported to be found')\n")
    (folder / "train.py").write_text("import argparse\n")
    (folder / "__main__.py").write_text("import argparse\n")
    monkeypatch.chdir(folder.parent)
    return folder


def test_it_is_found_without_being_imported(package: Path) -> None:
    module, whole = resolve("-m mymodel.train"), resolve("-m mymodel")
    assert (module.path, module.module, module.name) == (
        package / "train.py",
        "mymodel.train",
        "train",
    )
    assert (whole.path, whole.name) == (package / "__main__.py", "mymodel")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("-m mymodel/train.py", "is not a module's name"),
        ("-m mymodel.trian", "No module 'mymodel.trian' to run in"),
        ("-m ", "is not a module's name"),
    ],
)
@pytest.mark.usefixtures("package")
def test_what_is_no_module_is_refused(target: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        resolve(target)


def test_the_launcher_starts_it_as_a_module_and_the_record_says_so(
    package: Path, tmp_path: Path
) -> None:
    checked = request("-m mymodel.train", ["--lr", "1"], cpu=True, store=tmp_path / "runs")
    assert checked.command[-4:] == ["--module", "mymodel.train", "--lr", "1"]
    assert checked.name == "train-ddp2"
    assert "--module mymodel.train --lr 1" in checked.shell()
    paths, order = prepare(checked)
    assert order["launcher"][-2:] == ["--module", "mymodel.train"]
    document = json.loads(paths.run.read_text())
    assert (document["module"], document["script"]) == ("mymodel.train", str(package / "train.py"))
    assert resolve(target_of(RunRecord.of(document))) == resolve("-m mymodel.train")
    assert options_of(paths, RunRecord.of(document)).name is None


def test_sharded_ranks_on_cpu_run_it_through_the_shim(tmp_path: Path) -> None:
    words = command(
        tmp_path,
        "mymodel.train",
        ["--lr", "1"],
        strategy=Strategy.parse("fsdp", 2),
        device="cpu",
        threads=1,
        port=0,
    )
    assert words[-5:] == [str(tmp_path / CPU_RANKS.name), "-m", "mymodel.train", "--lr", "1"]
    assert "--module" not in words


@pytest.mark.slow
def test_ranks_run_in_their_package_and_a_failure_names_its_line(package: Path) -> None:
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text("ROWS = {}\n")
    (package / "train.py").write_text("from .data import ROWS\n\nprint(ROWS['text'])\n")
    words = ["launch", "-m", "mymodel.train", "--cpu", "--nproc", "1", "--wait", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "workbench.cli", *words, "--store", str(package.parent / "runs")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1, done.stderr
    message = json.loads(done.stdout)["message"]
    assert "KeyError" in message
    assert "train.py:3" in message
