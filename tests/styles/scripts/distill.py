"""Knowledge distillation: a frozen teacher, a compiled student, two optimizers (body and head)."""

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

p = argparse.ArgumentParser()
p.add_argument("--batch", type=int, default=24)
p.add_argument("--iters", type=int, default=40)
p.add_argument("--temperature", type=float, default=2.0)
opt = p.parse_args()
distributed = dist.is_torchelastic_launched() or "RANK" in __import__("os").environ
if distributed:
    dist.init_process_group("gloo")
rank = dist.get_rank() if distributed else 0
torch.manual_seed(7)
teacher = (
    nn.Sequential(nn.Linear(48, 512), nn.ReLU(), nn.Linear(512, 12)).eval().requires_grad_(False)
)


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(48, 64), nn.ReLU())
        self.head = nn.Linear(64, 12)

    def forward(self, x):
        return self.head(self.body(x))


student = Student()
wrapped = DDP(student) if distributed else student
compiled = torch.compile(wrapped, backend="eager")
slow = torch.optim.SGD(student.body.parameters(), lr=0.05)
fast = torch.optim.AdamW(student.head.parameters(), lr=0.01)
x = torch.randn(960, 48)
data = TensorDataset(x, teacher(x).argmax(1))
sampler = DistributedSampler(data) if distributed else None
loader = DataLoader(
    data, batch_size=opt.batch, sampler=sampler, shuffle=sampler is None, drop_last=True
)
done, epoch = 0, 0
while done < opt.iters:
    if sampler is not None:
        sampler.set_epoch(epoch)
    for inputs, target in loader:
        with torch.no_grad():
            soft = F.softmax(teacher(inputs) / opt.temperature, -1)
        logits = compiled(inputs)
        kd = F.kl_div(F.log_softmax(logits / opt.temperature, -1), soft, reduction="batchmean")
        loss = 0.7 * kd * opt.temperature**2 + 0.3 * F.cross_entropy(logits, target)
        slow.zero_grad()
        fast.zero_grad()
        loss.backward()
        slow.step()
        fast.step()
        done += 1
        if done % 10 == 0 and rank == 0:
            print({"iter": done, "loss": loss.item()})
        if done == opt.iters:
            break
    epoch += 1
