"""Going back by itself to the checkpoint before a NaN or a spike that stays, and on from there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.diagnose.instability import Instability
from workbench.errors import UsageError
from workbench.launching.log import log
from workbench.launching.start.launch_spec import from_checkpoint
from workbench.recover.checkpoints import Checkpoint, list_checkpoints, newest_intact
from workbench.recover.script_checkpoints import states_of_script
from workbench.store.rank_records import RankStart
from workbench.store.record import read_start
from workbench.store.schema import RollbackDoc
from workbench.store.starts import is_by_hand

if TYPE_CHECKING:
    from workbench.launching.start.launch_spec import LaunchSpec
    from workbench.launching.supervise.run_state import RunState

SKIPPING_RECIPES = frozenset({"gpt", "lora", "vision", "recsys", "finetune_image"})
_BEAT_SECONDS = 1.0
_BEFORE = 2  # steps: the update before the first NaN may have made it


@dataclass(frozen=True, slots=True)
class _Planned:
    why: Instability
    checkpoint: Checkpoint
    last_step: int


class Rollbacks:
    """The rollbacks of one run."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._policy = state.recovery
        self._planned: _Planned | None = None
        self._refused_at: tuple[int, str, int] | None = None

    @property
    def instability(self) -> Instability | None:
        """What the present attempt is ended for; None = nothing."""
        return None if self._planned is None else self._planned.why

    def begin(self, why: Instability | None, last_step: int) -> bool:
        """Whether the attempt is to be ended to go back; a reason not to is logged once."""
        if why is None or why.kind not in self._policy.rollback_on or self._planned is not None:
            return False
        done = sum("rollback" in line for line in since_by_hand(self._state.attempts.lines))
        before = why.step - _BEFORE
        about = (self._state.attempts.number, why.kind, why.step)
        if about == self._refused_at:  # it is asked again each second
            return False
        checkpoint = None
        if done >= self._policy.max_rollbacks:
            problem = f"all {done} rollbacks are used up (--max-rollbacks)"
        else:
            checkpoint, passed = self._newest_before(before)
            problem = " ".join([f"there is no whole checkpoint before step {before}", *passed])
        if checkpoint is None:
            sentence = f"Not rolled back at step {why.step}: {problem}."
            self._refused_at, self._state.message = about, sentence
            log(sentence)
            return False
        self._planned = _Planned(why, checkpoint, last_step)
        return True

    def _newest_before(self, step: int) -> tuple[Checkpoint | None, list[str]]:
        """Of those that the run knows of, else of those that its script wrote its own way."""
        paths, passed = self._state.paths, list[str]()
        for listed in (list_checkpoints, states_of_script):
            newest, more = self._newest_of(
                [saved for saved in listed(paths) if _is_before(saved, step)]
            )
            passed += more
            if newest is not None:
                return newest, passed
        return None, passed

    def _newest_of(self, checkpoints: list[Checkpoint]) -> tuple[Checkpoint | None, list[str]]:
        """Every byte is read: on a thread, so that the heartbeat continues."""
        with ThreadPoolExecutor(1, thread_name_prefix="verify") as pool:
            newest = pool.submit(newest_intact, self._state.paths, checkpoints)
            while not wait([newest], timeout=_BEAT_SECONDS).done:
                self._state.write("running")
            return newest.result()

    def spec(self) -> LaunchSpec | None:
        """The next attempt, from the checkpoint; None where the script cannot be resumed so."""
        planned, self._planned = self._planned, None
        assert planned is not None
        state, step = self._state, planned.checkpoint.step or 0
        way = self._policy.rollback_then
        loaders = (read_start(state.paths, 0) or RankStart()).samplers
        unseen = state.run.recipe not in SKIPPING_RECIPES and not loaders
        if way == "skip-data" and unseen:
            log("No DataLoader was seen, so no data can be left out: the learning rate is lowered.")
            way = "lower-lr"
        rollback: RollbackDoc = {
            "last_step": planned.last_step,
            "step": step,
            "reason": planned.why.kind,
            "then": way,
            "loaders": loaders or [],
        }
        why = f"Rolled back: {planned.why.finding.evidence} {_retry_sentence(rollback)}"
        log(why)
        try:
            spec = from_checkpoint(state.base_spec(), state.run, planned.checkpoint, why)
        except UsageError as error:
            log(f"No rollback: {error}")
            return None
        resume = spec["resume"]
        assert resume is not None
        return {**spec, "resume": {**resume, "rollback": rollback}}


def _retry_sentence(rollback: RollbackDoc) -> str:
    first, last = rollback["step"] + 1, rollback["last_step"]
    if rollback["then"] == "lower-lr":
        return f"Steps {first} to {last} are done again with half the learning rate."
    return f"The data of steps {first} to {last} are left out."


def _is_before(checkpoint: Checkpoint, step: int) -> bool:
    given_up = checkpoint.abandoned or bool(checkpoint.doubt)
    return not given_up and checkpoint.step is not None and checkpoint.step <= step


def since_by_hand(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The starts of attempts since a person last started the run."""
    starts = [line for line in lines if line["event"] == "start"]
    by_hand = [at for at, line in enumerate(starts) if is_by_hand(line)]
    return starts[by_hand[-1] :] if by_hand else starts
