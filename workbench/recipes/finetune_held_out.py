"""TRL's trainer of examples for finetune.py, with the loss of the held-out examples per token.

TRL's own is the mean of the batches' means: it changes with the micro-batch and the number of
ranks, so that two runs could not be compared by it.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false, reportUnknownParameterType=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUntypedBaseClass=false, reportIncompatibleMethodOverride=false

from typing import Any

import torch
from trl import SFTTrainer  # pyright: ignore[reportPrivateImportUsage] - loaded lazily


class ExampleTrainer(SFTTrainer):
    """`eval_loss` is the mean over all learned tokens of the held-out examples, each counted once.

    With packing, those that fill up the ranks' last batch count twice: a row holds several of them.
    """

    def evaluation_loop(self, *arguments: Any, **more: Any) -> Any:
        """As usual, with the loss of all ranks per token."""
        self._loss_sum, self._tokens = 0.0, 0
        result: Any = super().evaluation_loop(*arguments, **more)
        own = torch.tensor([self._loss_sum, self._tokens], device=self.accelerator.device)
        everyone: Any = self.accelerator.reduce(own)
        loss_sum, tokens = everyone.tolist()
        for name in result.metrics:
            if name.endswith("_loss") and tokens:
                result.metrics[name] = loss_sum / tokens
        return result

    def prediction_step(self, model: Any, inputs: Any, *arguments: Any, **more: Any) -> Any:
        """The loss of a batch; what fills up the last one is left out."""
        count = self._real_rows(len(inputs["labels"]))
        rows = max(1, count)  # every rank computes: sharded weights are gathered by all
        kept = {
            name: value[:rows] if torch.is_tensor(value) else value
            for name, value in inputs.items()
        }
        loss, logits, labels = super().prediction_step(model, kept, *arguments, **more)
        if count:
            tokens = int((kept["labels"][:, 1:] != -100).sum())
            self._loss_sum += float(loss) * tokens
            self._tokens += tokens
        return loss, logits, labels

    def _real_rows(self, rows: int) -> int:
        """How many of this rank's rows are examples, and not repetitions that fill up the batch."""
        state = self.accelerator.gradient_state
        if self.padding_free or not state.end_of_dataloader or state.remainder <= 0:
            return rows
        before = self.accelerator.process_index * rows
        return min(max(state.remainder - before, 0), rows)
