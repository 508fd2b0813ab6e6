"""Saves in its own handler of SIGTERM, as scripts for batch systems do; `never` only says so."""

import signal
import sys
import threading

import torch

stopping = threading.Event()


def on_sigterm(*_):
    print("asked to end", flush=True)
    if "never" not in sys.argv:
        stopping.set()


signal.signal(signal.SIGTERM, on_sigterm)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(200):
    loss = model(torch.randn(8, 4)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if stopping.is_set():
        torch.save(model.state_dict(), "own.pt")
        break
