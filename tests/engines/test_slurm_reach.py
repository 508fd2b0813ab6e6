"""``workbench submit`` where Slurm's commands are installed and no cluster is reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.engines.slurm_watch import run_slurm
from workbench.errors import HostError, UsageError

NO_CLUSTER = (
    "sbatch: error: fetch_config: DNS SRV lookup failed\n"
    "sbatch: fatal: Could not establish a configuration source"
)


@pytest.mark.parametrize(
    ("says", "kind", "told"),
    [
        (NO_CLUSTER, HostError, "No Slurm cluster is reached.*login node.*workbench export"),
        ("sbatch: error: invalid partition specified: x", UsageError, "invalid partition"),
    ],
)
def test_what_slurm_says_is_told_with_the_next_step(
    says: str, kind: type[Exception], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sbatch"
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(kind, match=told):
        run_slurm("sbatch", "--parsable", "job.sh")
