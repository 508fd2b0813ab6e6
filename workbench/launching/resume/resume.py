"""A run goes on from one of its checkpoints: as its next attempt, or as a run of another layout."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from workbench import recipes
from workbench.describe import Strategy
from workbench.describe.detection import detect_host
from workbench.describe.option import several
from workbench.errors import StoreError, UsageError, WorkbenchError
from workbench.launching.prepare.acceptance import seal
from workbench.launching.prepare.build_request import build_request, check_no_secret, check_options
from workbench.launching.prepare.described import recipe_arguments
from workbench.launching.prepare.devices import assigned, check_free, on_named
from workbench.launching.prepare.layout_flags import check_arguments
from workbench.launching.prepare.moved import move_config, record_here, recorded_folder
from workbench.launching.prepare.own_decisions import check_own_decisions, refuse_standing_notice
from workbench.launching.prepare.preflight import refuse_silent_driver
from workbench.launching.prepare.recorded_environment import with_hook
from workbench.launching.prepare.request import Request, capture_variable
from workbench.launching.prepare.targets import as_script_words, target_of
from workbench.launching.resume.attempts import Attempts
from workbench.launching.resume.changed_work import with_work
from workbench.launching.resume.price import priced_here
from workbench.launching.resume.resumable import (
    latest_words,
    refuse_finished,
    startable_record,
)
from workbench.launching.resume.run_limits import check_limits
from workbench.launching.resume.run_options import (
    changed,
    explicit_changes,
    gone_calibration,
    options_of,
    stays_in_place,
)
from workbench.launching.resume.starting_point import StartingPoint, starting_point
from workbench.launching.resume.trainer_layouts import refuse_other_form
from workbench.launching.start.launch_spec import (
    LaunchSpec,
    ResumeSpec,
    check_not_redacted,
    recorded_spec,
    resume_spec,
)
from workbench.launching.start.start import begin
from workbench.launching.start.supervisor_process import spawn_supervisor
from workbench.launching.steered import dropped_note, replaced_by, still_counts
from workbench.observe.devices import held_by
from workbench.recover.policy import Recovery
from workbench.recover.resuming import checkpoint_in_arguments
from workbench.script_options.arguments import changed_arguments
from workbench.script_options.from_source import script_options
from workbench.store import stack_calibrations
from workbench.store.commands import command_for, command_in
from workbench.store.files import read_json, write_json_atomic
from workbench.store.layout import RunPaths
from workbench.store.queue_files import QueueFiles
from workbench.store.record import read_record
from workbench.store.run_record import RunRecord
from workbench.store.secrets import redact_environment
from workbench.store.signatures import vouch
from workbench.store.status import read_status

_START_SECONDS = 90.0  # longer than a supervisor waits for the one before it
_OF_THE_CHECKPOINT = (
    *("layers", "hidden", "heads", "kv_heads", "head_dim", "mlp", "vocab", "tied"),
    *("lora_rank", "lora_targets", "quantization", "optimizer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """A run that continues."""

    paths: RunPaths
    """Its directory."""
    notes: tuple[str, ...] = ()
    """What someone should know of how it continues, each one sentence."""
    differs: Sequence[Mapping[str, Any]] = ()
    """Of a rerun or a fork: what is another now (`provenance.differences`)."""


class Continuation(NamedTuple):
    """How a run goes on, in its own directory or as another run."""

    paths: RunPaths
    run: RunRecord
    start: StartingPoint
    words: Sequence[str]
    """The script's arguments."""
    changes: Mapping[str, Any]
    """Keywords of a launch, instead of what the run had."""


def resume(
    paths: RunPaths,
    checkpoint: str | None = None,
    *,
    arguments: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    **changes: Any,
) -> ResumedRun:
    """Go on. See `Run.resume`.

    Raises:
        ForeignRunError: it is another user's, others can write to it, or its record is not ours.
        UsageError: it still runs, or no one knows how to resume it.
        StoreError: the run directory cannot be written.
    """
    going_on = prepared(paths, checkpoint, arguments, drop, changes)
    stays = stays_in_place(going_on.changes)
    return _in_place(going_on) if stays else in_another_layout(going_on)


def prepared(
    paths: RunPaths,
    checkpoint: str | None,
    arguments: Sequence[str] | None,
    drop: Sequence[str],
    changes: Mapping[str, Any],
    *,
    read: bool = True,
) -> Continuation:
    """How a run goes on, with the changes that were given.

    `read`: every byte of the checkpoint; else its sizes alone.
    """
    run, notes = record_here(paths, startable_record(paths))
    status = read_status(paths)
    if status.state == "queued":
        listed = command_in(paths.directory.parent, "queue", "list")
        raise UsageError(f"{run.run} waits in the queue: {listed}")
    if status.live:
        stop = command_for(paths.directory, "stop")
        raise UsageError(f"{run.run} is still running. Stop it first: {stop}")
    if run.device == "cuda" and detect_host():
        refuse_silent_driver()
    changes = explicit_changes(changes)
    if stays_in_place(changes):
        run, priced = priced_here(paths, run, changes.get("devices"))
        notes = [*notes, *priced]
    arguments = with_described(run, arguments, changes)
    if checkpoint is None and stays_in_place(changes) and arguments is None and not drop:
        refuse_finished(paths, read_json(paths.exit) or {}, run)
    words = changed_words(paths, run, arguments, drop)
    start = _starting_point(paths, run, checkpoint, arguments or (), read=read)
    words_typed = (*(arguments or ()), *several(drop))
    start = replace(start, typed=words_typed, notes=(*notes, *start.notes))
    return Continuation(paths, run, start, words, changes)


def with_described(
    run: RunRecord, arguments: Sequence[str] | None, changes: Mapping[str, Any]
) -> Sequence[str] | None:
    """`arguments` as words, after those by which a recipe trains the job among the changes."""
    words = None if arguments is None else as_script_words(arguments)
    if changes.get("job") is None or run.recipe is None:
        return words
    return [*recipe_arguments(run.recipe, changes["job"].workload), *(words or ())]


def _starting_point(
    paths: RunPaths,
    run: RunRecord,
    checkpoint: str | None,
    arguments: Sequence[str],
    *,
    read: bool,
) -> StartingPoint:
    """As named; else by the arguments, where these give the script's own option to resume."""
    script_checkpoint = checkpoint_in_arguments(Path(run.script), arguments)
    if checkpoint is None and script_checkpoint:
        named = Path(run.working_directory, script_checkpoint).expanduser()
        checkpoint = (
            str(named) if named.exists() else None
        )  # "latest" and the like are the script's
    return replace(
        starting_point(paths, checkpoint, read=read), in_arguments=script_checkpoint is not None
    )


def _in_place(going_on: Continuation) -> ResumedRun:
    """The next attempt in the same directory."""
    paths, _, start, words, changes = going_on
    again, spec = next_spec(going_on)
    predict_again = "calibration" in changes
    if predict_again or (spec["resume"] and spec["resume"].get("told")):
        again = with_work(paths, again, words, predict_again=predict_again)
    write = again != read_record(paths)
    if not held_by(again):
        return _spawned(paths, again, start, spec, write=write)
    with QueueFiles(paths.directory.parent).locked():  # until it holds its devices
        check_free(paths, again)
        return _spawned(paths, again, start, spec, write=write)


def next_spec(going_on: Continuation) -> tuple[RunRecord, LaunchSpec]:
    """The record and what is started for the next attempt in the same directory."""
    paths, run, start, words, changes = going_on
    differs = list(words) != latest_words(paths, run)
    if changes:
        run = _changed_run(paths, run, changes)
    if changes or differs:
        check_own_decisions(
            Recovery.read(run.recovery),
            capture=run.capture,
            nodes=run.nodes,
            recipe=run.recipe,
            script=Path(run.script),
            arguments=words,
        )
    check_limits(paths, run)
    refuse_standing_notice(Recovery.read(run.recovery), Path(run.working_directory))
    new_variables = changes.get("environment", {})  # a secret among them is not in run.json
    remaining = {
        name: value for name, value in run.environment.items() if name not in new_variables
    }
    base = recorded_spec(replace(run, environment=remaining), words)
    base["environment"] |= with_hook(new_variables)
    resumed = resume_spec(words, run, start.at, start.why, in_arguments=start.in_arguments)
    resumed["told"] = differs
    unset = replaced_by(paths, start.typed)
    if unset:
        resumed["unset"] = unset
    check_no_secret(resumed.get("arguments", ()), run.nodes)
    return run, {**base, "resume": resumed}


def _spawned(
    paths: RunPaths, run: RunRecord, start: StartingPoint, spec: LaunchSpec, *, write: bool
) -> ResumedRun:
    """Start the supervisor of the next attempt, and wait until it is at work."""
    assert spec["resume"] is not None
    notes = (*start.notes, *still_counts(paths, start.typed, spec["resume"]["step"]))
    before = at_work(paths)
    spec["resume"]["after"] = Attempts(paths).number  # of two that resume at once, one does
    try:
        if write:
            move_config(paths, paths.directory)
            write_json_atomic(paths.run, run.document(), indent=2)
        spawn_supervisor(paths, spec)
    except OSError as error:
        raise StoreError(f"{paths.directory} cannot be written: {error}") from error
    deadline = time.monotonic() + _START_SECONDS
    while not has_continued(paths, run, before):
        if time.monotonic() > deadline:
            raise WorkbenchError(
                f"The supervisor of {run.run} did not start: the one before it still waits for "
                f"its trackers, or {paths.supervisor_log} says why. Resume again in a minute."
            )
        time.sleep(0.05)
    return ResumedRun(paths=paths, notes=notes)


def changed_words(
    paths: RunPaths,
    run: RunRecord,
    arguments: Sequence[str] | None,
    drop: Sequence[str],
) -> list[str]:
    """The arguments of the latest attempt, without `drop`, and `arguments` in place of theirs.

    Raises:
        UsageError: a recipe does not know one, or its checkpoints do not fit to them.
    """
    before = latest_words(paths, run)
    if not arguments and not drop:
        return before
    options = script_options(Path(run.script))
    layout = run.layout_arguments
    after = [*layout, *changed_arguments(before[len(layout) :], arguments or (), drop, options)]
    if run.recipe is not None:
        check_arguments(after[len(layout) :])
        was, now = (recipes.shape(words, recipe=run.recipe) for words in (before, after))
        _refuse_other_model(run, was, now)
    return after


def _refuse_other_model(
    run: RunRecord, was: Mapping[str, object], now: Mapping[str, object]
) -> None:
    """Arguments of a recipe under which its checkpoint does not fit."""
    other = [name for name in _OF_THE_CHECKPOINT if was[name] != now[name]]
    if other:
        changes = "; ".join(f"{name} {was[name]}, not {now[name]}" for name in other)
        raise UsageError(
            f"The checkpoints of {run.run} hold another training than these arguments ask for: "
            f"{changes}. Launch it as a new run, or leave that as it was."
        )


def at_work(paths: RunPaths) -> tuple[int, object]:
    """The attempt of the run, and the supervisor that reports it."""
    state = read_json(paths.state) or {}
    return int(state.get("attempt") or 0), state.get("supervisor")


def has_continued(paths: RunPaths, run: RunRecord, before: tuple[int, object]) -> bool:
    """Whether a supervisor since `before` continues with the run.

    One of several machines first waits for the others, without an attempt to report.
    """
    now = at_work(paths)
    return now[0] > before[0] or (run.nodes > 1 and now[1] != before[1])


def _changed_run(paths: RunPaths, run: RunRecord, changes: Mapping[str, Any]) -> RunRecord:
    """run.json with changes that leave the layout as it is."""
    options, _ = changed(run, options_of(paths, run), changes)
    if "devices" in changes:
        _, options = on_named(detect_host(), options)
    check_options(options)
    stack_calibrations.of_stack(paths.directory.parent, None, options.calibration)
    recorded = options.document()
    recorded["extra_environment"] = redact_environment(recorded["extra_environment"])
    names = [name for name in (*changes, "extra_environment") if name in recorded]
    again = replace(run, **{name: recorded[name] for name in names})
    if "environment" in changes:
        redacted = redact_environment(changes["environment"])
        started = with_hook(redacted)
        proofs = vouch(replace(run, vouched=vouch(run, redacted)), started)
        again = replace(again, vouched=proofs, environment=run.environment | started)
    if "capture" in changes:
        hook = capture_variable(capture=options.capture)
        again = replace(again, environment=again.environment | hook)
    if "port" in changes:
        words = list(run.command)
        words[words.index("--main_process_port") + 1] = str(options.port)
        again = replace(again, command=words)
    if "devices" in changes:
        again = assigned(again, options.devices)
    return replace(again, vouched=seal(again))


def in_another_layout(going_on: Continuation) -> ResumedRun:
    """A run of its own that begins where the checkpoint was written.

    Raises:
        UsageError: it cannot be started so here.
        StoreError: the run store cannot be written.
    """
    request, resumed = request_in_another_layout(going_on)
    notes = (*going_on.start.notes, *request.warnings, *dropped_note(going_on.paths))
    return ResumedRun(paths=begin(request, resumed), notes=notes)


def request_in_another_layout(going_on: Continuation) -> tuple[Request, ResumeSpec]:
    """What `in_another_layout` starts; nothing is written. Raises UsageError, as it does."""
    paths, run, start, words, changes = going_on
    refuse_engine(run)
    check_not_redacted(run, words)
    own = list(words[len(run.layout_arguments) :])
    before = options_of(paths, run)
    options, dropped = changed(run, before, changes)
    if start.at is not None:
        assert isinstance(before.strategy, Strategy)
        assert isinstance(options.strategy, Strategy)
        refuse_other_form(start.at, before.strategy, options.strategy, paths.directory)
    resumed = resume_spec(own, run, start.at, start.why, in_arguments=start.in_arguments)
    variables = {**options.environment, **resumed.get("environment", {})}
    request = build_request(
        target_of(run),
        resumed.get("arguments", ()),
        replace(options, environment=variables),
        recorded_folder(run),
    )
    gone = () if "calibration" in changes else gone_calibration(run, before)
    request = replace(request, warnings=(*dropped, *gone, *request.warnings))
    return request, {**resumed, "arguments": list(request.arguments), "run": run.run}


def refuse_engine(run: RunRecord) -> None:
    """The machines are the engine's: from here no one can start on them.

    Raises:
        UsageError: the run is one of an engine.
    """
    if run.engine:
        raise UsageError(
            f"{run.run} runs on machines of {run.engine.get('name')}, which alone starts there. "
            "Submit it again with the other layout and the checkpoint in its arguments, or "
            "continue in this one: requeue its job."
        )
