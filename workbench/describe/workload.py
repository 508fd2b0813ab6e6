"""What is trained: the model and the work per optimizer step, with every assumption named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from workbench.describe.implementation import QUANTIZATIONS, ImplementationAssumptions
from workbench.describe.model import Model
from workbench.describe.option import Needs, Option
from workbench.describe.option_limits import check_declared
from workbench.describe.shown import changed_fields
from workbench.describe.stack import StackCalibration
from workbench.errors import UsageError

PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "bf16-pure", "fp16-pure")
OPTIMIZERS = (
    *("adamw", "adamw-fused", "adamw-8bit", "adamw-4bit", "paged-adamw", "paged-adamw-8bit"),
    *("adafactor", "sgd", "sgd-momentum", "lion", "lion-8bit", "muon"),
)
ATTENTIONS = ("sdpa", "flash", "eager")
LOSSES = ("full", "chunked", "chunked-output", "fused")
MOST_TOKENS = 2**24
"""Of a sequence; and sequences of a micro-batch, micro-batches of a step: more is a mistake."""
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step of a training job, per data-parallel rank where not said otherwise."""

    __repr__ = changed_fields

    model: Model
    """The model that is trained."""
    seq_len: Annotated[
        int,
        Option(
            help="Tokens per sequence [default: 2048, or as many as the model has positions].",
            least=1,
            most=MOST_TOKENS,
        ),
    ]
    """Tokens per sequence (vision: ignored, the patches decide)."""
    micro_batch: Annotated[
        int, Option(help="Sequences per forward pass and GPU.", least=1, most=MOST_TOKENS)
    ] = 1
    """Sequences per forward pass and rank."""
    accumulate: Annotated[
        int, Option(help="Micro-batches per optimizer step.", least=1, most=MOST_TOKENS)
    ] = 1
    """Micro-batches per optimizer step; with pipeline stages the micro-batches of its schedule."""
    precision: Annotated[
        str, Option(help="fp32, bf16, fp16, fp8 (mixed), bf16-pure, fp16-pure.", choices=PRECISIONS)
    ] = "bf16"
    """fp32; bf16, fp16, fp8: mixed (fp32 weights or fp32 master copy); -pure: all in that type."""
    optimizer: Annotated[
        str, Option(help="adamw, adamw-fused, adamw-8bit, …, sgd.", choices=OPTIMIZERS)
    ] = "adamw"
    """adamw is torch's default (foreach); see `OPTIMIZERS`."""
    lora_rank: Annotated[
        int, Option(help="Rank of LoRA adapters; 0 = train everything.", least=0)
    ] = 0
    """Rank of LoRA adapters; 0 = all parameters are trained."""
    lora_targets: Annotated[
        tuple[str, ...],
        Option(
            help="Layers with adapters.",
            choices=LORA_TARGETS,
            metavar="T,T",
            split="commas",
            singular="lora target",
        ),
        Needs(fact="lora_rank"),
    ] = ("q", "v")
    """Linear layers with adapters, of `LORA_TARGETS`."""
    adapter_bytes: Annotated[
        int | None,
        Option(help="Bytes per adapter weight.", choices=(2, 4)),
        Needs(fact="lora_rank"),
    ] = None
    """Bytes per adapter weight; None = 4 in mixed precision (PEFT), 2 in pure bf16."""
    quantization: Annotated[
        str,
        Option(
            help="Frozen weights of LoRA: none, int8, int4, nf4, nf4-dq.", choices=QUANTIZATIONS
        ),
    ] = "none"
    """Storage of frozen base weights: none, int8, int4 (GPTQ), nf4, nf4-dq (double quantized)."""
    quantized_head: Annotated[
        bool,
        Option(help="The head is quantized too.", off_flag="no-quantized-head"),
        Needs(fact="quantization", values=QUANTIZATIONS[1:]),
    ] = False
    """The head's matrix is quantized like the blocks' (transformers leaves it out)."""
    trained_layers: Annotated[
        int | None, Option(help="Train only the last so many blocks.", least=0)
    ] = None
    """Only the last so many blocks (and the head) are trained; None = all of them."""
    attention: Annotated[str, Option(help="sdpa, flash, eager.", choices=ATTENTIONS)] = "sdpa"
    """sdpa or flash (no score matrix is kept), eager (scores are kept)."""
    attention_mask: Annotated[
        bool, Option(help="A mask is materialised.", off_flag="no-attention-mask")
    ] = False
    """A [batch, 1, seq, seq] mask is materialised (padding or packing with sdpa)."""
    loss: Annotated[
        str,
        Option(help="full, chunked, chunked-output, fused.", choices=LOSSES),
        Needs(fact="model.one_answer", values=(False,), text="an answer per token"),
    ] = "full"
    """full: logits of all tokens at once; chunked: logits are made and dropped chunk by chunk;
    chunked-output: logits are kept in low precision, the softmax runs in chunks (torchtune);
    fused: Liger, no logits are kept."""
    loss_chunks: Annotated[
        int,
        Option(help="Chunks of the chunked loss.", least=1),
        Needs(fact="loss", values=("chunked", "chunked-output")),
    ] = 8
    """Chunks of the chunked loss."""
    variable_length: Annotated[
        bool, Option(help="Batches differ in length.", off_flag="no-variable-length")
    ] = False
    """Batches differ in length (SFT without packing): the allocator's cache fragments."""
    keep_logits: Annotated[
        bool,
        Option(help="The model's output outlives backward.", off_flag="no-keep-logits"),
        Needs(fact="loss", values=("full",)),
    ] = False
    """The caller holds on to the model's output (`out.logits`) during backward."""
    kernels: ImplementationAssumptions = field(default_factory=ImplementationAssumptions)
    """Which intermediate results the implementation keeps."""
    calibration: StackCalibration | None = None
    """What was measured of the stack that trains; None = nothing, or it is not to count."""

    def __post_init__(self) -> None:
        check_declared(self)
        if self.kernels.low_precision_weights and self.precision in {"bf16", "fp16"}:
            object.__setattr__(self, "precision", f"{self.precision}-pure")
        if self.kernels.fused_optimizer and self.optimizer == "adamw":
            object.__setattr__(self, "optimizer", "adamw-fused")
        if self.kernels.separate_head and self.model.tied_embeddings:
            object.__setattr__(self, "model", replace(self.model, tied_embeddings=False))
        self.model.check_sequence(self.seq_len)
        if self.quantization != "none" and not self.lora_rank:
            raise UsageError(
                f"Quantized weights ({self.quantization}) cannot be trained themselves. "
                "Give a lora_rank (QLoRA), or quantization='none'."
            )
        if self.lora_rank and not self.lora_targets:
            raise UsageError(f"lora_targets is empty. Name some of {', '.join(LORA_TARGETS)}.")
        if self.lora_rank > self.model.hidden > 0:
            raise UsageError(
                f"lora_rank can be at most {self.model.hidden:,}, the hidden size of "
                f"{self.model.name}, not {self.lora_rank:,}: adapters save nothing beyond it."
            )
        if self.lora_rank and self.model.kind == "module":
            raise UsageError("LoRA on a traced module is not described. Use simulate(step_fn).")

    @property
    def compute_bytes(self) -> int:
        """Bytes of a weight or activation as computed with."""
        return 4 if self.precision == "fp32" else 2

    @property
    def trained(self) -> str:
        """full, lora or qlora."""
        adapted = "lora" if self.quantization == "none" else "qlora"
        return adapted if self.lora_rank else "full"

    @property
    def method(self) -> str:
        """How it is trained, in words: bf16, adamw, LoRA r16 on nf4."""
        words = [self.precision, self.optimizer]
        if self.lora_rank:
            frozen = f" on {self.quantization}" if self.trained == "qlora" else ""
            words.append(f"LoRA r{self.lora_rank}{frozen}")
        return ", ".join(words)

    @property
    def tokens(self) -> int:
        """Tokens per micro-batch and data-parallel rank."""
        if self.model.kind == "vision":
            patches = (self.model.image_size // self.model.patch_size) ** 2
            return self.micro_batch * (patches + 1)
        return self.micro_batch * self.seq_len

    @property
    def sequence(self) -> int:
        """Length of one sequence as attention sees it."""
        return self.tokens // self.micro_batch

    @property
    def counts_tokens(self) -> bool:
        """Whether its samples are sequences of tokens: a measured script's may be anything."""
        return self.model.measured is None or self.seq_len > 1

    def tokens_per_step(self, data_ranks: int) -> int:
        """Tokens per optimizer step over `data_ranks` data-parallel ranks (the global batch)."""
        return self.tokens * self.accumulate * data_ranks
