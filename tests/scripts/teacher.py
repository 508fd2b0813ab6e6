"""Distillation: a frozen teacher labels the data set before the loop, and teaches within it."""

import torch

torch.manual_seed(0)
teacher = torch.nn.Linear(4, 2).eval().requires_grad_(requires_grad=False)
student = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(student.parameters(), 0.1)
samples = torch.randn(40, 4)
labels = teacher(samples)
for first in range(0, 40, 8):
    batch = samples[first : first + 8]
    loss = (student(batch) - teacher(batch)).pow(2).mean() + (
        student(batch) - labels[first : first + 8]
    ).abs().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
