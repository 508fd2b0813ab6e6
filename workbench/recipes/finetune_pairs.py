"""TRL's trainer of preferences for finetune.py, on pairs that are tokens already.

TRL itself would encode texts: with a second mark of their beginning where the template writes one,
and a second mark of their end where the template's is not the tokenizer's.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportIncompatibleMethodOverride=false

from typing import Any

from datasets import Dataset
from finetune_data import say
from trl import DPOTrainer  # pyright: ignore[reportPrivateImportUsage] - loaded lazily


class PairTrainer(DPOTrainer):
    """Takes the columns prompt_ids, chosen_ids and rejected_ids as they are."""

    def _prepare_dataset(self, dataset: Dataset, _: Any, args: Any, *__: Any) -> Dataset:
        """Without the pairs whose prompt alone fills the sequence, as TRL leaves them out."""
        lengths = [len(ids) for ids in dataset["prompt_ids"]]
        fitting = [at for at, length in enumerate(lengths) if length < args.max_length]
        if len(fitting) < len(lengths):
            left = len(lengths) - len(fitting)
            say(f"left out, as the prompt fills --seq-len: {left:,} of {len(lengths):,} pairs")
        return dataset.select(fitting)
