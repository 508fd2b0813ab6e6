"""``workbench submit`` where Slurm's commands are installed and no cluster is reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from workbench.engines.slurm import gpu_type
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


@pytest.mark.parametrize(
    ("gpu", "types", "asked"),
    [
        ("a100-sxm-80", {"a100_40gb", "a100_80gb"}, "a100_80gb"),
        ("a100-sxm-40", {"a100_40gb", "a100_80gb"}, "a100_40gb"),
        ("a100-sxm-40", {"nvidia_a100_80gb_pcie", "l40s"}, "nvidia_a100_80gb_pcie"),
        (
            "a100-sxm-80",
            {"nvidia_a100-sxm4-80gb", "nvidia_a100-pcie-80gb"},
            "nvidia_a100-sxm4-80gb",
        ),
        (
            "a100-pcie-80",
            {"nvidia_a100-sxm4-80gb", "nvidia_a100_80gb_pcie"},
            "nvidia_a100_80gb_pcie",
        ),
        ("a100-sxm-80", {"a100", "a100_1g.10gb", "a100_3g.40gb"}, "a100"),
        ("a100-sxm-40", {"a100", "a100_3g.40gb"}, "a100"),
        ("h100-nvl", {"h100_80gb", "h100_94gb"}, "h100_94gb"),
        ("h200-sxm", {"h200_141gb", "h100_80gb"}, "h200_141gb"),
    ],
)
def test_the_type_whose_memory_fits_is_asked_for(gpu: str, types: set[str], asked: str) -> None:
    assert gpu_type(gpu, types) == asked


def test_types_with_less_memory_alone_are_refused() -> None:
    with pytest.raises(UsageError, match=r"80 \(80 GB.*memory: a100_40gb.*--partition"):
        gpu_type("a100-sxm-80", {"a100_40gb", "h100"})
