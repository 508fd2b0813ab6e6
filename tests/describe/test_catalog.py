"""Every catalog row against its published count; rates dense, links one way; names tolerant."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import asdict

import pytest

from tests.cpu_budget import least_seconds, over_budget
from workbench.describe import Cluster, Model, accelerators, catalog
from workbench.describe.counting import active_parameters
from workbench.describe.job import Job
from workbench.errors import UnknownNameError, UsageError

PUBLISHED = catalog.every_published()
GPUS = catalog.gpus()


@pytest.mark.parametrize("one", PUBLISHED, ids=lambda one: one.id)
def test_computed_parameters_are_the_stated_ones(one: catalog.PublishedModel) -> None:
    if one.stated_exact:
        assert one.model.parameters == one.stated_parameters
    else:
        assert one.model.parameters == pytest.approx(one.stated_parameters, rel=0.005)


def test_models_are_many_unique_and_sourced() -> None:
    assert len(PUBLISHED) >= 45
    assert len({one.id for one in PUBLISHED}) == len(PUBLISHED)
    assert sum(one.stated_exact for one in PUBLISHED) / len(PUBLISHED) > 0.85
    for one in PUBLISHED:
        assert one.source
        assert one.date[:4].isdigit()
        assert one.id == one.id.lower()


def test_no_name_means_two_models() -> None:
    known: dict[tuple[str, ...], str] = {}
    for one in PUBLISHED:
        for name in (one.id, one.model.name, *one.aliases):
            assert known.setdefault(catalog._words(name), one.id) == one.id


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Llama-3-8B", "llama-3-8b"),
        ("llama3-8b", "llama-3-8b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
        ("mistralai/Mistral-7B-v0.1", "mistral-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen2.5-Coder-7B-Instruct", "qwen2.5-7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("gemma-2b", "gemma-2b"),
        ("GPT-2", "gpt2"),
        ("google-bert/bert-base-uncased", "bert-base-uncased"),
        ("ViT-B/16", "vit-b-16"),
        ("EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"),
        ("Qwen/Qwen3-8B-Base", "qwen3-8b"),
        ("google-bert/bert-base-cased", "bert-base-cased"),
        ("llama-33b", "llama-30b"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"),
        ("TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"),
        ("unsloth/Llama-3.2-1B-Instruct-unsloth-bnb-4bit", "llama-3.2-1b"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-v3"),
        ("meta-llama/Llama-3.1-8B/", "llama-3.1-8b"),
    ],
)
def test_model_names_are_tolerant(name: str, found: str) -> None:
    assert catalog.published(name).id == found


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(UnknownNameError, match=r"Unknown model 'llama-9b'\. Did you mean llama-"):
        Model.catalog("llama-9b")
    with pytest.raises(UnknownNameError, match=r"Did you mean .*h100-sxm"):
        catalog.gpu("h1000-sxm")
    for nonsense in ("", "80gb", "rtx", "NVIDIA", 7, None):
        with pytest.raises(UnknownNameError):
            catalog.gpu(nonsense)
        with pytest.raises(UnknownNameError):
            catalog.model(nonsense)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("llama-4-scout", "Of this family the catalog has llama-3-8b"),
        ("qwen3-max", "Of this family the catalog has qwen3-8b"),
        ("meta-llama/Llama-4-Scout-17B-16E", "one has the same shape"),
        ("sdxl", "workbench measure train.py"),
        ("stable-diffusion-xl", "Model.from_module(module)"),
    ],
)
def test_another_model_is_never_put_in_its_place(name: str, sentence: str) -> None:
    with pytest.raises(UnknownNameError) as refused:
        Model.catalog(name)
    assert sentence in str(refused.value)
    assert "Did you mean" not in str(refused.value)
    assert "config.json" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # counted in transformers' own …ForSequenceClassification, two labels
        ("bert-base-uncased-classifier", 109_483_778),
        ("google-bert/bert-large-uncased-classifier", 335_143_938),
        ("roberta-base-classifier", 124_647_170),
        ("BERT base classifier", 109_483_778),  # as the model's own name says it
    ],
)
def test_a_classifier_has_a_small_head(name: str, parameters: int) -> None:
    model = catalog.model(name)
    assert model.parameters == parameters
    assert model.one_answer
    plain = Model.catalog(name[: -len("-classifier")])
    assert "-classifier" in " ".join(Job.of(plain).notes)
    assert "-classifier" not in " ".join(Job.of(model).notes)


def test_a_config_says_that_it_classifies() -> None:
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    labels = {"id2label": {"0": "a", "1": "b", "2": "c"}}
    named = {"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}
    assert Model.from_config({**sizes, **named, **labels}).classes == 3
    assert Model.from_config({**sizes, "model_type": "gpt2"}).classes == 0


def test_every_model_of_the_mixture_kind_uses_a_part_of_itself() -> None:
    active = {one.id: active_parameters(one.model) for one in PUBLISHED if one.model.experts}
    assert active["mixtral-8x7b"] == pytest.approx(12.9e9, rel=0.01)
    assert active["qwen3-30b-a3b"] == pytest.approx(3.35e9, rel=0.02)
    assert active["qwen3-235b-a22b"] == pytest.approx(22.2e9, rel=0.01)
    assert active["deepseek-v3"] == pytest.approx(37.5e9, rel=0.02)


@pytest.mark.parametrize("one", GPUS, ids=lambda one: one.id)
def test_accelerator_in_range(one: accelerators.Accelerator) -> None:
    assert 8e9 < one.memory_bytes < 320e9
    assert one.source
    assert len(one.date) == len("2026-08-22")
    if one.memory_bytes_per_second is not None:
        assert 1.5e11 < one.memory_bytes_per_second < 9e12
    for rate in ("bf16", "fp16", "fp8", "tf32", "fp32"):
        value = one.peak_flops(rate)
        assert value is None or 1e12 < value < 6e15
    assert (
        one.bf16_flops is None or one.bf16_flops <= 2.6e15
    )  # B300's sparse figure would be 4.5e15
    assert one.tdp_w is None or 50 < one.tdp_w <= 1500


# The sparse figures on the data sheets' front pages, TFLOP/s: none of them may be taken for dense.
SPARSE = {
    "h100-sxm": (1979, 3958),
    "h100-pcie": (1513, 3026),
    "a100-sxm-80": (624,),
    "l40s": (733, 1466),
    "rtx-4090": (330.3, 660.6),
    "rtx-3090": (142,),
    "l4": (242, 485),
    "a40": (299.4,),
    "b200-sxm": (4500, 9000),
    "h200-sxm": (1979, 3958),
}


def test_rates_are_dense() -> None:
    for one in GPUS:
        if one.vendor == "NVIDIA" and one.fp8_flops and one.bf16_flops:
            assert one.fp8_flops == pytest.approx(2 * one.bf16_flops, rel=0.02), one.id
        if one.vendor == "NVIDIA" and one.tf32_flops and one.bf16_flops:
            assert one.tf32_flops == pytest.approx(one.bf16_flops / 2, rel=0.02), one.id
    for name, figures in SPARSE.items():
        one = catalog.gpu(name)
        assert one.bf16_flops not in {figure * 1e12 for figure in figures}
        assert one.fp8_flops is None or one.fp8_flops != figures[-1] * 1e12


def test_known_library_errors_are_not_copied() -> None:
    assert catalog.gpu("a10g").bf16_flops == 70e12  # not the A10's 125
    assert catalog.gpu("rtx-4090").bf16_flops == 165.2e12  # not the shader rate 82.6
    assert catalog.gpu("mi300x").memory_bytes_per_second == 5.3e12
    assert catalog.gpu("l40s").tdp_w == 350
    assert "HBM2e" in (catalog.gpu("h100-pcie").memory_type, catalog.gpu("a100").memory_type)


def test_links_are_one_way() -> None:
    with accelerators.FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["scaleup_uni_gbs"]:
                assert float(row["scaleup_uni_gbs"]) <= float(row["scaleup_bidir_gbs"]) / 2
    assert catalog.gpu("h100").link_bytes_per_second == 450e9
    assert catalog.gpu("a100").link_bytes_per_second == 300e9
    assert catalog.gpu("h100").has_link
    assert not catalog.gpu("rtx-4090").has_link


def test_unknown_is_none_never_zero() -> None:
    assert catalog.gpu("t4").peak_flops("bf16") is None
    assert catalog.gpu("tpu-v5e").tdp_w is None
    for one in GPUS:
        for field in one.__slots__:
            assert getattr(one, field) != 0, (one.id, field)
    with pytest.raises(UsageError, match="Unknown precision 'fp61'"):
        catalog.gpu("t4").peak_flops("fp61")


def test_unverified_names_are_fields() -> None:
    for one in GPUS:
        assert set(one.unverified) <= set(one.__slots__), one.id
    assert "memory_bytes" in catalog.gpu("tpu-v4").unverified
    assert "memory_bytes" not in catalog.gpu("h100").unverified


def test_a_cluster_can_be_kept_as_json() -> None:
    """run.json holds the cluster, its accelerator included."""
    document = json.loads(json.dumps(asdict(Cluster.rented("h100", 2, 2, network="100 ethernet"))))
    assert document["accelerator"]["id"] == "h100-sxm"


def test_accelerators_are_unique_and_all_that_the_articles_name_are_there() -> None:
    known: dict[frozenset[str], str] = {}
    for one in GPUS:
        for name in (one.id, one.name, *one.aliases):
            assert known.setdefault(accelerators._words(name), one.id) == one.id
    for name in ("A100", "H100", "H200", "B200", "L40S", "MI300X", "RTX 4090", "RTX A6000", "V100"):
        assert catalog.gpu(name)
    assert len(GPUS) >= 61


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100", "h100-sxm"),
        ("h100-80gb", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("H100-SXM-96GB-HBM2e", "h100-sxm-96"),
        ("A100 80GB", "a100-sxm-80"),
        ("A100 40 GB", "a100-sxm-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40"),
        ("A800-80GB", "a800-80"),
        ("RTX4090", "rtx-4090"),
        ("RTX 3090 Ti", "rtx-3090ti"),
        ("3080", "rtx-3080"),
        ("RTX 3080 Ti", "rtx-3080ti"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070"),
        ("RTX 4070 SUPER", "rtx-4070-super"),
        ("RTX4070Ti", "rtx-4070ti"),
        ("RTX 4070 Ti SUPER", "rtx-4070ti-super"),
        ("RTX 5000 Ada", "rtx-5000-ada"),
        ("Quadro RTX 8000", "rtx-8000-turing"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32"),
        ("H20", "h20"),
        ("A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Quadro RTX 6000", "rtx-6000-turing"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Gaudi 3", "gaudi3"),
        ("a100_40g", "a100-sxm-40"),
        ("rtx-3090-ti", "rtx-3090ti"),
        ("RTX6000Ada", "rtx-6000-ada"),
        ("B200 180GB", "b200-sxm"),
        ("A10G", "a10g"),
    ],
)
def test_accelerator_names_are_tolerant(name: str, found: str) -> None:
    assert catalog.gpu(name).id == found


@pytest.mark.parametrize("name", ["8x H100", "H100 80GB HBM3e", "NVIDIA H100 MIG 1g.10gb"])
def test_near_names_are_of_the_chip_that_is_named(name: str) -> None:
    with pytest.raises(UnknownNameError, match="h100-sxm") as refused:
        catalog.gpu(name)
    assert "a100" not in str(refused.value)


def test_loading_is_quick_and_needs_no_torch() -> None:
    code = (
        "import sys, time, workbench.describe.catalog as c; start = time.process_time();"
        "c.model('llama-3-8b'); c.gpu('h100'); print(time.process_time() - start);"
        "assert not {'torch', 'numpy', 'transformers'} & set(sys.modules)"
    )
    seconds = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], capture_output=True, text=True, check=True
            ).stdout
        )
        for _ in range(3)
    ]
    assert not over_budget(min(seconds), 0.020)


def test_a_second_look_is_cached() -> None:
    assert catalog.model("gpt2") is catalog.model("gpt2")
    assert not over_budget(least_seconds(lambda: catalog.models() == catalog.models()), 0.005)
