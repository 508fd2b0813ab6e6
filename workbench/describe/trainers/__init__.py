"""What each trainer does by default: data, with a source and a range of releases per assumption.

`trainers.csv` names the trainers, `assumptions.csv` what each assumes of a `Job`'s fields. A preset
decides only what a job leaves open: what is given beside it counts.

>>> preset("torchtune@0.6").label
'torchtune 0.6'
"""

from __future__ import annotations

from workbench.describe.trainers.detect import imported_trainer
from workbench.describe.trainers.preset import Assumption, Preset, preset
from workbench.describe.trainers.table import Trainer, trainer, trainers

__all__ = [
    "Assumption",
    "Preset",
    "Trainer",
    "imported_trainer",
    "preset",
    "trainer",
    "trainers",
]
