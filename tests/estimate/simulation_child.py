"""One child process that answers many simulations: torch is loaded once for all tests of a module."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from workbench.describe import Strategy
from workbench.estimate.simulate import Simulation, SimulationUnavailable
from workbench.estimate.simulation.process import encode


class SimulationChild:
    """The product's own child, kept; `simulate` sends it one request as the product does."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench.estimate.simulation.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.progress: list[tuple[float, str]] = []

    def simulate(self, what: Any, strategy: Strategy | None = None) -> Simulation:
        """The answer to one request; `progress` then holds what was reported on the way."""
        kind = "workload" if not callable(what) else "function"
        request = {kind: what, "strategy": strategy, "steps": 2, "card_bytes": None}
        self.process.stdin.write(encode(request))
        self.process.stdin.flush()
        self.progress.clear()
        for line in self.process.stdout:
            message = json.loads(line)
            if "progress" in message:
                self.progress.append((message["progress"], message["text"]))
            elif "refused" in message:
                raise SimulationUnavailable(message["refused"])
            else:
                return Simulation.parse(message["result"])
        raise AssertionError(f"the child ended with {self.process.wait()}")

    def close(self) -> None:
        """End of input ends the child."""
        self.process.stdin.close()
        self.process.wait(240)
        self.process.stdout.close()
