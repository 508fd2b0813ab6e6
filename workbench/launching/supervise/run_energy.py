"""The energy of a run over all its attempts and supervisors: counted here, kept in energy.json."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, cast

from workbench.launching.log import guarded
from workbench.observe.emissions import energy_document
from workbench.observe.energy import EnergyMeter
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.node_schema import NodeDoc
from workbench.store.run_record import RunRecord
from workbench.store.schema import SCHEMA_VERSION, EnergyDoc

_KEPT_EVERY_SECONDS = 10.0


class RunEnergy:
    """Continues from what was counted before."""

    def __init__(self, paths: RunPaths, run: RunRecord, *, begins: bool) -> None:
        """`begins`: an attempt that was started just now, not one that is adopted."""
        self._paths, self._run = paths, run
        self._meter = EnergyMeter(max(1, run.nodes))
        self._meter.read(read_json(paths.energy) or {})
        self._meter.describe(0, run.cluster.get("gpus") or () if run.device == "cuda" else ())
        if begins:
            self._meter.pause()
        self._due = 0.0

    def add(self, sample: Mapping[str, Any]) -> None:
        """Account for a sample of this machine."""
        self._meter.add(0, sample)
        if time.monotonic() >= self._due:
            self.keep()

    def add_node(self, node: int, document: NodeDoc) -> None:
        """Account for what another machine told."""
        self._meter.describe(node, document.get("gpus") or ())
        sample = document.get("sample")
        if sample is not None:
            self._meter.add(node, cast("Mapping[str, Any]", sample))

    def keep(self) -> None:
        """Write down what is counted, for a supervisor that takes over."""
        self._due = time.monotonic() + _KEPT_EVERY_SECONDS
        document = {"schema": SCHEMA_VERSION, **self._meter.document()}
        guarded("energy.json", lambda: write_json_atomic(self._paths.energy, document))

    @property
    def joules(self) -> float | None:
        """All that is counted so far."""
        return self._meter.energy().joules

    def document(self, tokens: int | None) -> EnergyDoc:
        """What the view says; `tokens`: those consumed so far."""
        return energy_document(self._meter.energy(), tokens, self._run.grid_gco2e_per_kwh)
