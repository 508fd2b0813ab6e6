"""Plain torch.distributed: flat all_reduce of the gradients by hand, an EMA and SWA at the end."""

import copy
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

BATCH = int(os.environ.get("BATCH", "32"))
STEPS = int(os.environ.get("STEPS", "40"))
world = int(os.environ.get("WORLD_SIZE", 1))
rank = int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("gloo")


def average_gradients(model):
    if world == 1:
        return
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in grads])
    dist.all_reduce(flat)
    flat /= world
    start = 0
    for grad in grads:
        grad.copy_(flat[start : start + grad.numel()].view_as(grad))
        start += grad.numel()


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.GroupNorm(2, 8),
    nn.ReLU(),
    nn.Conv2d(8, 16, 3, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(16, 4),
)
for parameter in model.parameters():
    if world > 1:
        dist.broadcast(parameter.data, 0)
ema = copy.deepcopy(model).requires_grad_(False)
swa = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)
swa_schedule = SWALR(optimizer, swa_lr=0.02, anneal_epochs=2)
generator = torch.Generator().manual_seed(5)
images = torch.randn(1024, 1, 16, 16, generator=generator)
labels = (images.mean((1, 2, 3)) * 40).long().clamp(0, 3)
own = torch.arange(rank, len(images), world)
for step in range(STEPS):
    order = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(step))[:BATCH]]
    loss = nn.functional.cross_entropy(model(images[order]), labels[order])
    optimizer.zero_grad()
    loss.backward()
    average_gradients(model)
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.lerp_(fast, 0.05)
    if step >= STEPS * 3 // 4:
        swa.update_parameters(model)
        swa_schedule.step()
    else:
        schedule.step()
    if rank == 0 and step % 10 == 0:
        print("iter", step, "loss", round(loss.item(), 4))
update_bn([images[:64]], swa)
