"""A run of the recipe gpt with one checkpoint, written in this process without a launch."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from tests.compare.made_runs import make_run
from workbench.recipes import checkpoint_files

SHAPE = {"layers": 1, "hidden": 16, "heads": 1}


def exported_run(folder: Path) -> Path:
    """The directory of such a run, whose record has a secret and paths of this machine."""
    import gpt_model
    import torch.distributed.checkpoint as dcp

    make_run(folder / "runs", "a", steps=2)
    run = folder / "runs" / "a"
    record = json.loads((run / "run.json").read_text())
    record |= {"recipe": "gpt", "arguments": ["--data", str(folder / "x"), "--token", "[redacted]"]}
    (run / "run.json").write_text(json.dumps(record))
    place = run / "checkpoints" / "step-00000002"
    place.mkdir(parents=True, exist_ok=True)
    model = gpt_model.GPT(**SHAPE)
    gpt_model.initialise(model, SHAPE["hidden"], 0)
    weights = dict(model.named_parameters())
    moments = {f"{name}.{key}": one.detach() for name, one in weights.items() for key in MOMENTS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one process alone is no mistake here
        dcp.save({**weights, **moments}, checkpoint_id=place, no_dist=True)
    shapes = {name: list(one.shape) for name, one in weights.items()}
    kept = {"format": "portable", "options": {**SHAPE, "seq_len": 16}, "weights": shapes}
    (place / "options.json").write_text(json.dumps(kept))
    checkpoint_files.seal(place, step=2, kind="recipe", world_size=1)
    return run


MOMENTS = ("exp_avg", "exp_avg_sq", "step")
