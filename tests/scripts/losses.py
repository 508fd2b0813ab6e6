"""Steps of every arrangement of micro-batches, divisors, scalers and backward calls.

Every loss is linear in the parameters, so the scalar product of parameters and gradient is exactly
the loss that a step optimises (Euler), whatever was divided, scaled or dropped on the way.
"""

import functools
import gc
import itertools
import os

import torch
from accelerate import Accelerator

torch.manual_seed(0)
ACCUMULATION = (1, 2, 4)


def tell(label, optimizer, *_):
    """Without a reference to the case: its optimizer must be gone before the next one steps."""
    (weight,) = optimizer.param_groups[0]["params"]
    print("optimised", label, (weight * weight.grad).sum().item(), flush=True)


class Case:
    """One model with its optimizer, which prints what each of its steps optimises."""

    def __init__(self, label, *, scaler=False):
        self.model = torch.nn.Linear(6, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=bool(scaler))
        self.optimizer.register_step_pre_hook(functools.partial(tell, label))

    def loss(self):
        return self.model(torch.randn(3, 6)).sum()

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def backward(case, divisor, scaled, way):
    """One micro-batch: one backward call, several, or one of a weighted or of several losses."""
    losses = [case.loss() for _ in range(1 if way in {"one", "weighted"} else 2)]
    if scaled == "first":
        losses = [one / divisor for one in case.scaler.scale(losses)]
    else:
        losses = case.scaler.scale([one / divisor for one in losses])
    if way == "sum":
        sum(losses).backward()
    elif way == "tuple":
        torch.autograd.backward(tuple(losses))
    elif way == "weighted":
        losses[0].backward(torch.full_like(losses[0], 0.25))
    else:
        for one in losses:
            one.backward()


def by_hand():
    """Divided by the script: by the full group's size, by the real one's, or not at all."""
    ways = ("one", "several", "sum", "tuple", "weighted")
    divisors, scaling = ("full", "real", "none"), ("", "first", "last")

    def train(full, by, scaled, way):
        case = Case(f"{full}-{by}-{scaled or 'unscaled'}-{way}", scaler=scaled)
        for size in (full, full, max(1, full // 2)):  # the epoch's last step is shorter
            divisor = {"full": full, "real": size, "none": 1}[by]
            for _ in range(size):
                backward(case, divisor, scaled, way)
            case.step()

    for chosen in itertools.product(ACCUMULATION, divisors, scaling, ways):
        yield train(*chosen)


def by_accelerate():
    """Divided by Accelerate, always by the full group's size."""

    def train(full, scaled, short):
        accelerator = Accelerator(gradient_accumulation_steps=full, cpu=True)
        case = Case(f"accelerate-{full}-{scaled}-{short}", scaler=scaled)
        accelerator.scaler = case.scaler if scaled else None
        rows = torch.randn(full * 2 + (full > 1) * short, 1, 6)
        model, optimizer, loader = accelerator.prepare(
            case.model, case.optimizer, torch.utils.data.DataLoader(rows)
        )
        for row in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(row).sum())
                optimizer.step()
                optimizer.zero_grad()
        accelerator.free_memory()

    for chosen in itertools.product(ACCUMULATION, (False, True), (False, True)):
        yield train(*chosen)
        gc.collect()  # it makes a circle of the optimizer and its step


def dropped():
    """Gradients that never reach a step: zeroed, or overflowed under a scaler."""

    def train(zero):
        case = Case(f"dropped-{zero}", scaler=zero == "overflow")
        for skip in (False, True, False):
            if skip:
                loss = case.loss() * (float("inf") if zero == "overflow" else 7.0)
                case.scaler.scale(loss).backward()
                if zero == "overflow":
                    case.step()
                    continue
                if zero == "hand":
                    case.model.weight.grad = None
                    continue
                (case.optimizer if zero == "optimizer" else case.model).zero_grad()
            case.scaler.scale(case.loss()).backward()
            case.step()

    for zero in ("optimizer", "module", "overflow", "hand"):
        yield train(zero)
    yield kept_out_of_sight()


def kept_out_of_sight():
    """Gradients that something else adds up between the passes, as sharding does."""
    case, kept = Case("kept"), []

    def keep(weight):
        kept.append(weight.grad)
        weight.grad = None

    case.loss().backward()
    case.step()
    case.model.weight.register_post_accumulate_grad_hook(keep)
    for _ in range(2):
        case.loss().backward()
    case.model.weight.grad = sum(kept)
    case.step()


def of_samples():
    """One loss for each sample, each with its weight."""

    def train():
        case = Case("samples")
        for _ in range(3):
            losses = case.model(torch.randn(3, 6)).squeeze(1)
            losses.backward(torch.full_like(losses, 0.5))
            case.step()

    yield train()


def returned():
    """Gradients that the script assigns itself."""

    def train(passes):
        case = Case(f"returned-{passes}")
        for _ in range(2):
            case.model.weight.grad = torch.zeros(1, 6)
            for _ in range(passes):
                loss = case.loss()
                if passes == 2:
                    penalty = torch.autograd.grad(loss, case.model.weight, create_graph=True)[0]
                    loss = loss + 0.0 * penalty.sum()
                    loss.backward()
                else:
                    case.model.weight.grad += torch.autograd.grad(loss, [case.model.weight])[0]
            case.step()

    yield train(1)
    yield train(2)


def adversarial():
    """Two optimizers, a backward each, the second's through the first's model."""

    def train():
        case, other = Case("gan"), torch.nn.Linear(6, 6)
        theirs = torch.optim.SGD(other.parameters(), lr=0.01)
        for _ in range(3):
            noise = torch.randn(3, 6)
            case.optimizer.zero_grad()
            case.loss().backward()
            case.model(other(noise).detach()).sum().backward()
            case.optimizer.step()
            theirs.zero_grad()
            (case.model(other(noise)).sum() + 100).backward()
            theirs.step()

    yield train()


def closure():
    """A closure that is called several times: ``step`` returns the loss of the first call."""

    def train():
        model = torch.nn.Linear(6, 1, bias=False)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

        def call():
            optimizer.zero_grad()
            loss = model(torch.ones(3, 6)).pow(2).sum()
            loss.backward()
            return loss

        print("optimised closure", optimizer.step(call).item(), flush=True)
        print("optimised closure", optimizer.step(call).item(), flush=True)

    yield train()
    yield sharpness_aware()
    yield sharpness_aware_in_two_calls()


class Sharp(torch.optim.SGD):
    """SAM's way: the gradient of a point beside, by a second evaluation inside the step."""

    def step(self, closure):
        self.zero_grad()
        closure()
        return super().step()


def sharpness_aware():
    def evaluate():
        (model(torch.ones(3, 6)).sum() + 100).backward()

    model = torch.nn.Linear(6, 1, bias=False)
    optimizer = Sharp(model.parameters(), lr=0.01)
    for _ in range(2):
        loss = model(torch.randn(3, 6)).sum()
        loss.backward()
        optimizer.step(evaluate)
        optimizer.zero_grad()
        print("optimised sharp", loss.item(), flush=True)


class TwoSteps(torch.optim.Optimizer):
    """SAM as it is most used: a step to the point beside, and one with the gradient there."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
        self.base_optimizer = torch.optim.SGD(self.param_groups, lr=0.01)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        self.base_optimizer.step()
        self.zero_grad()


def sharpness_aware_in_two_calls():
    model = torch.nn.Linear(6, 1, bias=False)
    optimizer = TwoSteps(model.parameters())
    for _ in range(3):
        loss = model(torch.randn(3, 6)).sum()
        loss.backward()
        optimizer.first_step()
        (model(torch.ones(3, 6)).sum() + 100).backward()
        optimizer.second_step()
        print("optimised two-steps", loss.item(), flush=True)


_ALL = "by_hand by_accelerate dropped of_samples returned adversarial closure"
chosen = os.environ.get("CASES", _ALL).split()
for kind in chosen:
    for _ in globals()[kind]():
        pass
