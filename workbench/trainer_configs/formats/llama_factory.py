"""LLaMA-Factory's YAML."""

from __future__ import annotations

from dataclasses import replace

from workbench.trainer_configs.document import Document, is_on
from workbench.trainer_configs.format import Format, Group
from workbench.trainer_configs.formats import deepspeed, transformers
from workbench.trainer_configs.limits import OPTIMIZERS, Impossible
from workbench.trainer_configs.rules import ANY, Choice, Names, Number, below, switch

_HPARAMS = "hiyouga/LLaMA-Factory src/llamafactory/hparams"
_OF_LORA = {"lora": True}
_UNREAD = {
    "train_dataset": "it is a file of LLaMA-Factory's v1, whose keys are not known here",
    "use_kt": "KTransformers keeps the experts on the host, which is not known here",
    "mixture_of_depths": "a mixture of depths is not known here",
    **dict.fromkeys(
        ("use_galore", "use_apollo", "use_badam", "use_adam_mini", "use_muon"),
        "it has states of its own, which are not known here; adamw_torch is, as optim",
    ),
    **dict.fromkeys(
        (
            *("use_mca", "use_megatron_bridge", "use_hyper_parallel", "use_distributed_optimizer"),
            *("tensor_model_parallel_size", "pipeline_model_parallel_size"),
            *("expert_model_parallel_size", "context_parallel_size"),
        ),
        "its training with Megatron is not known here; --trainer megatron-lm is, by arguments",
    ),
}


def spell_anew(document: Document) -> None:
    """As of transformers; packing that others of its keys switch on is said."""
    transformers.spell_anew(document)
    pretrains = document.get("stage") == "pt" and document.get("packing") is None
    if is_on(document.get("neat_packing")) or pretrains:
        document.put("packing", value=True)


LLAMA_FACTORY: Format = replace(
    transformers.TRANSFORMERS,
    trainer="llama-factory",
    other_trainers=(),
    syntax="yaml",
    file="train.yaml",
    signatures=(("finetuning_type",), ("cutoff_len",), ("template", "model_name_or_path")),
    command=(
        "env FORCE_TORCHRUN=1 NNODES={nodes} NPROC_PER_NODE={gpus} llamafactory-cli train {file}"
    ),
    each_node="start it on each, with its NODE_RANK and the first one's MASTER_ADDR and "
    "MASTER_PORT set",
    parsed_by="",
    conflicts=(("bf16", "fp16"), ("pure_bf16", "fp16"), ("fsdp", "deepspeed")),
    fixed={"stage": "sft", "do_train": True, "output_dir": "out"},
    companions=transformers.ON_CPU,
    left_open="data set, template, learning rate, number of epochs",
    objectives={"stage": ("rm", "ppo", "dpo", "kto")},
    unread=transformers.UNREAD | _UNREAD,
    spell_anew=spell_anew,
    impossible=(
        *OPTIMIZERS,
        Impossible(
            when={"precision": "bf16-pure", "zero_stage": 3},
            reason="its pure_bf16 does not train under ZeRO-3; give bf16, fsdp or zero2",
        ),
        Impossible(
            when={"quantization": "int8", "zero_stage": 3},
            reason="under ZeRO-3 it loads weights of 4 bits, not of 8; give nf4, or zero2",
        ),
        Impossible(
            when={"quantization": "int8", "data_parallel": "fsdp", "meta_init": True},
            reason="under FSDP it loads weights of 4 bits, not of 8; give nf4, or zero2",
        ),
        Impossible(
            when={"quantization": frozenset({"int8", "nf4", "nf4-dq"}), "precision": "fp8"},
            reason="beside fp8 its weights are not quantized; give bf16",
        ),
    ),
    adapters={"finetuning_type": (None, "lora", "full"), "use_dora": (None, False)},
    harmless=(
        *transformers.HARMLESS,
        *("dataset*", "template", "lora_alpha", "lora_dropout", "use_rslora", "cutoff_len"),
        *("quantization_method", "upcast_*", "neat_packing", "freeze_*", "mask_history"),
        *("preprocessing_batch_size", "val_size", "quantization_type", "fp8_*"),
    ),
    groups=(
        Group(
            source=f"{_HPARAMS}/model_args.py 0.9.5",
            rules=(
                Number(key="model_name_or_path", field="model_text", is_text=True),
                Choice(
                    keys=("flash_attn",),
                    fields=("attention", "flash_version"),
                    rows=(
                        (("sdpa",), ("sdpa", ANY)),
                        (("fa2",), ("flash", 2)),
                        (("fa3",), ("flash", 3)),
                        (("disabled",), ("eager", ANY)),
                        (("auto",), (ANY, ANY)),
                        ((None,), (ANY, ANY)),
                    ),
                ),
                Choice(
                    keys=("enable_liger_kernel",),
                    fields=("loss", "norm", "activation"),
                    rows=(((True,), ("fused", "fused", "fused")), ((None,), (ANY, ANY, ANY))),
                ),
                Choice(
                    keys=("disable_gradient_checkpointing",),
                    fields=("recompute", "recompute_layers"),
                    rows=(((True,), ("none", ANY)), ((None,), ("full", None))),
                ),
                Choice(
                    keys=("quantization_bit", "double_quantization"),
                    fields=("quantization",),
                    rows=(
                        ((4, False), ("nf4",)),
                        ((4, None), ("nf4-dq",)),
                        ((4, True), ("nf4-dq",)),
                        ((8, ANY), ("int8",)),
                        ((None, ANY), ("none",)),
                    ),
                ),
            ),
        ),
        Group(
            source=f"{_HPARAMS}/finetuning_args.py 0.9.5",
            rules=(
                Choice(
                    keys=("finetuning_type",),
                    fields=("lora",),
                    rows=((("lora",), (True,)), (("full",), (False,)), ((None,), (True,))),
                ),
                Number(key="lora_rank", field="lora_rank", default=8, when=_OF_LORA),
                Names(
                    key="lora_target",
                    field="lora_targets",
                    words=transformers.PROJECTIONS,
                    when=_OF_LORA,
                    is_joined=True,
                ),
                Choice(
                    keys=("pure_bf16", "bf16", "fp16", "fp8"),
                    fields=("precision", "low_precision_weights"),
                    rows=(
                        ((True, None, None, None), ("bf16-pure", ANY)),
                        ((None, True, None, None), ("bf16", ANY)),
                        ((None, None, True, None), ("fp16", ANY)),
                        ((None, True, None, True), ("fp8", ANY)),
                        ((True, True, None, None), ("bf16-pure", ANY)),
                        ((ANY, ANY, None, True), ("fp8", ANY)),
                        ((None, None, None, None), ("fp32", ANY)),
                    ),
                ),
            ),
        ),
        Group(
            source=f"{_HPARAMS}/data_args.py 0.9.5",
            rules=(
                Number(key="cutoff_len", field="seq_len", default=2048),
                Choice(
                    keys=("packing",),
                    fields=("variable_length",),
                    rows=(((True,), (False,)), ((False,), (True,))),
                ),
            ),
        ),
        Group(
            source=transformers.TRAINING_ARGUMENTS,
            rules=(
                *transformers.SIZES,
                *below("deepspeed.", (deepspeed.STAGE,)),
                transformers.DATA_PARALLEL,
                *below("deepspeed.", deepspeed.ZERO),
                *below("fsdp_config.", transformers.FSDP),
                transformers.OPTIMIZER,
                switch("torch_compile", "compiled"),
            ),
        ),
    ),
)
