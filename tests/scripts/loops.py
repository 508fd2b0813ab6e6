"""Training loops of several kinds, none of which knows the workbench."""

import argparse
import contextlib
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("kind")
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--data-seconds", type=float, default=0.0)
parser.add_argument("--step-seconds", type=float, default=0.0)
options = parser.parse_args()


class Rows(Dataset):
    """Named token ids, some masked; slow on request."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        time.sleep(options.data_seconds)
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(8, generator=generator)
        mask = torch.ones(10, dtype=torch.long)
        mask[7:] = 0
        return {"x": x, "input_ids": torch.arange(10), "attention_mask": mask}


def loss_of(model, x):
    return (model(x).squeeze(-1) - x.sum(-1)).pow(2).mean()


def loader(*, distributed, set_epoch=True, epochs=2):
    """Batches of two epochs or more."""
    sampler = DistributedSampler(Rows()) if distributed else None
    made = DataLoader(Rows(), batch_size=4, sampler=sampler, shuffle=sampler is None)
    for epoch in range(epochs):
        if set_epoch and sampler is not None:
            sampler.set_epoch(epoch)
        for batch in made:
            yield batch
            if options.steps <= 2:
                break


def plain(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


def divided():
    """nanoGPT's way: each micro-batch's loss is divided before backward, the group of 4."""
    model = torch.nn.Linear(8, 1)
    optimizer = plain(model)
    batches = loader(distributed=False)
    for _ in range(options.steps):
        losses = []
        for _ in range(4):
            loss = loss_of(model, next(batches)["x"])
            losses.append(loss.item())
            (loss / 4).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print("loss", sum(losses) / 4)


def compiled_step(*, function):
    """The optimizer's step is compiled: its method, or a function of the script around it."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def call():
        optimizer.step()

    step = torch.compile(call if function else optimizer.step, backend="eager")
    batches = loader(distributed=False)
    for _ in range(options.steps):
        loss = loss_of(model, next(batches)["x"])
        if not function:
            optimizer.zero_grad()
        loss.backward()
        step()
        if function:
            optimizer.zero_grad()
        print("loss", loss.item())


def compiled_loop():
    """Forward pass, backward pass and step are one compiled function."""
    model = torch.nn.Linear(8, 1)
    optimizer = plain(model)
    batches = loader(distributed=False)

    def train(x):
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()

    train = torch.compile(train, backend="eager")
    for _ in range(options.steps):
        train(next(batches)["x"])


def gan():
    """Two optimizers with a backward of their own each."""
    ours, theirs = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
    if dist.is_initialized():
        ours, theirs = DistributedDataParallel(ours), DistributedDataParallel(theirs)
    for_theirs, for_ours = plain(theirs), plain(ours)
    for _ in range(options.steps):
        noise = torch.randn(4, 8)
        for_theirs.zero_grad()
        real = theirs(torch.randn(4, 8)).pow(2).mean()
        real.backward()
        theirs(ours(noise).detach()).pow(2).mean().backward()
        for_theirs.step()
        for_ours.zero_grad()
        loss = theirs(ours(noise)).pow(2).mean() + 100
        loss.backward()
        for_ours.step()


def ddp(*, set_epoch=True, distributed=True, unused=False, compiled=False):
    """DDP over a loader; what tutorials forget on request."""
    inner = torch.nn.ModuleDict({"used": torch.nn.Linear(8, 1), "spare": torch.nn.Linear(8, 1)})

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = inner if unused else inner["used"]

        def forward(self, x):
            return (self.parts["used"] if unused else self.parts)(x)

    model = DistributedDataParallel(Model(), find_unused_parameters=unused)
    called = torch.compile(model, backend="eager") if compiled else model
    optimizer = plain(model)
    for step, batch in enumerate(loader(distributed=distributed, set_epoch=set_epoch, epochs=9)):
        if step == options.steps:
            return
        loss = loss_of(called, batch["x"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(options.step_seconds)
        print("loss", loss.item())


def by_task():
    """A head per task, one task a step, over a stream that each rank takes its part of."""
    heads = torch.nn.ModuleDict({"even": torch.nn.Linear(8, 1), "odd": torch.nn.Linear(8, 1)})

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = heads

        def forward(self, x, task):
            return self.heads[task](x)

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            for number in range(dist.get_rank(), 8 * options.steps, dist.get_world_size()):
                yield torch.full((8,), float(number))

    model = DistributedDataParallel(Model(), find_unused_parameters=True)
    optimizer = plain(model)
    for step, batch in enumerate(torch.utils.data.DataLoader(Stream(), batch_size=4)):
        loss = model(batch, ("even", "odd")[step % 2]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def own_fetch():
    """DDP without a DataLoader: the loop makes its batches itself."""
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = plain(model)
    for step in range(options.steps):
        time.sleep(options.data_seconds)
        loss = loss_of(model, torch.randn(4, 8))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 1:  # an evaluation makes the next interval unknown
            model.eval()
            with torch.no_grad():
                model(torch.randn(4, 8))
            model.train()


def fsdp2():
    """fully_shard, clipping with a norm that lies spread over the ranks."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 1))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(options.steps):
        loss = loss_of(model, torch.randn(4, 8))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        print("norm", norm.full_tensor().item())
        optimizer.step()
        optimizer.zero_grad()


def closure():
    """Lightning's way: forward and backward inside optimizer.step."""
    model = torch.nn.Linear(8, 1)
    optimizer = plain(model)

    def call():
        optimizer.zero_grad()
        loss = loss_of(model, torch.randn(4, 8))
        loss.backward()
        return loss

    for _ in range(options.steps):
        optimizer.step(call)


def assigned():
    """Gradients by torch.autograd.grad, assigned by hand."""
    model = torch.nn.Linear(8, 1)
    optimizer = plain(model)
    for _ in range(options.steps):
        found = torch.autograd.grad(loss_of(model, torch.randn(4, 8)), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient
        optimizer.step()


def transformed(*, aux=False):
    """Gradients by torch.func of a functional call, whose loss has one of its own inside."""
    model = torch.nn.Linear(8, 1)
    optimizer = plain(model)

    def of_weights(weights, inputs):
        loss = loss_of(lambda rows: torch.func.functional_call(model, weights, (rows,)), inputs)
        slope = torch.func.grad(lambda weight: (weight * weight).sum())(weights["weight"])
        loss = loss + 0.001 * slope.pow(2).sum()
        return (loss, loss.detach()) if aux else loss

    for _ in range(options.steps):
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        inputs = torch.randn(4, 8)
        if aux:
            gradients, loss = torch.func.grad(of_weights, has_aux=True)(weights, inputs)
        else:
            gradients, loss = torch.func.grad_and_value(of_weights)(weights, inputs)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        print("loss", loss.item())


def deepspeed():
    """DeepSpeed's engine, two micro-batches a step."""
    import importlib

    import deepspeed as library

    # As workbench/launching/prepare/cpu_ranks.py has it: gloo alone, nothing is compiled at first use.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    model = torch.nn.Linear(8, 1)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
        "zero_optimization": {"stage": 1},
        "bf16": {"enabled": True},
    }
    engine, *_ = library.initialize(model=model, config=config)
    for _ in range(options.steps):
        losses = []
        for _ in range(2):
            loss = loss_of(engine, torch.randn(4, 8, dtype=torch.bfloat16))
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        print("loss", sum(losses) / 2, "norm", float(engine.get_global_grad_norm()))


def by_hand():
    """An evolution strategy: gradients without any backward pass."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    model = torch.nn.Linear(8, 1)
    optimizer = plain(model)
    get_optimizer_state_dict(model, optimizer)  # a step with gradients of zero makes the states
    for _ in range(options.steps):
        time.sleep(options.step_seconds)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()


def drawn():
    """Agents of which one is drawn by chance at each turn."""
    agents = [torch.nn.Linear(8, 1) for _ in range(4)]
    optimizers = [plain(agent) for agent in agents]
    for _ in range(options.steps):
        at = int(torch.randint(4, ()))
        loss = loss_of(agents[at], torch.randn(4, 8))
        optimizers[at].zero_grad()
        loss.backward()
        optimizers[at].step()
        print("loss", loss.item())


def folds():
    """Folds that are trained side by side, three batches each."""
    models = [torch.nn.Linear(8, 1) for _ in range(3)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for _ in range(options.steps):
        for model, optimizer in zip(models, optimizers, strict=True):
            for _ in range(3):
                loss = loss_of(model, torch.randn(4, 8))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print("loss", loss.item())


def own_update():
    """Backward passes without an optimizer: the loop tells its loss itself."""
    from workbench.launching.capture.log_values import log

    model = torch.nn.Linear(8, 1)
    for _ in range(options.steps):
        loss = loss_of(model, torch.randn(4, 8))
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.01 * parameter.grad)
        model.zero_grad()
        log(loss=loss.item())
        print("loss", loss.item())


def nothing_of_torch():
    """No optimizer at all: the loop tells its loss itself."""
    from workbench.launching.capture.log_values import log

    for step in range(1, options.steps + 1):
        log(loss=1 / step, accuracy=0.5, note="half" * (step == 2))
        time.sleep(options.step_seconds)


KINDS = {
    "divided": divided,
    "compiled-step": lambda: compiled_step(function=False),
    "compiled-function": lambda: compiled_step(function=True),
    "compiled-loop": compiled_loop,
    "gan": gan,
    "ddp": ddp,
    "forgetful": lambda: ddp(set_epoch=False, unused=True),
    "by-task": by_task,
    "same-data": lambda: ddp(distributed=False, compiled=True),
    "own-fetch": own_fetch,
    "fsdp2": fsdp2,
    "closure": closure,
    "assigned": assigned,
    "transformed": transformed,
    "transformed-aux": lambda: transformed(aux=True),
    "deepspeed": deepspeed,
    "by-hand": by_hand,
    "drawn": drawn,
    "folds": folds,
    "own-update": own_update,
    "said": nothing_of_torch,
}
world = int(os.environ.get("WORLD_SIZE", "1"))
if world > 1 and options.kind != "deepspeed":
    dist.init_process_group("gloo")
torch.manual_seed(0)
with contextlib.suppress(StopIteration):
    KINDS[options.kind]()
if world > 1 and dist.is_initialized():
    dist.barrier()
    dist.destroy_process_group()
