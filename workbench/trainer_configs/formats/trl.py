"""The YAML that TRL's ``trl sft`` reads: TrainingArguments, with defaults of its own."""

from __future__ import annotations

from dataclasses import replace

from workbench.trainer_configs.format import Group
from workbench.trainer_configs.formats import transformers
from workbench.trainer_configs.rules import ANY, Choice, Number, switch

_ROWS = transformers.PRECISION.rows
PRECISION = replace(
    transformers.PRECISION,
    rows=(
        *(((False, *keys[1:]) if keys[:2] == (None, None) else keys, row) for keys, row in _ROWS),
        *(((None, *keys[1:]), row) for keys, row in _ROWS if keys[0] is True),
    ),
)
"""TRL trains with bf16 where neither bf16 nor fp16 is stated: only ``bf16: false`` is fp32."""
_COMMON = tuple(
    replace(
        group,
        rules=tuple(PRECISION if rule is transformers.PRECISION else rule for rule in group.rules),
    )
    for group in transformers.GROUPS
)
_PREFERENCE_LOSSES = (
    *("*sigmoid*", "*hinge*", "*ipo*", "*exo_pair*", "*nca_pair*", "*robust*", "*bco*", "*sppo*"),
    *("*discopop*", "*aot*", "*apo*", "*kto*", "*grpo*", "dapo", "bnpo", "cispo"),
)
TRL = replace(
    transformers.TRANSFORMERS,
    trainer="trl",
    other_trainers=("unsloth",),
    syntax="yaml",
    file="sft.yaml",
    signatures=(("max_length",), ("packing",), ("max_seq_length",), ("dataset_text_field",)),
    command="trl sft --config {file} --num_machines {nodes} --num_processes {world}",
    each_node="start it on each, with --machine_rank, --main_process_ip and --main_process_port",
    parsed_by="",
    objectives=transformers.OBJECTIVES | {"beta": ("*",), "loss_type": _PREFERENCE_LOSSES},
    groups=(
        *_COMMON,
        Group(
            source="huggingface/trl trl/trainer/sft_config.py 1.9",
            rules=(
                Number(key="max_length", field="seq_len", default=1024),
                Choice(
                    keys=("packing",),
                    fields=("variable_length",),
                    rows=(((True,), (False,)), ((False,), (True,))),
                ),
                Choice(
                    keys=("loss_type",),
                    fields=("loss",),
                    rows=(
                        (("chunked_nll",), ("chunked",)),
                        (("nll",), ("full",)),
                        ((None,), (ANY,)),
                    ),
                ),
                switch("activation_offloading", "offload_activations"),
            ),
        ),
    ),
)
