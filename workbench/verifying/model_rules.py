"""What holds for each rank alone: modes, dropout, gradients that are used, weights that change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from workbench.verifying.frozen_output import frozen_output
from workbench.verifying.trace import RankTrace, Sketch, Step, Trace
from workbench.verifying.verdict import Verdict

_MOSTLY = 0.5
# Of a mean: below it the script divides the loss (label smoothing takes up to 0.15).
_UNDIVIDED = 0.85
_ROUNDING = 1e-5  # of the largest gradient


def wrong_mode(trace: Trace) -> Iterator[Verdict]:
    """The model is trained in evaluation mode after it was in training mode."""
    for rank in trace.ranks:
        trained = False
        for step in rank.steps:
            if step.modes and not any(step.modes) and trained:
                yield Verdict(
                    kind="trains-in-eval-mode",
                    part="model",
                    step=step.step,
                    rank=rank.rank,
                    what="the mode of the model",
                    evidence=f"Up to step {step.step - 1} the model was in training mode; in step "
                    f"{step.step} its forward pass runs in evaluation mode, with gradients.",
                    bound="Forward passes that are followed by backward run in training mode.",
                    cause="model.eval() for a validation, and no model.train() after it: dropout "
                    "and BatchNorm are off from then on.",
                    next="Call model.train() after each validation.",
                )
                return
            trained = trained or any(step.modes)


def eval_dropout(trace: Trace) -> Iterator[Verdict]:
    """Dropout is asked for inside a model that is in evaluation mode."""
    for rank in trace.ranks[:1]:
        for name, count in rank.eval_dropouts.items():
            yield Verdict(
                kind="dropout-in-eval",
                part="model",
                what=f"dropout in {name}",
                evidence=f"{name} asked for dropout {count} times while it was in evaluation mode.",
                bound="No dropout in evaluation mode.",
                cause="A functional dropout without training=self.training, or an attention that "
                "is given its probability in any mode: evaluations are random and too low.",
                next=f"Pass training=self.training in {name}, or a probability of 0 outside of "
                "training.",
            )


def autocast_ignored(trace: Trace) -> Iterator[Verdict]:
    """Most matrix products come out in float32 although autocast is on."""
    for rank in trace.ranks[:1]:
        total = sum(rank.products.values())
        plain = rank.products.get("float32", 0)
        if rank.autocast is None or not total or plain <= _MOSTLY * total:
            continue
        yield Verdict(
            kind="autocast-ignored",
            part="model",
            severity="warning",
            what="the data type of the matrix products",
            evidence=f"Autocast to {rank.autocast} is on, and {plain / total:.0%} of the weights "
            "are multiplied in float32.",
            bound=f"At least {_MOSTLY:.0%} in {rank.autocast}; a few layers are kept in float32 on "
            "purpose.",
            cause="The forward pass leaves autocast (a custom function, enabled=False, or a "
            "compiler that does not apply it): no speed is gained.",
            next="Look for torch.autocast(enabled=False) and custom_fwd in the model; check the "
            "output's dtype of one linear layer.",
        )


def freeze_not_applied(trace: Trace) -> Iterator[Verdict]:
    """A module says that part of it is frozen, and all of it is trained."""
    for switch in trace.ranks[0].switches:
        yield Verdict(
            kind="freeze-not-applied",
            part="model",
            what=str(switch["text"]),
            evidence=f"{switch['text']}, and each of its {switch['parameters']} parameters "
            "requires a gradient.",
            bound="Something of a module that is to be frozen has requires_grad=False.",
            cause="The module freezes itself in train(), which the script never calls, or in a "
            "method that nothing calls.",
            next="Call model.train() before the loop, or the method that freezes.",
            severity="warning",
        )


def not_zeroed(trace: Trace) -> Iterator[Verdict]:
    """The gradients of the step before are still there."""
    for rank in trace.ranks:
        steps = [step.step for step in rank.steps[1:] if step.carried]
        if steps and len(steps) >= len(rank.steps) - 1:
            yield Verdict(
                kind="gradients-not-zeroed",
                part="gradients",
                step=steps[0],
                rank=rank.rank,
                what="the gradients of all parameters",
                evidence=f"At the first backward pass of step {steps[0]}"
                f"{' and of each later one' if len(steps) > 1 else ''} the gradients were those "
                "that the step before had applied.",
                bound="Gradients are None or 0 when a step begins.",
                cause="optimizer.zero_grad() is missing: each step applies the sum of all "
                "gradients since the start.",
                next="Call optimizer.zero_grad() after optimizer.step(), or before the first "
                "backward pass.",
            )
            return


def wrong_optimizer(trace: Trace) -> Iterator[Verdict]:
    """The optimizer holds other parameters than those that get gradients."""
    rank = trace.ranks[0]
    if not rank.steps or "DeepSpeedEngine" in rank.wrappers:
        return
    optimized, first = set(rank.optimized), rank.steps[0].gradients
    held = optimized | set(rank.waiting)  # one may step less often than this was watched
    missed = [
        name
        for name in rank.trainable
        if name not in held and (sketch := first.get(name)) and sketch.size
    ]
    if not missed or (
        rank.outside and not optimized and "FullyShardedDataParallel" in rank.wrappers
    ):
        return
    strange = f", and it holds {rank.outside} that no called model has" if rank.outside else ""
    yield Verdict(
        kind="not-in-optimizer",
        part="update",
        what=missed[0],
        evidence=f"{len(missed)} of {len(rank.trainable)} trainable parameters get a gradient and "
        f"are in no optimizer{strange}: {_few(missed)}.",
        bound="Each parameter that gets a gradient is in an optimizer, or frozen.",
        cause="The optimizer was made before the parameters were replaced (wrapping, moving, "
        "loading, a new head), or from a part of the model."
        if rank.outside
        else "The optimizer was made from a part of the model, or before layers were added.",
        next="Make the optimizer from model.parameters() after the last change of the model, or "
        "freeze what should not train.",
        severity="error" if rank.outside or len(missed) == len(rank.trainable) else "warning",
    )


def optimizer_rests(trace: Trace) -> Iterator[Verdict]:
    """An optimizer makes no step, although its parameters get gradients."""
    rank = trace.ranks[0]
    gradients: Mapping[str, Sketch | None] = rank.steps[0].gradients if rank.steps else {}
    names = [name for name in rank.waiting if name not in rank.optimized and gradients.get(name)]
    if names:
        yield Verdict(
            kind="optimizer-rests",
            part="update",
            what=names[0],
            evidence=f"{len(names)} parameters get a gradient, and the optimizer that holds them "
            f"made no step: {_few(names)}.",
            bound=f"Each optimizer steps within {len(rank.steps)} steps, unless it is meant to "
            "step less often.",
            cause="The script does not call its step(), or calls it every so many steps.",
            next="Verify with more --steps, or call the optimizer's step().",
            severity="note",
        )


def no_update(trace: Trace) -> Iterator[Verdict]:
    """A parameter has a gradient and a learning rate, and stays as it was."""
    for rank in trace.ranks:
        for name in rank.optimized:
            before = rank.weights.get(name)
            for step in rank.steps:
                after, gradient = step.weights.get(name), step.gradients.get(name)
                still = before is not None and after is not None and before.hash == after.hash
                meant = name in step.applied and (step.lr or 0) > 0
                if still and gradient and meant and _counts(step, gradient.size):
                    yield _still(rank, name, step.step, gradient.size, step.lr or 0.0)
                    return
                before = after


def _counts(step: Step, size: float) -> bool:
    """Whether a gradient is more than rounding, as that of a bias before BatchNorm is."""
    largest = max((gradient.size for gradient in step.gradients.values() if gradient), default=0.0)
    return size > _ROUNDING * largest


def _still(rank: RankTrace, name: str, step: int, size: float, lr: float) -> Verdict:
    half = rank.weights[name].dtype in {"bfloat16", "float16"}
    return Verdict(
        kind="no-update",
        part="update",
        step=step,
        rank=rank.rank,
        what=name,
        evidence=f"Its gradient has a norm of {size:.3g}, the learning rate is {lr:.3g}, and none "
        f"of its elements changed in step {step}.",
        bound="A step changes some element of each parameter that has a gradient.",
        cause=f"The update is below the rounding of {rank.weights[name].dtype}: small steps are "
        "lost."
        if half
        else "The update is skipped: a step that was compiled without it, or gradients that are "
        "cleared before the step.",
        next="Keep the weights in float32 (autocast), or use stochastic rounding."
        if half
        else "Check the parameter's group in the optimizer, and run without torch.compile.",
        severity="warning" if half else "error",
    )


def frozen_changes(trace: Trace) -> Iterator[Verdict]:
    """A frozen parameter does not stay as it was."""
    for rank in trace.ranks:
        trained = set(rank.trainable)
        for name in (weight for weight in rank.weights if weight not in trained):
            for step in rank.steps:
                after = step.weights.get(name)
                changed = after is not None and after.hash != rank.weights[name].hash
                # Optimizers leave alone what has no gradient: that the script moves itself.
                if changed and name in step.applied and step.gradients.get(name) is not None:
                    yield Verdict(
                        kind="frozen-changes",
                        part="update",
                        step=step.step,
                        rank=rank.rank,
                        what=name,
                        evidence=f"It requires no gradient, and differs after step {step.step}.",
                        bound="A frozen parameter stays the same, bit by bit.",
                        cause="It was frozen after its first gradient, which momentum or weight "
                        "decay still apply.",
                        next="Freeze before the optimizer is made, and give it only parameters "
                        "that require a gradient.",
                        severity="warning",
                    )
                    return


def loss_not_divided(trace: Trace) -> Iterator[Verdict]:
    """Several backward passes of one step, each of a whole loss."""
    ranks = len(trace.ranks)
    steps = [step for step in trace.ranks[0].steps if _accumulates(step)]
    if not steps or not all(_undivided(step, ranks) for step in steps):
        return
    step, count = steps[0], len(steps[0].losses)
    weight = (step.factors[0] or [1.0])[0]
    yield Verdict(
        kind="loss-not-divided",
        part="loss",
        step=step.step,
        severity="warning",
        what=f"the loss of {count} micro-batches",
        evidence=f"The step added up {count} backward passes of {_losses(step.losses)}; each is "
        "the mean over its "
        f"micro-batch{f' times {weight:.3g}' if weight > 2 - _UNDIVIDED else ''}.",
        bound=f"Each of {count} micro-batches is divided by {count}, or a sum by the targets of "
        "the whole step.",
        cause=f"Gradient accumulation without loss / {count}: the gradient is {count} times as "
        "large as that of one large batch.",
        next=f"Divide the loss by {count} before backward, or use accelerator.accumulate; in "
        "transformers' Trainer compute_loss divides by num_items_in_batch.",
    )


def _accumulates(step: Step) -> bool:
    """Whether each of several backward passes is of other samples, for one update."""
    places, count = [batch.indices for batch in step.batches], len(step.losses)
    return count > 1 and len(places) == count == len(set(places)) <= min(step.passes, default=count)


def _undivided(step: Step, ranks: int) -> bool:
    """Whether each loss is a mean, or what exchanges by the mean make one of: times the ranks.

    Of a sum that the script divides: by its own targets, which vary with the padding, not by those
    of the whole step, which do not.
    """
    factors = [factor for factor in step.factors if factor is not None]
    if len(factors) < len(step.losses) or any(weight < _UNDIVIDED for weight, _ in factors):
        return False
    if not any(summed for _, summed in factors):
        return True
    means = any(
        all(_UNDIVIDED <= weight / times <= 2 - _UNDIVIDED for weight, _ in factors)
        for times in (1, ranks)
    )
    return means or len({round(weight / max(1, summed), 9) for weight, summed in factors}) > 1


def _losses(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values[:4]) + (" …" if len(values) > 4 else "")


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


RULES = (
    *(wrong_mode, eval_dropout, autocast_ignored, frozen_output, freeze_not_applied, not_zeroed),
    *(wrong_optimizer, optimizer_rests, no_update, frozen_changes, loss_not_divided),
)
