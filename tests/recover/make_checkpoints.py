"""Writes small checkpoints with the libraries themselves: make_checkpoints.py FOLDER.

DeepSpeed's and Lightning's are laid out as they document it, with torch.save; make_deepspeed.py beside
this file has DeepSpeed's own engine write them.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator


def trained(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3)).sum().backward()
        optimizer.step()
    return model, optimizer


def plain(root: Path) -> None:
    model, optimizer = trained(7)
    whole = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 2}
    torch.save(whole, root / "run_2026-11-22_16.26.07.pt")
    torch.save(
        {"model": model.state_dict(), "iter_num": 12, "config": {"step": 3}}, root / "ckpt.pt"
    )
    old = {"model": model.state_dict(), "step": 5}
    torch.save(old, root / "legacy-99.pt", _use_new_zipfile_serialization=False)
    torch.save(model.state_dict(), root / "weights-100.pt")
    torch.save({"model": model.state_dict(), "epoch": 100}, root / "epochs-100.pt")
    (root / "folder-88").mkdir()
    torch.save(model.state_dict(), root / "folder-88/model.pt")
    torch.save(optimizer.state_dict(), root / "folder-88/optimizer.pt")
    earlier, its_optimizer = trained(3)
    for folder, best in (
        ("best-and-last", {"model": earlier.state_dict(), "optimizer": its_optimizer.state_dict()}),
        ("best-weights", model.state_dict()),
    ):
        (root / folder).mkdir()
        torch.save(best, root / folder / "best.pt")
        torch.save(whole, root / folder / "last.pt")
    shutil.copytree(root / "best-weights", root / "whole-and-rng")
    torch.save({"cpu": torch.get_rng_state()}, root / "whole-and-rng/rng.pt")


def sharded(root: Path) -> None:
    model, optimizer = trained(7)
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    dcp.save(state, checkpoint_id=root / "dcp-500")
    counter = {"model": model.state_dict(), "train_state": {"step": torch.tensor(9)}}
    dcp.save(counter, checkpoint_id=root / "dcp-counter")


def lightning(root: Path) -> None:
    model, optimizer = trained(3)
    state: dict[str, Any] = {
        "epoch": 1,
        "global_step": 20,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": model.state_dict(),
        "loops": {},
        "callbacks": {},
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [],
    }
    torch.save(state, root / "epoch=1-step=99.ckpt")
    folder = root / "sharded-lightning.ckpt"
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder)
    torch.save({**state, "global_step": 21, "state_dict": {}}, folder / "meta.pt")


def accelerate(root: Path) -> None:
    accelerator = Accelerator(cpu=True)
    plain_model = torch.nn.Linear(3, 3)
    model, optimizer = accelerator.prepare(plain_model, torch.optim.AdamW(plain_model.parameters()))
    for _ in range(4):
        optimizer.zero_grad()
        accelerator.backward(model(torch.ones(3)).sum())
        optimizer.step()
    accelerator.save_state(str(root / "save_state-77"))


def trainer(root: Path) -> None:
    from transformers import TrainerState

    folder = root / "checkpoint-999"
    folder.mkdir()
    TrainerState(global_step=6, max_steps=9).save_to_json(str(folder / "trainer_state.json"))
    torch.save(trained(6)[1].state_dict(), folder / "optimizer.pt")


def deepspeed(root: Path) -> None:
    model, optimizer = trained(2)
    folder = root / "global_step999"
    folder.mkdir()
    state = {
        "module": model.state_dict(),
        "global_steps": 15,
        "global_samples": 60,
        "skipped_steps": 0,
        "dp_world_size": 2,
        "mp_world_size": 1,
        "ds_version": "0.19.8",
        "step": 400,  # a value of the client's own
    }
    torch.save(state, folder / "mp_rank_00_model_states.pt")
    for rank in range(2):
        part = {"optimizer_state_dict": optimizer.state_dict(), "ds_version": "0.19.8"}
        torch.save(part, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    above = root / "deepspeed-1000"
    above.mkdir()
    shutil.copytree(folder, above / "global_step999")
    (above / "latest").write_text("global_step999")


if __name__ == "__main__":
    place = Path(sys.argv[1])
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
    os.environ.update(address)
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    for make in (plain, sharded, lightning, accelerate, trainer, deepspeed):
        make(place)
