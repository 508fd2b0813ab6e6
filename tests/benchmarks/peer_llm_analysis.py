"""llm-analysis, driven by the workbench's values, for the time tables of `make bench`.

FLOP efficiency is the caller's; all else is its default. It is told micro-batch, accumulation and
global batch, so that it does not refuse what it thinks would not fit. It comes from `.venv/peers`
(see the Makefile).
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

from tests.accuracy.rows import Case, NotExpressedError
from tests.benchmarks.peers import PEERS, llm_analysis_shape
from workbench.describe import Strategy, Workload

README_EFFICIENCY = 0.5
"""Its README on training: "for flops efficiency, literature reports up to 0.5"."""
GPUS = {
    "a100-sxm-40": "a100-sxm-40gb",
    "a100-sxm-80": "a100-sxm-80gb",
    "h100-sxm": "h100-sxm-80gb",
    "v100-sxm2-16": "v100-sxm-16gb",
    "v100-sxm2-32": "v100-sxm-32gb",
    "a10g": "a10g-pcie-24gb",
    "rtx-a6000": "a6000-48gb",
}


@contextlib.contextmanager
def reachable() -> Iterator[None]:
    """Lets the peers be imported, without their log lines."""
    if str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


class LlmAnalysis:
    """Raises ImportError where it is not installed."""

    def __init__(self, efficiency: float = README_EFFICIENCY) -> None:
        from llm_analysis import analysis, config

        self._analysis, self._config, self._efficiency = analysis, config, efficiency

    def rate(self, case: Case) -> float:
        """Tokens per second and GPU.

        Raises:
            NotExpressedError: with the reason.
        """
        work, strategy, gpu = case.workload, case.strategy, case.cluster.accelerator
        seconds = self.summary(work, strategy, gpu.id if gpu else "")["latency_per_iter"]
        return work.tokens_per_step(strategy.data_ranks) / seconds / strategy.world_size

    def summary(self, work: Workload, strategy: Strategy, gpu: str) -> dict[str, Any]:
        """Everything it says of one training: memory and time come from the same call.

        Raises:
            NotExpressedError: with the reason.
        """
        reason = why_not(work, strategy, gpu)
        if reason:
            raise NotExpressedError(reason)
        ranks = strategy.data_ranks
        try:
            return self._built(work, strategy, gpu).training(
                batch_size_per_gpu=work.micro_batch,
                gradient_accumulation_steps=work.accumulate,
                global_batch_size=work.micro_batch * work.accumulate * ranks,
                seq_len=work.seq_len,
                ds_zero=self._analysis.DSZeRO(_zero_stage(strategy)),
                activation_recomputation=self._analysis.ActivationRecomputation[
                    strategy.recompute.upper()
                ],
                mlp_gated_linear_units=work.model.gated_mlp,
            )
        except AssertionError as error:
            raise NotExpressedError(f"refused: {error}") from error

    def _built(self, work: Workload, strategy: Strategy, gpu: str) -> Any:
        config = self._config
        shape = config.ModelConfig(**llm_analysis_shape(work))
        parallel = config.ParallelismConfig(
            tp_size=strategy.tp,
            pp_size=strategy.pp,
            dp_size=strategy.data_ranks,
            sp_size=strategy.tp if strategy.sequence_parallel else 1,
        )
        return self._analysis.LLMAnalysis(
            shape,
            config.get_gpu_config_by_name(GPUS[gpu]),
            config.get_dtype_config_by_name("w16a16e16"),
            parallel,
            flops_efficiency=self._efficiency,
        )


def why_not(work: Workload, strategy: Strategy, gpu: str) -> str:
    """What llm-analysis has no words for; empty when it can express all of it."""
    model = work.model
    reasons = {
        "its list has no such GPU": gpu not in GPUS,
        "fp8 or fp32 training": work.precision not in {"bf16", "fp16", "bf16-pure"},
        "LoRA, quantized or frozen weights": bool(
            work.lora_rank or work.trained_layers or work.quantization != "none"
        ),
        "context parallelism": strategy.cp > 1,
        "offloading": bool(strategy.offload),
        "only some blocks or parts are recomputed": strategy.recompute_layers is not None
        or (strategy.recompute == "selective" and strategy.recompute_parts != ("attention",)),
        "heads wider or narrower than hidden / heads": model.head_dim is not None
        and model.head_dim * model.heads != model.hidden,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _zero_stage(strategy: Strategy) -> int:
    if strategy.dp_shard == 1:
        return 0
    return strategy.zero_stage or (3 if strategy.fsdp.reshard_after_forward else 2)
