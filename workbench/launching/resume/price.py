"""What an hour costs on the machine where a run is resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from workbench.describe.detection import PRICE, detect_host, host_price
from workbench.errors import WorkbenchError
from workbench.launching.prepare.devices import on_named
from workbench.launching.resume.run_options import options_of
from workbench.store.files import read_json
from workbench.store.layout import RunPaths
from workbench.store.run_record import RunRecord
from workbench.units import format_usd


def priced_here(
    paths: RunPaths, run: RunRecord, devices: Sequence[str] | None
) -> tuple[RunRecord, list[str]]:
    """The record with this machine's price from here on, where it is told; and a sentence on it.

    `devices`: those that the resume names; None = as before.
    """
    price = None
    with contextlib.suppress(WorkbenchError):  # no price, or devices that a start refuses
        if host_price() is not None:
            options = replace(options_of(paths, run), cluster=None)
            if devices is not None:
                options = replace(options, devices=tuple(devices))
            price = on_named(detect_host(), options)[0].usd_per_hour
    before, price = run.usd_per_hour, None if price is None else price * run.nodes
    if price is None or price == before:
        return run, []
    if before is None:
        note = f"An hour costs {format_usd(price)} (${PRICE}), for all attempts."
        return replace(run, usd_per_hour=price), [note]
    done = float((read_json(paths.view) or {}).get("elapsed_seconds") or 0.0)
    note = (
        f"An hour costs {format_usd(price)} (${PRICE}) from here on, {format_usd(before)} before."
    )
    parts = [*run.usd_before, {"until_seconds": done, "usd_per_hour": before}]
    return replace(run, usd_per_hour=price, usd_before=parts), [note]
