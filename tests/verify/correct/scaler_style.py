"""In the style of the AMP recipe: a scaler, unscale_() before clipping, SyncBatchNorm left out."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(13)
images = torch.randn(256, 3, 16, 16)
data = TensorDataset(images, images.mean((1, 2, 3)).gt(0).long())
network = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Dropout(0.1), nn.Linear(392, 2)),
)
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
loss_fn, scaler = nn.CrossEntropyLoss(), torch.amp.GradScaler("cpu")
sampler = DistributedSampler(data)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, target in DataLoader(data, batch_size=16, sampler=sampler, num_workers=0):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = loss_fn(model(inputs), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
dist.destroy_process_group()
