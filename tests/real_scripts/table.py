"""Public training scripts that nobody here wrote, and what is made for them to run offline.

A script is run as it lies in its repository: no line of it is changed or copied here.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.real_scripts import data


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One public script, and what must be recorded of it."""

    name: str
    """Repository and file, as people know it."""
    repository: str
    """owner/name; "" where an installed package brings it."""
    path: str
    """The file in its repository, or the installed module by name."""
    arguments: tuple[str, ...] = ()
    """Its own command line; {work} is the folder it runs in."""
    strategy: str = "ddp"
    """How it is launched."""
    processes: int = 2
    """Ranks."""
    needs: tuple[str, ...] = ()
    """Packages that it imports and that may not be installed."""
    prepare: Callable[[Path, Path], None] = data.no_data
    """Makes its data in the work folder or the checkout."""
    import_root: bool = False
    """Whether it imports its own repository's root."""
    in_root: bool = False
    """Whether it runs in its checkout instead of a folder of its own."""
    stops_at: int = 0
    """Steps after which it is stopped; 0 = it ends by itself."""
    outcomes: tuple[str, ...] = ("succeeded",)
    """How it may end on a host without a GPU."""
    loss_falls: bool = True
    """Whether so few steps must already lower the loss."""
    steps: bool = True
    """Whether it takes optimizer steps at all."""
    environment: dict[str, str] = field(default_factory=dict[str, str])
    """More variables for its ranks; {work} is the folder it runs in."""
    checkpoints: bool = False
    """Whether its own checkpoints must have been noted."""

    def file(self, sources: Path) -> Path | None:
        """Where it lies; None when its checkout or package is missing."""
        if not self.repository:
            spec = importlib.util.find_spec(self.path)
            return Path(spec.origin) if spec is not None and spec.origin else None
        path = self.root(sources) / self.path
        return path if path.is_file() else None

    def root(self, sources: Path) -> Path:
        """Its checkout: <sources>/<owner>__<name>."""
        return sources / self.repository.replace("/", "__")

    def missing(self) -> list[str]:
        """Packages it needs that are not installed."""
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


NANOGPT = (
    *("config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=2"),
    *("--log_interval=5", "--block_size=32", "--batch_size=4", "--n_layer=2", "--n_head=2"),
    *("--n_embd=32", "--max_iters=60", "--lr_decay_iters=60", "--dropout=0.0"),
    *("--out_dir={work}/out", "--eval_interval=30", "--gradient_accumulation_steps=2"),
)
TINY_GPT = (
    *("--model.model_type=gpt-nano", "--trainer.batch_size=8", "--trainer.num_workers=0"),
    "--trainer.device=cpu",  # its parser takes no path: it writes to ./out
)
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HOME": "{work}/hf", "WANDB_MODE": "offline"}
GLUE = ("datasets", "evaluate", "sklearn")
TRAINER = (
    *("--output_dir", "{work}/out", "--do_train", "--do_eval", "--max_steps", "20"),
    *("--per_device_train_batch_size", "8", "--logging_steps", "5", "--save_steps", "10"),
    *("--report_to", "none", "--learning_rate", "0.003", "--use_cpu"),
)
ACCELERATE = "huggingface/accelerate"
TRANSFORMERS = "huggingface/transformers"
PYTORCH = "pytorch/examples"
LIGHTNING = "Lightning-AI/pytorch-lightning"


def example(path: str, *arguments: str, **more: object) -> Script:
    """One of pytorch/examples, in one process."""
    options = {"strategy": "single", "processes": 1, "arguments": arguments, **more}
    return Script(name=f"pytorch/examples {path}", repository=PYTORCH, path=path, **options)  # type: ignore[arg-type]


def of_accelerate(path: str, *arguments: str, **more: object) -> Script:
    """One of Accelerate's examples, on MRPC with random labels: its loss need not fall."""
    options = {"arguments": arguments, "needs": GLUE, "prepare": data.glue, **more}
    return Script(
        name=f"accelerate examples/{path}",
        repository=ACCELERATE,
        path=f"examples/{path}",
        environment=OFFLINE,
        loss_falls=False,
        **options,  # type: ignore[arg-type]
    )


def of_transformers(path: str, *arguments: str, **more: object) -> Script:
    """One of transformers' examples, with its Trainer or with Accelerate."""
    return Script(
        name=f"transformers {path}",
        repository=TRANSFORMERS,
        path=f"examples/pytorch/{path}",
        needs=GLUE,
        environment=OFFLINE,
        arguments=arguments,
        **more,  # type: ignore[arg-type]
    )


TEXT_FILES = ("--train_file", "{work}/train.txt", "--validation_file", "{work}/valid.txt")
TINY_MODEL = ("--config_name", "{work}/tiny", "--tokenizer_name", "{work}/tiny")
MRPC = ("--model_name_or_path", "bert-base-cased", "--task_name", "mrpc")
TOO_FEW_GPUS = {
    "steps": False,
    "outcomes": ("no-steps", "failed"),
    "strategy": "ddp",
    "processes": 2,
}
SCRIPTS = (
    Script(
        name="accelerate test_sync.py",
        repository="",
        path="accelerate.test_utils.scripts.test_sync",
        loss_falls=False,
    ),
    Script(
        name="accelerate test_script.py",
        repository="",
        path="accelerate.test_utils.scripts.test_script",
        loss_falls=False,
    ),
    of_accelerate("nlp_example.py"),
    of_accelerate(
        "complete_nlp_example.py",
        *("--checkpointing_steps", "10", "--with_tracking", "--output_dir", "{work}/saved"),
        *("--project_dir", "{work}/logs"),
        checkpoints=True,
    ),
    of_accelerate("by_feature/gradient_accumulation.py", "--gradient_accumulation_steps", "2"),
    of_accelerate(
        "by_feature/checkpointing.py",
        *("--checkpointing_steps", "epoch", "--output_dir", "{work}/saved"),
        checkpoints=True,
    ),
    of_accelerate("by_feature/tracking.py", "--with_tracking", "--project_dir", "{work}/logs"),
    of_accelerate("by_feature/local_sgd.py", "--local_sgd_steps", "4"),
    of_accelerate("by_feature/early_stopping.py"),
    of_accelerate("by_feature/memory.py"),
    of_accelerate("by_feature/multi_process_metrics.py"),
    of_transformers(
        "language-modeling/run_clm.py",
        *(*TEXT_FILES, *TINY_MODEL, *TRAINER, "--block_size", "32"),
        prepare=data.text_and_model,
        checkpoints=True,
    ),
    of_transformers(
        "language-modeling/run_clm_no_trainer.py",
        *(*TEXT_FILES, *TINY_MODEL, "--block_size", "32", "--max_train_steps", "20"),
        *("--output_dir", "{work}/out", "--learning_rate", "0.003"),
        *("--checkpointing_steps", "10"),
        prepare=data.text_and_model,
        checkpoints=True,
    ),
    of_transformers(
        "text-classification/run_glue.py",
        *(*MRPC, *TRAINER, "--max_seq_length", "32"),
        prepare=data.glue,
        loss_falls=False,
        checkpoints=True,
    ),
    Script(
        name="nanoGPT train.py",
        repository="karpathy/nanoGPT",
        path="train.py",
        arguments=NANOGPT,
        strategy="single",
        processes=1,
        prepare=data.shakespeare,
        in_root=True,
    ),
    *(
        Script(
            name=f"minGPT projects/{name}",
            repository="karpathy/minGPT",
            path=f"projects/{name}/{name}.py",
            arguments=TINY_GPT,
            strategy="single",
            processes=1,
            prepare=data.input_text,
            import_root=True,
            stops_at=60,
            outcomes=("stopped",),
        )
        for name in ("adder", "chargpt")
    ),
    example(
        "distributed/tensor_parallelism/tensor_parallel_example.py",
        strategy="ddp",
        processes=2,
        prepare=data.cpu_as_accelerator,
        environment={"PYTHONPATH": "{work}/shim"},
        loss_falls=False,
    ),
    example("distributed/FSDP2/example.py", **TOO_FEW_GPUS),
    example("distributed/ddp/example.py", **TOO_FEW_GPUS),
    example("distributed/ddp-tutorial-series/multigpu_torchrun.py", "2", "1", **TOO_FEW_GPUS),
    example("mnist/main.py", "--epochs", "2", needs=("torchvision",), prepare=data.digits),
    example("vae/main.py", "--epochs", "2", needs=("torchvision",), prepare=data.digits),
    example(
        "mnist_hogwild/main.py",
        *("--epochs", "1"),
        needs=("torchvision",),
        prepare=data.digits,  # its children train, each on its own
    ),
    example(
        "dcgan/main.py",
        *("--dataset", "fake", "--niter", "1", "--imageSize", "64", "--ngf", "4"),
        *("--ndf", "4", "--batchSize", "8", "--workers", "0", "--outf", "{work}"),
        needs=("torchvision",),
        stops_at=20,
        outcomes=("stopped", "succeeded"),
        loss_falls=False,
    ),
    example(
        "word_language_model/main.py",
        *("--data", "{work}", "--epochs", "1", "--emsize", "32", "--nhid", "32", "--lr", "0.01"),
        *("--bptt", "10", "--use-optimizer", "--save", "{work}/model.pt"),
        prepare=data.word_files,
    ),
    example(
        "time_sequence_prediction/train.py",
        *("--steps", "3"),
        needs=("matplotlib",),
        prepare=data.sine_waves,
    ),
    example(
        "regression/main.py",
        steps=False,
        outcomes=("no-steps",),  # it moves its weights by hand
    ),
    example(
        "reinforcement_learning/reinforce.py",
        needs=("gymnasium",),
        stops_at=10,
        outcomes=("stopped", "succeeded"),
        loss_falls=False,
    ),
    Script(
        name="Lightning bug_report_model.py",
        repository=LIGHTNING,
        path="examples/pytorch/bug_report/bug_report_model.py",
        strategy="single",
        processes=1,
        needs=("lightning",),
        loss_falls=False,  # one step
    ),
)
