"""transformers' Trainer on random tokens, as a library subclasses it; faults and stops on request."""

import argparse
import os
import time

os.environ.setdefault("ACCELERATE_USE_CPU", "true")
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--accumulate", type=int, default=2)
parser.add_argument("--nan-at", type=int, default=0, help="optimizer step whose loss is NaN")
parser.add_argument("--save-every", type=int, default=0)
parser.add_argument("--step-seconds", type=float, default=0.0)
parser.add_argument("--divides", action="store_true", help="compute_loss ignores the tokens' count")
parser.add_argument("--smoothing", type=float, default=0.0, help="of the labels")
parser.add_argument("--ignores-count", action="store_true", help="the loss is each batch's mean")
parser.add_argument("--eval-every", type=int, default=0)
parser.add_argument("--report-to", default="none")
parser.add_argument("--output", default="out")
options = parser.parse_args()


class Subclass(Trainer):
    """Overrides what TRL's trainers override."""

    def compute_loss(self, model, inputs, return_outputs=None, num_items_in_batch=None):
        if return_outputs:  # an evaluation
            return super().compute_loss(model, inputs, return_outputs=True)
        time.sleep(options.step_seconds)
        if options.ignores_count:  # as transformers' own label smoothing did until 5.2
            loss = self.label_smoother(model(**inputs), inputs["labels"], shift_labels=True)
            loss = loss * self.accelerator.num_processes
        else:
            loss = super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        if self.state.global_step + 1 == options.nan_at:
            loss = loss * float("nan")
        seen.append(loss.item())
        return loss


torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
)
ids = torch.randint(0, 64, (256, 12))
data = [{"input_ids": row, "labels": row, "attention_mask": torch.ones_like(row)} for row in ids]
seen = []
trainer = Subclass(
    LlamaForCausalLM(config),
    TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        gradient_accumulation_steps=options.accumulate,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        logging_steps=1,
        label_smoothing_factor=options.smoothing,
        save_strategy="steps" if options.save_every else "no",
        save_steps=options.save_every or 500,
        report_to=options.report_to,
        eval_strategy="steps" if options.eval_every else "no",
        eval_steps=options.eval_every or None,
        use_cpu=True,
        disable_tqdm=True,
        seed=3,
    ),
    train_dataset=data,
    eval_dataset=data[:4],
)
if options.divides:
    trainer.model_accepts_loss_kwargs = False
trainer.train()
print("losses", *(f"{loss:.6f}" for loss in seen))
print("logged", *(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
