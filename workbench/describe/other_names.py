"""What other tools call our options: the one table, for the message that there is no such option.

Read from the launchers and trainers' own options: torchrun, accelerate, DeepSpeed, transformers'
TrainingArguments, TRL, Axolotl, LLaMA-Factory, Megatron-LM, torchtitan, vLLM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from workbench.errors import UnknownNameError

_GIVEN = "{}"  # in a value: what was given to the other tool's option


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherNames:
    """What other tools call one option."""

    here: str
    """Our option, as on the command line without dashes; several: the first that there is."""
    there: str
    """Their words for it, in small letters with dashes."""
    value: str = ""
    """What it is set to here, where it is not simply theirs; ``{}`` stands for theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meant:
    """An option of ours that was probably meant."""

    name: str
    """As it is spelled among the allowed ones."""
    value: str = ""
    """What it is set to; "" = what was given to the other one."""

    def __str__(self) -> str:
        """As it is typed on the command line."""
        return f"{self.name} {self.value}".strip()


_TABLE = (
    OtherNames(
        here="micro-batch global-batch",
        there="batch batch-size bs mbs micro-batch-size per-device-batch-size per-gpu-batch-size "
        "per-device-train-batch-size train-micro-batch-size-per-gpu device-batch-size "
        "local-batch-size",
    ),
    OtherNames(
        here="global-batch micro-batch",
        there="global-batch-size gbs train-batch-size total-batch-size effective-batch-size",
    ),
    OtherNames(
        here="accumulate",
        there="gradient-accumulation-steps gradient-accumulation grad-accum grad-accum-steps "
        "grad-accumulation accumulation accumulation-steps accumulate-grad-batches accum gas",
    ),
    OtherNames(
        here="seq-len",
        there="max-length max-seq-length max-seq-len max-sequence-length seq-length seqlen "
        "sequence-length sequence-len sequence context-length context-len max-model-len "
        "model-max-length block-size cutoff-len ctx-len n-ctx",
    ),
    OtherNames(
        here="nproc processes gpus ranks sizes",
        there="n np ranks num-gpus n-gpus ngpus num-processes nproc-per-node num-procs gpus nproc "
        "gpus-per-node n-gpus-per-node num-gpus-per-node processes world-size",
    ),
    OtherNames(here="nodes", there="nnodes num-nodes n-nodes num-machines machines n-machines"),
    OtherNames(
        here="gpu", there="gpu-type gpu-name gpu-model accelerator accelerator-type card device"
    ),
    OtherNames(here="devices", there="gpu-ids device-ids gpu-id cuda-visible-devices"),
    OtherNames(here="port", there="master-port main-process-port rdzv-port"),
    OtherNames(
        here="address",
        there="master-addr master-address main-process-ip rdzv-endpoint coordinator-address",
    ),
    OtherNames(here="restarts", there="max-restarts retries max-retries"),
    OtherNames(here="name", there="run-name job-name experiment-name wandb-name"),
    OtherNames(here="tracker", there="report-to logger log-with with-tracking"),
    OtherNames(
        here="precision",
        there="mixed-precision dtype torch-dtype amp compute-dtype param-dtype "
        "mixed-precision-param",
    ),
    OtherNames(here="precision", there="bf16 bfloat16", value="bf16"),
    OtherNames(here="precision", there="fp16 half float16", value="fp16"),
    OtherNames(here="precision", there="fp8", value="fp8"),
    OtherNames(here="strategy", there="zero-stage zero deepspeed-stage", value="zero{}"),
    OtherNames(
        here="tp strategy",
        there="tensor-parallel-size tensor-model-parallel-size tensor-parallel tensor-parallelism "
        "tensor-parallel-degree tp tp-size tp-degree parallelism-config-tp-size",
        value="tp{}",
    ),
    OtherNames(
        here="pp strategy",
        there="pipeline-parallel-size pipeline-model-parallel-size pipeline-parallel pp pp-size "
        "pipeline-parallel-degree pp-degree pipeline-stages",
        value="pp{}",
    ),
    OtherNames(
        here="cp strategy",
        there="context-parallel-size context-parallel context-parallel-degree cp cp-size cp-degree "
        "parallelism-config-cp-size",
        value="cp{}",
    ),
    OtherNames(
        here="ep strategy",
        there="expert-parallel-size expert-model-parallel-size expert-parallel ep ep-size "
        "expert-parallel-degree",
        value="ep{}",
    ),
    OtherNames(
        here="strategy",
        there="data-parallel-size data-parallel dp dp-size data-parallel-replicate-degree "
        "dp-replicate",
        value="dp{}",
    ),
    OtherNames(
        here="strategy",
        there="use-fsdp fsdp fully-sharded data-parallel-shard-degree",
        value="fsdp",
    ),
    OtherNames(here="strategy", there="use-ddp ddp multi-gpu", value="ddp"),
    OtherNames(here="strategy", there="use-deepspeed", value="zero3"),
    OtherNames(
        here="strategy", there="sharding-strategy fsdp-sharding-strategy parallelism distributed"
    ),
    OtherNames(
        here="wrap", there="fsdp-transformer-layer-cls-to-wrap transformer-layer-cls-to-wrap"
    ),
    OtherNames(
        here="recompute",
        there="gradient-checkpointing activation-checkpointing checkpoint-activations "
        "recompute-activations fsdp-activation-checkpointing activation-recompute grad-checkpoint",
        value="full",
    ),
    OtherNames(here="recompute", there="recompute-granularity activation-checkpoint-mode"),
    OtherNames(
        here="offload", there="cpu-offload fsdp-offload-params offload-param", value="parameters"
    ),
    OtherNames(
        here="offload", there="offload-optimizer offload-optimizer-device", value="optimizer"
    ),
    OtherNames(here="optimizer", there="optim optimizer-type optimizer-name opt"),
    OtherNames(here="lora-rank", there="lora-r lora-dim lora rank peft-rank"),
    OtherNames(here="lora-targets", there="lora-target lora-target-modules target-modules"),
    OtherNames(here="quantization", there="load-in-4bit 4bit qlora use-4bit", value="nf4"),
    OtherNames(here="quantization", there="load-in-8bit 8bit use-8bit", value="int8"),
    OtherNames(here="quantization", there="quantize quantization-method quantization-bit"),
    OtherNames(here="attention", there="attn-implementation attn attention-backend"),
    OtherNames(
        here="attention",
        there="flash-attn flash-attention flash-attention-2 use-flash-attn use-flash-attention",
        value="flash",
    ),
    OtherNames(here="loss", there="use-liger-kernel liger", value="fused"),
    OtherNames(here="compiled", there="compile torch-compile use-compile"),
    OtherNames(
        here="model",
        there="model-name-or-path model-name model-id model-path base-model hf-model checkpoint "
        "pretrained-model-name-or-path pretrained-model",
    ),
    OtherNames(here="config", there="config-file config-path deepspeed deepspeed-config yaml"),
    OtherNames(here="lr", there="learning-rate base-lr max-lr"),
    OtherNames(
        here="steps", there="max-steps num-steps train-iters iterations max-train-steps iters"
    ),
    OtherNames(here="epochs", there="num-train-epochs num-epochs max-epochs n-epochs"),
    OtherNames(here="tokens", there="num-tokens train-tokens total-tokens max-tokens"),
    OtherNames(here="warmup", there="warmup-steps num-warmup-steps lr-warmup-steps"),
    OtherNames(here="seed", there="random-seed manual-seed"),
    OtherNames(here="data", there="dataset dataset-name data-path dataset-path train-file"),
    OtherNames(
        here="usd-per-hour",
        there="price price-per-hour hourly-rate hourly-price cost-per-hour dollars-per-hour",
    ),
    OtherNames(here="provider providers", there="provider providers cloud vendor clouds"),
    OtherNames(here="regions region", there="region regions zone"),
    OtherNames(here="budget-usd max-usd", there="budget max-cost max-price cost-limit"),
    OtherNames(here="deadline-hours max-hours", there="deadline max-time time-limit timeout-hours"),
    OtherNames(here="spot", there="use-spot preemptible interruptible"),
)


def meant(word: str, allowed: Iterable[str], given: str = "") -> Meant | None:
    """The option of ours that another tool's word stands for; None = the table has none of them.

    Args:
        word: Their option, with or without dashes before it.
        allowed: Our options, spelled in any way.
        given: What it was set to.

    >>> meant("--nproc_per_node", ["--gpus", "--nodes"]).name
    '--gpus'
    >>> meant("tensor_parallel_size", ["strategy"], "4")
    Meant(name='strategy', value='tp4')
    """
    spelled = {_plain(name): name for name in allowed}
    asked = _plain(word)
    if asked in spelled:
        return Meant(name=spelled[asked])
    for row in _TABLE:
        name = next((name for name in row.here.split() if name in spelled), None)
        if name is not None and asked in row.there.split():
            degree = row.value.removesuffix(_GIVEN)
            own = name == degree  # a command that has the degree itself takes its number
            value = "" if own else row.value.replace(_GIVEN, given if given.isdecimal() else "N")
            return Meant(name=spelled[name], value=value)
    return None


def unknown_option(kind: str, word: str, allowed: Collection[str]) -> UnknownNameError:
    """The error for a keyword that nothing has, with ours for it where another tool has it.

    >>> print(unknown_option("option of a job", "batch_size", ["micro_batch", "seq_len"]))
    Unknown option of a job 'batch_size'. Did you mean micro_batch?
    """
    found = meant(word, allowed)
    if found is None:
        return UnknownNameError.near(kind, word, allowed)
    value = f"={found.value!r}" if found.value else ""
    return UnknownNameError(f"Unknown {kind} {word!r}. Did you mean {found.name}{value}?")


def _plain(word: str) -> str:
    return word.lstrip("-").lower().replace("_", "-")
