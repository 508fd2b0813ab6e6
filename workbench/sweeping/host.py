"""What a sweep's controller does to runs: files, looks at, stops and resumes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from workbench.errors import UnknownNameError
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.moved import recorded_folder
from workbench.launching.prepare.request import Request
from workbench.launching.prepare.targets import resolve, target_of
from workbench.launching.resume.attempts import Attempts
from workbench.launching.resume.branch import recorded_variables
from workbench.launching.resume.resumable import startable_record
from workbench.launching.resume.run_options import options_of
from workbench.launching.run import Run
from workbench.launching.start.launch_spec import check_not_redacted
from workbench.launching.start.queued import file, file_again, has_begun
from workbench.queueing.device_requests import all_devices, device_request
from workbench.store.layout import RunPaths
from workbench.store.names import slug
from workbench.store.record import read_run
from workbench.store.run_record import RunRecord, SweepDoc
from workbench.store.runs import Store
from workbench.store.status import read_status
from workbench.sweeping.files import SweepFiles
from workbench.sweeping.metric import MeasuredMetric, measured
from workbench.sweeping.plan import SweepPlan
from workbench.sweeping.script_values import read_script, with_values


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNow:
    """Where the run of a trial stands."""

    state: str
    """As `store.status.Status`."""
    outcome: str | None
    """None while it runs."""
    message: str
    """Of its end; "" = none."""
    stop_asked: bool = False
    """Whether it was asked to stop and has not ended."""
    first_step: int = 0
    """Steps that were done when it was last started: from where a resume got it."""

    @property
    def live(self) -> bool:
        """Whether it runs or will."""
        return self.state in {"queued", "starting", "running", "stopping", "unsupervised"}


class Host:
    """The runs of a sweep's trials on this machine; a run is named by its trial's number."""

    def __init__(self, files: SweepFiles, plan: SweepPlan) -> None:
        self._files, self._plan = files, plan
        self._store = Store(files.root)
        self._record = startable_record(files.template)
        self._runs: dict[int, RunPaths] = {}
        self._reading = read_script(resolve(target_of(self._record)))

    @property
    def folder(self) -> Path:
        """Where the script is started."""
        return recorded_folder(self._record)

    def exists(self, number: int) -> bool:
        """Whether the trial has a run."""
        return self._find(number) is not None

    def file(self, number: int, values: Mapping[str, str]) -> None:
        """Make its run and file it in the queue; one whose filing was cut off is filed again."""
        run = self._find(number)
        if run is not None:
            file_again(run, self._plan.priority)
            return
        about: SweepDoc = {
            "name": self._plan.name,
            "id": self._plan.id,
            "trial": number,
            "values": dict(values),
        }
        self._runs[number] = file(self._request(number, values), about)

    def _request(self, number: int, values: Mapping[str, str]) -> Request:
        run, paths = self._record, self._files.template
        words = run.arguments[len(run.layout_arguments) :]
        check_not_redacted(run, words)
        words = with_values(words, values, self._plan.parameters, self._reading)
        options = options_of(paths, run)
        variables = {**recorded_variables(run), **options.environment}
        options = replace(
            options,
            name=trial_name(self._plan.name, number),
            store=self._store,
            queue=True,
            priority=self._plan.priority,  # no record keeps it
            environment=variables,
        )
        request = build_request(target_of(run), words, options)
        return replace(request, working_directory=recorded_folder(run))

    def now(self, number: int) -> RunNow:
        """Where it stands."""
        paths = self._paths(number)
        status = read_status(paths)
        return RunNow(
            state=status.state,
            outcome=status.outcome,
            message=status.message or "",
            stop_asked=status.live and (paths.control / "stop").exists(),
            first_step=Attempts(paths).first_step,
        )

    def measured(self, number: int) -> MeasuredMetric:
        """The metric so far."""
        return measured(self._paths(number), self._plan.metric)

    def stop(self, number: int, why: str) -> None:
        """Ask for a stop; asking twice does nothing."""
        paths = self._paths(number)
        if not (paths.control / "stop").exists():
            Run(paths).request_stop(why=why)

    def resume(self, number: int) -> None:
        """Go on with a run that has no processes any more."""
        paths = self._paths(number)
        if read_status(paths).state == "unsupervised":
            Run(paths).adopt()
        elif has_begun(paths):
            Run(paths).resume()
        else:
            file_again(paths, self._plan.priority)

    def room(self) -> int:
        """Trials at a time."""
        if self._plan.parallel is not None:
            return self._plan.parallel
        return room_for(self._record, self._store.root)

    def _paths(self, number: int) -> RunPaths:
        run = self._find(number)
        if run is None:
            raise UnknownNameError.near("trial", str(number), map(str, self._runs))
        return run

    def _find(self, number: int) -> RunPaths | None:
        if number not in self._runs:
            runs = runs_of(self._store, self._plan, [number])
            self._runs |= runs
        return self._runs.get(number)


def room_for(record: RunRecord, store: Path) -> int:
    """How many runs of this record have devices at the same time."""
    request = device_request(record, all_devices(store))
    return max(1, len(request.allowed) // max(1, request.count))


def trial_name(sweep: str, number: int) -> str:
    """The display name of a trial's run.

    >>> trial_name("lr", 3)
    'lr/trial-003'
    """
    return f"{sweep}/trial-{number:03d}"


def runs_of(store: Store, plan: SweepPlan, numbers: Sequence[int]) -> dict[int, RunPaths]:
    """The runs of these trials that exist: trial -> run; by their records, not by their names."""
    runs: dict[int, RunPaths] = {}
    prefixes = {number: slug(trial_name(plan.name, number)) for number in numbers}
    ids = [run for _, run in store.folders()]
    for number, prefix in prefixes.items():
        for run in (name for name in ids if name == prefix or name.startswith(f"{prefix}-")):
            paths = RunPaths(store.root / run)
            about = (read_run(paths) or RunRecord()).sweep or SweepDoc()
            if about.get("id") == plan.id and about.get("trial") == number:
                runs[number] = paths
    return runs
