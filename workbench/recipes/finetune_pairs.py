"""TRL's trainer of preferences for finetune.py, on pairs that are tokens already.

TRL itself would encode texts: with a second mark of their beginning where the template writes one,
and a second mark of their end where the template's is not the tokenizer's.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportIncompatibleMethodOverride=false

from typing import Any

from datasets import Dataset
from trl import DPOTrainer  # pyright: ignore[reportPrivateImportUsage] - loaded lazily


class PairTrainer(DPOTrainer):
    """Takes the columns prompt_ids, chosen_ids and rejected_ids as they are."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """As they are: finetune_data.py has left out those whose prompt alone fills a sequence."""
        return dataset
