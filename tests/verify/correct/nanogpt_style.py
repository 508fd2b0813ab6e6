"""In the style of nanoGPT: tied weights, accumulation without no_sync(), own schedule, AMP."""

import math
import os
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

block_size, n_embd, n_head, vocab, batch_size, accumulation = 32, 32, 4, 64, 8, 4
max_iters, warmup_iters, max_lr = 40, 4, 1e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd), nn.Dropout(0.1)
        )

    def forward(self, x):
        q, k, v = (
            one.view(*x.shape[:2], n_head, -1).transpose(1, 2)
            for one in self.c_attn(self.ln_1(x)).split(n_embd, dim=2)
        )
        y = F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=0.1 if self.training else 0
        )
        x = x + self.c_proj(y.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList([Block() for _ in range(2)])
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return logits, F.cross_entropy(logits.view(-1, vocab), targets.view(-1), ignore_index=-1)


ddp = int(os.environ.get("RANK", -1)) != -1
seed_offset, world = 0, 1
if ddp:
    init_process_group(backend="gloo")
    seed_offset, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    assert accumulation % world == 0
    accumulation //= world
torch.manual_seed(1337 + seed_offset)
text = torch.randint(0, vocab, (20_000,), generator=torch.Generator().manual_seed(1))
ctx = torch.amp.autocast("cpu", dtype=torch.bfloat16)
scaler = torch.amp.GradScaler("cpu", enabled=False)


def get_batch():
    ix = torch.randint(len(text) - block_size, (batch_size,))
    x = torch.stack([text[i : i + block_size] for i in ix])
    return x, torch.stack([text[i + 1 : i + 1 + block_size] for i in ix])


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = [raw_model(*get_batch())[1].item() for _ in range(2)]
    model.train()
    return sum(losses) / len(losses)


def get_lr(it):
    if it < warmup_iters:
        return max_lr * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return 1e-4 + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (max_lr - 1e-4)


model = GPT()
decay = [p for p in model.parameters() if p.dim() >= 2]
nodecay = [p for p in model.parameters() if p.dim() < 2]
groups = [{"params": decay, "weight_decay": 0.1}, {"params": nodecay, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=max_lr, betas=(0.9, 0.95))
if ddp:
    model = DDP(model)
raw_model = model.module if ddp else model
X, Y = get_batch()
for iteration in range(max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iteration)
    if iteration % 4 == 0 and seed_offset == 0:
        estimate_loss()
    for micro_step in range(accumulation):
        if ddp:
            model.require_backward_grad_sync = micro_step == accumulation - 1
        with ctx or nullcontext():
            logits, loss = model(X, Y)
            loss = loss / accumulation
        X, Y = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
if ddp:
    destroy_process_group()
