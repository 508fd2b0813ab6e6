"""Laws that every answer keeps, on questions drawn at random from what users may ask.

Layout, trainer, lengths, precision, recompute, offload and adapters are drawn together, always the
same ones. A law names two questions that differ in one point, and which of them takes more.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import random
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from workbench.cli.entry import run_app
from workbench.describe.job import Job, options
from workbench.errors import WorkbenchError
from workbench.estimate.memory import least_bytes, needed_bytes, training_memory
from workbench.estimate.parts import Estimate
from workbench.estimate.step_time import step_time
from workbench.estimate.timing import StepTime

Question = dict[str, Any]
MODELS = ("gpt2", "llama-3.2-1b", "llama-3-8b", "llama-2-70b", "qwen2.5-7b", "qwen3-30b-a3b")
MODELS += ("mixtral-8x7b", "gemma-2-9b", "falcon-7b", "opt-13b", "bloom-7.1b", "deepseek-v2-lite")
GPUS = ("h100-sxm", "h200-sxm", "b200-sxm", "gb200", "a100-sxm-40", "l40s", "rtx-3090")
GPUS += ("rtx-4090", "rtx-a6000", "t4", "v100-sxm2-32", "mi300x")
TRAINERS = (None, "transformers", "trl", "peft", "torchtune", "litgpt", "axolotl", "unsloth")
TRAINERS += ("llama-factory", "torchtitan", "megatron-lm", "nemo", "megatron-bridge", "deepspeed")
LAYOUTS = {
    1: ("single",),
    2: ("ddp", "fsdp", "zero2", "tp2", "pp2"),
    8: ("ddp", "fsdp", "fsdp-grad-op", "hsdp", "zero1", "zero3", "fsdp4-tp2", "dp2-tp2-pp2"),
    16: ("ddp", "fsdp", "zero3", "zero1x2-tp4-pp2", "fsdp4-tp2-cp2"),
}
CLOSE = 0.025
"""What the allocator's reuse and rounding may turn a law around by."""


def drawn(count: int, seed: int) -> Iterator[Question]:
    """So many sensible questions, the same for a seed."""
    one = random.Random(seed)
    for _ in range(count):
        gpus = one.choice(list(LAYOUTS))
        question: Question = {
            "model": one.choice(MODELS),
            "gpu": one.choice(GPUS),
            "gpus": min(gpus, 8),
            "nodes": max(1, gpus // 8),
            "strategy": one.choice(LAYOUTS[gpus]),
            "trainer": one.choice(TRAINERS),
            "seq_len": one.choice([256, 512, 1024]),
            "micro_batch": one.choice([1, 2, 8]),
            "accumulate": one.choice([2, 8]),
            "recompute": one.choice([None, "none", "selective", "full"]),
            "precision": one.choice([None, "bf16", "bf16-pure", "fp8", "fp32"]),
            "optimizer": one.choice([None, "adamw", "adamw-8bit", "sgd", "muon"]),
            "offload": one.choice([None, None, None, ("optimizer",), ("optimizer", "parameters")]),
        }
        if one.random() < 0.3:
            question |= {"lora_rank": 16, "quantization": one.choice(["none", "nf4"])}
        yield question


def job(question: Question) -> Job:
    return Job.of(question["model"], **{k: v for k, v in question.items() if k != "model"})


@functools.cache
def _answers(text: str) -> tuple[Job, Estimate, StepTime | None] | None:
    question = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(text).items()}
    try:
        described = job(question)
        memory = training_memory(described)
    except WorkbenchError:  # refused: no answer to hold a law
        return None
    with contextlib.suppress(WorkbenchError):  # a precision that the card has not
        return described, memory, step_time(described)
    return described, memory, None


def answer(question: Question) -> tuple[Job, Estimate, StepTime | None] | None:
    return _answers(json.dumps(question))


def seconds(found: tuple[Job, Estimate, StepTime | None] | None) -> float:
    assert found is not None
    assert found[2] is not None
    return found[2].step_seconds


QUESTIONS = [question for question in drawn(40, seed=7) if answer(question) is not None]


def test_most_questions_have_an_answer() -> None:
    assert len(QUESTIONS) > 30


def test_parts_ranges_and_rates_are_consistent() -> None:
    for question in QUESTIONS:
        found = answer(question)
        assert found is not None
        described, memory, step = found
        assert min(memory.parts.values()) >= 0, question
        for stage in memory.stages:
            assert all(min(peak.parts.values()) >= 0 for peak in stage.peaks), question
        assert memory.allocated_bytes <= memory.reserved_bytes <= memory.on_card_bytes
        assert memory.low_bytes <= memory.on_card_bytes <= memory.high_bytes
        needed = needed_bytes(described.workload, described.strategy)
        assert least_bytes(described.workload, described.strategy) <= needed + 64, question
        if step is None:
            continue
        assert min(step.parts.values()) > 0, question
        assert step.low <= 1 <= step.high
        assert sum(step.parts.values()) == pytest.approx(step.step_seconds)
        assert step.mfu is None or 0 < step.mfu < 0.95, question
        assert step.hfu is None or step.mfu is None or step.mfu <= step.hfu < 0.95, question
        rate = step.tokens_per_second_per_gpu * step.gpus
        assert rate == pytest.approx(step.tokens / step.step_seconds)


RECOMPUTE = [{"recompute": word} for word in ("none", "selective", "full")]
LAWS: dict[str, tuple[Question, Question, bool, bool]] = {
    # less, more, of memory, of time
    "micro-batch": ({"micro_batch": 1}, {"micro_batch": 4}, True, True),
    "sequence": ({"seq_len": 512}, {"seq_len": 1024}, True, True),
    "more precise": ({"precision": "bf16-pure"}, {"precision": "bf16"}, True, True),
    "states of AdamW": ({"optimizer": "sgd"}, {"optimizer": "adamw"}, True, True),
    "unfused attention": ({"attention": "flash"}, {"attention": "eager"}, True, False),
    "separate kernels": ({"kernels": "fused"}, {"kernels": "transformers"}, True, True),
    "selective recomputation": (RECOMPUTE[1], RECOMPUTE[0], True, False),
    "full recomputation": (RECOMPUTE[2], RECOMPUTE[1], True, False),
    "time of selective recomputation": (RECOMPUTE[0], RECOMPUTE[1], False, True),
    "time of full recomputation": (RECOMPUTE[1], RECOMPUTE[2], False, True),
    "A100 and H100": ({"gpu": "h100-sxm"}, {"gpu": "a100-sxm-80"}, False, True),
    "H100 and B200": ({"gpu": "b200-sxm"}, {"gpu": "h100-sxm"}, False, True),
    "B200 and GB200": ({"gpu": "gb200"}, {"gpu": "b200-sxm"}, False, True),
    "3090 and 4090": ({"gpu": "rtx-4090"}, {"gpu": "rtx-3090"}, False, True),
}


@pytest.mark.parametrize("law", LAWS)
def test_less_stays_less(law: str) -> None:
    less, more, of_memory, of_time = LAWS[law]
    held = 0
    for question in QUESTIONS:
        small, large = answer(question | less), answer(question | more)
        if small is None or large is None:
            continue
        held += 1
        if of_memory:
            bound = (1 + CLOSE) * large[1].on_card_bytes
            assert small[1].on_card_bytes <= bound, (law, question)
        if of_time and small[2] and large[2]:
            bound = (1 + CLOSE) * large[2].step_seconds
            assert small[2].step_seconds <= bound, (law, question)
    assert held > 10


def test_sharding_over_more_gpus_takes_no_more_of_each() -> None:
    for question in QUESTIONS:
        if question["strategy"] not in {"fsdp", "zero1", "zero3"}:
            continue
        found, wider = answer(question), answer(question | {"nodes": 2 * question["nodes"]})
        if found and wider:
            assert wider[1].on_card_bytes <= (1 + CLOSE) * found[1].on_card_bytes, question


def test_offload_takes_less_of_the_card_and_more_time() -> None:
    for question in QUESTIONS:
        if question["offload"] is None:
            continue
        away, here = answer(question), answer(question | {"offload": None})
        assert away is not None
        if here is None:
            continue
        assert away[1].on_card_bytes <= (1 + CLOSE) * here[1].on_card_bytes, question
        if away[2] and here[2]:
            assert away[2].step_seconds >= (1 - CLOSE) * here[2].step_seconds, question


def test_fp8_is_quicker_where_products_are_large() -> None:
    """Casts cost more than they save on small ones."""
    large = {"model": "llama-2-70b", "gpu": "h100-sxm", "gpus": 8, "seq_len": 4096}
    for trainer in TRAINERS:
        for strategy in ("fsdp", "tp"):
            question = {**large, "strategy": strategy, "micro_batch": 2, "trainer": trainer}
            quick, usual = (answer(question | {"precision": word}) for word in ("fp8", "bf16"))
            assert seconds(quick) < seconds(usual), (strategy, trainer)


def _words(question: Question) -> list[str]:
    words = ["workbench", "memory", "--json"]
    for name, value in question.items():
        if value is not None and value != "none":
            text = ",".join(value) if isinstance(value, tuple) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return words


def test_the_command_line_gives_the_same_answer() -> None:
    assert set(QUESTIONS[0]) <= set(options())
    for question in [one for one in QUESTIONS if one["recompute"] != "none"][:5]:
        found, out = answer(question), io.StringIO()
        with (
            mock.patch.object(sys, "argv", _words(question)),
            contextlib.redirect_stdout(out),
            contextlib.suppress(SystemExit),
        ):
            run_app()
        assert found is not None
        assert json.loads(out.getvalue())["on_card_bytes"] == found[1].on_card_bytes, question


def test_attention_in_fp32_is_no_faster_than_products() -> None:
    """Fused kernels of 16 bits do not take it: a long sequence stays below the peak."""
    found = answer(
        {"model": "gpt-oss-20b", "gpu": "a100-sxm-80", "seq_len": 32768, "precision": "fp32"}
    )
    assert found is not None
    assert found[2] is not None
    assert found[2].mfu is not None
    assert found[2].mfu < 0.95


def test_muon_on_the_host_pays_for_its_products() -> None:
    question = {"model": "llama-3-8b", "gpu": "h100-sxm", "gpus": 8, "strategy": "zero3"}
    question |= {"offload": ("optimizer",)}
    muon, sgd = (answer(question | {"optimizer": word}) for word in ("muon", "sgd"))
    assert seconds(muon) > 1.1 * seconds(sgd)


def test_weights_stay_on_the_card_below_zero_3() -> None:
    layout = {"gpu": "h100-sxm", "gpus": 8, "offload": ("optimizer", "parameters")}
    assert answer({"model": "llama-3-8b", "strategy": "zero3", **layout}) is not None
    assert answer({"model": "llama-3-8b", "strategy": "zero2", **layout}) is None


def test_selective_recomputation_of_nothing_changes_nothing() -> None:
    """Fused attention keeps no scores: there is nothing to make again."""
    question = {"model": "qwen2.5-0.5b", "gpu": "h200-sxm", "seq_len": 4096, "optimizer": "sgd"}
    none, some = (answer(question | {"recompute": word}) for word in ("none", "selective"))
    assert none
    assert some
    assert none[1].on_card_bytes == some[1].on_card_bytes


def test_a_frozen_head_needs_no_gradient_in_the_fused_loss() -> None:
    """Liger makes grad_weight only where weight.requires_grad."""
    question = {"model": "gemma-2-9b", "gpu": "a100-sxm-80", "loss": "fused", "lora_rank": 8}
    question |= {"recompute": "full", "seq_len": 256}
    frozen = answer(question | {"lora_targets": ("q", "v")})
    trained = answer(question | {"lora_targets": ("q", "v", "head")})
    assert frozen
    assert trained
    matrix = 2 * frozen[0].workload.model.vocab * frozen[0].workload.model.hidden
    more = trained[1].allocated_bytes - frozen[1].allocated_bytes
    assert more > 0.9 * matrix


def test_consumer_cards_have_no_ports_of_training_servers() -> None:
    for gpu in ("t4", "a10g", "rtx-3090", "rtx-5090"):
        found = answer({"model": "gpt2", "gpu": gpu, "gpus": 8, "nodes": 2, "precision": "fp16"})
        assert found is not None
        assert found[2] is not None
        assert any("50 Gbit/s" in sentence for sentence in found[2].assumptions), gpu
