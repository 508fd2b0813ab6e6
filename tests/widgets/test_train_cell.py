"""``%%train``: a cell of a real kernel on two ranks, and what an interrupt of the kernel ends."""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import workbench as wb

pytest.importorskip("anywidget", reason="the lab extra is not installed")

import nbformat
from workbench_widgets.train_cell import _watch

from tests import user_environment

_NET = """%load_ext workbench
import torch
WIDTH = 4
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(WIDTH, 1)
    def forward(self, x):
        return self.line(x)
"""
_TRAIN = """%%train --strategy ddp --nproc 2 --cpu {option} -- --steps 3
import argparse
import torch
from accelerate import Accelerator
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
steps = parser.parse_args().steps
accelerator = Accelerator()
model = Net()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(steps):
    accelerator.backward(model(torch.ones(2, 4)).pow(2).mean())
    optimizer.step(); optimizer.zero_grad()
assert accelerator.num_processes == 2
{end}
"""
_AGAIN = """import workbench as wb
again = wb.attach("last").rerun()
print(again.wait(), again.view()["steps"], again.document["script"].startswith(str(again.directory)))
"""


@pytest.mark.slow
@pytest.mark.full
def test_a_cell_on_two_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("nbclient")
    sources = [
        _NET,
        _TRAIN.format(option="", end=""),
        _TRAIN.format(option="--include Net", end="raise ValueError('odd')"),
        _AGAIN,
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in sources])
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "runs"))
    for name, value in user_environment.variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    client.NotebookClient(book, timeout=300, kernel_name="python3", allow_errors=True).execute(
        cwd=str(tmp_path)
    )
    said = [
        "\n".join(
            str(one.get("text") or one.get("data", {}).get("text/plain") or one.get("traceback"))
            for one in cell.outputs
        )
        for cell in book.cells
    ]
    assert "line 9: `Net` is defined in your notebook, not in this cell" in said[1]
    assert "--include Net" in said[1]
    assert "RunDashboard('cell_3-ddp2'" in said[2]
    assert "cell [3], line 15, in <module>" in said[2]
    assert "raise ValueError('odd')" in said[2]
    assert "failed 3 True" in said[3]
    assert not list((tmp_path / "runs" / ".cells").iterdir())


def test_an_interrupt_of_the_kernel_ends_the_watching_alone(
    start: Callable[..., wb.Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run = start("gpt", ["--steps", "100000"])

    def interrupt() -> None:
        run.wait(steps=1)
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    _watch(run)
    thread.join()
    assert run.status.live
    said = capsys.readouterr().out
    assert f"{run.id} continues training" in said
    assert f"workbench stop {run.id}" in said
    run.stop()
    _watch(run)
    assert f"{run.id}: Stopped" in capsys.readouterr().out
