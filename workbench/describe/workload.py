"""What is trained: the model and the work per optimizer step, with every assumption named."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated

from workbench.describe.model import Model
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.describe.stack import StackCalibration
from workbench.errors import UsageError

PRECISIONS = ("fp32", "bf16", "fp16", "fp8", "bf16-pure", "fp16-pure")
OPTIMIZERS = (
    *("adamw", "adamw-fused", "adamw-8bit", "adamw-4bit", "paged-adamw", "paged-adamw-8bit"),
    *("adafactor", "sgd", "sgd-momentum", "lion", "lion-8bit", "muon"),
)
QUANTIZATIONS = ("none", "int8", "int4", "nf4", "nf4-dq")
ATTENTIONS = ("sdpa", "flash", "eager")
LOSSES = ("full", "chunked", "chunked-output", "fused")
USUAL_SEQ_LEN = 2048
STACKS = ("unknown", "eager", "compiled", "megatron", "recipe")
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationAssumptions:
    """What is assumed of the code that trains: its kernels, its copies, its allocator.

    The defaults are Hugging Face transformers in eager mode. Presets: ``KERNELS``.
    """

    # What a block keeps for backward.
    norm: Annotated[
        str,
        Option(
            help="RMSNorm: upcast or fused.", choices=("upcast", "fused"), singular="norm kernel"
        ),
    ] = "upcast"
    """upcast: RMSNorm in plain PyTorch, keeps the fp32 copy (transformers); fused: one kernel that
    keeps its input and the statistics (torch's rms_norm and layer_norm, Liger, TE, Apex)."""
    activation: Annotated[
        str,
        Option(
            help="MLP: separate or fused.",
            choices=("separate", "fused"),
            singular="activation kernel",
        ),
    ] = "separate"
    """separate: gate, its activation, up and their product are kept; fused: gate, up, product."""
    compiled: Annotated[bool, Option(help="torch.compile.", off_flag="no-compiled")] = False
    """torch.compile: pointwise chains are fused and recomputed in backward."""
    separate_casts: Annotated[
        bool | None,
        Option(help="autocast: each linear casts its own input.", off_flag="no-separate-casts"),
    ] = None
    """autocast: each linear keeps its own low-precision copy of its input; None = as precision."""
    gathered_inputs: Annotated[
        bool,
        Option(help="Sequence parallel: gathered inputs are kept.", off_flag="no-gathered-inputs"),
    ] = True
    """Sequence parallel: a linear keeps its gathered input whole (torch); False: gathered again
    in backward (Megatron)."""
    fp8_inputs: Annotated[
        bool, Option(help="fp8: linears keep their inputs in 8 bits.", off_flag="no-fp8-inputs")
    ] = False
    """fp8: linears keep their inputs in 8 bits (Transformer Engine; torchao keeps them in bf16)."""
    lora_dropout: Annotated[
        bool, Option(help="LoRA drops out its input.", off_flag="no-lora-dropout")
    ] = False
    """LoRA drops out its input: each adapter keeps its own copy."""
    tiled_mlp: Annotated[
        bool, Option(help="The MLP runs in slices of the sequence (ALST).", off_flag="no-tiled-mlp")
    ] = False
    """The MLP runs in slices of the sequence (ALST): one slice's results live at once."""
    # Logits and loss.
    logits_fp32: Annotated[
        bool, Option(help="The loss copies the logits to fp32.", off_flag="no-logits-fp32")
    ] = True
    """The loss copies the logits to fp32 before the softmax (transformers; most trainers)."""
    logits_copies: Annotated[
        int, Option(help="fp32 copies of the logits in the loss.", least=1)
    ] = 3
    """fp32 tensors of the logits' size alive at the worst moment of the loss (transformers: the
    log-softmax and two gradients; implementations that transpose or copy: 4 or 5)."""
    compiled_loss: Annotated[
        bool, Option(help="The loss is compiled or one kernel.", off_flag="no-compiled-loss")
    ] = False
    """The loss is compiled: only the logits and their gradient exist, in low precision."""
    fp32_logits_returned: Annotated[
        bool, Option(help="The model returns fp32 logits.", off_flag="no-fp32-logits-returned")
    ] = False
    """The model returns fp32 logits (transformers before 4.45): `keep_logits` keeps 4 bytes."""
    # Weights and gradients.
    quantized_inputs: Annotated[
        bool,
        Option(help="nf4: frozen linears keep their inputs.", off_flag="no-quantized-inputs"),
    ] = False
    """4-bit linears keep their inputs for backward, though their weights do not learn
    (bitsandbytes before 0.43.2: MatMul4Bit saves (A, B); since then (None, B))."""
    earlier_inputs: Annotated[
        bool, Option(help="nf4: inputs outlive the next forward.", off_flag="no-earlier-inputs")
    ] = False
    """Those of one micro-batch live until the next forward ends: the loop holds the old graph."""
    fp32_unquantized: Annotated[
        bool, Option(help="What is not quantized is fp32.", off_flag="no-fp32-unquantized")
    ] = False
    """QLoRA: embedding, head and norms are fp32 (PEFT's prepare_model_for_kbit_training)."""
    low_precision_weights: Annotated[
        bool, Option(help="bf16 means bf16-pure: no fp32 weights.", off_flag="fp32-weights")
    ] = False
    """A workload in bf16 or fp16 is a pure one: weights, gradients, states have no fp32 copy."""
    separate_head: Annotated[
        bool, Option(help="The head never shares the embedding's matrix.", off_flag="tied-head")
    ] = False
    """A model with tied embeddings is built without them (LitGPT)."""
    fused_optimizer: Annotated[
        bool, Option(help="adamw means adamw-fused: one kernel.", off_flag="foreach-optimizer")
    ] = False
    """AdamW runs as one kernel over all weights (fused=True, Apex, DeepSpeed's): a workload's adamw
    is adamw-fused. False: torch's foreach, with lists of temporaries."""
    foreach_lists: Annotated[
        int, Option(help="Lists of temporaries of torch's foreach AdamW.", least=1)
    ] = 1
    """Lists of temporaries of torch's foreach AdamW: sqrt and denominator in one since torch 2.1,
    in two before."""
    master_copy: Annotated[
        bool | None,
        Option(help="fp32 weights beside low-precision ones.", off_flag="no-master-copy"),
    ] = None
    """fp32 weights beside low-precision ones (Megatron, DeepSpeed); None = as the strategy is."""
    gradient_bytes: Annotated[
        int | None, Option(help="Bytes per accumulated gradient.", choices=(2, 4, 6))
    ] = None
    """Bytes per accumulated gradient; None = those of the trained parameter (Megatron: 4;
    DeepSpeed's bf16 optimizer: 6, the low-precision gradient beside the fp32 sum)."""
    frozen_gradients: Annotated[
        bool,
        Option(
            help="FSDP1: frozen weights beside adapters get gradients.",
            off_flag="no-frozen-gradients",
        ),
    ] = False
    """LoRA under FSDP1: frozen weights lie in one flat parameter with the adapters, so gradients of
    all of a block's weights exist (use_orig_params=True); False: only the adapters' (FSDP2, PEFT's
    wrap policy)."""
    flat_gradients: Annotated[
        bool,
        Option(
            help="Low-precision gradients are flattened at the step.",
            off_flag="no-flat-gradients",
        ),
    ] = True
    """With a master copy: the step flattens low-precision gradients before it makes them fp32
    (DeepSpeed, InternEvo); False: only the fp32 ones are made (Megatron)."""
    reduce_bytes: Annotated[
        int | None, Option(help="Bytes per gradient on the wire.", choices=(1, 2, 4))
    ] = None
    """Bytes per gradient on the wire; None = 4 with FSDP's mixed precision, the compute type with
    DeepSpeed, else those of the accumulated gradient."""
    gradients_to_all: Annotated[
        bool,
        Option(
            help="ZeRO-1: every rank receives all reduced gradients.",
            off_flag="no-gradients-to-all",
        ),
    ] = False
    """ZeRO-1 and -2 reduce whole gradients to every rank, twice the traffic of a reduce-scatter
    (nanotron; DeepSpeed's pipelines in bf16)."""
    optimizer_in_backward: Annotated[
        bool,
        Option(
            help="Gradients are applied and freed at once.", off_flag="no-optimizer-in-backward"
        ),
    ] = False
    """Each gradient is applied and freed at once: no full set of gradients ever exists."""
    whole_before_sharding: Annotated[
        bool,
        Option(help="Ranks build the whole model first.", off_flag="no-whole-before-sharding"),
    ] = False
    """Every rank builds the whole model on its card before it is sharded (no meta device)."""
    # Speed.
    software_stack: Annotated[
        str,
        Option(
            help="Class of software, for its speed: eager, compiled, megatron, recipe.",
            choices=STACKS,
        ),
    ] = "unknown"
    """Class of software whose efficiency on the GPU's generation is assumed: PyTorch's own modules
    (eager), torch.compile (compiled), Megatron's kernels as they come (megatron), a vendor's tuned
    recipe (recipe); unknown: the mean of all."""
    flash_version: Annotated[
        int,
        Option(
            help="Fused attention: 1, 2 (torch), 3 (FlashAttention-3, cuDNN).", choices=(1, 2, 3)
        ),
    ] = 2
    """Generation of the fused attention kernel: 1, 2 (torch), 3 (FlashAttention-3, cuDNN)."""
    grouped_experts: Annotated[
        bool,
        Option(
            help="All experts of a rank run in one fused kernel.", off_flag="no-grouped-experts"
        ),
    ] = False
    """All experts of a rank run in one fused kernel, quantization and permutation included
    (Megatron since 2026, DeepGEMM); False: the host launches each expert's products and casts."""
    weighted_activation: Annotated[
        bool,
        Option(help="Router weights applied in the activation.", off_flag="no-weighted-activation"),
    ] = False
    """The experts' activation weights their tokens too, so that what they return is not kept."""
    cuda_graphs: Annotated[
        bool,
        Option(help="CUDA graphs launch the operations.", off_flag="no-cuda-graphs"),
    ] = False
    """CUDA graphs replay what the host would otherwise launch operation by operation."""
    expert_imbalance: Annotated[
        float, Option(help="ep: busiest rank's tokens over the mean.", above=0)
    ] = 1.5
    """Expert parallelism: tokens of the busiest rank's experts over the mean; 1 = forced balance.
    Qwen3-30B-A3B trains half as fast with natural routing as with forced balance."""
    # The allocator.
    expandable_segments: Annotated[
        bool, Option(help="PYTORCH_CUDA_ALLOC_CONF sets it.", off_flag="no-expandable-segments")
    ] = False
    """PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: hardly any fragmentation."""

    def __post_init__(self) -> None:
        check_declared(self)


KERNELS = {
    "transformers": ImplementationAssumptions(),
    "fused": ImplementationAssumptions(norm="fused", activation="fused"),
    "compiled": ImplementationAssumptions(norm="fused", activation="fused", compiled=True),
    "megatron": ImplementationAssumptions(
        norm="fused",
        activation="fused",
        gradient_bytes=4,
        master_copy=True,
        gathered_inputs=False,
    ),
}
"""Named sets of assumptions: transformers (eager), fused (Liger), compiled, megatron."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One optimizer step of a training job, per data-parallel rank where not said otherwise."""

    model: Model
    """The model that is trained."""
    seq_len: Annotated[
        int,
        Option(
            help="Tokens per sequence [default: 2048, or as many as the model has positions].",
            least=1,
        ),
    ]
    """Tokens per sequence (vision: ignored, the patches decide)."""
    micro_batch: Annotated[int, Option(help="Sequences per forward pass and GPU.", least=1)] = 1
    """Sequences per forward pass and rank."""
    accumulate: Annotated[int, Option(help="Micro-batches per optimizer step.", least=1)] = 1
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
    ] = ("q", "v")
    """Linear layers with adapters, of `LORA_TARGETS`."""
    adapter_bytes: Annotated[
        int | None, Option(help="Bytes per adapter weight.", choices=(2, 4))
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
        bool, Option(help="The head is quantized too.", off_flag="no-quantized-head")
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
    loss: Annotated[str, Option(help="full, chunked, chunked-output, fused.", choices=LOSSES)] = (
        "full"
    )
    """full: logits of all tokens at once; chunked: logits are made and dropped chunk by chunk;
    chunked-output: logits are kept in low precision, the softmax runs in chunks (torchtune);
    fused: Liger, no logits are kept."""
    loss_chunks: Annotated[int, Option(help="Chunks of the chunked loss.", least=1)] = 8
    """Chunks of the chunked loss."""
    variable_length: Annotated[
        bool, Option(help="Batches differ in length.", off_flag="no-variable-length")
    ] = False
    """Batches differ in length (SFT without packing): the allocator's cache fragments."""
    keep_logits: Annotated[
        bool, Option(help="The model's output outlives backward.", off_flag="no-keep-logits")
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


def usual_seq_len(model: Model) -> int:
    """Default tokens per sequence: 2048, or as many as the model has positions."""
    return min(USUAL_SEQ_LEN, model.longest_sequence or USUAL_SEQ_LEN)
