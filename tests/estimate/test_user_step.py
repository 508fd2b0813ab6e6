"""A user's own step as it stands in a CUDA script, simulated where there is no CUDA.

The counts come from elsewhere: the peak of the same step on real CPU tensors under a ledger of live
storages, or bytes known from the shapes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.estimate.simulation_child import SimulationChild
from workbench.describe import Strategy
from workbench.describe.job import Job
from workbench.estimate.memory import training_memory
from workbench.estimate.simulate import SimulationUnavailable

MIB = 1 << 20


@pytest.fixture(scope="module")
def child() -> Iterator[SimulationChild]:
    kept = SimulationChild()
    yield kept
    kept.close()


def images_and_words(device: str) -> Any:
    """Layers whose backward passes allocate in torch's C++, on `device`."""
    import torch
    from torch import nn

    image = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
    image = nn.Sequential(image, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 16 * 16, 64))
    image = image.to(device)
    words = nn.Sequential(
        nn.Embedding(1000, 64), nn.TransformerEncoderLayer(64, 4, dropout=0.0, batch_first=True)
    ).to(torch.device(device))
    parameters = [*image.parameters(), *words.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)

    def step() -> None:
        pixels = torch.randn(32, 3, 32, 32, device=device)
        tokens = torch.randint(0, 1000, (32, 20), device=device)
        hidden = words(tokens)
        best = torch.topk(hidden, 3, dim=1).indices
        chosen = torch.gather(hidden, 1, best)[:, torch.tensor([0, 2], device=device)]
        loss = nn.functional.cross_entropy(image(pixels), tokens[:, 0].remainder(64))
        (loss + chosen.masked_fill(chosen < 0, 0.0).select(1, 1).mean()).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.slow
def test_a_step_on_cuda_takes_what_the_same_step_takes_in_a_ledger(child: SimulationChild) -> None:
    from tests.measure.ledger import Ledger

    ledger = Ledger()
    with ledger:
        step = images_and_words("cpu")
        step()
        ledger.counting = True
        step()

    def on_cuda() -> Any:
        return images_and_words("cuda")

    simulated = child.simulate(on_cuda)
    assert simulated.allocated_bytes == pytest.approx(ledger.peak, rel=0.03)
    assert any("host memory" in text for text in simulated.assumptions)


def test_cuda_is_seen_host_memory_is_not_counted_and_queries_answer(child: SimulationChild) -> None:
    def job() -> Any:
        import torch

        assert torch.cuda.is_available()
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
        assert model.weight.is_cuda
        assert model.weight.device == torch.device("cuda:0")
        data = torch.randn(1 << 20, 16).pin_memory()  # 64 MiB of the host
        optimizer = torch.optim.AdamW(model.parameters())
        table = torch.zeros(1024, device="cuda:0")

        def step() -> None:
            rows = data[:64, :1].to(device, non_blocking=True).expand(64, 1024)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                product = model(rows)
            assert product.dtype == torch.bfloat16
            assert product.is_cuda
            (product.float() + table).square().mean().backward()
            kept = product.detach().float().cpu()
            assert not kept.is_cuda
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            del rows, product, kept
            # weights, two moments and the table: nothing else outlives the step
            assert torch.cuda.memory_allocated() == 3 * 4 * 1024 * 1024 + 4096
            assert torch.cuda.max_memory_allocated() > torch.cuda.memory_allocated()
            free, total = torch.cuda.mem_get_info()
            assert total - free == torch.cuda.memory_allocated()

        return step

    simulated = child.simulate(job)
    assert simulated.parts["parameters"] == 4 * MIB
    assert simulated.parts["optimizer states"] == 8 * MIB
    assert simulated.allocated_bytes < 32 * MIB  # the host's 64 MiB are not in it


def test_a_step_with_a_gradient_scaler(child: SimulationChild) -> None:
    def job() -> Any:
        import torch

        model = torch.nn.Linear(512, 512, bias=False, device="cuda")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda")

        def step() -> None:
            with torch.autocast("cuda"):
                product = model(torch.randn(8, 512, device="cuda"))
            assert product.dtype == torch.float16
            scaler.scale(product.float().sum()).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return step

    parts = child.simulate(job).parts
    assert parts["parameters"] == parts["gradients"] == parts["optimizer states"] == MIB


@pytest.mark.parametrize("copies", [2, 1])
def test_ddp_in_the_step_has_its_buckets(child: SimulationChild, copies: int) -> None:
    views = copies == 1  # the gradients lie in the buckets

    def job() -> Any:
        import os

        import torch
        import torch.distributed as dist

        dist.init_process_group("nccl")
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        layers = [torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers).cuda(), device_ids=[0], gradient_as_bucket_view=views
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)

        def step() -> None:
            if not views:
                with model.no_sync():
                    model(torch.randn(8, 1024)).sum().backward()
            model(torch.randn(8, 1024)).sum().backward()
            gradients = sum(each.grad.nbytes for each in model.parameters())
            assert gradients == 16 * MIB
            optimizer.step()
            optimizer.zero_grad(set_to_none=not views)

        return step

    for strategy in (None, Strategy.parse("ddp", 4)):
        parts = child.simulate(job, strategy).parts
        assert parts["parameters"] == 16 * MIB
        assert parts["gradients"] == copies * 16 * MIB


def test_fsdp_on_a_mesh_of_cuda_devices(child: SimulationChild) -> None:
    def job() -> Any:
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        model = torch.nn.Sequential(
            *[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]
        ).cuda()
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())

        def step() -> None:
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    parts = child.simulate(job, Strategy.parse("fsdp", 4)).parts
    assert parts["parameters"] == 16 * MIB // 4
    assert parts["optimizer states"] == 2 * 16 * MIB // 4


@pytest.mark.slow
def test_a_peft_model_trains_its_adapters(child: SimulationChild) -> None:
    def job() -> Any:
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        shape = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
        config = LlamaConfig(vocab_size=1000, num_attention_heads=4, num_key_value_heads=2, **shape)
        base = LlamaForCausalLM(config).to(torch.bfloat16)
        adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(base, adapters).cuda()
        trained = [each for each in model.parameters() if each.requires_grad]
        assert all(each.dtype == torch.float32 for each in trained)
        optimizer = torch.optim.AdamW(trained)
        tokens = torch.randint(0, 1000, (2, 64)).cuda()

        def step() -> None:
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    parts = child.simulate(job).parts
    layer = 2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512 + 2 * 256
    base = 2 * 1000 * 256 + 256 + 2 * layer
    adapters = 2 * (8 * (256 + 256) + 8 * (256 + 128))
    assert parts["parameters"] == pytest.approx(2 * base + 4 * adapters, rel=0.01)
    assert parts["optimizer states"] == 2 * 4 * adapters


@pytest.mark.slow
def test_a_classifier_of_transformers_is_what_the_closed_form_says(child: SimulationChild) -> None:
    def job() -> Any:
        import torch
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(attn_implementation="sdpa", attention_probs_dropout_prob=0.0)
        model = BertForSequenceClassification(config).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        tokens = torch.randint(0, 1000, (16, 512), device="cuda")
        labels = torch.randint(0, 2, (16,), device="cuda")

        def step() -> None:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = model(input_ids=tokens, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    simulated = child.simulate(job)
    described = Job.of(
        "bert-base-uncased-classifier", gpu="t4", micro_batch=16, seq_len=512, precision="fp16"
    )
    closed = training_memory(described)
    assert closed.allocated_bytes == pytest.approx(simulated.allocated_bytes, rel=0.05)


@pytest.mark.slow
def test_eight_bit_adam_of_bitsandbytes_in_the_step(child: SimulationChild) -> None:
    pytest.importorskip("bitsandbytes")

    def job() -> Any:
        import torch
        from bitsandbytes.optim import AdamW8bit

        model = torch.nn.Linear(512, 512, bias=False).cuda()
        optimizer = AdamW8bit(model.parameters())

        def step() -> None:
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    # two moments of a byte, a maximum in fp32 per 256 of each, and the two tables of levels
    moments = 2 * (512 * 512 + 4 * 512 * 512 // 256) + 2 * 256 * 4
    assert child.simulate(job).parts["optimizer states"] == moments


@pytest.mark.slow
def test_libraries_that_need_real_memory_are_refused_with_what_to_do(
    child: SimulationChild,
) -> None:
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("deepspeed")

    def packed() -> Any:
        from bitsandbytes.nn import Linear4bit

        return Linear4bit(512, 512).cuda

    def engine() -> Any:
        import deepspeed
        import torch

        zero = {"train_batch_size": 1, "zero_optimization": {"stage": 1}}
        return deepspeed.initialize(model=torch.nn.Linear(64, 64), config=zero)[0]

    with pytest.raises(SimulationUnavailable, match="Workload with quantization='nf4'"):
        child.simulate(packed)
    with pytest.raises(SimulationUnavailable, match="fully_shard"):
        child.simulate(engine)
