"""Known errors: which of them a text reports."""

from __future__ import annotations

from workbench.diagnose import error_table, error_table_code, error_table_gpu
from workbench.diagnose.error_table import OUT_OF_MEMORY, KnownError

KNOWN = (
    *error_table.MEMORY,
    *error_table_gpu.GPU,
    *error_table.ENVIRONMENT,
    *error_table.MACHINE,
    *error_table.PROCESSES,
    *error_table_code.TRAINING,
    *error_table.HUB,
    *error_table_code.FILES,
    *error_table_gpu.GENERAL,
    *error_table_code.GENERAL,
)
BY_KIND = {error.kind: error for error in KNOWN}
# A log is full of words that report no failure: there only these are looked for.
_IN_LOGS = (
    *error_table.MEMORY,
    *error_table_gpu.GPU,
    *(BY_KIND[kind] for kind in ("no-gpu", "version-mismatch", "missing-module")),
    *error_table.MACHINE,
    *error_table.PROCESSES,
    *(BY_KIND[kind] for kind in ("unused-parameters", "access-denied", "script-arguments")),
    *(BY_KIND[kind] for kind in ("collective-mismatch", "collective-timeout", "nccl-error")),
    BY_KIND["gpu-initialization"],
)
ABORTS = frozenset(
    {
        OUT_OF_MEMORY,
        "network-interface",
        "gpu-lost",
        "cuda-error",
        "shared-memory",
        "collective-mismatch",
        "collective-timeout",
        "nccl-error",
    }
)
"""Kinds that torch's C++ tells before it aborts its process, as NCCL's watchdog does."""


def recognise(error: str, log: str = "") -> KnownError | None:
    """The known error that `error`, an exception's text, or else `log` reports; None when new."""
    matches = [candidate for candidate in KNOWN if candidate.pattern.search(error)]
    matches += [candidate for candidate in _IN_LOGS if candidate.pattern.search(log)]
    return next(iter(matches), None)
