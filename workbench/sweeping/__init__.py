"""Sweeps: one script trained with many values of its options, through Optuna and the queue.

    sweep = wb.sweep("train.py", grid={"lr": [1e-4, 3e-4]}, random={"wd": "0:0.1"}, trials=20,
                     metric="eval_loss", stop="asha")
    sweep.trials(), sweep.best(), sweep.stop(), sweep.resume()

A trial is an ordinary run that the queue starts. Its values are options of the script. A detached
process, the sweep's controller, draws values, files trials, looks at their metric and stops those
that fall behind. All its state is in files, so it may be killed at any point, see `controller`.
"""

from workbench.sweeping.sweep import Sweep, damaged, find, start, sweep, sweeps

__all__ = ["Sweep", "damaged", "find", "start", "sweep", "sweeps"]
