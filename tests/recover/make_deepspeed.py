"""Writes checkpoints with DeepSpeed's own engine, on the CPU: make_deepspeed.py FOLDER.

A folder per kind, each with three optimizer steps: the engine without ZeRO, ZeRO-2 and ZeRO-3 in
bf16, and ZeRO-1 in fp32 saved twice.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch

from workbench.launching.prepare.cpu_ranks import keep_deepspeed_from_compiling

STEPS = 3
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "zero1": {"zero_optimization": {"stage": 1}},
    "zero2-bf16": {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}},
    "zero3-bf16": {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}},
}


def engine_of(kind: str) -> Any:
    model = torch.nn.Linear(3, 3)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, config=config | KINDS[kind], dist_init_required=False
    )
    return engine


def train(engine: Any, steps: int) -> None:
    numbers = torch.ones(1, 3, dtype=next(engine.module.parameters()).dtype)
    for _ in range(steps):
        engine.backward(engine(numbers).float().sum())
        engine.step()


def main(root: Path) -> None:
    keep_deepspeed_from_compiling()
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update(address | {"LOCAL_RANK": "0"})
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    deepspeed.init_distributed("gloo", dist_init_required=False)
    for kind in KINDS:
        engine = engine_of(kind)
        train(engine, STEPS)
        engine.save_checkpoint(str(root / kind), tag="global_step999", client_state={"step": 400})
        if kind == "zero1":
            train(engine, 2)
            engine.save_checkpoint(str(root / kind), tag="later")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
