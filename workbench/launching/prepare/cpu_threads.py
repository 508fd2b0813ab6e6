"""CPU threads of a rank: what the user set, else what the script would get without the workbench.

Accelerate writes OMP_NUM_THREADS into every rank's environment whatever was there before, so the
launcher has to name the number. More threads are not always faster: a small model on CPU is many
times slower with a thread on each core than with one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "OMP_NUM_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuThreads:
    """Threads of each rank, and why that many."""

    value: int
    """OMP_NUM_THREADS of a rank."""
    source: str
    """One phrase for people."""

    def document(self) -> dict[str, int | str]:
        """What run.json keeps."""
        return {"value": self.value, "source": self.source}


def cpu_threads(
    environment: Mapping[str, str], *, cores: int | None, ranks: int, device: str, offload: bool
) -> CpuThreads:
    """Threads of each of the `ranks` on a machine with `cores`, under the user's `environment`.

    Without OMP_NUM_THREADS a lone rank gets all cores, as under ``python``; CPU ranks share them,
    as under ``accelerate launch --cpu``, and so do ranks whose optimizer works on the CPU; other
    ranks with a GPU each get one, as under ``torchrun``.

    >>> cpu_threads({VARIABLE: "3"}, cores=8, ranks=2, device="cpu", offload=False).value
    3
    >>> cpu_threads({}, cores=8, ranks=2, device="cpu", offload=False).document()
    {'value': 4, 'source': '8 cores over 2 ranks'}
    """
    # "4,2" is one number for each nesting level.
    setting = environment.get(VARIABLE, "").partition(",")[0].strip()
    if setting.isdecimal() and int(setting) > 0:
        return CpuThreads(value=int(setting), source=f"{VARIABLE} of the environment")
    cores = cores or 1
    if ranks == 1:
        return CpuThreads(value=cores, source="all cores, one rank")
    if device == "cpu" or offload:
        return CpuThreads(value=max(1, cores // ranks), source=f"{cores} cores over {ranks} ranks")
    return CpuThreads(value=1, source="one for each rank with a GPU, as under torchrun")
