"""Answers to fixed prompts while a recipe trains: right, bounded, and without a trace in it."""

from __future__ import annotations

import types
from pathlib import Path

import gpt_model
import pytest
import torch
from samples import MAX_PROMPTS, Samples, greedy, prompts_of

import workbench as wb
from workbench.recipes import shape

TINY = ("--layers", "1", "--hidden", "32", "--seq-len", "32", "--warmup", "2", "--steps", "6")
ASKED = ("--sample-every", "3", "--sample-tokens", "5", "--sample-prompts", "def ", "import os")


def made() -> gpt_model.GPT:
    torch.manual_seed(0)
    model = gpt_model.GPT(layers=2, hidden=32, heads=2)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return model


def test_prompts_of_different_lengths_have_the_answers_that_each_has_alone() -> None:
    model, prompts = made(), [[1, 2, 3], [9], [7, 7, 7, 7, 200]]
    with torch.no_grad():
        together = greedy(model, prompts, 8, torch.device("cpu"), lambda: None)
        for prompt, answer in zip(prompts, together, strict=True):
            context = list(prompt)
            for _ in range(8):
                context.append(int(model(torch.tensor([context]))[0, -1].argmax()))
            assert answer == context[len(prompt) :]


def test_random_numbers_and_the_training_mode_are_as_before() -> None:
    options = types.SimpleNamespace(sample_every=2, sample_tokens=4, sample_prompts=["a", "bc"])
    told: list[str] = []
    samples = Samples(options, lambda text: list(text.encode()), repr, told.append)
    model, before = made().train(), torch.get_rng_state()
    answers = samples.take(4, model, model)
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert len(answers) == len(told) == 2
    assert [samples.due(step) for step in range(5)] == [True, False, True, False, True]


def test_prompts_are_texts_or_the_lines_of_files(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo \n")
    assert prompts_of(["first", str(file)]) == ["first", "one", "two"]
    assert prompts_of(["x" * 5000]) == ["x" * 5000]
    with pytest.raises(SystemExit, match=f"9 prompts; give 1 to {MAX_PROMPTS}"):
        prompts_of(["x"] * 9)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--sample-every", "3"), "give both"),
        (("--sample-prompts", "x"), "give both"),
        ((*ASKED, "--sample-tokens", "257"), "at most 256"),
        ((*ASKED, "--pp", "2"), "--tp, --cp and --pp"),
    ],
)
def test_what_gives_no_answers_is_refused(arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=r"gpt\.py: ") as error:
        shape(arguments)
    assert said in str(error.value)


@pytest.mark.slow
def test_a_run_with_samples_has_the_same_losses_and_no_step_for_them(store: Path) -> None:
    runs = [
        wb.launch("gpt", [*TINY, *more], cpu=True, store=store, processes=2, warm=True)
        for more in ((), ASKED)
    ]
    assert [run.wait(200) for run in runs] == ["succeeded"] * 2, runs[1].logs(tail=30)
    without, with_samples = ([row["loss"] for row in run.metrics()] for run in runs)
    assert len(without) == 6
    assert without == with_samples  # to the last bit
    rows = runs[1].samples()
    assert [(row["step"], row["prompt"]) for row in rows] == [
        (step, prompt) for step in (0, 3, 6) for prompt in ("def ", "import os")
    ]
    assert len({row["answer"] for row in rows}) > 1
    shown = runs[1].view()["text_samples"]
    assert (shown["prompts"], shown["steps"]) == (["def ", "import os"], [0, 3, 6])
    assert runs[1].findings() == []
    assert "eval_perplexity" in runs[1].series() or "eval_loss" not in runs[1].series()
