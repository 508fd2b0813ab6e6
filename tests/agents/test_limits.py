"""What an agent may start, and the sentences with which it is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import workbench as wb
from workbench.cli.mcp_answers import MOST_CHARACTERS, ask, last_lines, short
from workbench.cli.mcp_limits import AgentLimits, PredictedRun, Spent, check_options
from workbench.store.commands import command_for, default_root
from workbench.store.findings import Finding

KNOWN = PredictedRun(hours=3.0, usd=6.0, usd_per_hour=2.0)
UNKNOWN = PredictedRun(hours=None, usd=None, usd_per_hour=None)


def limits(usd: float | None = None, hours: float | None = None) -> AgentLimits:
    return AgentLimits(allow_launch=True, max_usd=usd, max_hours=hours)


def test_a_run_is_stopped_at_the_limit_that_comes_first() -> None:
    assert limits(usd=10, hours=4).hours_for(KNOWN) == 4
    assert limits(usd=7, hours=4).hours_for(KNOWN) == 3.5
    assert limits(hours=4).hours_for(UNKNOWN) == 4
    assert limits(hours=4).hours_for(UNKNOWN, 1) == 1
    assert limits(hours=4).hours_for(UNKNOWN, 9) == 4


def test_what_is_predicted_above_a_limit_is_refused() -> None:
    with pytest.raises(wb.UsageError, match=r"3 h.* and \$6.*at most 2 h.*give max_hours"):
        limits(hours=2).hours_for(KNOWN)
    with pytest.raises(wb.UsageError, match=r"at most \$5"):
        limits(usd=5).hours_for(KNOWN)
    assert limits(usd=5).hours_for(KNOWN, 2) == 2


def test_a_resumed_run_has_what_is_left_of_its_limits() -> None:
    price = PredictedRun(hours=None, usd=None, usd_per_hour=10.0)
    begun = Spent(hours=0.4, usd=4.0)
    assert limits(usd=10).hours_for(price, None, begun) == pytest.approx(0.6)
    assert limits(hours=2).hours_for(price, None, begun) == pytest.approx(1.6)
    assert limits(hours=2).hours_for(price, 1, begun) == 1
    assert limits(usd=10).hours_for(price, 3, Spent(hours=0.4)) == pytest.approx(0.6)
    for given in (limits(usd=4), limits(hours=0.4), limits(usd=3, hours=9)):
        with pytest.raises(
            wb.UsageError, match=r"It has had 24 min.* and \$4.*in all its attempts"
        ):
            given.hours_for(price, 0.1, begun)


def test_the_dollars_of_all_attempts_are_the_run_s_own_limit() -> None:
    assert limits(usd=10).words() == ["--max-usd", "10"]
    assert limits(usd=10).words(own_usd=4.0) == ["--max-usd", "4"]
    assert limits(usd=10).words(own_usd=40.0) == ["--max-usd", "10"]
    assert limits(hours=1).words(own_usd=40.0) == []
    check_options(["--max-usd", "5"])
    with pytest.raises(wb.UsageError, match="--max-usd cannot be given here"):
        check_options(["--max-usd", "5"], dollars=True)


def test_an_unknown_price_is_refused_unless_hours_alone_are_limited() -> None:
    for given in (limits(usd=5), limits(usd=5, hours=1)):
        with pytest.raises(wb.UsageError, match="WORKBENCH_USD_PER_HOUR"):
            given.hours_for(UNKNOWN)


@pytest.mark.parametrize("price", [0.0, 2.0])
def test_a_free_host_costs_nothing(price: float) -> None:
    predicted = PredictedRun(hours=1.0, usd=price, usd_per_hour=price)
    assert limits(usd=5, hours=1.5).hours_for(predicted) == 1.5


def test_a_server_without_permission_or_limit_starts_nothing() -> None:
    with pytest.raises(wb.UsageError, match="only reads"):
        AgentLimits().hours_for(KNOWN)
    with pytest.raises(wb.UsageError, match="needs a limit"):
        AgentLimits(allow_launch=True)
    with pytest.raises(wb.UsageError, match="above 0"):
        limits(hours=-1)
    with pytest.raises(wb.UsageError, match="above 0"):
        limits(hours=1).hours_for(KNOWN, float("nan"))


@pytest.mark.parametrize(
    "word", ["--store", "--store=/x", "--max-hours=99", "--wait", "--", "--queue"]
)
def test_options_of_the_server_are_not_the_agents(word: str) -> None:
    with pytest.raises(wb.UsageError, match="cannot be given"):
        check_options(["--cpu", word])


def test_answers_are_short_and_rounded() -> None:
    document = {"a": None, "b": 1.23456789, "c": float("nan"), "d": [{"x": "y" * 300}] * 500}
    text = short(document)
    assert len(text) <= MOST_CHARACTERS
    assert text.startswith('{"b":1.235,"c":"nan"')
    assert "more" in text
    told = json.loads(short({"run": "a", "settings": {f"option {n}": [n] * 9 for n in range(500)}}))
    assert told["run"] == "a"
    assert told["settings"]["…"] == "476 more"
    assert len(last_lines("x" * 99_999)) < MOST_CHARACTERS + 50


def test_a_time_of_day_keeps_its_seconds() -> None:
    assert short({"at": 1795474693.3, "loss": 6.12345}) == '{"at":1795474693,"loss":6.123}'


def test_refusals_are_the_commands_own() -> None:
    with pytest.raises(wb.UsageError, match="No such option"):
        ask("memory", ["--modle", "x"])
    with pytest.raises(wb.UsageError, match="run length"):
        ask("plan", ["--model", "llama-3-8b"])


def test_a_finding_has_an_id_and_a_command() -> None:
    run, elsewhere = default_root() / "r-1", Path("/my runs/r-1")

    def finding(following: str, rank: int | None = None) -> Finding:
        return Finding(
            kind="hang", evidence="e", cause="c", next=following, confidence=1.0, rank=rank
        )

    assert finding("Look.", 2).id == "hang@2"
    assert finding("Look.", 2).next_command(run) == "workbench logs r-1 --rank 2 --tail 40"
    assert (
        finding("Type workbench resume r-1, then wait.").next_command(run) == "workbench resume r-1"
    )
    verify = finding("`workbench checkpoints --verify` names it.")
    assert verify.next_command(run) == "workbench checkpoints r-1 --verify"
    assert finding("`workbench doctor` lists them").next_command(run) == "workbench doctor"
    for text in ("workbench push r-1 s3://b/runs", "workbench node '/my runs/r-1' --rank 1"):
        assert finding(f"See: {text}").next_command(run) == text
    for text in ("let the workbench choose a port.", "Run workbench verify on the script: it"):
        assert finding(text).next_command(run) == "workbench logs r-1 --tail 40"
    again = finding("Type `workbench resume RUN --checkpoint step-40` now.")
    for folder, store in ((run, ""), (elsewhere, " --store '/my runs'")):
        command = f"workbench resume r-1 --checkpoint step-40{store}"
        assert again.next_command(folder) == command
        assert again.next_for(folder) == f"Type `{command}` now."
        named = finding(f"Go on with: {command_for(folder, 'resume')}")
        assert named.next_for(folder) == named.next
    assert finding("Look.").next_command(elsewhere).endswith("--tail 40 --store '/my runs'")
