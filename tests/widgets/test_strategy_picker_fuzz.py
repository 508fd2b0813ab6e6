"""Every state of the picker's controls is refused in a sentence, or is a launch that is whole."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("anywidget", reason="the lab extra is not installed")

from workbench_widgets.strategy.choice import FAMILIES, FIELDS, StrategyChoice
from workbench_widgets.strategy.fields import fields
from workbench_widgets.strategy.preview import Look, look

import workbench as wb

TRAINED = 4
"""Accepted states that are really launched."""
_DEGREE = st.sampled_from([1, 1, 1, 2, 2, 3, 4, 8])
_COUNTS = st.none() | st.sampled_from([1, 1000, 100_000])
_NUMBERS = ("wrap_min_parameters", "reduce_bucket", "gather_bucket", "live_parameters")


def _values() -> dict[str, st.SearchStrategy[Any]]:
    """A generator for each control, from what the page itself offers."""
    found: dict[str, st.SearchStrategy[Any]] = {}
    for field in (one for group in fields() for one in group["fields"]):
        name = field["name"]
        if field["kind"] == "select":
            offered = [option["value"] for option in field["options"]]
            found[name] = st.sampled_from([FIELDS[name]] * len(offered) + offered)
        elif field["kind"] == "check":
            found[name] = st.sampled_from([FIELDS[name]] * 3 + [not FIELDS[name]])
        else:
            found[name] = _COUNTS if name in _NUMBERS else _DEGREE
    return found


VALUES = _values()
SHAPES = st.fixed_dictionaries(
    {
        "--layers": st.sampled_from([1, 2, 3, 4, 8]),
        "--heads": st.sampled_from([1, 2, 4, 6]),
        "--seq-len": st.sampled_from([16, 48, 64]),
        "--micro-batch": st.sampled_from([1, 2, 3]),
        "--accumulate": st.sampled_from([1, 2, 4, 8]),
        "--precision": st.sampled_from(["fp32", "fp32", "bf16", "fp16"]),
    }
)
STATES = st.fixed_dictionaries(
    {**VALUES, "goal": st.sampled_from(["hand"] * 12 + ["fit", "fast", "cheap"])}
)


@pytest.fixture
def eight_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A described machine in the place of this host: what is asked for is checked, not started."""
    cards = wb.Cluster.rented("rtx-4090", gpus=8)
    monkeypatch.setattr(
        sys.modules["workbench.launching.prepare.build_request"], "detect_host", lambda: cards
    )


def arguments(shape: dict[str, Any]) -> list[str]:
    hidden = 12 * shape["--heads"]
    given = [part for flag, value in shape.items() for part in (flag, str(value))]
    tail = ["--steps", "2", "--warmup", "1", "--eval-every", "0"]
    return [*given, "--hidden", str(hidden), *tail]


def looked(state: dict[str, Any], shape: dict[str, Any], store: Path, *, cpu: bool = True) -> Look:
    wish = {"target": "gpt", "arguments": arguments(shape), "cpu": cpu, "store": store}
    return look(wish, StrategyChoice().changed(state))


def expected_ranks(state: dict[str, Any]) -> int:
    if state["family"] == "degrees":
        product = 1
        for axis in ("pp", "dp", "fsdp", "cp", "tp"):
            product *= state[axis]
        return product
    return 1 if state["family"] == "single" else state["processes"]


def test_the_generator_covers_every_control() -> None:
    assert set(VALUES) == set(FIELDS)
    offered = {one["value"] for one in fields()[0]["fields"][1]["options"]}
    assert offered == set(FAMILIES)


LIMITS = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])


@LIMITS
@given(state=STATES, shape=SHAPES)
def test_each_state_is_refused_in_a_sentence_or_is_whole(
    tmp_path: Path, state: dict[str, Any], shape: dict[str, Any]
) -> None:
    check_whole(state, looked(state, shape, tmp_path))


@LIMITS
@given(state=STATES, shape=SHAPES)
def test_so_it_is_on_a_machine_with_eight_cards(
    eight_cards: None, tmp_path: Path, state: dict[str, Any], shape: dict[str, Any]
) -> None:
    found = looked(state, shape, tmp_path, cpu=False)
    check_whole(state, found)
    if found.request is not None:
        assert found.request.device == "cuda"
        assert "cpu_ranks" not in found.request.shell()  # nothing of ours between it and Accelerate


def check_whole(state: dict[str, Any], found: Look) -> None:
    request = found.request
    if request is None:
        assert len(found.problem) > 20
        assert found.problem.endswith((".", "!", "?"))
        assert "Error:" not in found.problem, found.problem  # no exception meant for programmers
        return
    assert not found.problem
    wanted = expected_ranks(state) if state["goal"] == "hand" else None
    assert wanted in {None, request.processes}
    files = {Path(path).name: text for path, text in request.config_files.items()}
    config = yaml.safe_load(files["accelerate.yaml"])
    assert config["num_processes"] == request.processes == request.strategy.world_size
    if "deepspeed.json" in files:
        assert json.loads(files["deepspeed.json"])["zero_optimization"]["stage"] in {1, 2, 3}
    assert str(request.script) in request.shell()


def accepted(store: Path, count: int, seed: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """States of 2 to 4 ranks that the picker accepts, different in their strategy."""
    source, found, seen = random.Random(seed), [], set()
    while len(found) < count:
        state = dict(FIELDS)
        state["family"] = source.choice([one for one in FAMILIES if one != "single"])
        state["processes"] = source.choice([2, 2, 3, 4])
        for axis in ("pp", "dp", "fsdp", "cp", "tp"):
            state[axis] = source.choice([1, 1, 2])
        for group in fields()[1:]:
            for field in source.sample(group["fields"], 3):
                state[field["name"]] = _drawn(field, source)
        shape = {
            "--layers": source.choice([2, 4]),
            "--heads": source.choice([2, 4]),
            "--seq-len": source.choice([16, 64]),
            "--micro-batch": source.choice([1, 2]),
            "--accumulate": source.choice([1, 2, 4]),
            "--precision": source.choice(["fp32", "fp32", "bf16"]),
        }
        request = looked(state, shape, store).request
        if request is not None and 2 <= request.processes <= 4 and state["family"] not in seen:
            found.append((state, shape))
            seen.add(state["family"])
    return found


def _drawn(field: dict[str, Any], source: random.Random) -> Any:
    if field["kind"] == "select":
        return source.choice([option["value"] for option in field["options"]])
    if field["kind"] == "check":
        return source.choice([True, False])
    name = field["name"]
    return source.choice([None, 1000] if name in _NUMBERS else [1, 2])


@pytest.mark.full
@pytest.mark.slow
def test_a_sample_of_accepted_states_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for state, shape in accepted(tmp_path, TRAINED, seed=5):
        request = looked(state, shape, tmp_path).request
        assert request is not None
        run = wb.start(request)
        changed = {name: state[name] for name in FIELDS if state[name] != FIELDS[name]}
        assert run.wait(240) == "succeeded", (changed, shape, run.logs(tail=30))
        assert run.summary()["world_size"] == request.processes, changed
