"""One model whose body and head have optimizers of their own.

--frozen: the head's rate is 0. --idle: its step does nothing.
"""

import sys

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
body = torch.optim.SGD(model[0].parameters(), lr=0.1)


class Idle(torch.optim.SGD):
    def step(self, closure=None):
        """Leave all weights as they are."""


kind = Idle if "--idle" in sys.argv else torch.optim.SGD
head = kind(model[2].parameters(), lr=0.0 if "--frozen" in sys.argv else 0.1)
for _ in range(8):
    x = torch.randn(8, 4)
    body.zero_grad()
    head.zero_grad()
    (model(x).squeeze(-1) - x.sum(-1)).pow(2).mean().backward()
    body.step()
    head.step()
