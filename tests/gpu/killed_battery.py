"""A battery of small cases, to be killed. argv: DIR [SECONDS of each case]."""

import functools
import subprocess
import sys
import time
from pathlib import Path

from tests.gpu.battery.runner import run_battery
from tests.gpu.battery.values import Case, Check, Report, Setup

COUNT = 8
WORD = "left-behind-by-a-battery"


def small(number: int, seconds: float, setup: Setup) -> Report:
    """Starts what would live on, half of it in a session of its own, and works for a moment."""
    line = [sys.executable, "-c", "import time; time.sleep(1000)", WORD, str(setup.out)]
    subprocess.Popen(line, start_new_session=number % 2 == 0)
    time.sleep(seconds)
    return Report(
        measured={"number": number, "long": "x" * 20_000},
        checks=(Check(name="number", value=float(number), low=0.0),),
    )


def cases(seconds: float) -> list[Case]:
    return [
        Case(
            name=f"small-{number}",
            group="small",
            run=functools.partial(small, number, seconds),
            limit_seconds=60,
            lane="cpu" if number % 4 == 3 else "gpu",
        )
        for number in range(COUNT)
    ]


if __name__ == "__main__":
    where, pause = Path(sys.argv[1]), float(sys.argv[2])
    run_battery(cases(pause), Setup(device="cpu", out=where), seconds=600, preload=())
    print("finished")
