"""The formats that are known, in one tuple."""

from __future__ import annotations

from workbench.trainer_configs.format import Format
from workbench.trainer_configs.formats.accelerate import ACCELERATE
from workbench.trainer_configs.formats.axolotl import AXOLOTL
from workbench.trainer_configs.formats.deepspeed import DEEPSPEED
from workbench.trainer_configs.formats.llama_factory import LLAMA_FACTORY
from workbench.trainer_configs.formats.megatron import MEGATRON_LM
from workbench.trainer_configs.formats.torchtitan import TORCHTITAN
from workbench.trainer_configs.formats.torchtune import TORCHTUNE
from workbench.trainer_configs.formats.transformers import TRANSFORMERS
from workbench.trainer_configs.formats.trl import TRL

FORMATS: tuple[Format, ...] = (
    TORCHTITAN,
    TORCHTUNE,
    AXOLOTL,
    LLAMA_FACTORY,
    MEGATRON_LM,
    ACCELERATE,
    DEEPSPEED,
    TRL,
    TRANSFORMERS,
)
"""In the order in which a file's keys are compared with them."""
