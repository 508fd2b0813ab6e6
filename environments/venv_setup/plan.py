"""What is left to do, from what was done and what is wanted: values in, a plan out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from venv_setup.state import State


@dataclass(frozen=True)
class SetupRequest:
    """What this call asks for."""

    extras: tuple[str, ...]
    """Extras of pyproject.toml."""
    mode: str
    """--torch."""
    machine: Mapping[str, str | None]
    """probe.quick_look() of now."""
    inputs: Mapping[str, str]
    """state.digests() of now."""
    rebuild: bool = False
    """--rebuild."""
    wheelhouse: Path | None = None
    """--wheelhouse: all packages come from there."""
    retry: bool = False
    """--retry: optional extras that failed lately are tried again."""


@dataclass(frozen=True)
class Plan:
    """What this call does. All empty: nothing."""

    extras: tuple[str, ...]
    """Installed before and asked for now, together."""
    rebuild: str | None = None
    """Why the environment is made from nothing."""
    install: str | None = None
    """Why the installing stages run."""
    repair: bool = False
    """Install half-installed and damaged packages again first."""
    choose_torch: bool = True
    """False: the recorded choice still holds."""

    @property
    def nothing(self) -> bool:
        """The environment is ready as it is."""
        return self.rebuild is None and self.install is None


def make_plan(
    state: State | None,
    fault: str | None,
    wanted: SetupRequest,
    *,
    damaged: Mapping[str, str] | None = None,
    waits: Collection[str] = (),
) -> Plan:
    """Compares what was done with what is wanted.

    Args:
        state: what was done.
        fault: repair.fault().
        wanted: what this call asks for.
        damaged: packages.damaged().
        waits: optional extras that failed and are not tried again yet.
    """
    if wanted.rebuild or fault is not None:
        extras = _union(state, wanted)
        return Plan(extras, rebuild=fault or "asked for by --rebuild", install="it is new")
    if state is None:
        reason = "this environment was made by hand and is completed"
        return Plan(wanted.extras, install=reason, repair=True)
    extras = _union(state, wanted)
    known = state.machine == dict(wanted.machine) and state.mode == wanted.mode
    wants_more = sorted(set(extras) - set(state.extras) - set(() if wanted.retry else waits))
    unfinished = state.unfinished()
    reason = None
    if unfinished:
        reason = f"the last set-up was interrupted in: {', '.join(unfinished)}"
    elif not state.complete:
        reason = "the last set-up did not finish"
    elif changed := [
        name for name, value in wanted.inputs.items() if state.inputs.get(name) != value
    ]:
        reason = f"{' and '.join(changed)} changed"
    elif damaged:
        reason = _damage(damaged)
    elif not known:
        reason = "this machine's torch, driver or index changed"
    elif wants_more:
        reason = f"the extras {', '.join(wants_more)} are not installed yet"
    # An extra can bring torch in, so a recorded "none" does not survive a longer list of extras.
    choose = not known or not state.torch or bool(wants_more)
    return Plan(extras, install=reason, repair=bool(unfinished or damaged), choose_torch=choose)


def _damage(damaged: Mapping[str, str]) -> str:
    first, fault = next(iter(damaged.items()))
    others = f", and {len(damaged) - 1} more" if len(damaged) > 1 else ""
    return f"damaged packages: {first} ({fault}){others}"


def _union(state: State | None, wanted: SetupRequest) -> tuple[str, ...]:
    before = state.extras if state else []
    return tuple(dict.fromkeys([*before, *wanted.extras]))
