"""How the code that trains is assumed to be written: its kernels, its copies, its allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.describe.option import Needs, Option
from workbench.describe.option_limits import check_declared
from workbench.describe.shown import changed_fields

QUANTIZATIONS = ("none", "int8", "int4", "nf4", "nf4-dq")
STACKS = ("unknown", "eager", "compiled", "megatron", "recipe")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImplementationAssumptions:
    """What is assumed of the code that trains: its kernels, its copies, its allocator.

    The defaults are Hugging Face transformers in eager mode. Presets: ``KERNELS``.
    """

    __repr__ = changed_fields

    # What a block keeps for backward.
    norm: Annotated[
        str,
        Option(
            help="RMSNorm: upcast or fused.", choices=("upcast", "fused"), singular="norm kernel"
        ),
        Needs(fact="model.norm", values=("rmsnorm",), text="an RMSNorm"),
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
        Needs(fact="tp"),
    ] = True
    """Sequence parallel: a linear keeps its gathered input whole (torch); False: gathered again
    in backward (Megatron)."""
    fp8_inputs: Annotated[
        bool,
        Option(help="fp8: linears keep their inputs in 8 bits.", off_flag="no-fp8-inputs"),
        Needs(fact="precision", values=("fp8",)),
    ] = False
    """fp8: linears keep their inputs in 8 bits (Transformer Engine; torchao keeps them in bf16)."""
    lora_dropout: Annotated[
        bool,
        Option(help="LoRA drops out its input.", off_flag="no-lora-dropout"),
        Needs(fact="lora_rank"),
    ] = False
    """LoRA drops out its input: each adapter keeps its own copy."""
    tiled_mlp: Annotated[
        bool, Option(help="The MLP runs in slices of the sequence (ALST).", off_flag="no-tiled-mlp")
    ] = False
    """The MLP runs in slices of the sequence (ALST): one slice's results live at once."""
    # Logits and loss.
    logits_fp32: Annotated[
        bool,
        Option(help="The loss copies the logits to fp32.", off_flag="no-logits-fp32"),
        Needs(fact="loss", values=("full", "chunked", "chunked-output")),
    ] = True
    """The loss copies the logits to fp32 before the softmax (transformers; most trainers)."""
    logits_copies: Annotated[
        int,
        Option(help="fp32 copies of the logits in the loss.", least=1, most=16),
        Needs(fact="loss", values=("full", "chunked", "chunked-output")),
    ] = 3
    """fp32 tensors of the logits' size alive at the worst moment of the loss (transformers: the
    log-softmax and two gradients; implementations that transpose or copy: 4 or 5)."""
    compiled_loss: Annotated[
        bool,
        Option(help="The loss is compiled or one kernel.", off_flag="no-compiled-loss"),
        Needs(fact="loss", values=("full", "chunked", "chunked-output")),
    ] = False
    """The loss is compiled: only the logits and their gradient exist, in low precision."""
    fp32_logits_returned: Annotated[
        bool,
        Option(help="The model returns fp32 logits.", off_flag="no-fp32-logits-returned"),
        Needs(fact="keep_logits"),
    ] = False
    """The model returns fp32 logits (transformers before 4.45): `keep_logits` keeps 4 bytes."""
    # Weights and gradients.
    quantized_inputs: Annotated[
        bool,
        Option(help="nf4: frozen linears keep their inputs.", off_flag="no-quantized-inputs"),
        Needs(fact="quantization", values=("nf4", "nf4-dq")),
    ] = False
    """4-bit linears keep their inputs for backward, though their weights do not learn
    (bitsandbytes before 0.43.2: MatMul4Bit saves (A, B); since then (None, B))."""
    earlier_inputs: Annotated[
        bool,
        Option(help="nf4: inputs outlive the next forward.", off_flag="no-earlier-inputs"),
        Needs(fact="quantized_inputs"),
    ] = False
    """Those of one micro-batch live until the next forward ends: the loop holds the old graph."""
    fp32_unquantized: Annotated[
        bool,
        Option(help="What is not quantized is fp32.", off_flag="no-fp32-unquantized"),
        Needs(fact="quantization", values=QUANTIZATIONS[1:]),
    ] = False
    """QLoRA: embedding, head and norms are fp32 (PEFT's prepare_model_for_kbit_training)."""
    low_precision_weights: Annotated[
        bool,
        Option(help="bf16 means bf16-pure: no fp32 weights.", off_flag="fp32-weights"),
        Needs(fact="precision", values=("bf16", "fp16", "bf16-pure", "fp16-pure")),
    ] = False
    """A workload in bf16 or fp16 is a pure one: weights, gradients, states have no fp32 copy."""
    separate_head: Annotated[
        bool,
        Option(help="The head never shares the embedding's matrix.", off_flag="tied-head"),
        Needs(fact="model.tied_embeddings", text="tied embeddings"),
    ] = False
    """A model with tied embeddings is built without them (LitGPT)."""
    fused_optimizer: Annotated[
        bool,
        Option(help="adamw means adamw-fused: one kernel.", off_flag="foreach-optimizer"),
        Needs(fact="optimizer", values=("adamw", "adamw-fused")),
    ] = False
    """AdamW runs as one kernel over all weights (fused=True, Apex, DeepSpeed's): a workload's adamw
    is adamw-fused. False: torch's foreach, with lists of temporaries."""
    foreach_lists: Annotated[
        int,
        Option(help="Lists of temporaries of torch's foreach AdamW.", least=1, most=16),
        Needs(fact="optimizer", values=("adamw",)),
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
        Needs(fact="lora_rank"),
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
        int | None,
        Option(help="Bytes per gradient on the wire.", choices=(1, 2, 4)),
        Needs(fact="reduce_ranks"),
    ] = None
    """Bytes per gradient on the wire; None = 4 with FSDP's mixed precision, the compute type with
    DeepSpeed, else those of the accumulated gradient."""
    gradients_to_all: Annotated[
        bool,
        Option(
            help="ZeRO-1: every rank receives all reduced gradients.",
            off_flag="no-gradients-to-all",
        ),
        Needs(fact="zero_stage", values=(1, 2)),
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
        Needs(fact="shard_ranks"),
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
        Needs(fact="attention", values=("sdpa", "flash")),
    ] = 2
    """Generation of the fused attention kernel: 1, 2 (torch), 3 (FlashAttention-3, cuDNN)."""
    grouped_experts: Annotated[
        bool,
        Option(
            help="All experts of a rank run in one fused kernel.", off_flag="no-grouped-experts"
        ),
        Needs(fact="model.experts", text="experts"),
    ] = False
    """All experts of a rank run in one fused kernel, quantization and permutation included
    (Megatron since 2026, DeepGEMM); False: the host launches each expert's products and casts."""
    weighted_activation: Annotated[
        bool,
        Option(help="Router weights applied in the activation.", off_flag="no-weighted-activation"),
        Needs(fact="model.experts", text="experts"),
    ] = False
    """The experts' activation weights their tokens too, so that what they return is not kept."""
    cuda_graphs: Annotated[
        bool,
        Option(help="CUDA graphs launch the operations.", off_flag="no-cuda-graphs"),
    ] = False
    """CUDA graphs replay what the host would otherwise launch operation by operation."""
    expert_imbalance: Annotated[
        float,
        Option(help="ep: busiest rank's tokens over the mean.", above=0, below=1000),
        Needs(fact="ep"),
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
