"""The strategy picker without a browser: messages in, documents out."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets import Launcher, StrategyPicker
from workbench_widgets.strategy.advice import advice, advice_lines
from workbench_widgets.strategy.choice import FIELDS, StrategyChoice
from workbench_widgets.strategy.fields import control_of, fields
from workbench_widgets.strategy.figure import grid

import workbench as wb
from tests.cpu_budget import over_budget
from tests.widgets.calculators import move, until
from workbench.describe.option import Option, declared
from workbench.estimate.rank_grid import groups, rank_grid

SHAPE = "--layers 4 --hidden 64 --heads 4 --accumulate 4 --steps 3"
TRAVELS_MAX = 3200 + 40 * len(FIELDS)  # bytes: the figure, and each control's name and value


@pytest.fixture
def picker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[StrategyPicker]:
    monkeypatch.chdir(tmp_path)
    made = StrategyPicker("gpt", SHAPE, cpu=True, strategy="ddp", processes=2)
    yield made
    made.close()


def said(picker: StrategyPicker) -> str:
    return picker.problem.get("message", "")


def test_the_constructor_sets_the_controls(picker: StrategyPicker) -> None:
    assert picker.controls["values"]["family"] == "ddp"
    assert picker.strategy == wb.Strategy.parse("ddp", 2)
    assert picker.request is not None
    assert picker.request.processes == 2
    assert "ddp on 2 CPU ranks" in repr(picker)
    with pytest.raises(TypeError, match=r"no option 'recompte'.*Did you mean 'recompute'"):
        StrategyPicker(recompte="full")
    with pytest.raises(wb.UsageError, match="needs 8 processes, not 4"):
        StrategyPicker(strategy="pp2-dp2-tp2", processes=4)


def test_a_first_setting_that_cannot_be_is_said(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    made = StrategyPicker("gpt", SHAPE, cpu=True, strategy="tp", processes=3)
    assert 'not a multiple of "Tensor" 3' in said(made)
    assert made.strategy is None
    assert made.figure["grid"]["ranks"] == 0
    assert 'not a multiple of "Tensor" 3' in repr(made)
    made.set(processes=2)
    assert said(made) == ""
    made.close()


def test_a_page_moves_it_and_processes_follow_the_degrees(picker: StrategyPicker) -> None:
    move(picker, family="degrees", pp=2, dp=2, tp=2)
    assert "processes" in picker.controls["hidden"]  # controls answer at once
    until(lambda: picker.figure["grid"]["ranks"] == 8, "eight ranks")
    assert picker.request is not None
    assert picker.request.processes == 8
    assert {"--pp", "--tp"} <= set(picker.request.arguments)
    move(picker, token="page:2", tp=3)
    until(lambda: 'not a multiple of "Tensor" 3' in said(picker), "the sentence")
    assert picker.problem["field"] == "tp"
    assert picker.strategy is None
    assert picker.figure["grid"]["ranks"] == 8  # the last one that can be


def test_an_empty_number_is_a_sentence_too(picker: StrategyPicker) -> None:
    move(picker, processes=None)
    until(lambda: "processes must be a whole number" in said(picker), "the sentence")


def test_options_that_do_not_matter_are_hidden_and_left_out(picker: StrategyPicker) -> None:
    picker.set(family="ddp", comm_hook="fp16")
    assert picker.strategy is not None
    assert picker.strategy.ddp.comm_hook == "fp16"
    assert {"schedule", "state_dict", "cp_method", "offload"} <= set(picker.controls["hidden"])
    picker.set(family="fsdp")
    assert picker.strategy.ddp.comm_hook is None
    assert "comm_hook" in picker.controls["hidden"]
    assert "state_dict" not in picker.controls["hidden"]
    assert set(FIELDS) == {one["name"] for group in fields() for one in group["fields"]}


@pytest.mark.parametrize(
    ("name", "ranks", "options"),
    [
        ("single", 1, {}),
        ("ddp", 4, {"comm_hook": "powersgd", "bucket_views": True, "reduce_bucket": 5000}),
        ("fsdp", 2, {"recompute": "full", "offload": ("optimizer", "parameters")}),
        ("fsdp-grad-op", 4, {"state_dict": "full", "sync_every_micro_batch": False}),
        ("fsdp", 4, {"engine": "fsdp1", "wrap_min_parameters": 1000}),
        ("zero1", 2, {"engine": "torch", "bucket_views": True}),
        ("zero3", 4, {"offload": ("optimizer",), "offload_device": "nvme"}),
        ("zero2", 4, {"overlap_gradients": False, "gather_bucket": 10_000}),
        ("tp", 2, {"sequence_parallel": True}),
        ("pp2-fsdp2-tp2", 8, {"schedule": "gpipe", "recompute": "full"}),
        ("dp2-cp2", 4, {"cp_method": "ulysses"}),
        ("dp2-fsdp2", 4, {"reshard_after_forward": False}),
        ("zero1x4", 4, {}),
    ],
)
def test_every_strategy_that_can_be_launched_has_its_controls(
    name: str, ranks: int, options: dict[str, Any]
) -> None:
    asked = wb.Strategy.parse(name, ranks).with_options(**options)
    said = StrategyChoice().taking(asked).strategy()
    assert said.options() | {"name": asked.name} == asked.options()


@dataclass(frozen=True)
class NewOptions:
    """Options that no form was written for."""

    switch: Annotated[bool, Option(help="FSDP: do it.")] = False
    either: Annotated[bool | None, Option(help="Do it, or not.")] = None
    way: Annotated[str, Option(help="How.", choices=("a", "b"))] = "a"
    no_way: Annotated[str | None, Option(help="How.", choices=("a", "b"))] = None
    most_rows: Annotated[int, Option(help="How many.", least=1)] = 1


def test_a_declared_option_has_a_control_without_a_line_in_the_form() -> None:
    controls = {name: control_of(one) for name, one in declared(NewOptions).items()}
    shown = {name: (one["kind"], one["label"]) for name, one in controls.items()}
    assert shown == {
        "switch": ("check", "Do it"),
        "either": ("select", "Do it, or not"),
        "way": ("select", "Way"),
        "no_way": ("select", "No way"),
        "most_rows": ("number", "Most rows"),
    }
    offered = {
        name: [option["value"] for option in one["options"]]
        for name, one in controls.items()
        if one["kind"] == "select"
    }
    assert offered["either"] == ["default", "yes", "no"]
    assert offered["way"] == ["a", "b"]
    assert offered["no_way"] == ["default", "a", "b"]
    assert controls["most_rows"]["least"] == 1


def test_what_no_control_says_is_refused() -> None:
    asked = wb.Strategy.parse("dp4-ep2", 4)
    with pytest.raises(wb.UsageError, match="no control sets ep 2"):
        StrategyChoice().taking(asked)


@pytest.mark.parametrize("name", ["pp2-dp2-tp2", "fsdp64", "pp4-dp4-tp4", "hsdp", "dp2-cp2-tp2"])
def test_the_drawn_ranks_are_those_of_the_mesh(name: str) -> None:
    strategy = wb.Strategy.parse(name, wb.Strategy.ranks_of(name) or 8)
    drawn = grid(strategy, 8)
    places = rank_grid(strategy, 8)
    assert len(drawn["cells"]) == strategy.world_size
    for place, cell in zip(places, drawn["cells"], strict=True):
        holds, reads = (
            [_text(one, drawn["texts"]) for one in half.split()] for half in cell.split("|")
        )
        assert " · ".join(holds) == place.holds
        assert ", ".join(reads) == place.reads
    fields_of = {"pp": "pp", "dp": "dp_replicate", "fsdp": "dp_shard", "cp": "cp", "tp": "tp"}
    for axis in drawn["axes"]:
        found = {tuple(_group(axis, rank)) for rank in range(strategy.world_size)}
        assert found == {tuple(one) for one in groups(strategy, fields_of[axis["word"]])}


def _text(entry: str, texts: list[str]) -> str:
    at, _, number = entry.partition(".")
    return texts[int(at)].replace("#", number)


def _group(axis: dict[str, Any], rank: int) -> list[int]:
    own = rank // axis["stride"] % axis["degree"]
    return [rank + (one - own) * axis["stride"] for one in range(axis["degree"])]


def test_more_ranks_than_can_be_drawn_are_summed_up() -> None:
    drawn = grid(wb.Strategy.parse("pp4-dp8-tp4", 128), 8)
    assert drawn["cells"] == []
    assert drawn["summary"] == "128 ranks, too many to draw: 4 pipeline x 8 replicas x 4 tensor."


def test_goals_are_picked_and_say_what_they_compared(picker: StrategyPicker) -> None:
    picker.set(goal="fast", processes=2)
    assert picker.strategy == wb.Strategy.parse("ddp", 2)
    assert any(line.startswith("fsdp on 2:") for line in picker.figure["why"])
    assert set(picker.controls["hidden"]) == set(FIELDS) - {"goal", "processes"}
    picker.set(goal="cheap")
    assert picker.strategy.name == "single"


def test_nothing_is_guessed_of_a_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    made = StrategyPicker(str(script), "", cpu=True, strategy="fsdp", processes=2)
    assert "memory n/a" in made.figure["headline"]
    assert "n/a" in made.figure["step"]
    assert made.figure["fits"] is None
    made.set(goal="fit")
    assert "The model in train.py is unknown" in said(made)
    made.close()


def test_a_change_is_quick_and_small(picker: StrategyPicker) -> None:
    sent: list[int] = []
    names = ("controls", "figure", "problem")
    picker.observe(lambda change: sent.append(len(json.dumps(change["new"]))), names=names)
    times = []
    for name in ("fsdp", "zero2", "pp2-dp2-tp2", "fsdp64", "pp4-dp4-tp4", "dp64", "hsdp", "cp"):
        del sent[:]
        begun = time.process_time()
        picker.set(strategy=name, processes=wb.Strategy.ranks_of(name) or 4)
        times.append(time.process_time() - begun)
        assert sum(sent) < TRAVELS_MAX, name
    assert not over_budget(statistics.median(times), 0.05)


def test_warnings_of_the_preflight_are_shown(picker: StrategyPicker) -> None:
    picker._keywords = lambda: {
        "target": "gpt",
        "arguments": ["--layers", "48", "--hidden", "8192", "--steps", "1"],
        "cpu": True,
    }
    picker.set(family="ddp", processes=8)
    assert any("Use fewer ranks" in one for one in picker.figure["warnings"])
    assert picker.figure["fits"] is False


def test_the_launcher_embeds_it(tmp_path: Path) -> None:
    form = Launcher(store=tmp_path, arguments=SHAPE, strategy="pp2-dp2-tp2", cpu=True)
    assert form.picker.strategy == wb.Strategy.parse("pp2-dp2-tp2", 8)
    assert "--tp 2 --pp 2" in form.preview.command
    move(form.picker, tp=3)
    until(lambda: form.button.disabled, "Launch is off")
    assert 'not a multiple of "Tensor" 3' in form.preview.problem
    move(form.picker, token="page:2", tp=1)
    until(lambda: not form.button.disabled, "Launch is on")
    form.fields.arguments.value = "--layers 1"
    until(lambda: "cannot make 2 stages" in form.preview.problem, "the form's part counts too")
    form.close()


def test_the_shim_travels_once_and_is_in_the_command(tmp_path: Path) -> None:
    form = Launcher(store=tmp_path, strategy="fsdp", processes=2, cpu=True)
    request = form.picker.request
    assert request is not None
    assert form.preview.command == request.shell()
    assert len(form.preview.text) < 2500
    form.close()


def test_on_cards_memory_stands_beside_the_card_and_steps_have_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    cards = wb.Cluster.rented("rtx-4090", gpus=8)
    monkeypatch.setattr(
        sys.modules["workbench.launching.prepare.build_request"], "detect_host", lambda: cards
    )
    made = StrategyPicker("gpt", "--size 12 --steps 3", strategy="fsdp", processes=4)
    assert made.figure["headline"].startswith("Fits: "), made.problem
    assert "of 24 GiB on each GPU" in made.figure["headline"]
    assert "tokens/s" in made.figure["step"]
    made.set(goal="fast", processes=8)
    assert "the fastest of" in made.figure["why"][0]
    made.set(processes=9)
    assert "9 processes were requested, but 8 GPUs are visible" in said(made)
    made.close()


def test_too_many_processes_are_refused_whatever_the_goal(picker: StrategyPicker) -> None:
    for goal in ("fit", "hand"):
        picker.set(goal=goal, processes=1000)
        assert "Use at most 64" in said(picker)


def test_it_shows_advice_on_what_would_be_started(picker: StrategyPicker) -> None:
    (rule,) = picker.figure["advice"]  # on CPU ranks the batch is all that the rules know
    assert (rule["rule"], rule["holds"]) == ("batch-limits", True)
    wide = advice(wb.Job.of("llama-3-70b", gpu="h100", gpus=8, strategy="ddp"))
    answers = [one["holds"] for one in wide]
    assert answers == sorted(answers, key=[False, True, None].index)
    assert wide[0]["holds"] is False
    assert advice_lines(wide)[0].startswith("Advice: ")
    assert advice_lines([rule]) == []
