"""What is sent, when and how often, with an injected clock and sender."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from workbench.notifying.following import (
    AGAIN_SECONDS,
    BETWEEN_SECONDS,
    GIVE_UP_SECONDS,
    Follower,
)
from workbench.notifying.messages import Message
from workbench.notifying.targets import Target
from workbench.store.findings import Finding
from workbench.store.layout import RunPaths
from workbench.store.schema import BY_HAND
from workbench.store.starts import PORT_TAKEN

PHONE = Target(name="phone", url="json://localhost")


def finding(kind: str = "nan-loss", severity: Any = "error", **more: Any) -> Finding:
    words = {"evidence": "The loss is NaN.", "cause": "The learning rate.", "next": "Lower it."}
    return Finding(kind=kind, severity=severity, confidence=0.9, **words, **more)


class Case:
    """A run directory that is written to, and who was told what."""

    def __init__(self, folder: Path, targets: Sequence[Target] = (PHONE,)) -> None:
        self.paths, self.targets = RunPaths(folder), targets
        self.sent: list[tuple[str, Message]] = []
        self.fails: set[str] = set()
        self.log: list[str] = []
        self.write("run", name="my run", recovery={"restarts": 3})
        self.follow()

    def follow(self) -> None:
        self.follower = Follower(self.paths, self.targets, self.send, self.log.append)

    def send(self, target: Target, message: Message) -> str | None:
        if target.name in self.fails:
            return "connection refused"
        self.sent.append((target.name, message))
        return None

    def write(self, file: str, **document: Any) -> None:
        getattr(self.paths, file).write_text(json.dumps(document))

    def findings(self, *listed: Finding) -> None:
        self.write("findings", findings=[one.document() for one in listed])

    def attempts(self, *whys: Any) -> None:
        """Starts, and why; a dictionary is a rollback."""
        starts = [
            {"attempt": number, "event": "start", "time": float(number)}
            | ({"why": "NaN", "rollback": why} if isinstance(why, dict) else {"why": why})
            for number, why in enumerate(whys, 1)
        ]
        self.paths.attempts.write_text("".join(json.dumps(start) + "\n" for start in starts))

    @property
    def titles(self) -> list[str]:
        return [message.title for _, message in self.sent]


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_finding_is_told_once_with_evidence_cause_and_command(case: Case) -> None:
    assert case.follower.look(0.0)
    assert not case.sent
    case.findings(finding(step=1234))
    for now in range(1, 400):
        assert case.follower.look(now)
    assert case.titles == ["my run: nan-loss"]
    body = case.sent[0][1].body
    assert "step 1,234" in body
    for part in ("The loss is NaN.", "The learning rate.", "Lower it.", "workbench diagnose"):
        assert part in body


def test_a_target_gets_the_severity_it_wants(tmp_path: Path) -> None:
    levels: tuple[Any, ...] = ("error", "warning", "note", "none")
    targets = [
        Target(name=f"to-{level}", url="json://localhost", findings=level) for level in levels
    ]
    case = Case(tmp_path, targets)
    case.findings(finding("a", "error"), finding("b", "warning"), finding("c", "note"))
    case.follower.look(1.0)
    told = {name: message.title for name, message in case.sent}
    assert told == {
        "to-error": "my run: a",
        "to-warning": "my run: a and 1 more",
        "to-note": "my run: a and 2 more",
    }


def test_what_flickers_is_not_told_again_within_the_hour(case: Case) -> None:
    now = 0.0
    for _ in range(20):
        case.findings(finding())
        case.follower.look(now := now + 30)
        case.findings(finding(cleared_at=1.0))
        case.follower.look(now := now + 30)
    assert len(case.sent) == 1
    case.findings(finding())
    case.follower.look(now + AGAIN_SECONDS + 1)
    assert len(case.sent) == 2


def test_many_findings_become_few_messages(case: Case) -> None:
    for number in range(50):
        case.findings(*(finding(f"kind-{one}") for one in range(number + 1)))
        case.follower.look(float(number))
    for now in range(50, 200):
        case.follower.look(float(now))
    assert len(case.sent) == 2
    assert all(f"kind-{one}\n" in case.sent[1][1].body for one in range(1, 8))
    assert len(case.sent[1][1].body) < 1600
    assert case.log


def test_an_end_goes_at_once_and_is_the_last(case: Case) -> None:
    case.findings(finding())
    case.follower.look(0.0)
    case.write("exit", outcome="failed", message="Rank 1 failed.", ended_at=5.0)
    assert not case.follower.look(1.0)
    assert case.titles == ["my run: nan-loss", "my run: failed"]
    assert case.sent[-1][1].severity == "error"
    assert "Rank 1 failed." in case.sent[-1][1].body
    case.follow()  # another process, later: nothing is told twice
    assert not case.follower.look(2.0)
    assert len(case.sent) == 2


def test_a_resumed_run_tells_its_second_end(case: Case) -> None:
    case.write("exit", outcome="stopped", message="Stopped.", ended_at=5.0)
    case.follower.look(1.0)
    case.paths.exit.unlink()
    case.follow()
    assert case.follower.look(2.0)
    case.write("exit", outcome="succeeded", message="Finished.", ended_at=9.0)
    assert not case.follower.look(3.0)
    assert case.titles == ["my run: stopped", "my run: succeeded"]


def test_restarts_are_told(case: Case) -> None:
    for attempts, now in ((1, 0.0), (2, 1.0), (2, 2.0), (3, 3.0)):
        case.attempts(*[None, "rank 1 died", "rank 1 died"][:attempts])
        case.follower.look(now)
    case.follower.look(3.0 + BETWEEN_SECONDS)
    assert case.titles == ["my run: restarted"] * 2
    assert "restart 2 of at most 3" in case.sent[-1][1].body
    case.follow()  # another process
    case.follower.look(9.0 + 2 * BETWEEN_SECONDS)
    assert len(case.sent) == 2


def test_what_someone_asked_for_is_no_restart_by_itself(case: Case) -> None:
    case.attempts(None, "rank 1 died", f"{BY_HAND} from the beginning", PORT_TAKEN)
    for now in range(3):
        case.follower.look(BETWEEN_SECONDS * now)
    assert not case.sent
    case.attempts(None, "rank 1 died", BY_HAND, PORT_TAKEN, "hung", {"step": 5})
    for now in range(3, 6):
        case.follower.look(BETWEEN_SECONDS * now)
    ((_, message),) = case.sent
    assert "restart 1 of at most 3.\nhung" in message.body
    assert "It was rolled back by itself." in message.body


def test_a_clock_that_is_set_back_holds_up_no_message(case: Case) -> None:
    case.attempts(None, "rank 1 died")
    case.findings(finding("before"))
    case.follower.look(1e9, 10.0)
    case.attempts(None, "rank 1 died", "rank 2 died")
    case.findings()
    case.follower.look(1e9 - 7200, 11.0)
    case.findings(finding("before"))
    case.follower.look(1e9 - 7200, 11.0 + BETWEEN_SECONDS)
    assert len(case.sent) == 2
    assert "restart 2" in case.sent[-1][1].body
    assert "before" in case.sent[-1][1].body


def test_a_target_that_does_not_answer_is_tried_again_and_others_are_not_kept(
    tmp_path: Path,
) -> None:
    case = Case(tmp_path, [PHONE, Target(name="team", url="json://localhost")])
    case.fails = {"phone"}
    case.findings(finding())
    for now in range(100):
        case.follower.look(float(now))
    assert [name for name, _ in case.sent] == ["team"]
    tries = sum("not sent" in line for line in case.log)
    assert 3 <= tries <= 6
    case.fails = set()
    for now in range(100, 500):
        case.follower.look(float(now))
    assert [name for name, _ in case.sent] == ["team", "phone"]


def test_after_the_end_it_is_tried_for_a_while_and_then_given_up(case: Case) -> None:
    case.fails = {"phone"}
    case.write("exit", outcome="succeeded", message="", ended_at=5.0)
    now = 0.0
    while case.follower.look(now) and now < 10_000:
        now += 1.0
    assert GIVE_UP_SECONDS <= now < GIVE_UP_SECONDS + 10
    assert "gave up" in case.log[-1]


def test_secrets_of_an_exception_are_not_sent(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "9f8A7c6B5d4e3F2a1b0c")
    message = "HTTPError at https://user:9f8A7c6B5d4e3F2a1b0c@host"
    case.write("exit", outcome="failed", message=message, ended_at=5.0)
    case.follower.look(0.0)
    assert "9f8A7c6B5d4e3F2a1b0c" not in case.sent[0][1].body


def test_an_end_is_told_however_much_waits(case: Case) -> None:
    case.findings(*(finding(f"kind-{n}") for n in range(30)))
    case.write("exit", outcome="failed", message="Rank 1 failed.", ended_at=5.0)
    case.follower.look(0.0)
    assert "Rank 1 failed." in case.sent[-1][1].body


def test_what_has_stood_for_hours_is_not_told_again_by_another_process(case: Case) -> None:
    case.findings(finding())
    for now in range(0, int(2 * AGAIN_SECONDS), 60):
        case.follower.look(float(now))
    case.follow()
    case.follower.look(2 * AGAIN_SECONDS)
    assert len(case.sent) == 1


def test_what_could_not_be_sent_is_told_by_the_process_that_takes_over(case: Case) -> None:
    case.fails = {"phone"}
    case.findings(finding())
    assert case.follower.look(1.0)
    case.follower.hand_over("another one follows")
    case.fails = set()
    case.follow()
    case.follower.look(2.0)
    case.follower.hand_over("another one follows")
    case.follow()
    case.follower.look(100.0)
    assert case.titles == ["my run: nan-loss"]


def test_what_waits_for_its_turn_is_sent_before_another_process_takes_over(case: Case) -> None:
    case.findings(finding())
    case.follower.look(1.0)
    case.findings(finding(), finding("loss-spike"))
    case.attempts("", "NaN")
    case.follower.look(2.0)
    assert case.titles == ["my run: nan-loss"]  # the next one is due in a minute
    case.follower.hand_over("the run's processes are gone")
    assert len(case.sent) == 2
    assert "my run: restarted" in case.sent[1][1].body
    assert "my run: loss-spike" in case.sent[1][1].body
    case.follow()
    case.follower.look(100.0)
    assert len(case.sent) == 2


def test_who_is_killed_between_keeping_and_sending_loses_no_message(tmp_path: Path) -> None:
    case = Case(tmp_path, [PHONE, Target(name="team", url="json://localhost")])
    case.fails = {"team"}
    case.attempts("", "NaN")
    case.findings(finding())
    case.follower.look(1.0)  # its process is killed behind this, while `team` does not answer
    case.fails = set()
    case.follow()
    case.write("exit", outcome="failed", message="Rank 1 failed.", ended_at=5.0)
    send, case.follower._send = case.follower._send, lambda *_: 1 / 0  # and this one at once
    with pytest.raises(ZeroDivisionError):
        case.follower.look(2.0)
    case.follow()
    assert case.follower._send == send
    assert not case.follower.look(3.0)
    for target in ("phone", "team"):
        told = "\n".join(f"{one.title}\n{one.body}" for name, one in case.sent if name == target)
        for title in ("Rank 1 failed.", "restart 1 of", "The loss is NaN."):
            assert told.count(title) == 1, (target, title, told)


def test_a_restart_that_could_not_be_sent_is_told_by_the_process_that_takes_over(
    case: Case,
) -> None:
    case.fails = {"phone"}
    case.attempts("", "NaN")
    case.follower.look(1.0)
    case.follower.hand_over("another one follows")
    case.fails = set()
    case.follow()
    case.follower.look(2.0)
    assert case.titles == ["my run: restarted"]
