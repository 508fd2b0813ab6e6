"""What a rank does in the checkpoint matrix: train and save, or load and compare, with gpt.py."""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.recipes import recipes

from .matrix_record import append_loaded

sys.path.insert(0, str(recipes()["gpt"].path.parent))

import corpus
import gpt
import torch
from accelerate.utils import gather_object
from gpt_model import GPT, Block
from recipe_options import with_checkpoint
from torch import nn
from torch.distributed import device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

SAVED_AT = 2  # steps
LOAD_SECONDS = 120.0  # a load takes a tenth of a second, more on a busy machine
LINEARS = ("qkv", "mix", "up", "down")
COMPUTED = ".computed"  # what a forward pass computes with, where that is a copy of its own
Digests = dict[str, str]


@functools.cache
def small_corpus(_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A part of the real one: reading all of it takes longer than training."""
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(256, (60_000,), generator=generator, dtype=torch.uint8)
    return data[:50_000], data[50_000:]


def trainer_of(arguments: Sequence[str]) -> gpt.Trainer:
    """The recipe's own trainer, resumed where the arguments say so."""
    gpt.read_corpus = small_corpus
    corpus.read_corpus = small_corpus
    compile_block = nn.Module.compile
    nn.Module.compile = lambda self, **_: compile_block(self, backend="eager")  # no C++ compiler
    try:
        return gpt.Trainer(with_checkpoint(lambda: gpt.parse_options(arguments)))
    finally:
        nn.Module.compile = compile_block


def save(arguments: Sequence[str], folder: Path) -> dict[str, Any]:
    """Train, save in the middle, train on; the state at the save and after one more step."""
    where = ["--checkpoint-dir", str(folder), "--checkpoint-every", str(SAVED_AT)]
    trainer = trainer_of([*arguments, *where])
    for step in range(SAVED_AT):
        trainer.step(step)
    torch.rand(3)  # so that the random state is not the one that every process begins with
    trainer.save(SAVED_AT)
    found = {"saved": digests(trainer), "random": random_state()}
    trainer.step(SAVED_AT)
    found["after"], found["norms"] = digests(trainer), norms(trainer)
    trainer.checkpoints.close()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A checkpoint to load."""

    name: str
    """Of the setting that saved it."""
    place: Path
    same: bool
    """Whether the setting that loads it saved it: then the next step is compared, too."""
    train: bool
    """Whether a step is made with it: it costs more than loading, so only once per layout."""


def load(arguments: Sequence[str], sources: Sequence[Source], folder: Path) -> None:
    """The state after loading each checkpoint, told in `folder` as soon as it is known.

    A rank that stands still prints its stacks and ends: the cell is wrong, the next ones continue.
    """
    rank, mesh_groups = int(os.environ.get("RANK", "0")), MeshGroups()
    for source in sources:
        faulthandler.dump_traceback_later(LOAD_SECONDS, exit=True)
        mesh_groups.again()
        append_loaded(folder, rank, {"of": source.name, **_load(arguments, source)})
        faulthandler.cancel_dump_traceback_later()


class MeshGroups:
    """The process groups of device meshes, which a trainer shares with the one before it.

    A hundred trainers in one process would make thousands, each with threads of its own. DTensor's
    caches still name the first ones, so they cannot be ended either.
    """

    def __init__(self) -> None:
        self._make = device_mesh.new_group
        self._made = dict[tuple[Any, ...], Any]()
        self._given = Counter[tuple[Any, ...]]()  # to the trainer that is being built
        device_mesh.new_group = self

    def again(self) -> None:
        """Another trainer begins."""
        self._given.clear()

    def __call__(self, ranks: Sequence[int], **options: Any) -> Any:
        group = (tuple(ranks), options.get("backend"))
        self._given[group] += 1
        key = (*group, self._given[group])
        if key not in self._made:
            self._made[key] = self._make(ranks=ranks, **options)
        return self._made[key]


def _load(arguments: Sequence[str], source: Source) -> dict[str, Any]:
    torch.manual_seed(99)
    try:
        trainer = trainer_of([*arguments, "--resume", str(source.place)])
    except (SystemExit, ValueError) as error:
        return {"refused": str(error)}
    assert trainer.first == SAVED_AT
    found: dict[str, Any] = {"saved": digests(trainer), "random": random_state()}
    if source.train or source.same:
        trainer.step(SAVED_AT)  # in every layout: what was loaded can be trained on
    if source.same:
        found["after"], found["norms"] = digests(trainer), norms(trainer)
    trainer.checkpoints.close()
    return found


def random_state() -> str:
    """Of this rank."""
    return hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()


def digests(trainer: gpt.Trainer) -> Digests:
    """SHA-256 of every weight and moment of the whole model, by name, gathered from all ranks.

    Names come from the places in the GPT itself, not from anything that the recipes save by.
    """
    own = dict[str, str]()
    for name, weight in weights_of(trainer):
        for key, value in states_of(trainer, weight):
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            numbers = whole.detach().float().cpu().contiguous().numpy().tobytes()
            own[f"{name}{key}"] = hashlib.sha256(numbers).hexdigest()
        own.setdefault(f"{name}{COMPUTED}", own[name])
    merged = Digests()
    for part in gather_object([own]):
        for name, digest in part.items():
            assert merged.setdefault(name, digest) == digest, f"ranks differ in {name}"
    return merged


def norms(trainer: gpt.Trainer) -> dict[str, float]:
    """Of every weight of a plain DDP model, and of its moments; {} where each rank has a part."""
    if not isinstance(getattr(trainer.engine, "model", None), DistributedDataParallel):
        return {}
    return {
        f"{name}{key}": value.detach().double().norm().item()
        for name, weight in weights_of(trainer)
        for key, value in states_of(trainer, weight)
    }


def weights_of(trainer: gpt.Trainer) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights of this rank's part of the model, each with the name that a bare GPT gives it."""
    engine = trainer.engine
    roots = engine.stages if hasattr(engine, "stages") else [engine.model]
    for model in (one for root in roots for one in root.modules() if isinstance(one, GPT)):
        for end in ("embedding", "head"):
            if getattr(model, end) is not None:
                yield f"{end}.weight", getattr(model, end).weight
        for number, part in model.blocks.items():
            (block,) = (one for one in part.modules() if isinstance(one, Block))
            for linear in LINEARS:
                yield f"blocks.{number}.{linear}.weight", getattr(block, linear).weight


def states_of(trainer: gpt.Trainer, weight: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The weight itself and AdamW's state of it."""
    optimizer: Any = getattr(trainer.engine.optimizer, "optimizer", trainer.engine.optimizer)
    if hasattr(weight, "_hp_mapping") or hasattr(weight, "ds_id"):
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        yield "", safe_get_full_fp32_param(weight)
        yield COMPUTED, gathered(weight)
        for key in ("exp_avg", "exp_avg_sq"):
            yield f".{key}", safe_get_full_optimizer_state(weight, key)
        steps = [state["step"] for state in optimizer.optimizer.state.values()]
        yield ".step", torch.as_tensor(float(steps[0]))
        return
    yield "", weight
    inner = getattr(optimizer, "optim", optimizer)  # of ZeroRedundancyOptimizer: its rank's own
    for key, value in inner.state.get(weight, {}).items():
        yield f".{key}", value


def gathered(weight: Any) -> torch.Tensor:
    """What a forward pass computes with."""
    if not hasattr(weight, "ds_id"):
        return weight.detach().clone()
    from deepspeed import zero

    with zero.GatheredParameters([weight]):
        return weight.detach().clone()
