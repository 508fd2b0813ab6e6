"""How long a graceful stop waits: for the stop step, for the checkpoint, and for nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from workbench.launching import stop_ladder
from workbench.launching.stop_ladder import StopLadder
from workbench.store.layout import RunPaths
from workbench.store.schema import ProcessDoc

RANK: ProcessDoc = {"pid": 1, "start_ticks": 1, "boot_id": "here"}
MEGABYTE = 1 << 20


class Training:
    """Ranks that end a step every `step_seconds`, save at the stop step, and leave."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *,
        step_seconds: float = 1.0,
        save_seconds: float = 5.0,
        writes: bool = True,
        evaluates: tuple[int, float] = (0, 0.0),
    ) -> None:
        """`evaluates`: after which step, for how many seconds."""
        self.now, self.steps, self.ended_at = 1000.0, 100, 1000.0
        self.step_seconds, self.save_seconds, self.writes = step_seconds, save_seconds, writes
        self.evaluates = evaluates
        self.saving_since: float | None = None
        self.moved = 0
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(stop_ladder, "time", clock)
        monkeypatch.setattr(stop_ladder.processes, "moved_bytes", lambda _process: self.moved)
        monkeypatch.setattr(stop_ladder.processes, "send_signal", lambda *_: True)
        monkeypatch.setattr(stop_ladder.processes, "is_stopped", lambda _process: False)
        paths = RunPaths(folder)
        paths.make_folders()
        self.ladder = StopLadder(paths, lambda: [RANK])

    def ask(self, *, after: float = 0.0, within: float | None = None) -> None:
        """Ask for the stop `after` seconds of a step."""
        self.now += after
        self.ladder.request(
            now=False,
            steps=self.steps,
            step_seconds=self.step_seconds,
            since_step=after,
            within=within,
        )

    def end(self, works: Callable[[float], bool] = lambda _now: False, limit: float = 9000) -> str:
        """How it ends: ``saved``, or with signals, and after how many seconds."""
        asked, worked_at = self.now, 0.0
        while self.now - asked < limit:
            self.now += 0.5
            worked_at = self.now if works(self.now - asked) else worked_at
            self._train()
            self.ladder.tick(None, self.steps, self.step_seconds, worked_at=worked_at)
            after = f"after {round(self.now - asked, -1):g} s"
            if self.ladder.stage != "graceful":
                return f"signals {after}"
            if self.saving_since and self.now - self.saving_since > self.save_seconds:
                return f"saved {after}"
        return "never"

    def _train(self) -> None:
        if self.saving_since is not None:
            self.moved += MEGABYTE * self.writes
            return
        last, pause = self.evaluates
        lasts = self.step_seconds + (pause if self.steps == last else 0.0)
        if self.now - self.ended_at >= lasts:
            self.steps, self.ended_at = self.steps + 1, self.now
            if self.steps >= (self.ladder.stop_at or 0):
                self.saving_since = self.now


@pytest.mark.parametrize(
    ("step_seconds", "save_seconds", "end"),
    [
        (1.0, 60.0, "saved after 60 s"),
        (1.0, 600.0, "saved after 600 s"),
        (45.0, 60.0, "saved after 110 s"),
        (120.0, 5.0, "saved after 130 s"),
        (1200.0, 5.0, "saved after 1210 s"),
    ],
)
def test_steps_and_saves_of_any_length_end_with_a_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_seconds: float,
    save_seconds: float,
    end: str,
) -> None:
    training = Training(tmp_path, monkeypatch, step_seconds=step_seconds, save_seconds=save_seconds)
    training.ask()
    assert training.end() == end


def test_a_save_in_which_nothing_is_written_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch, save_seconds=1e9, writes=False)
    training.ask()
    assert training.end() == "signals after 180 s"


@pytest.mark.parametrize(
    ("works", "end"),
    [
        (lambda _now: True, "saved after 1510 s"),  # a long evaluation
        (lambda now: now < 300, "signals after 360 s"),  # at the end of which a rank hangs
        (lambda _now: False, "signals after 60 s"),
    ],
)
def test_an_evaluation_is_waited_for_while_the_ranks_are_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: Callable[[float], bool], end: str
) -> None:
    training = Training(tmp_path, monkeypatch, evaluates=(101, 1500.0))
    training.ask()
    assert training.end(works) == end
    assert training.ladder.note is not None or end.startswith("saved")


def test_people_are_told_what_a_stop_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch, evaluates=(101, 1500.0))
    training.ask()
    assert training.end(lambda _now: True, limit=100) == "never"
    note = training.ladder.note or ""
    assert f"Stopping at step {training.ladder.stop_at}" in note
    assert "--now" in note


def test_ranks_that_do_not_end_their_loop_are_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch, evaluates=(101, 1e9))
    training.ask()
    assert training.end(lambda _now: True) == "signals after 3600 s"


def test_ranks_that_are_found_to_hang_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(tmp_path, monkeypatch)
    training.ask()
    assert training.ladder.awaits_step
    training.ladder.tick(None, 101, 1.0, stands=True)
    assert training.ladder.stage == "marked"
    assert "hang" in (training.ladder.note or "")


@pytest.mark.parametrize(
    ("step_seconds", "after", "save_seconds", "end"),
    [
        (25.0, 12.0, 5.0, "saved after 40 s"),  # of step 102
        (20.0, 0.0, 50.0, "saved after 70 s"),
        (10.0, 5.0, 300.0, "signals after 80 s"),
        (300.0, 0.0, 5.0, "signals after 80 s"),
    ],
)
def test_most_of_a_notice_is_for_the_checkpoint(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    step_seconds: float,
    after: float,
    save_seconds: float,
    end: str,
) -> None:
    training = Training(tmp_path, monkeypatch, step_seconds=step_seconds, save_seconds=save_seconds)
    training.ask(after=after, within=120.0)
    assert training.end() == end


@pytest.mark.parametrize(
    ("step_seconds", "since", "ahead"),
    [
        (0.1, None, 12),
        (0.1, 0.0, 12),
        (1.0, 0.0, 2),
        (1.0, 0.9, 3),
        (60.0, 0.0, 1),
        (60.0, 28.0, 1),
        (60.0, 40.0, 2),  # the present step may end sooner than others
        (60.0, 100.0, 3),  # one that is late ends at any moment
        (60.0, None, 3),
    ],
)
def test_the_stop_step_is_as_near_as_all_ranks_read_of_it_in_time(
    tmp_path: Path, step_seconds: float, since: float | None, ahead: int
) -> None:
    paths = RunPaths(tmp_path)
    paths.make_folders()
    ladder = StopLadder(paths, list)
    ladder.request(now=False, steps=10, step_seconds=step_seconds, since_step=since)
    assert ladder.stop_at == 10 + ahead
