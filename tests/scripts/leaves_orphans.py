"""Trains for ever beside a child that has dropped the run's marker and left its session.

    python leaves_orphans.py PID_FILE [--deaf]

--deaf: SIGTERM is ignored.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

if "--deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], env={}, start_new_session=True)
written = Path(sys.argv[1])
written.with_suffix(".new").write_text(str(child.pid))
written.with_suffix(".new").replace(written)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    time.sleep(0.02)
