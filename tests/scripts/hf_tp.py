"""Trains a Llama of random weights under transformers' own tensor (and FSDP2) parallelism.

    torchrun --nproc-per-node 4 hf_tp.py FOLDER TP FSDP

FOLDER has the model, saved from a config by its own main (hf_tp.py FOLDER), since transformers
splits a model only while it loads one. Prints the loss of each step and the elements held.
"""

import sys
from collections import defaultdict

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed import DistributedConfig


def save(folder):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def clip(parameters, limit=1.0):
    """torch's own refuses a mixture of kinds: the squares are added kind by kind."""
    kinds = defaultdict(list)
    for weight in parameters:
        mesh = weight.grad.device_mesh if isinstance(weight.grad, DTensor) else None
        kinds[mesh].append(weight)
    norms = [torch.nn.utils.get_total_norm([one.grad for one in kind]) for kind in kinds.values()]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    for kind in kinds.values():
        torch.nn.utils.clip_grads_with_norm_(kind, limit, torch.stack(norms).norm())


def main(folder, tp, fsdp):
    dist.init_process_group("gloo")
    how = DistributedConfig(tp_size=tp, fsdp_size=fsdp) if tp * fsdp > 1 else None
    model = LlamaForCausalLM.from_pretrained(folder, distributed_config=how, dtype=torch.float32)
    model.train()
    weights = list(model.parameters())
    optimizer = torch.optim.AdamW(weights, lr=1e-3, foreach=False)
    part = dist.get_rank() // tp  # tp is the inner dimension: its ranks see the same data
    for step in range(10):
        generator = torch.Generator().manual_seed(step)
        batch = torch.randint(64, (8, 32), generator=generator).chunk(fsdp)[part]
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        clip(weights)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().full_tensor() if isinstance(loss, DTensor) else loss.detach().clone()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            print(f"loss {total.item() / dist.get_world_size():.6f}", flush=True)
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in weights]
    if dist.get_rank() == 0:
        print(f"held {sum(one.numel() for one in parts)}")
    del model, optimizer, weights, parts  # before the group: a rank can hang at its end
    dist.destroy_process_group()


if __name__ == "__main__":
    save(sys.argv[1]) if len(sys.argv) == 2 else main(sys.argv[1], *map(int, sys.argv[2:]))
