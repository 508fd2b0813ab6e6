"""Trains gpt.py's own Trainer under one layout after the other, saving, and resuming the saves.

Started on some ranks: layout_ranks.py RESULT.json JOBS.json, a mapping of names to arguments of
gpt.py. Rank 0 writes, per name, the mean loss of each step and the final fingerprint.
"""

import functools
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workbench" / "recipes"))

import gpt
import torch
from recipe_options import with_checkpoint


def train(arguments):
    options = with_checkpoint(lambda: gpt.parse_options(arguments))
    trainer = gpt.Trainer(options)
    losses = []
    for step in range(trainer.first, options.steps):
        of_step = trainer.step(step)
        losses.append(trainer.engine.mean(of_step))
        if trainer.checkpoints.due(step + 1):
            trainer.save(step + 1, of_step)
    print_ = trainer.engine.store.fingerprint()
    trainer.checkpoints.close()
    return {"losses": losses, "fingerprint": print_, "format": trainer.engine.store.format}


def main():
    result, jobs = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    gpt.read_corpus = functools.cache(gpt.read_corpus)
    found = {}
    for name, arguments in jobs.items():
        found[name] = train(arguments)
        if os.environ.get("RANK", "0") == "0":
            result.write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
