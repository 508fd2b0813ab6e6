"""pipeline.py: who holds what, what is refused, and every schedule on real ranks."""

import json
import re
from pathlib import Path

import pipeline
import pytest
import torch
from corpus import read_corpus
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy

from tests.launch.ranks import output, torchrun
from tests.recipes import pipeline_ranks as setting

HERE = Path(__file__).parent
SCHEDULES = ("1f1b", "gpipe", "naive", "zero-bubble", "zero-bubblex2", "interleavedx2", "zbvx2")


@pytest.mark.parametrize("name", pipeline.SCHEDULES)
@pytest.mark.parametrize(("layers", "pp", "chunks"), [(9, 4, 2), (4, 2, 2), (8, 4, 2)])
def test_every_block_is_on_one_rank_and_stages_differ_by_one(name, layers, pp, chunks):
    dealt = pipeline.blocks_of(layers, pp, chunks, name)
    stages = pipeline.stages_of(pp, chunks, name)
    pieces = {
        number: piece
        for own, of in zip(stages, dealt, strict=True)
        for number, piece in zip(own, of, strict=True)
    }
    assert [block for number in sorted(pieces) for block in pieces[number]] == list(range(layers))
    sizes = [len(pieces[number]) for number in sorted(pieces)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_zbv_folds_the_model_so_that_rank_0_has_both_ends():
    assert pipeline.blocks_of(4, 2, 2, "zbv") == [[[0], [3]], [[1], [2]]]
    assert pipeline.blocks_of(4, 2, 2, "interleaved") == [[[0], [2]], [[1], [3]]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--pp", "8"), "--layers 4 cannot make 8 ranks x 1 pieces"),
        (("--schedule", "zbv", "--virtual-stages", "3"), "two pieces"),
        (("--pp", "2", "--schedule", "interleaved", "--accumulate", "5"), "multiple of 2 as --acc"),
        (("--pp", "2", "--schedule", "zero-bubble", "--accumulate", "5"), "multiple of 2"),
        (("--steps", "0"), "above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments, said):
    with pytest.raises(ValueError, match=said) as found:
        pipeline.parse_options(arguments)
    assert "\n" not in str(found.value)


def test_the_script_stays_readable_in_one_sitting():
    source = Path(pipeline.__file__).read_text()
    assert len(source.splitlines()) <= 300
    assert "import workbench" not in source


# --- Real processes ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def alone():
    """The loss of each step and of one evaluation, by a plain loop over the full model."""
    torch.manual_seed(0)
    model = GPT(setting.LAYERS, setting.HIDDEN, setting.HEADS)
    initialise(model, setting.HIDDEN, 0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=setting.RATE)
    losses = []
    for inputs, targets in setting.batches(read_corpus(setting.LENGTH)[0]):
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        return losses, cross_entropy(model(inputs[:2]), targets[:2]).item()


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "stages", "schedules"),
    [
        (2, 2, SCHEDULES),
        (4, 4, SCHEDULES),
        (4, 2, ("1f1b", "zero-bubble")),  # each stage sharded over two ranks
    ],
)
def test_every_schedule_trains_to_the_single_process_curve(
    tmp_path, alone, processes, stages, schedules
):
    """fp32, one seed, one global batch: the same sums in another order."""
    torchrun(processes, HERE / "pipeline_ranks.py", tmp_path, stages, *schedules)
    losses, evaluated = alone
    for name in schedules:
        copies = [json.loads(path.read_text()) for path in sorted(tmp_path.glob(f"{name}-?.json"))]
        assert len(copies) == processes // stages
        means = [
            sum(sum(mine[step * setting.COUNT :][: setting.COUNT]) for mine, _ in copies)
            / (setting.COUNT * len(copies))
            for step in range(setting.STEPS)
        ]
        assert means == pytest.approx(losses, rel=1e-4), name
        assert copies[0][1] == pytest.approx(evaluated, rel=1e-4), name


@pytest.mark.full
@pytest.mark.slow
def test_the_recipe_alone_gives_one_curve_on_one_and_two_ranks():
    small = ("--layers", 3, "--hidden", 32, "--seq-len", 32, "--steps", 20, "--warmup", 2)
    one = output(pipeline.__file__, *small)
    two = torchrun(2, pipeline.__file__, *small, "--schedule", "gpipe")
    found = [re.findall(r"step +(\d+) \| loss (\S+)", text) for text in (one, two)]
    assert [step for step, _ in found[0]] == ["10", "20"]
    assert found[0] == found[1]
    assert float(found[0][-1][1]) < 4.5
