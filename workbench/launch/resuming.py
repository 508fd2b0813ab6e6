"""A run goes on from one of its checkpoints: as its next attempt, or as a run of another layout."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from workbench import recipes
from workbench.errors import StoreError, UnknownNameError, UsageError, WorkbenchError
from workbench.launch.attempts import BY_HAND, Attempts, furthest, read_attempts
from workbench.launch.dry_run import capture_variable
from workbench.launch.orders import check_whole, from_checkpoint, merged, order_again
from workbench.launch.redact import redact_environment
from workbench.launch.request import build_request, check_beside, check_no_secret
from workbench.launch.run_options import changed, given_changes, options_of, stays_in_place
from workbench.launch.spawning import spawn_supervisor
from workbench.launch.starting import begin
from workbench.launch.vouching import vouch
from workbench.recover.checkpoints import Checkpoint, list_checkpoints, newest_whole, verify
from workbench.recover.contents import measure
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.ownership import check_own
from workbench.store.status import read_status

_TAKEN_UP_SECONDS = 90.0  # longer than a supervisor waits for the one before it
_OF_THE_CHECKPOINT = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab", "tied"),
    *("lora_rank", "lora_targets", "quantization", "optimizer"),
)


def resume(
    paths: RunPaths,
    checkpoint: str | None = None,
    *,
    arguments: Sequence[str] | None = None,
    **changes: Any,
) -> RunPaths:
    """Go on; returns the directory of the run that does. See `Run.resume`.

    Raises:
        ForeignRunError: it is another user's, or others can write to it.
        UsageError: it still runs, it has no whole checkpoint, or nobody knows how to resume it.
        StoreError: the run directory cannot be written.
    """
    check_own(paths, "resumed")
    run = read_json(paths.run)
    if run is None:
        raise UsageError(f"{paths.run} cannot be read, so nobody knows what to resume.")
    if read_status(paths).live:
        raise UsageError(
            f"{run['run']} is still at work. Stop it first: workbench stop {run['run']}"
        )
    changes = given_changes(changes)
    in_place = stays_in_place(changes)
    if checkpoint is None and in_place and arguments is None:
        _refuse_finished(paths, run)
    chosen = _chosen(paths, checkpoint)
    if in_place:
        return _in_place(paths, run, chosen, arguments, changes)
    return _in_another_layout(paths, run, chosen, arguments, changes)


def _refuse_finished(paths: RunPaths, run: Mapping[str, Any]) -> None:
    ended = read_json(paths.exit) or {}
    if ended.get("outcome") == "succeeded":
        raise UsageError(
            f"{run['run']} has finished: {ended.get('message')} To train on, give it more: "
            f"workbench resume {run['run']} -- --steps N (or the script's own option for it)."
        )


def _chosen(paths: RunPaths, name: str | None) -> Checkpoint:
    found = list_checkpoints(paths)
    run = paths.directory.name
    if name is not None and Path(name).is_dir() and not _listed(found, name):
        return _of_folder(paths, Path(name).absolute())
    if not found:
        raise UsageError(
            f"{run} has no checkpoint to resume from. Those of the recipes, of Accelerate's "
            "save_state and of transformers' Trainer are noticed; if the script saved by itself, "
            "name the folder: workbench resume RUN --checkpoint DIR. Recipes save with "
            "--checkpoint-every N."
        )
    if name is None:
        whole, passed = newest_whole(paths)
        if whole is None:
            raise UsageError(f"{run} has no whole checkpoint. {' '.join(passed)}")
        return whole
    fits = _listed(found, name)
    if not fits:
        raise UnknownNameError.near("checkpoint", name, [one.name for one in found])
    problem = verify(fits[0])
    if problem:
        others = [one.name for one in found if one is not fits[0] and not one.problem]
        hint = f" Others: {', '.join(others[:5])}." if others else ""
        raise UsageError(f"The checkpoint {name} cannot be used: {problem}.{hint}")
    return fits[0]


def _listed(found: Sequence[Checkpoint], name: str) -> list[Checkpoint]:
    return [one for one in found if one.name == name or str(one.path) == str(Path(name).absolute())]


def _of_folder(paths: RunPaths, folder: Path) -> Checkpoint:
    """What somebody's script saved where nobody saw it; its name's last number is the step."""
    digits = re.search(r"(\d+)\D*$", folder.name)
    step = int(digits[1]) if digits else furthest(paths)
    return Checkpoint(
        path=folder,
        step=min(step, furthest(paths)),
        kind="accelerate",
        bytes=measure(folder)[0],
        saved_at=None,
        sealed=False,
        problem="",
    )


def _in_place(
    paths: RunPaths,
    run: dict[str, Any],
    chosen: Checkpoint,
    arguments: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> RunPaths:
    """The next attempt in the same directory."""
    words = _words(paths, run, arguments)
    if changes:
        run = _changed_run(paths, run, changes)
    given = changes.get("environment", {})  # a secret among them is not in run.json
    others = {name: value for name, value in run["environment"].items() if name not in given}
    base = order_again({**run, "environment": others}, words)
    base["environment"] |= given
    order = from_checkpoint(base, run, chosen, BY_HAND)
    order["resume"]["told"] = arguments is not None
    check_no_secret(order["resume"]["arguments"], int(run.get("nodes") or 1))
    before = at_work(paths)
    order["resume"]["after"] = Attempts(paths).number  # of two that resume at once, one does
    try:
        if changes:
            write_json_atomic(paths.run, run, indent=2)
        spawn_supervisor(paths, order)
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error}") from error
    deadline = time.monotonic() + _TAKEN_UP_SECONDS
    while not taken_up(paths, run, before):
        if time.monotonic() > deadline:
            raise WorkbenchError(
                f"The supervisor of {run['run']} did not start: the one before it still waits for "
                f"its trackers, or {paths.supervisor_log} says why. Resume again in a minute."
            )
        time.sleep(0.05)
    return paths


def _words(paths: RunPaths, run: Mapping[str, Any], arguments: Sequence[str] | None) -> list[str]:
    """The arguments of the latest attempt, with those given now in place of theirs."""
    told = [one["arguments"] for one in read_attempts(paths) if one.get("arguments")]
    before = [str(word) for word in (told[-1] if told else run["arguments"])]
    after = merged(before, arguments or ())
    if arguments and run.get("recipe") is not None:
        _refuse_other_model(run, before, after)
    return after


def _refuse_other_model(run: Mapping[str, Any], before: list[str], after: list[str]) -> None:
    """Arguments that the recipe does not know, or under which the checkpoint does not fit."""
    was, now = (recipes.shape(words, recipe=run["recipe"]) for words in (before, after))
    other = [name for name in _OF_THE_CHECKPOINT if was[name] != now[name]]
    if other:
        told = "; ".join(f"{name} {was[name]}, not {now[name]}" for name in other)
        raise UsageError(
            f"The checkpoints of {run['run']} hold another training than these arguments ask for: "
            f"{told}. Launch it as a new run, or leave that as it was."
        )


def at_work(paths: RunPaths) -> tuple[int, object]:
    """The attempt of the run, and the supervisor that tells of it."""
    state = read_json(paths.state) or {}
    return int(state.get("attempt") or 0), state.get("supervisor")


def taken_up(paths: RunPaths, run: Mapping[str, Any], before: tuple[int, object]) -> bool:
    """Whether a supervisor since `before` goes on with the run.

    One of several machines first waits for the others, without an attempt to tell of.
    """
    now = at_work(paths)
    return now[0] > before[0] or (int(run.get("nodes") or 1) > 1 and now[1] != before[1])


def _changed_run(
    paths: RunPaths, run: dict[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """run.json with changes that leave the layout as it is."""
    options, _ = changed(run, options_of(paths, run), changes)
    check_beside(options)
    kept = options.document()
    again = {
        **run,
        **{name: kept[name] for name in (*changes, "extra_environment") if name in kept},
    }
    again["extra_environment"] = redact_environment(kept["extra_environment"])
    if "environment" in changes:
        again["vouched"] = vouch(run, redact_environment(changes["environment"]))
        again["environment"] = {**run["environment"], **redact_environment(changes["environment"])}
    if "capture" in changes:
        hook = capture_variable(capture=options.capture)
        again["environment"] = {**again["environment"], **hook}
    if "port" in changes:
        words = [str(word) for word in run["command"]]
        words[words.index("--main_process_port") + 1] = str(options.port)
        again["command"] = words
    return again


def _in_another_layout(
    paths: RunPaths,
    run: dict[str, Any],
    chosen: Checkpoint,
    arguments: Sequence[str] | None,
    changes: Mapping[str, Any],
) -> RunPaths:
    """A run of its own that begins where the checkpoint was written."""
    _refuse_engine(run)
    words = _words(paths, run, arguments)
    check_whole(run, words)
    words = words[len(_layout_arguments(run)) :]
    options, dropped = changed(run, options_of(paths, run), changes)
    order = {"arguments": words}
    resumed = from_checkpoint(order, run, chosen, BY_HAND)["resume"]
    variables = {**options.environment, **resumed["environment"]}
    request = build_request(
        run["recipe"] or run["script"],
        resumed["arguments"],
        replace(options, environment=variables),
    )
    request = replace(request, warnings=(*dropped, *request.warnings))
    whole = {**resumed, "arguments": list(request.arguments), "run": run["run"]}
    return begin(request, whole)


def _refuse_engine(run: Mapping[str, Any]) -> None:
    """The machines are the engine's: from here nobody can start on them."""
    engine: dict[str, Any] | None = run.get("engine")
    if engine:
        raise UsageError(
            f"{run['run']} runs on machines of {engine.get('name')}, which alone starts there. "
            "Submit it anew with the other layout and the checkpoint in its arguments, or go on "
            "in this one: requeue its job."
        )


def _layout_arguments(run: Mapping[str, Any]) -> list[str]:
    """Those that the strategy of `run` put before the script's own."""
    return [str(word) for word in run.get("layout_arguments") or ()]
