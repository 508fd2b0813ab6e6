"""Writes what logs should never choke on: megabytes of stderr, bytes that are no UTF-8, floods."""

import os
import sys
import time

import torch

rank = int(os.environ.get("RANK", "0"))
sys.stdout.buffer.write(b"latin-1: \xff\xfe caf\xe9\n")
sys.stdout.flush()
for percent in range(0, 101, 10):
    print(f"\rloading {percent}%", end="")
print("\n\x1b[31mred\x1b[0m \x1b]52;c;ZXZpbA==\x07 <img src=x onerror=alert(1)>")
for _ in range(10 * 1024):
    sys.stderr.write("e" * 1023 + "\n")  # 10 MB
started = time.monotonic()
lines = 0
while time.monotonic() - started < 2.0:
    for _ in range(1000):
        print(f"rank {rank} flood line {lines} " + "x" * 60)
        lines += 1
    time.sleep(0.05)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
print(f"wrote {lines} lines")
