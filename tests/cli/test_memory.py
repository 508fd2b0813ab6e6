"""``workbench memory``, ``models`` and ``gpus``: keys, exit codes, refusals, how it reads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import workbench as wb
from tests.cli.conftest import Command as Run
from workbench.describe import catalog
from workbench.estimate.simulate import SimulationUnavailable

CONTRACT = {
    *("allocated_bytes", "reserved_bytes", "on_card_bytes", "card_bytes", "fits", "peak"),
    *("parts", "per_stage", "assumptions"),
}
MORE = {
    *("peaks", "headroom_bytes", "headroom", "switches", "explanation", "gpu", "gpu_unverified"),
    *("largest_micro_batch", "longest_sequence", "model", "strategy", "world_size"),
}


@pytest.fixture
def run(command: Run) -> Run:
    """``workbench`` with arguments."""
    return command


def answer(run: Run, *arguments: str) -> dict[str, Any]:
    result = run("memory", *arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_json_is_one_object_on_stdout_and_nothing_else() -> None:
    command = [sys.executable, "-m", "workbench.cli", "memory", "--model", "llama-3-8b"]
    command += ["--gpu", "h100", "--gpus", "8", "--nodes", "2", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    document = json.loads(result.stdout)
    assert document.keys() >= CONTRACT | MORE
    assert document["on_card_bytes"] == sum(document["parts"].values())
    assert document["fits"] is (document["on_card_bytes"] <= document["card_bytes"])
    assert document["world_size"] == 16
    assert document["strategy"] == "ddp"
    assert document["peaks"][document["peak"]] == document["allocated_bytes"]
    assert document["headroom"] == 0.05
    assert document["gpu"] == "h100-sxm"
    keys = {"name", "saves_bytes", "on_card_bytes", "cost", "option", "code", "changes_result"}
    assert all(keys <= switch.keys() for switch in document["switches"])


def test_one_gpu_is_single_and_without_a_card_nothing_is_claimed(run: Run) -> None:
    document = answer(run, "--model", "gpt2", "--cpu")
    assert document["strategy"] == "single"
    assert document["fits"] is None
    assert document["card_bytes"] is None
    assert document["largest_micro_batch"]["value"] is None
    assert not [switch for switch in document["switches"] if switch["host_bytes"]]
    other = answer(run, "--model", "gpt2", "--gpu", "t4", "--precision", "fp16")
    assert [switch for switch in other["switches"] if switch["host_bytes"]]
    assert other["fits"] is True
    assert other["largest_micro_batch"]["value"] >= 1


def test_cpu_ranks_are_told_of_host_memory_and_not_of_a_card(run: Run) -> None:
    shown = run("memory", "--model", "gpt2", "--cpu", "--gpus", "2").out
    for words in ("nvidia-smi", "max_memory", "on card", "--gpu", "PCIe"):
        assert words not in shown, words
    one, both = (
        re.search(rf"^{name} +(\S+) GiB", shown, re.MULTILINE) for name in ("rank", "all ranks")
    )
    assert one is not None
    assert both is not None
    assert float(both[1]) == pytest.approx(2 * float(one[1]), rel=0.01)


def test_options_reach_the_estimate(run: Run) -> None:
    base = ("--model", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--strategy", "fsdp")
    plain = answer(run, *base)["allocated_bytes"]
    for options in (
        ("--recompute", "full"),
        ("--recompute", "selective", "--recompute-parts", "op"),
        ("--optimizer", "adamw-8bit"),
        ("--lora-rank", "8", "--lora-targets", "q,v,o"),
        ("--lora-rank", "8", "--quantization", "nf4"),
        ("--offload", "optimizer,parameters"),
        ("--kernels", "fused"),
        ("--precision", "bf16-pure"),
    ):
        assert answer(run, *base, *options)["allocated_bytes"] < plain, options
    for options in (("--micro-batch", "2"), ("--attention", "eager"), ("--strategy", "ddp")):
        assert answer(run, *base, *options)["allocated_bytes"] > plain, options
    on_card = answer(run, *base)["on_card_bytes"]
    assert answer(run, *base, "--expandable-segments")["on_card_bytes"] < on_card


@pytest.mark.parametrize("where", [("--gpus", "8"), ("--gpus", "8", "--strategy", "ddp"), ()])
def test_the_option_of_a_switch_does_what_it_says(run: Run, where: tuple[str, ...]) -> None:
    base = ("--model", "llama-3-8b", "--gpu", "h100", "--micro-batch", "2", *where)
    for switch in answer(run, *base)["switches"]:
        after = answer(run, *base, *switch["option"].split())
        assert after["on_card_bytes"] == switch["on_card_bytes"], switch["name"]


def test_pipelines_show_every_stage(run: Run) -> None:
    document = answer(
        run,
        *("--model", "llama-3-8b", "--strategy", "pp4-dp2", "--gpu", "h100", "--accumulate", "8"),
    )
    assert [stage["stage"] for stage in document["per_stage"]] == [0, 1, 2, 3]
    assert sum(stage["layers"] for stage in document["per_stage"]) == 32
    assert document["allocated_bytes"] == max(
        stage["allocated_bytes"] for stage in document["per_stage"]
    )


def test_what_does_not_fit_comes_with_what_would(run: Run) -> None:
    document = answer(run, "--model", "llama-3-8b", "--gpu", "rtx4090")
    assert document["fits"] is False
    assert document["headroom_bytes"] < 0
    assert document["largest_micro_batch"]["value"] == 0
    assert document["options"][0]["gpus"] == 1
    assert any("misses the card" in sentence for sentence in document["explanation"])


def test_unverified_cells_are_marked(run: Run) -> None:
    document = answer(run, "--model", "gpt2", "--gpu", "b300")
    assert "memory_bytes" in document["gpu_unverified"]
    text = run("memory", "--model", "gpt2", "--gpu", "b300").out
    assert "unverified" in text
    rows = json.loads(run("gpus", "--json").out)
    assert any("memory_bytes" in row["unverified"] for row in rows)
    listed = run("gpus", columns=80).out
    assert "269 GiB?" in listed
    assert "? = unverified" in listed


def test_listings_hold_the_catalog(run: Run) -> None:
    models = json.loads(run("models", "--json").out)
    assert [row["id"] for row in models] == [one.id for one in catalog.every_published()]
    assert {"parameters", "layers", "source", "date"} <= models[0].keys()
    gpus = json.loads(run("gpus", "--json").out)
    assert [row["id"] for row in gpus] == [one.id for one in catalog.gpus()]
    for name in ("models", "gpus"):
        assert max(map(len, run(name, columns=80).out.splitlines())) <= 80


@pytest.mark.parametrize("columns", [80, 140])
def test_it_reads_well_at_any_width(run: Run, columns: int) -> None:
    arguments = ("memory", "--model", "llama-3-70b", "--gpu", "h100", "--strategy", "pp8")
    text = run(*arguments, "--accumulate", "8", columns=columns).out
    lines = text.splitlines()
    assert max(map(len, lines)) <= columns
    assert all(line == line.rstrip() for line in lines)
    assert "\x1b" not in text
    for words in ("allocated", "reserved", "on card", "◄ peak", "Why", "switches that do not"):
        assert words in text
    for words in ("largest micro-batch", "longest sequence", "Assumed", "in flight"):
        assert words in text
    order = [text.index(word) for word in ("allocated", "competing", "Why", "saves", "longest")]
    assert order == sorted(order)


def test_inference(run: Run) -> None:
    arguments = ("--model", "llama-3-8b", "--inference", "--gpu", "l4", "--seq-len", "8192")
    document = answer(run, *arguments, "--micro-batch", "4")
    assert document.keys() >= CONTRACT
    assert document["cache_bytes_per_token"] == 131_072
    assert document["parts"]["KV cache"] == 4 * 2**30
    split = answer(run, *arguments, "--gpus", "4")
    assert split["strategy"] == "tp"
    assert split["parts"]["weights"] < document["parts"]["weights"] / 3
    assert "KV cache" in run("memory", *arguments).out
    assert "serving 1 x 197 tokens" in run("memory", "--model", "vit-l-16", "--inference").out
    four = answer(run, *arguments, "--quantization", "nf4")
    assert four["parts"]["weights"] < document["parts"]["weights"] / 2


LLAMA_CONFIG = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}


def test_a_config_json_or_its_folder_is_a_model(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_CONFIG))
    by_file, by_folder = (answer(run, "--model", str(given)) for given in (path, tmp_path))
    assert by_file["parameters"] == by_folder["parameters"]
    assert by_file["parts"] == by_folder["parts"]


H100 = ("--gpu", "h100")
LLAMA = ("--model", "llama-3-8b")
FANTASY = {**LLAMA_CONFIG, "hidden_size": 1 << 20, "num_hidden_layers": 1000}
LACKS = {key: value for key, value in LLAMA_CONFIG.items() if key != "num_hidden_layers"}
ODD = {**LLAMA_CONFIG, "num_attention_heads": 7}
TEXT = {**LLAMA_CONFIG, "hidden_size": "wide"}
REFUSALS = [
    (("--model", "llama-3-8"), "Did you mean"),
    (("--model", "no-such.json"), "no-such.json"),
    (("--model", "./nowhere"), "nowhere"),
    ((*LLAMA, "--gpu", "h1000"), "Unknown accelerator 'h1000'"),
    ((*LLAMA, "--strategy", "fdsp", "--gpus", "8"), "Did you mean"),
    ((*LLAMA, "--strategy", "fsdp"), "needs a number of GPUs"),
    ((*LLAMA, "--strategy", "dp2-tp2", "--gpus", "3"), "needs 4 GPUs, not 3"),
    ((*LLAMA, "--strategy", "dp2-tp2", *H100, "--gpus", "4", "--nodes", "2"), "not 8 (2 x 4)"),
    ((*LLAMA, "--strategy", "single", "--gpus", "2"), "runs 1 process"),
    ((*LLAMA, "--strategy", "tp3"), "cannot be split over tp = 3"),
    ((*LLAMA, "--strategy", "pp64"), "has 32"),
    ((*LLAMA, "--strategy", "pp4", "--schedule", "1f2b"), "Did you mean 1f1b"),
    ((*LLAMA, "--strategy", "pp4", "--schedule", "interleaved"), "multiple of 4"),
    ((*LLAMA, "--micro-batch", "0"), "micro_batch must be at least 1"),
    ((*LLAMA, "--micro-batch", "-4"), "micro_batch must be at least 1"),
    ((*LLAMA, "--seq-len", "0"), "seq_len must be at least 1"),
    ((*LLAMA, "--accumulate", "-1"), "accumulate must be at least 1"),
    ((*LLAMA, "--gpus", "0"), "gpus must be at least 1"),
    ((*LLAMA, "--nodes", "0"), "nodes must be at least 1"),
    ((*LLAMA, *H100, "--gpus", "100000"), "at most"),
    ((*LLAMA, "--lora-rank", "-8"), "at least 0"),
    ((*LLAMA, "--lora-rank", "8", "--lora-targets", "qq"), "lora target 'qq'"),
    ((*LLAMA, "--lora-rank", "8", "--lora-targets", ""), "--lora-targets is empty"),
    ((*LLAMA, "--quantization", "nf4"), "Give a lora_rank"),
    ((*LLAMA, "--precision", "bf61"), "Did you mean bf16"),
    ((*LLAMA, "--optimizer", "adam"), "Did you mean"),
    ((*LLAMA, "--recompute", "ful"), "Did you mean full"),
    ((*LLAMA, "--offload", "optimiser"), "Did you mean optimizer"),
    ((*LLAMA, "--loss", "chunky"), "Did you mean chunked"),
    ((*LLAMA, "--attention", "eagre"), "Did you mean eager"),
    ((*LLAMA, "--kernels", "fusd"), "Did you mean fused"),
    ((*LLAMA, *H100, "--headroom", "1.5"), "headroom must be below 1"),
    (("--model", "gpt2", "--seq-len", "4096"), "1024 positions"),
    ((*LLAMA, "--inference", "--gpus", "3"), "cannot be split over tp = 3"),
    ((*LLAMA, "--inference", "--strategy", "fsdp", "--gpus", "2"), "single and tp"),
    ((*LLAMA, "--inference", "--kv-bytes", "3"), "kv_bytes must be"),
    ((*LLAMA, "--kv-bytes", "1"), "Add --inference"),
    ((*LLAMA, "--inference", "--simulate"), "--inference asks about serving"),
    (("--model", "{fantasy}"), "parameters"),
    (("--model", "{lacks}"), "num_hidden_layers"),
    (("--model", "{odd}"), "512"),
    (("--model", "{text}"), "hidden_size"),
    (("--model", "{broken}"), "broken.json"),
]


@pytest.mark.parametrize(("arguments", "sentence"), REFUSALS, ids=lambda value: str(value)[:60])
def test_bad_input_is_one_clear_sentence_and_exit_code_2(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    files = {"fantasy": FANTASY, "lacks": LACKS, "odd": ODD, "text": TEXT}
    for name, config in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    (tmp_path / "broken.json").write_text("{not json")
    paths = {name: str(tmp_path / f"{name}.json") for name in (*files, "broken")}
    given = tuple(
        paths[word[1:-1]] if word.startswith("{") else word for word in ("memory", *arguments)
    )
    result = run(*given)
    assert result.code == 2, result.out
    assert result.out == ""
    assert sentence in " ".join(result.err.split())
    assert "Traceback" not in result.err
    in_json = run(*given, "--json")
    assert in_json.code == 2
    assert sentence in json.loads(in_json.out)["error"]


@pytest.mark.parametrize("name", ["memory", "advise"])
def test_an_option_of_another_library_is_refused_as_launch_does(run: Run, name: str) -> None:
    given = (*LLAMA, "--gpu", "h100", "--gpus", "2", "--strategy", "ddp", "--state-dict", "full")
    result = run(name, *given)
    assert result.code == 2
    assert "state dict (full) is an option of FSDP; nothing sets it for 'ddp'" in " ".join(
        result.err.split()
    )


def test_numbers_that_are_none_are_refused_by_the_parser(run: Run) -> None:
    result = run("memory", *LLAMA, "--micro-batch", "many")
    assert result.code == 2
    assert "micro_batch must be a whole number from 1 to 16,777,216, not 'many'" in result.err
    assert run("memory").code == 2


def test_a_simulation_that_cannot_be_falls_back_with_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SimulationUnavailable("no torch here")

    monkeypatch.setattr("workbench.cli.memory.simulate", refuse)
    result = run("memory", "--model", "gpt2", "--simulate", "--json")
    assert result.code == 0
    document = json.loads(result.out)
    assert document["simulation"] is None
    assert document["simulation_unavailable"] == "no torch here"
    assert "showing the closed form only: no torch here" in result.err
    assert document["allocated_bytes"] > 0


@pytest.mark.slow
def test_the_simulation_stands_beside_the_closed_form(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_CONFIG))
    words = ("memory", "--model", str(path), "--gpu", "l4", "--seq-len", "256", "--simulate")
    result = run(*words, "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    if document["simulation"] is None:
        pytest.skip(document["simulation_unavailable"])
    ratio = document["simulation"]["allocated_bytes"] / document["allocated_bytes"]
    assert document["simulated_to_closed_form"] == pytest.approx(ratio)
    assert 0.7 < ratio < 1.3


@pytest.mark.full
@pytest.mark.slow
def test_the_simulation_is_a_line_of_the_text(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_CONFIG))
    text = run("memory", "--model", str(path), "--gpu", "l4", "--seq-len", "256", "--simulate").out
    assert "simulated" in text
    assert "ratio" in text


def test_like_describes_what_a_recorded_run_trains(run: Run, old_store: Path) -> None:
    known = {"WORKBENCH_STORE": str(old_store)}
    like = ("memory", "--like", "finished", "--cpu", "--json")
    found = json.loads(run(*like, **known).out)
    recorded = wb.Run(wb.Store(old_store).find("finished")).job
    assert recorded is not None
    assert found["parameters"] == recorded.workload.model.parameters
    more = json.loads(run(*like, "--micro-batch", "64", **known).out)
    assert more["allocated_bytes"] > found["allocated_bytes"], "options count before the run's"
    refused = run("memory", "--like", "failed", "--cpu", **known)
    assert refused.code == 2
    assert "launched without a job" in refused.err
    assert "workbench measure" in refused.err
    both = run("memory", "--like", "finished", "--model", "gpt2", "--cpu", **known)
    assert "--model and --like both say what is trained" in both.err
