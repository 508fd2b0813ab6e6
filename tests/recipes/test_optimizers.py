"""optimizers.py: each one learns, keeps what it says, and goes on after it was saved."""

from __future__ import annotations

import copy
import sys

import corpus
import gpt_model
import optimizers
import pytest
import torch
from recipe_options import OPTIMIZERS

RATES = {"adafactor": 3e-2, "sgd": 0.3, "sgd-momentum": 0.1}
# Bytes of state per weight. 8 bits: two bytes and their scales, small matrices in fp32; Adafactor:
# rows and columns; Muon: one moment for matrices inside, two for embedding and head.
STATE = {
    "adamw-fused": (8.0, 8.01),
    "adamw": (8.0, 8.01),
    "adamw-8bit": (2.0, 2.2),
    "adafactor": (0.01, 0.2),
    "muon": (4.0, 6.0),
    "sgd": (0.0, 0.0),
    "sgd-momentum": (4.0, 4.01),
}
DATA = torch.frombuffer(bytearray(b"for i in range(10): print(i)\n" * 200), dtype=torch.uint8)


def steps(model, optimizer, first, last):
    losses = []
    for step in range(first, last):
        share = corpus.Share(0, 1, 4)
        inputs, targets = corpus.micro_batch(DATA, share, 32, key=step, index=0, of=1)
        loss = gpt_model.loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def made(name):
    model = gpt_model.GPT(1, 64, 1)
    gpt_model.initialise(model, 64, 0)
    return model, optimizers.build(name, model, RATES.get(name, 4e-3))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_it_learns_keeps_what_it_says_and_resumes(name):
    if name == "adamw-8bit":
        pytest.importorskip("bitsandbytes", reason="pip install 'training-workbench[lowbit]'")
    model, optimizer = made(name)
    losses = steps(model, optimizer, 0, 12)
    # Adafactor's steps are relative to a matrix's size, and the head starts as zeros.
    assert losses[-1] < losses[0] - (0.02 if name == "adafactor" else 0.3)
    held = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.ndim
    )
    low, high = STATE[name]
    assert low <= held / sum(map(torch.Tensor.numel, model.parameters())) <= high
    again, other = made(name)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert steps(again, other, 12, 15) == steps(model, optimizer, 12, 15)


def test_muon_takes_the_matrices_inside_and_one_schedule_moves_all():
    model, optimizer = made("muon")
    names = {id(weight): name for name, weight in model.named_parameters()}
    of = {
        group["matrices"]: {names[id(weight)] for weight in group["params"]}
        for group in optimizer.param_groups
    }
    assert of[False] == {"embedding.weight", "head.weight"}
    assert of[True] == set(names.values()) - of[False]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    before = [weight.clone() for weight in model.parameters()]
    steps(model, optimizer, 0, 1)
    assert all(map(torch.equal, before, model.parameters()))


def test_frozen_weights_are_left_alone():
    model = gpt_model.GPT(1, 64, 1)
    model.embedding.weight.requires_grad = False
    for name in set(OPTIMIZERS) - {"adamw-8bit"}:
        groups = optimizers.build(name, model, 1e-3).param_groups
        trained = {id(weight) for group in groups for weight in group["params"]}
        assert id(model.embedding.weight) not in trained
        assert len(trained) == len(list(model.parameters())) - 1


def test_unknown_and_missing_are_one_sentence(monkeypatch):
    model = gpt_model.GPT(1, 64, 1)
    with pytest.raises(ValueError, match="adamw-fused, adamw"):
        optimizers.build("adam", model, 1e-3)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(SystemExit, match="pip install bitsandbytes"):
        optimizers.build("adamw-8bit", model, 1e-3)
