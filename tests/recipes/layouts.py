"""Trains gpt.py's own Trainer under one layout after the other, in the same processes.

Started by the tests on some ranks: layouts.py RESULT.json LAYOUTS.json, the latter a mapping of
names to arguments of gpt.py. Rank 0 writes, per name: the mean loss of each step, how many losses a
step has, the validation loss, the weights' elements that each rank holds, the gradient's norms.
"""

import functools
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workbench" / "recipes"))

import gpt
import torch
from recipe_options import find_checkpoint

NORMS = []  # of the gradient, step by step, before clipping
engine_clip, plain_clip = torch.nn.utils.clip_grads_with_norm_, torch.nn.utils.clip_grad_norm_


def clip_by_given_norm(parameters, limit, norm, **options):
    NORMS.append(norm.item())
    return engine_clip(parameters, limit, norm, **options)


def clip_by_own_norm(parameters, limit, **options):
    norm = plain_clip(parameters, limit, **options)
    NORMS.append(norm.item())
    return norm


def held(engine):
    """Elements of the weights on each rank."""
    own = sum(weight.to_local().numel() for weight in engine.parameters.values())
    return engine.accelerator.gather(torch.tensor([own])).tolist()


def train(arguments):
    NORMS.clear()
    options = gpt.parse_options(arguments)
    options.checkpoint = find_checkpoint(options)
    trainer = gpt.Trainer(options)
    losses, counts = [], []
    for step in range(trainer.first, options.steps):
        of_step = trainer.step(step)
        losses.append(trainer.engine.mean(of_step))
        counts.append(len(of_step))
        if trainer.checkpoints.due(step + 1):
            trainer.save(step + 1)
    return {
        "losses": losses,
        "counts": sorted(set(counts)),
        "validation": trainer.evaluate(),
        "held": held(trainer.engine) if hasattr(trainer.engine, "parameters") else [],
        "norms": list(NORMS),
    }


def main():
    result, layouts = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    torch.nn.utils.clip_grads_with_norm_ = clip_by_given_norm
    torch.nn.utils.clip_grad_norm_ = clip_by_own_norm
    gpt.read_corpus = functools.cache(gpt.read_corpus)
    found = {}
    for name, arguments in layouts.items():
        since = time.perf_counter()
        found[name] = train(arguments)
        if os.environ.get("RANK", "0") == "0":
            print(f"{name}: {time.perf_counter() - since:.1f} s", flush=True)
            result.write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
