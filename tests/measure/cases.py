"""The scripts, none in our style, and at which other batch and layout each is checked."""

from __future__ import annotations

from tests.measure.harness import Case

_TRAINER = ("--output_dir", "out", "--use_cpu", "--report_to", "none", "--save_strategy", "no")

CASES = (
    Case(script="plain_loop.py", checked=("--batch-size", "24"), samples=24),
    Case(
        script="hf_trainer.py",
        arguments=(*_TRAINER, "--per_device_train_batch_size", "8"),
        checked=(*_TRAINER, "--per_device_train_batch_size", "20"),
        samples=20,
    ),
    Case(script="nano.py", checked=("--batch_size=14",), samples=14),
    Case(
        script="vit.py",
        environment={"SLURM_BATCH": "20"},
        samples=20,
        strategy="fsdp",
        wrap="TransformerEncoderLayer",
    ),
    Case(script="audio.py", environment={"BS": "20"}, samples=20),
    Case(script="graph.py", checked=("--bs", "40"), samples=40),
    Case(script="recommender.py", environment={"BATCH": "700"}, samples=700),
    Case(script="lstm.py", checked=("--batch_size", "24"), samples=24),
    Case(script="unet.py", checked=("--train-batch-size", "10"), samples=10),
    Case(
        script="accelerate_loop.py",
        checked=("--per-device-batch-size", "18"),
        samples=18,
        strategy="fsdp",
        wrap="Layer",
        steps=3,
    ),
)
