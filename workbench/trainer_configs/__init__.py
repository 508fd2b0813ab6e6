"""Configurations of the trainers that people use: read into a `Job`, and written from one.

`formats` holds, per trainer, which key stands for which field of a job: data, with the file and the
release in which the keys can be read. Each rule is used in both directions (`rules`), so what is
written comes back as the same job, and what cannot come back is refused.
"""

from __future__ import annotations

from workbench.trainer_configs.config_files import started_script
from workbench.trainer_configs.reading import (
    COMMAND_LINE,
    TrainerConfig,
    job_from_config,
    job_of,
    read_command_line,
    read_config,
)
from workbench.trainer_configs.writing import (
    CannotExpressError,
    TrainerFiles,
    write_config,
    write_files,
)

__all__ = [
    "COMMAND_LINE",
    "CannotExpressError",
    "TrainerConfig",
    "TrainerFiles",
    "job_from_config",
    "job_of",
    "read_command_line",
    "read_config",
    "started_script",
    "write_config",
    "write_files",
]
