"""What a rank keeps of its steps, and that scripts that are right are not accused for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.launch.ranks import end_processes, start_warm
from tests.measure.harness import environment
from workbench.launching.capture import SITE_FOLDER
from workbench.verifying.judging import judge
from workbench.verifying.trace import Trace, read_trace

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = DataLoader(TensorDataset(torch.randn(256, 4), torch.randn(256, 2)), batch_size=8)
model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
first, second = (torch.optim.SGD(model[n].parameters(), 0.1) for n in (0, 2))
both = torch.optim.SGD([*first.param_groups, {**second.param_groups[0], "lr": 0.0}], 0.1)
loss = nn.functional.mse_loss
"""
ALTERNATE = """
for turn, (inputs, targets) in enumerate(data):
    model.zero_grad()
    loss(model(inputs), targets).backward()
    (second if turn % 2 else first).step()
"""
ONE_RESTS = """
for turn, (inputs, targets) in enumerate(data, 1):
    first.zero_grad()
    loss(model(inputs), targets).backward()
    first.step()
    if turn % 8 == 0:
        second.step()
        second.zero_grad()
"""
TEACHER = """
teacher = nn.Linear(4, 2).requires_grad_(False)
for inputs, _ in data:
    both.zero_grad()
    loss(model(inputs), teacher(inputs)).backward()
    both.step()
"""
HEAD_FIRST = """
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.body = nn.Linear(2, 2), model.requires_grad_(False)

    def forward(self, inputs):
        return self.head(self.body(inputs))

probe = Probe()
optimizer = torch.optim.SGD(probe.head.parameters(), 0.1)
for inputs, targets in data:
    optimizer.zero_grad()
    loss(probe(inputs), targets).backward()
    optimizer.step()
"""
PERCEPTUAL = """
class Training(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
        self.features = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4))
        self.features.eval().requires_grad_(False)

    def forward(self, inputs, targets):
        return loss(self.features(self.net(inputs)), self.features(targets))

training = Training()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs, targets in data:
    optimizer.zero_grad()
    training(inputs, targets).backward()
    optimizer.step()
"""
LOADED_DECODER = """
decoder = nn.Linear(2, 2)
decoder.load_state_dict({"weight": torch.eye(2) + 0.1, "bias": torch.zeros(2)})
both_parts = nn.Sequential(model, decoder.requires_grad_(False))
model[0].requires_grad_(False)
optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
for inputs, targets in data:
    optimizer.zero_grad()
    loss(both_parts(inputs), targets).backward()
    optimizer.step()
"""
FROZEN_NORM = """
projection = nn.Sequential(model, nn.BatchNorm1d(2).requires_grad_(False))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs, targets in data:
    optimizer.zero_grad()
    loss(projection(inputs), targets).backward()
    optimizer.step()
"""
SCALER = """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs, targets in data:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        error = loss(model(inputs), targets)
    scaler.scale(error).backward()
    scaler.step(optimizer)
    scaler.update()
"""
CLOSURE = """
optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=3)
for inputs, targets in data:
    def closure():
        optimizer.zero_grad()
        error = loss(model(inputs), targets)
        error.backward()
        return error
    optimizer.step(closure)
"""
CODEBOOK = """
codes = nn.Embedding(8, 4)
codes.weight.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for inputs, targets in data:
    codes.weight.mul_(0.9).add_(inputs, alpha=0.1)
    optimizer.zero_grad()
    loss(model(codes(torch.arange(8))), targets).backward()
    optimizer.step()
"""
RIGHT = {
    "optimizers that alternate": ALTERNATE,
    "an optimizer that steps later": ONE_RESTS,
    "a teacher, and a group that rests": TEACHER,
    "a head that is defined first": HEAD_FIRST,
    "a scaler that looks for its factor": SCALER,
    "a closure": CLOSURE,
    "a codebook": CODEBOOK,
    "a perceptual loss": PERCEPTUAL,
    "a decoder that was loaded": LOADED_DECODER,
    "a norm at the end that is frozen": FROZEN_NORM,
}
NEVER_ZEROED = """
for inputs, targets in data:
    first.zero_grad()
    loss(model(inputs), targets).backward()
    first.step()
    second.step()
"""
FROZEN_LATE = """
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
for inputs, targets in data:
    optimizer.zero_grad(set_to_none=False)
    loss(model(inputs), targets).backward()
    optimizer.step()
    model[0].requires_grad_(False)
"""
FROZEN_CLASSIFIER = """
from torch.nn.init import trunc_normal_

model.load_state_dict({name: value + 0.01 for name, value in model.state_dict().items()})
head = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))
trunc_normal_(head[2].weight, std=0.02)
head[0].weight.data.normal_(0.0, 0.02)
nn.init.zeros_(head[2].bias)
classifier = nn.ModuleDict({"body": model, "head": head}).requires_grad_(False)
classifier.forward = lambda inputs: head(model(inputs))
model[2].requires_grad_(True)
optimizer = torch.optim.SGD(model[2].parameters(), 0.1)
for inputs, targets in data:
    optimizer.zero_grad()
    loss(classifier(inputs), targets).backward()
    optimizer.step()
"""
WRONG = {
    "gradients-not-zeroed": NEVER_ZEROED,
    "frozen-changes": FROZEN_LATE,
    "frozen-output-layer": FROZEN_CLASSIFIER,
}


def traced(text: str, folder: Path) -> Trace:
    """The trace of one rank that runs this script for four steps."""
    for part in ("logs", "metrics", "control"):
        (folder / part).mkdir()
    (folder / "train.py").write_text(HEAD + text)
    own = {"PYTHONPATH": str(SITE_FOLDER), "WORKBENCH_RUN_DIR": str(folder)}
    own |= {"WORKBENCH_VERIFY": json.dumps({"steps": 4, "batch": None})}
    started = start_warm([sys.executable, str(folder / "train.py")], folder, environment() | own)
    try:
        assert started.wait(300) == 0
    finally:
        end_processes([started])
    return read_trace(folder, "1 rank")


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_a_script_that_is_right_is_not_accused(name: str, tmp_path: Path) -> None:
    found = traced(RIGHT[name], tmp_path)
    assert [one.kind for one in judge(found, None) if one.severity != "note"] == []
    (rank,) = found.ranks
    assert len(rank.steps) == 4
    assert rank.weights
    if name == "a scaler that looks for its factor":
        assert [len(step.losses) for step in rank.steps] == [1] * 4
        assert [step.consumed for step in rank.steps] == [8] * 4


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRONG)
def test_one_that_is_wrong_still_is(kind: str, tmp_path: Path) -> None:
    assert kind in [one.kind for one in judge(traced(WRONG[kind], tmp_path), None)]
