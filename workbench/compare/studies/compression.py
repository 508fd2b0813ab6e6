"""Gradient compression and precision: loss after the same steps, bytes sent, time of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from workbench import recipes
from workbench.compare.studies.bench import Bench
from workbench.compare.studies.study import Study
from workbench.compare.studies.trial import Trial, TrialResult
from workbench.compare.studies.tuning import RANKS, STEPS
from workbench.describe.option import Option
from workbench.describe.option_limits import check_declared
from workbench.errors import UsageError

_VARIANTS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "none": (None, ("--count-bytes",)),
    "fp16": ("fp16", ()),
    "bf16": ("bf16", ()),
    "powersgd": ("powersgd", ()),
    "topk": ("topk", ()),
    "topk-no-feedback": ("topk", ("--no-error-feedback",)),
    "precision-bf16": (None, ("--count-bytes", "--precision", "bf16")),
    "precision-fp8": (None, ("--count-bytes", "--precision", "fp8")),
}
VARIANTS = tuple(_VARIANTS)
"""none: fp32 as it is. precision-…: what is computed in, not what is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What is compared."""

    variants: Annotated[
        tuple[str, ...],
        Option(
            help=f"Variants to compare, of {', '.join(VARIANTS)}.", metavar="V,V", split="commas"
        ),
    ] = VARIANTS
    """Some of `VARIANTS`."""
    processes: Annotated[int, RANKS] = 2
    """Ranks."""
    steps: Annotated[int, STEPS] = 60
    """Optimizer steps of each trial."""

    def __post_init__(self) -> None:
        """Refuse what would compare nothing."""
        check_declared(self)
        if self.processes == 1:
            raise UsageError("1 rank does not exchange gradients. Use --nproc 2 or more.")
        wrong = [variant for variant in self.variants if variant not in VARIANTS]
        if wrong or not self.variants:
            raise UsageError(
                f"Unknown variant {wrong or 'none given'}. Variants: {', '.join(VARIANTS)}."
            )

    def trial(self, bench: Bench, variant: str) -> Trial:
        """The trial of that variant."""
        hook, flags = _VARIANTS[variant]
        return Trial(
            label=variant,
            processes=self.processes,
            arguments=(*bench.arguments, "--steps", str(self.steps), *flags),
            options={"comm_hook": hook} if hook else {},
            value=variant,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """What a compression study found."""

    study: str
    """Id: the file in ``<store>/studies``."""
    results: tuple[TrialResult, ...]
    """One a variant, in the order asked; those that cannot run here say why."""

    @property
    def plain(self) -> TrialResult | None:
        """The uncompressed one, against which the others are read."""
        return next(
            (result for result in self.results if result.value == "none" and result.good), None
        )

    def document(self) -> dict[str, Any]:
        """Plain JSON form."""
        plain = self.plain
        return {
            "study": self.study,
            "kind": "compression",
            "trials": [
                {**result.document(), "splits": None, **_relative(result, plain)}
                for result in self.results
            ],
        }


def _relative(result: TrialResult, plain: TrialResult | None) -> dict[str, float | None]:
    """Against the uncompressed run: bytes and time as shares, the loss as a difference."""
    sent = plain.sent_bytes if plain else None
    step = plain.step_seconds if plain else None
    loss = plain.loss if plain else None
    return {
        "sent_share": result.sent_bytes / sent if sent and result.sent_bytes is not None else None,
        "step_share": result.step_seconds / step if step and result.step_seconds else None,
        "loss_added": result.loss - loss if loss is not None and result.loss is not None else None,
    }


def compression(bench: Bench, compared: Compared | None = None) -> Compression:
    """Train the same thing once per variant, from the same weights on the same data.

    Raises:
        UsageError: a script, or a recipe that has no hooks.
    """
    compared = compared or Compared()
    _check(bench)
    study = Study(bench, "compression", of=len(compared.variants))
    results = [study.run(compared.trial(bench, name)) for name in compared.variants]
    conclusion = Compression(study=study.id, results=tuple(results))
    study.save(found=conclusion.document())
    return conclusion


def _check(bench: Bench) -> None:
    available = recipes.recipes()
    if bench.target not in available or "ddp" not in available[bench.target].splits:
        able = [name for name, recipe in available.items() if "ddp" in recipe.splits]
        raise UsageError(
            f"{bench.target} does not have an option for its gradient exchange. Use "
            f"{' or '.join(able)}; its file gradient_hooks.py works with any DDP script."
        )
