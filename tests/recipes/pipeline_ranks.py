"""Trains the GPT under several schedules, one after the other, and writes each one's curve.

Started with torchrun by test_pipeline.py: pipeline_ranks.py FOLDER STAGES SCHEDULE[xCHUNKS] …
Ranks beyond STAGES are data-parallel copies of each stage, under fully_shard.
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workbench" / "recipes"))

import pipeline
import torch
import torch.distributed as dist
from corpus import Share, micro_batch, read_corpus
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LAYERS, HIDDEN, HEADS, LENGTH = 9, 32, 1, 16  # nine blocks: uneven on any number of stages
STEPS, BATCH, COUNT = 20, 8, 4
RATE = 4e-3


def batches(data: torch.Tensor, rank: int = 0, ranks: int = 1):
    """The same global batches for any layout: [BATCH / ranks, LENGTH] of each step."""
    for key in range(STEPS):
        yield micro_batch(data, Share(rank, ranks, BATCH // ranks), LENGTH, key=key, index=0, of=1)


def curve(mesh, name: str, chunks: int, data: torch.Tensor) -> tuple[list[float], float | None]:
    """The losses of all steps and of one evaluation, where this rank knows them."""
    own, ranks = mesh["pp"].get_local_rank(), mesh["pp"].size()
    stages = []
    for blocks in pipeline.blocks_of(LAYERS, ranks, chunks, name)[own]:
        stage = GPT(LAYERS, HIDDEN, HEADS, blocks)
        initialise(stage, HIDDEN, 0)
        if mesh["dp"].size() > 1:
            for block in stage.blocks.values():
                fully_shard(block, mesh=mesh["dp"])
            fully_shard(stage, mesh=mesh["dp"])
        stages.append(stage)
    line = pipeline.Pipeline(
        stages,
        pipeline.stages_of(ranks, chunks, name)[own],
        pp_mesh_group=mesh["pp"].get_group(),
        num_stages=ranks * chunks,
        schedule=name,
        micro_batches=COUNT,
        loss_function=cross_entropy,
        device=torch.device("cpu"),
    )
    weights = [weight for stage in stages for weight in stage.parameters()]
    optimizer, losses = torch.optim.AdamW(weights, lr=RATE), []
    evaluated = None
    for step, batch in enumerate(batches(data, mesh["dp"].get_local_rank(), mesh["dp"].size())):
        losses += [loss.item() for loss in line.train_step(*batch)]
        optimizer.step()
        optimizer.zero_grad()
        if step in {2, STEPS - 1}:  # between steps too: it must leave nothing behind
            evaluated = [loss.item() for loss in line.evaluate(*(part[:2] for part in batch))]
    assert all(isinstance(weight, nn.Parameter) for weight in weights)
    return losses, (evaluated or [None])[0]


def main() -> None:
    folder, stages, *wanted = sys.argv[1:]
    dist.init_process_group("gloo")
    grid = (int(stages), dist.get_world_size() // int(stages))
    mesh = init_device_mesh("cpu", grid, mesh_dim_names=("pp", "dp"))
    data, _ = read_corpus(LENGTH)
    for one in wanted:
        name, _, chunks = one.partition("x")
        losses, evaluated = curve(mesh, name, int(chunks or 1), data)
        if losses:
            place = mesh["dp"].get_local_rank()
            Path(folder, f"{one}-{place}.json").write_text(json.dumps([losses, evaluated]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
