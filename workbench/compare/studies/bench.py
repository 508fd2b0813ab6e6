"""What all trials of a study have in common: script or recipe, arguments, options of a launch."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from threading import Event
from typing import Any

from workbench import recipes
from workbench.compare.studies.trial import Trial
from workbench.describe.job import Job
from workbench.describe.strategy import Strategy
from workbench.launching.prepare.build_request import build_request
from workbench.launching.prepare.described import recipe_arguments, recipe_for
from workbench.launching.prepare.options import LaunchOptions
from workbench.launching.prepare.request import Request
from workbench.launching.prepare.targets import as_script_words
from workbench.store.runs import Store

LAUNCHED = ("strategy", "options", "wrap", "cpu", "warm", "environment", "store")
"""The options of a launch that trials take; a study decides the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a study is; told several times a second."""

    label: str
    """The trial that runs."""
    done: int
    """Trials that are done."""
    of: int | None
    """Trials in all; None where each decides about the next."""
    steps: int
    """Of the present trial so far."""
    run: str | None
    """Its run; None before it has started."""


OnProgress = Callable[[Progress], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all trials of a study have in common. `of` takes a `Job` too."""

    target: str
    """Script or recipe."""
    arguments: tuple[str, ...] = ()
    """Of it. A script's may hold the words that a study replaces, such as {value}."""
    launch: LaunchOptions = field(default_factory=LaunchOptions)
    """Those of `LAUNCHED`. One process is always single; the strategy is that of several."""
    memory_limit_bytes: int | None = None
    """A rank that needs more ends its trial as out of memory; None = no such limit."""
    on_progress: OnProgress | None = None
    """Called with a `Progress`."""
    stop: Event | None = None
    """Set by someone else to stop the study."""
    resume: str | None = None
    """Id of a study to continue with, or "last"; None = a new one."""

    @classmethod
    def of(
        cls,
        target: str | os.PathLike[str] | Job,
        arguments: Sequence[Any] = (),
        launch: LaunchOptions | None = None,
        **options: Any,
    ) -> Bench:
        """From a recipe's name, a script, or a `Job` that one of the recipes trains.

        Args:
            target: What runs. A job gives its recipe, arguments, strategy and device.
            arguments: Of it.
            launch: Options of the launch of each trial; what it says counts more than the job.
            options: The other fields.

        Raises:
            UsageError: no recipe trains the job.
        """
        launch, words = launch or LaunchOptions(), as_script_words(arguments)
        if not isinstance(target, Job):
            return cls(target=os.fspath(target), arguments=tuple(words), launch=launch, **options)
        recipe = recipe_for(target)
        own = target.launched if target.launched.world_size > 1 else None
        return cls(
            target=recipe,
            arguments=(*recipe_arguments(recipe, target.workload), *words),
            launch=replace(
                launch,
                strategy=launch.strategy or own,
                cpu=launch.cpu or target.cluster == "cpu",
            ),
            **options,
        )

    @property
    def is_recipe(self) -> bool:
        """Whether a recipe runs: it ends after the steps that it is given."""
        return self.target in recipes.recipes()

    @property
    def store(self) -> Store:
        """Where the runs and the study's file go."""
        store = self.launch.store
        return store if isinstance(store, Store) else Store(store)

    def request(self, trial: Trial, **more: Any) -> Request:
        """The trial's launch, checked against this host; `more`: other options of it.

        Raises:
            UsageError: it cannot be started.
        """
        strategy, options = self._layout()
        is_spread = trial.processes > 1
        chosen = replace(
            self.launch,
            strategy=strategy if is_spread else "single",
            options={**options, **trial.options} if is_spread else {},
            processes=trial.processes,
            **more,
        )
        return build_request(self.target, trial.arguments, chosen)

    def strategy(self, ranks: int) -> Strategy:
        """The strategy of so many ranks.

        Raises:
            UsageError: it does not spread over them.
        """
        name, options = self._layout()
        return Strategy.parse(name, ranks).with_options(**options)

    def _layout(self) -> tuple[str, dict[str, Any]]:
        """Name and options of the strategy of several ranks."""
        strategy = self.launch.strategy or Strategy.usual(2)
        own = strategy.options_beside_name() if isinstance(strategy, Strategy) else {}
        name = strategy.name if isinstance(strategy, Strategy) else strategy
        return name, {**own, **self.launch.options}

    def key(self, trial: Trial) -> str:
        """What makes a trial the same as one that is already done."""
        strategy, options = self._layout()
        where = {"target": self.target, "device": "cpu" if self.launch.cpu else "auto"}
        how = {"strategy": strategy, "options": {**options, **trial.options}}
        launch_settings = {"wrap": self.launch.wrap, "environment": dict(self.launch.environment)}
        used_settings = {name: value for name, value in launch_settings.items() if value}
        identity = {**asdict(trial), "label": None, **how, **where, **used_settings}
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
