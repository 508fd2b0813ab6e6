"""gpt.py: the corpus, the order of the data, the schedule, checkpoints; then real processes."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import checkpoint_files
import corpus
import gpt
import gpt_model
import pytest
import recipe_options
import torch
from recipe_options import RECORD, find_checkpoint, with_checkpoint

from tests.launch.ranks import printed, run_warm
from workbench.recipes import find

TINY = ("--layers", "1", "--hidden", "32", "--seq-len", "32", "--warmup", "2", "--eval-every", "0")


def test_corpus_is_there_and_the_same_each_time():
    training, validation = corpus.read_corpus(128)
    assert 1_000_000 < len(training) + len(validation) < corpus.CORPUS_BYTES + 1_000_000
    assert 0.01 < len(validation) / len(training) < 0.15
    assert bytes(training[:1_000_000].tolist()).count(b"import ") > 100
    again = corpus.read_corpus(128)
    assert torch.equal(training, again[0])
    assert torch.equal(validation, again[1])


def drawn(data, *, ranks, rank, micro_batch, index, of, key=5):
    """The bytes that one process would train on."""
    share = corpus.Share(rank, ranks, micro_batch)
    return corpus.micro_batch(data, share, 8, key=key, index=index, of=of)


def test_global_batch_is_the_same_for_any_number_of_processes():
    data = torch.arange(200, dtype=torch.uint8)
    inputs, targets = drawn(data, ranks=1, rank=0, micro_batch=8, index=0, of=1)
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    assert inputs.shape == (8, 8)
    pairs = [drawn(data, ranks=2, rank=rank, micro_batch=4, index=0, of=1) for rank in (0, 1)]
    assert torch.equal(inputs, torch.cat([pair[0] for pair in pairs]))
    quarters = [
        drawn(data, ranks=2, rank=rank, micro_batch=2, index=index, of=2)[0]
        for index in (0, 1)
        for rank in (0, 1)
    ]
    assert torch.equal(inputs, torch.cat(quarters))
    other, _ = drawn(data, ranks=1, rank=0, micro_batch=8, index=0, of=1, key=6)
    assert not torch.equal(inputs, other)


def test_learning_rate_depends_on_the_step_alone():
    known = gpt.parse_options(["--steps", "100", "--lr", "1", "--warmup", "10"])
    rates = [gpt.learning_rate(step, known) for step in range(100)]
    assert rates[0] == pytest.approx(0.1, rel=0.01)
    assert max(rates) > 0.95
    assert rates[-1] == pytest.approx(0.1, rel=0.01)
    unknown = gpt.parse_options(["--minutes", "1", "--lr", "1", "--warmup", "10"])
    assert gpt.learning_rate(100, unknown) == 1
    assert 0.4 < gpt.learning_rate(1300, unknown) < 1


def test_model_is_causal_and_starts_knowing_nothing():
    torch.manual_seed(0)
    model = gpt_model.GPT(layers=2, hidden=32, heads=2)
    gpt_model.initialise(model, 32, seed=0)
    inputs = torch.randint(256, (2, 16))
    assert gpt_model.loss(model(inputs), inputs).item() == pytest.approx(math.log(256))
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    heads = []
    model.head.register_forward_hook(lambda module, inputs, output: heads.append(output))
    changed = inputs.clone()
    changed[:, 9:] = 0
    model(inputs)
    model(changed)
    assert torch.allclose(heads[0][:, :9], heads[1][:, :9], atol=1e-6)
    assert not torch.allclose(heads[0][:, 9:], heads[1][:, 9:], atol=1e-3)


def test_only_whole_checkpoints_are_found(tmp_path, capsys):
    def chosen(*arguments):
        return find_checkpoint(gpt.parse_options(["--checkpoint-dir", str(tmp_path), *arguments]))

    assert chosen("--resume", "latest") is None
    for name in ("step-00000009", "step-00000010", "partial-00000011"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_bytes(b"123")
        checkpoint_files.seal(tmp_path / name, step=int(name[-8:]))
    assert chosen("--resume", "latest") == tmp_path / "step-00000010"
    assert chosen("--resume", str(tmp_path / "step-00000009")).name == "step-00000009"
    assert chosen() is None
    for flag in ("--checkpoint-every", "--checkpoint-minutes", "--checkpoint-auto"):
        with pytest.raises(ValueError, match="latest"):
            chosen(flag, "5")
    with pytest.raises(ValueError, match="step-00000100"):
        chosen("--resume", str(tmp_path / "partial-00000011"))
    (tmp_path / "step-00000010" / "weights").write_bytes(b"124")
    with pytest.raises(ValueError, match="weights does not have the content that was saved"):
        chosen("--resume", str(tmp_path / "step-00000010"))
    assert chosen("--resume", "latest").name == "step-00000009"
    assert (
        "step-00000010 is skipped: weights does not have the content that was saved"
        in capsys.readouterr().err
    )
    (tmp_path / "step-00000009" / "weights").unlink()
    with pytest.raises(ValueError, match="does not hold a complete checkpoint"):
        chosen("--resume", "latest")


def resumed(tmp_path, *arguments):
    """What the command line says when it continues from a checkpoint that these defaults wrote."""
    folder = tmp_path / "step-00000009"
    folder.mkdir(exist_ok=True)
    kept = recipe_options.record(gpt.parse_options(["--steps", "20"]), "single")
    (folder / RECORD).write_text(json.dumps(kept))
    checkpoint_files.seal(folder, step=9)
    return with_checkpoint(lambda: gpt.parse_options(["--resume", str(folder), *arguments]))


def test_options_that_change_the_curve_are_named_and_another_model_is_refused(tmp_path, capsys):
    assert resumed(tmp_path, "--steps", "20").checkpoint.name == "step-00000009"
    assert resumed(tmp_path, "--steps", "20", "--micro-batch", "4", "--accumulate", "2")
    assert capsys.readouterr().err == ""
    resumed(tmp_path, "--steps", "30", "--lr", "1", "--seed", "7", "--micro-batch", "4")
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "steps 20 -> 30" in said
    assert "seed 0 -> 7" in said
    assert "lr 0.004 -> 1.0" in said
    assert "global_batch 8 -> 4" in said
    for other in (("--layers", "3"), ("--hidden", "64")):
        with pytest.raises(ValueError, match="another model") as refused:
            resumed(tmp_path, "--steps", "20", *other)
        assert "2 -> 3" in str(refused.value) or "128 -> 64" in str(refused.value)


def test_two_answers_to_how_often_are_refused():
    with pytest.raises(ValueError, match="use one"):
        gpt.parse_options(["--checkpoint-minutes", "5", "--checkpoint-auto", "8"])


def test_checkpoints_go_into_the_run(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_RUN_DIR", str(tmp_path))
    assert gpt.parse_options([]).checkpoint_dir == tmp_path / "checkpoints"
    monkeypatch.delenv("WORKBENCH_RUN_DIR")
    assert gpt.parse_options([]).checkpoint_dir == Path("checkpoints")


# --- Real processes ------------------------------------------------------------------------------


def launch(script, *arguments, processes=2, cwd, cold=False):
    """Start `script` as the documentation says, on CPU; its output. Warm, unless `cold`."""
    spread = f"--num_processes {processes} --num_machines 1 --main_process_port 0"
    spread += " --mixed_precision no --dynamo_backend no" + " --multi_gpu" * (processes > 1)
    start = [sys.executable, "-m", "accelerate.commands.launch", *spread.split()]
    command = [*start, str(script), *map(str, arguments)]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    if cold:
        done = subprocess.run(
            command,
            env=environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    else:
        done = run_warm(command, cwd, environment | {"PYTHONUNBUFFERED": "1"})
    return printed(done)


def record(folder, *arguments, processes=2):
    """Run recorder.py; per rank a list of [step, loss of each micro-batch]."""
    folder.mkdir()
    recorder = Path(__file__).with_name("recorder.py")
    launch(recorder, folder, *TINY, *arguments, processes=processes, cwd=folder)
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """Twelve uninterrupted steps on two processes, with checkpoints after 6 and 12."""
    folder = tmp_path_factory.mktemp("recipes") / "straight"
    return folder, record(folder, "--steps", 12, "--checkpoint-every", 6, "--micro-batch", 4)


@pytest.mark.slow
def test_same_seed_same_curve_to_the_last_digit(straight, tmp_path):
    _, ranks = straight
    assert len(ranks) == 2
    assert ranks[0] != ranks[1]
    assert ranks[0][-1][1] < ranks[0][0][1]
    again = record(tmp_path / "again", "--steps", 12, "--micro-batch", 4)
    assert again == ranks
    other = record(tmp_path / "other", "--steps", 2, "--micro-batch", 4, "--seed", 1)
    assert other[0][1] != ranks[0][1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "arguments"),
    [
        (1, ("--micro-batch", 8)),
        (1, ("--micro-batch", 4, "--accumulate", 2)),
        (2, ("--micro-batch", 2, "--accumulate", 2)),
    ],
)
def test_same_global_batch_same_curve_however_it_is_spread(
    straight, tmp_path, processes, arguments
):
    def curve(ranks):
        return [
            sum(sum(losses) / len(losses) for _, *losses in of_step) / len(of_step)
            for of_step in zip(*ranks, strict=True)
        ]

    spread = record(tmp_path / "run", "--steps", 12, *arguments, processes=processes)
    assert curve(spread) == pytest.approx(curve(straight[1]), rel=1e-5)


@pytest.mark.slow
def test_resumed_run_equals_the_uninterrupted_one(straight, tmp_path):
    folder, ranks = straight
    assert sorted(os.listdir(folder / "checkpoints")) == ["step-00000006", "step-00000012"]
    resumed = record(
        tmp_path / "resumed",
        *("--steps", 12, "--micro-batch", 4),
        *("--resume", folder / "checkpoints" / "step-00000006"),
    )
    assert resumed == [of_rank[6:] for of_rank in ranks]


@pytest.mark.slow
def test_minutes_stop_all_ranks_at_the_same_step(tmp_path):
    ranks = record(tmp_path / "run", "--minutes", 0.05)
    assert len(ranks) == 2
    assert len(ranks[0]) == len(ranks[1]) > 1


@pytest.mark.full
@pytest.mark.slow
def test_the_script_itself_reports_a_loss_below_the_unigram_entropy(tmp_path):
    said = launch(find("gpt").path, "--steps", "120", cwd=tmp_path, cold=True)
    entropy = float(re.search(r"unigram entropy (\S+) nats", said)[1])
    training = float(re.search(r"final training loss (\S+)", said)[1])
    validation = float(re.search(r"final validation loss ([\d.]+)", said)[1])
    assert 2.5 < entropy < 3.7
    assert training < 0.9 * entropy
    assert validation < 0.9 * entropy
    assert re.search(r"^step +10 \| loss \S+ \| lr \S+ \| [\d,]+ tokens/s$", said, re.MULTILINE)
    assert said.count("corpus:") == 1  # the main process alone speaks
