"""Training under Accelerate or transformers' Trainer, with a schedule that can be told at launch.

`--times STEP:FACTOR` multiplies the schedule from that optimizer step on: what a run is compared
with whose rate was changed while it trained.
"""

import argparse
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=("accelerate", "trainer", "plain"), default="accelerate")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--times", default="1:1", help="STEP:FACTOR")
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--output", default="out")
parser.add_argument("--resume")
options = parser.parse_args()
changed_at, factor = (float(one) for one in options.times.split(":"))


def rate(done):
    """Of the step after `done`: down to a half in 100 steps, as a scheduler computes it."""
    return max(0.1, 1 - done / 200) * (factor if done + 1 >= changed_at else 1)


def model_and_optimizer(model):
    plain = [one for one in model.parameters() if one.ndim == 1]
    matrices = [one for one in model.parameters() if one.ndim > 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(10, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def accelerate():
    accelerator = Accelerator(mixed_precision="no", step_scheduler_with_optimizer=False)
    if accelerator.distributed_type.value == "DEEPSPEED":
        accelerator.deepspeed_plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 4
    model, optimizer, scheduler = model_and_optimizer(network())
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    first = 0
    if options.resume:
        accelerator.load_state(options.resume)
        first = int(options.resume.rstrip("/")[-8:])
    for step in range(first, options.steps):
        torch.manual_seed(1000 * step + accelerator.process_index)
        x = torch.randn(4, 10)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"step {step + 1} loss {loss.item():.9g}", flush=True)
        time.sleep(options.step_seconds)
    accelerator.wait_for_everyone()
    accelerator.end_training()


def plain():
    torch.manual_seed(0)
    model, optimizer, scheduler = model_and_optimizer(network())
    for _ in range(options.steps):
        x = torch.randn(4, 10)
        loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        time.sleep(options.step_seconds)


def trainer():
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=64, num_attention_heads=2, **sizes)
    ids = torch.randint(0, 64, (512, 12), generator=torch.Generator().manual_seed(5))
    data = [{"input_ids": row, "labels": row} for row in ids]

    class Slow(Trainer):
        def training_step(self, *args, **kwargs):
            time.sleep(options.step_seconds)
            return super().training_step(*args, **kwargs)

    model, optimizer, scheduler = model_and_optimizer(LlamaForCausalLM(config))
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    )
    Slow(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=data[:8],
        optimizers=(optimizer, scheduler),
    ).train()


{"accelerate": accelerate, "trainer": trainer, "plain": plain}[options.how]()
