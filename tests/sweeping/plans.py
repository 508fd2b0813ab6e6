"""A plan for tests, and a sweep of results that are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workbench.store.files import write_json_atomic
from workbench.sweeping.files import make_folder
from workbench.sweeping.parameters import grid_parameter, random_parameter
from workbench.sweeping.plan import SweepPlan
from workbench.sweeping.study import Trials

PREDICTED = {
    "trial_hours_low": 0.1,
    "trial_hours_high": 0.3,
    "hours": 1.2,
    "wall_hours": 0.6,
    "usd": 3.0,
    "share": {"low": 0.2, "expected": 0.4, "high": 1.0},
}


def plan(**changes: Any) -> SweepPlan:
    """A sweep of two values of lr, and drawn wd."""
    given: dict[str, Any] = {
        "name": "lr",
        "id": "abc",
        "parameters": (grid_parameter("lr", "1e-4,3e-4"), random_parameter("wd", "0:0.1")),
        "trials": 6,
        "metric": "loss",
        "direction": "lower",
        "stop": "none",
        "first_look": None,
        "steps_total": 90,
        "sampler": "random",
        "parallel": 2,
        "seed": 0,
        "created_at": 1.0,
    }
    return SweepPlan(**{**given, **changes})


def sweep_of_results(store: Path, **changes: Any) -> SweepPlan:
    """A sweep in Optuna's own journal: pruned, finished, failed and open trials; no runs.

    Each trial's metric falls to ten times its wd, so the best is the one with the least.
    """
    given = {"stop": "asha", "first_look": 10, "trials": 9, "predicted": PREDICTED, **changes}
    chosen = plan(**given)
    files = make_folder(store, chosen.name)
    trials = Trials(files.journal, chosen, writes=True)
    for number in range(chosen.trials - 1):
        one = trials.ask()
        assert one is not None
        end = 10 * float(one.values["wd"])
        behind = [step for step in (10, 30) if trials.look(number, step, end + 20 / step)]
        if number == 2:
            trials.end(
                number, "failed", "CUDA out of memory on rank 0. sk-Qd83hZ9kLm2xV7pT4wRb5nYc8"
            )
        elif behind:
            trials.end(number, "pruned", f"loss at step {behind[0]} is not among the best third.")
        else:
            trials.finish(number, end)
    trials.ask()
    write_json_atomic(files.plan_file, chosen.document())
    return chosen
