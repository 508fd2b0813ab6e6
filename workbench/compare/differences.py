"""What differs between runs: in what was asked for, and in what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from workbench.compare.lineage import origin, origin_text
from workbench.provenance.differences import described, is_of_provenance
from workbench.store.run_record import REHEARSED, RunRecord

_SECTIONS = {
    "strategy": "strategy",
    "workload": "workload",
    "recovery": "recovery",
    "environment": "environment",
}
_PLAIN = {
    "script": "script",
    "recipe": "recipe",
    "processes": "processes",
    "nodes": "machines",
    "device": "device",
    "usd_per_hour": "USD per hour",
    "grid_gco2e_per_kwh": "grid g CO2e/kWh",
    "capture": "capture",
    "trackers": "trackers",
    "workbench_version": "workbench version",
}
_OWN = ("strategy name", "environment WORKBENCH_RUN_")  # differ in any two runs, or stand elsewhere
_GROUPS = ("workload", "provenance")
RESULTS = {
    "outcome": "",
    "steps": "",
    "loss_last": "",
    "nonfinite_step": "",
    "loss_best": "",
    "tokens_per_second": "tokens/s",
    "samples_per_second": "samples/s",
    "step_seconds_median": "s",
    "memory_bytes": "bytes",
    "hours": "h",
    "usd": "USD",
    "kwh": "kWh",
    "tokens_per_joule": "tokens/J",
    "co2e_grams": "g",
    "tokens": "tokens",
    "restarts": "",
    "step_ratio": "x predicted",
    "memory_ratio": "x predicted",
}
"""Keys of a row that are results, and their units."""


def configuration(
    run: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Everything of a run.json that someone chose, flat: what -> value.

    Of `attempts`, the latest that was given other arguments counts.
    """
    flat: dict[str, Any] = {"strategy": run.get("strategy_name")}
    flat |= {name: run.get(key) for key, name in _PLAIN.items()}
    record = RunRecord.of(run)
    flat |= described(record) | {"calibration": record.calibration}
    flat |= {"begun from": origin_text(origin(run)) or None}
    for key, name in _SECTIONS.items():
        flat |= _flat(name, run.get(key))
    chosen = _chosen(run, attempts)
    flat |= {f"argument {name}": value for name, value in arguments(chosen).items()}
    return {name: value for name, value in flat.items() if not name.startswith(_OWN)}


def _chosen(run: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The script's arguments, without what follows from the strategy or from a resume."""
    words: list[str] = run.get("arguments") or []
    for attempt in attempts:
        if attempt.get("arguments") is not None:  # [] where all were left out
            words = _without_checkpoint(attempt["arguments"], attempt.get("checkpoint"))
    layout: list[str] = run.get("layout_arguments") or []
    return words[len(layout) :] if words[: len(layout)] == layout else words


def _without_checkpoint(words: Sequence[str], checkpoint: str | None) -> list[str]:
    """Drops the flag that names the checkpoint which an attempt began at."""
    at = {index for index, word in enumerate(words) if word == checkpoint}
    return [word for index, word in enumerate(words) if not {index, index + 1} & at]


def _flat(prefix: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {} if value is None else {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in cast("dict[str, Any]", value).items():
        flat |= _flat(f"{prefix} {key}", inner)
    return flat


def arguments(words: Sequence[str]) -> dict[str, str]:
    """Arguments of a script by name; those without one by their place.

    >>> arguments(["data.bin", "--lr", "3e-4", "--size=tiny", "--compile"])
    {'1': 'data.bin', '--lr': '3e-4', '--size': 'tiny', '--compile': 'given'}
    """
    options: dict[str, str] = {}
    name: str | None = None
    places = 0
    for word in words:
        if word.startswith("-") and not _is_number(word):
            name, equals, value = word.partition("=")
            options[name] = value if equals else "given"
            name = None if equals else name
        elif name is not None:
            options[name] = word if options[name] == "given" else f"{options[name]} {word}"
        else:
            places += 1
            options[str(places)] = word
    return options


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def differing(configurations: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``{"what", "values": {run: value}}`` for all that is not the same in every run.

    A value that a run does not have at all is None. Where a run's workload or provenance is not
    known, one row says so, and the others say what differs between those that are.
    """
    names: dict[str, None] = {}
    for of_run in configurations.values():
        names |= dict.fromkeys(of_run)
    has_group = {
        (group, run): any(_group(name) == group for name in value)
        for run, value in configurations.items()
        for group in _GROUPS
    }
    rows: list[dict[str, Any]] = []
    for group in _GROUPS:
        if len({has_group[group, run] for run in configurations}) > 1:
            recorded = {
                run: "known" if has_group[group, run] else "unknown" for run in configurations
            }
            rows.append({"what": group, "values": recorded})
    for name in names:
        values = {run: value.get(name) for run, value in configurations.items()}
        counted = [
            value for run, value in values.items() if has_group.get((_group(name), run), True)
        ]
        if len(set(map(repr, counted))) > 1:
            rows.append({"what": name, "values": values})
    return rows


def _group(name: str) -> str:
    """What has to be known of a run for it to have a value of that name; "" = nothing."""
    if name.startswith("workload "):
        return "workload"
    return "provenance" if is_of_provenance(name) else ""


def results(rows: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """``{"what", "unit", "values": {run: value}}`` for each result that a run has."""
    differing_rows: list[dict[str, Any]] = []
    if any(row.get("rehearsal") for row in rows.values()):  # their results are no measurements
        outcomes = {
            run: REHEARSED if row.get("rehearsal") else "trained" for run, row in rows.items()
        }
        differing_rows.append({"what": "rehearsal", "unit": "", "values": outcomes})
    for key, unit in RESULTS.items():
        values = {run: row.get(key) for run, row in rows.items()}
        if any(value is not None for value in values.values()):
            differing_rows.append({"what": key, "unit": unit, "values": values})
    return differing_rows
