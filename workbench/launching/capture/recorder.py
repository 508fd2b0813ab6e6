"""Keeps the account of one optimizer step and appends one JSON line per step. Never raises."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

from .arrivals import Arrivals
from .batches import NOTHING, Batch, batch_of_tokens
from .compiled import CompiledStep
from .flight_recorder import FlightRecorder
from .logged import LoggedValues
from .nonfinite import FirstNonFinite
from .overrides import Overrides
from .plain import Numbers
from .pulse import BACKWARD, ENDED, FORWARD, SAVING, Pulse
from .starts import first_step
from .step_line import StepLines, StepRecord
from .step_losses import StepLosses
from .turns import COUNTS, Turn, Turns
from .weight_looks import WeightLooks
from .writers import LaterLines, update_json

_STOP_POLL_SECONDS = 0.2
_FLUSH_SECONDS = 2.0
_VALUES = StepRecord._fields.index("loss")


class Recorder:
    """One rank's account: the current step's losses and times, and the lines already due."""

    def __init__(self, run_directory: str, rank: int) -> None:
        self.folder = run_directory
        self.rank = rank
        self.steps = first_step()
        self.restarted = False  # a process of this attempt had this rank before
        self.rewinds: Any = None  # rewinds.Rewinds once torch is there
        self.state_changed = False  # something was loaded since the last backward pass
        self.rewound_from: int | None = None  # the furthest step, until the first one done again
        self.owner = os.getpid()
        self.code: dict[str, Any] = {}  # of the script, see exceptions.code_facts
        self.accelerator: Any = None  # the script's Accelerator, when it has one
        self.reader: Any = None  # reader.ScalarReader once torch is there
        self.compiled = CompiledStep()
        self.models: weakref.WeakSet[Any] = weakref.WeakSet()  # wrapped by DDP, FSDP, an engine
        self.loaders: Any = None  # loaders.Loaders once torch.utils.data is there
        self.stops_itself = False  # the loop around (Trainer's) leaves at the agreed step
        self.tracer: Any = None  # profiling.Tracer while a trace is asked for
        self._not_steered()
        self.obeys_stops = True
        self.engine_depth = 0  # above 0 inside an engine's step, which counts as a whole
        self.stopped_at: int | None = None
        self.nothing_left = False  # the checkpoint that it was resumed from is the last one
        self.checkpoint: str | None = None
        self.world_size: int | None = None
        self.facts: dict[str, Any] = {}
        metrics = os.path.join(run_directory, "metrics", f"rank-{rank}")
        self.pulse = Pulse(f"{metrics}.pulse")
        self.ring = FlightRecorder()
        self.arrivals = Arrivals(run_directory, rank, self.ring)
        self.core_time = self.arrivals.core_time
        self.nonfinite = FirstNonFinite(f"{metrics}.first-nan.json", self)
        self.weights = WeightLooks(f"{metrics}.weights.jsonl")
        self.logged = LoggedValues(f"{metrics}.said.jsonl")
        self._lines = LaterLines(f"{metrics}.jsonl", StepLines().line, self.pulse.flush)
        self._start_file = f"{metrics}.start.json"
        self._stop_file = os.path.join(run_directory, "control", "stop-at")
        self._losses = StepLosses()
        self._grad_norm: Any = None
        self._backward_at: float | None = None
        self._optimizer_at: float | None = None
        self.waited = 0.0  # seconds of this step spent on messages of a pipeline's or ring's peers
        self._waited_before = 0.0  # of that, before the backward pass was entered
        self._previous_end: float | None = None
        self._forward_at: float | None = None
        self._between: float = 0.0  # seconds since the step's end that were no waiting for data
        self._outside: float = 0.0  # of these, seconds outside steps
        self._batch: Batch | None = None  # of a step that the script reports itself
        self.has_gradient = False  # the parameter that is watched had one after the backward pass
        self.has_optimizer = False  # one of torch was made
        self.turns = Turns()
        self.lead = self.turns.first  # the optimizer whose steps are counted, if there is one

    def _not_steered(self) -> None:
        """No one has asked for anything yet."""
        self._stop_at: int | None = None
        self._next_stop_poll = 0.0
        self.steering: Any = None  # steering.Steering once someone asked for something
        self.overrides = Overrides.from_environment()  # None: the script's own values
        self.changed: Any = None  # to be called when an optimizer has stepped with new ones
        self.looks: Any = None  # tensor_looks.TensorLooks in a step that is looked at

    def become(self, rank: int) -> None:
        """In a fork: what its patches report is another rank's from now on, with its own files."""
        reader, loaders, code, compiled = self.reader, self.loaders, self.code, self.compiled
        Recorder.__init__(self, self.folder, rank)
        self.reader, self.loaders, self.code, self.compiled = reader, loaders, code, compiled

    def forward(self, *, training: bool) -> None:
        """The outermost wrapped model is entered; an evaluation makes the interval unknown."""
        if self._forward_at is None:
            self._forward_at = time.perf_counter() if training else float("nan")

    def not_data(self, seconds: float) -> None:
        """Time between two steps that was spent on a checkpoint."""
        self._between += seconds

    @contextlib.contextmanager
    def outside_steps(self) -> Generator[Callable[[], None]]:
        """Around work of all ranks that belongs to none of the steps, as answers to fixed prompts.

        The pulse says that this rank stands still for a reason; what is given is called now and
        then in long work.
        """
        begun, phase, forward = time.perf_counter(), self.pulse.phase, self._forward_at
        self.pulse.beat(SAVING, self.steps)
        try:
            yield lambda: self.pulse.beat(SAVING, self.steps)
        finally:
            self.pulse.beat(phase, self.steps)
            self.pulse.flush()
            self._forward_at = forward  # the step's own pass is yet to come
            seconds = time.perf_counter() - begun
            self._outside += seconds
            self.not_data(seconds)

    def backward(self, *losses: Any, at: float | None = None) -> None:
        """A backward pass of `losses` begins (the caller makes sure it is the outermost one)."""
        if self.compiled.optimizer is not None:
            self.compiled.look()
        if self.state_changed:
            self._settle()
        if self.has_gradient and self._losses and self.turns.gradient_is_gone():
            self._losses.drop_by_hand()  # as of a batch that the script skips
        self._backward_at = time.time() if at is None else at
        self.pulse.beat(BACKWARD, self.steps)
        if self.core_time.on:
            self.core_time.backward()
        self._waited_before = self.waited if at is None else 0.0
        if self.loaders is not None:
            self.loaders.used()
        for loss in losses:
            self.loss(loss)

    def loss(self, loss: Any) -> None:
        """A part of the current step's loss, which is the sum of all: see `losses`."""
        if self.reader is None:
            return
        value = self.reader.scalar(loss)  # detached: neither graph nor storage is kept alive
        if value is not None and not self._losses.evaluated:
            if isinstance(value, float):
                self.nonfinite.loss(value)
            self._losses.append(value)

    def report_loss(self, loss: Any) -> None:
        """Take the step's loss as the script or its framework reports it."""
        if self._backward_at is None:
            self.backward(loss)
        elif loss is not None:
            self.drop_losses()
            self.loss(loss)

    @property
    def has_losses(self) -> bool:
        """Whether a backward pass was seen since the last step."""
        return bool(self._losses)

    def drop_losses(self, *, evaluates: bool = False) -> None:
        """The gradients of the backward passes since the last step are gone without a step.

        Or the optimizer has taken them, and `evaluates` at another point.
        """
        self._losses.drop(evaluates=evaluates)

    def returned(self, loss: Any) -> None:
        """The gradients of `loss` are returned to the script, which may assign them."""
        value = None if self.reader is None else self.reader.scalar(loss)
        if value is not None:
            self._losses.returned(value, self.steps)

    def grad_norm(self, norm: Any) -> None:
        """The gradient norm that the script computed before this step."""
        self._grad_norm = norm

    def optimizing(self) -> None:
        """An optimizer step begins: the first since the backward pass tells when that was over."""
        self._losses.in_step = True
        if self._optimizer_at is None:
            self._optimizer_at = time.time()
            if self.core_time.on:
                self.core_time.optimizing()

    def step(self, lr: float | None, optimizer: Any = None) -> None:
        """An optimizer step ended. A second optimizer without a backward of its own is no step.

        Of several that have one, `turns` tells whose steps are the script's steps.
        """
        self._losses.in_step = self._losses.evaluated = False
        if self.engine_depth or os.getpid() != self.owner:
            return
        entered = self._backward_at or self._begun_by_hand(optimizer)
        if entered is None:
            self._optimizer_at = None  # of one that steps after the step's end
            return
        if self._batch is not None and optimizer is not None:  # reported before its backward pass
            self._batch = self._backward_at = None
            self._losses.clear()
            return
        losses = list(self._losses) or self._losses.assigned(self.steps)
        norm = self._grad_norm
        self._backward_at = self._grad_norm = None
        self._losses.clear()
        counted = COUNTS if optimizer is None else self.turns.count(optimizer)
        if counted is None:
            at, self._optimizer_at = self._optimizer_at, None
            self.turns.wait(optimizer, entered, at, lr, losses, norm)
            return
        if counted is not COUNTS:
            self._make_up(*counted)
        self.steps += 1
        record = self._record(entered, lr)
        if self.core_time.on:
            self.core_time.step(self.steps)
        self.pulse.beat(FORWARD, self.steps)
        if self.steering is not None:
            self.steering.boundary()
        if self._lines.idle:  # its thread also writes the pulse, where a line waits for a device
            self._lines.rouse()
        self._hand_over(record, losses, norm)

    def _begun_by_hand(self, optimizer: Any) -> float | None:
        """When a step without a backward pass began, if the script sets gradients itself."""
        began = self._optimizer_at  # None: the outer one of two calls inside each other
        if began is None or self._batch is not None or not self.turns.without_backward(optimizer):
            return None
        if self.loaders is not None:
            self.loaders.used()
        return began

    def _make_up(self, turns: list[Turn], missed: int) -> None:
        """Steps that are known to count only now. Of `missed` ones nothing is left but the number.

        What was consumed and waited for since stands with the step that ends now.
        """
        self.steps += missed
        for turn in turns:
            self.steps += 1
            previous, self._previous_end = self._previous_end, turn.ended
            seconds = None if previous is None else turn.ended - previous - self._outside
            self._outside = 0.0
            self._hand_over(turn.record(self.steps, seconds), turn.losses, turn.norm)

    def _record(self, entered: float, lr: float | None) -> StepRecord:
        """The step that just ended, by a steady clock: the wall clock may jump."""
        now = time.perf_counter()
        previous = self._previous_end
        waited, batch = (None, NOTHING) if self.loaders is None else self.loaders.take()
        script_batch = self._batch
        batch = batch if script_batch is None or script_batch is NOTHING else script_batch
        if waited is None and previous is not None and self._forward_at is not None:
            waited = self._forward_at - previous - self._between  # NaN after an evaluation
        seconds = None if previous is None else now - previous - self._outside
        if waited is not None and not 0 <= waited <= (seconds or waited):
            waited = None
        optimizing, paused, peers = self._optimizer_at, self._between, self.waited
        before = self._waited_before
        self._previous_end, self._forward_at, self._between = now, None, 0.0
        self._outside = 0.0
        self._optimizer_at, self.waited, self._waited_before = None, 0.0, 0.0
        memory = None if self.reader is None else self.reader.device_memory()
        return StepRecord(
            *(self.steps, time.time(), seconds, waited, batch, entered),
            *(optimizing, paused, peers, before, lr, memory),
        )

    def _hand_over(self, record: StepRecord, losses: list[Any], norm: Any) -> None:
        """Write the step now, or when the device has its values."""
        reader = self.reader
        if reader is not None and norm is not None:
            norm = reader.scalar(norm)
        if self.tracer is None and self.rewound_from is None:
            if reader is None:
                self._lines.write(record)
                return
            if not reader.waits_for(losses, norm):
                loss = sum(losses) if losses else None
                self.nonfinite.step(record.step, loss, norm)
                self._lines.write(StepRecord._make((*record[:_VALUES], loss, norm)))
                return
        line = record.line()
        if self.rewound_from is not None:
            furthest, self.rewound_from = self.rewound_from, None
            self.rewinds.note(line, furthest)
        if self.tracer is not None:
            self.tracer.step_ended(line)
        for ready in [line] if reader is None else reader.add(line, losses, norm):
            self._emit(ready)

    def logged_step(self, step: int | None, values: dict[str, Any]) -> bool:
        """A step that the script tells itself, where no optimizer's was seen; whether it is one."""
        seen = self._previous_end is not None or (self._backward_at and self.has_optimizer)
        if self._batch is None and seen:
            return False
        self._batch = batch_of_tokens(values.get("tokens"))
        if self.reader is None:
            self.reader = Numbers()
        if step is not None and step > self.steps:
            self.steps = step - 1
        self.report_loss(values["loss"])
        self.grad_norm(values.get("grad_norm"))
        rate = values.get("lr")
        self.step(float(rate) if isinstance(rate, int | float) else None)
        return True

    def _settle(self) -> None:
        """Something was loaded: the training may stand at an earlier step now."""
        self.state_changed = False
        try:
            step = self.rewinds.settle()
        except Exception:
            return
        if step is not None:
            self.rewind(step)

    def rewind(self, step: int) -> None:
        """The script went back to its state of `step`: what comes next, it does again."""
        furthest = self.steps if self.rewound_from is None else self.rewound_from
        if step == self.steps and self.rewound_from is None:
            return
        self.steps = min(step, furthest)
        self.rewound_from = furthest if step < furthest else None
        self._losses.clear()
        self._grad_norm = self._previous_end = self._forward_at = None
        self.turns.forget()
        self.nonfinite.forget()

    def drain(self) -> None:
        """Write what still waits for a device; called once, at the end."""
        if os.getpid() == self.owner:
            self.compiled.look()
            self.arrivals.end()
        if self.tracer is not None and os.getpid() == self.owner:
            self.tracer.finish()
        if self.steering is not None and os.getpid() == self.owner:
            self.steering.end()
        if self.reader is not None and os.getpid() == self.owner:
            for ready in self.reader.drain():
                self._emit(ready)
        if os.getpid() == self.owner:
            self.logged.drain()
            self.weights.write()
        self.pulse.beat(ENDED, self.steps)

    def flush(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Wait for the lines handed over, but not for a disk that stalls; whether all are there."""
        return os.getpid() != self.owner or self._lines.flush(seconds)

    def flush_soon(self) -> None:
        """Have the lines handed over written now; returns at once."""
        if os.getpid() == self.owner:
            self._lines.wake()

    def stop_due(self) -> bool:
        """Whether the step that all ranks agreed to stop at lies behind this rank."""
        if self.compiled.optimizer is not None:
            self.compiled.look()
        if self.state_changed:
            self._settle()
        if self.steering is not None and not self.stops_itself:
            self.steering.before_backward()
        now = time.monotonic()
        if not self.obeys_stops:
            return False
        if self._stop_at is None and now >= self._next_stop_poll:
            self._next_stop_poll = now + _STOP_POLL_SECONDS
            with contextlib.suppress(OSError, ValueError), open(self._stop_file) as file:
                step = int(file.read())
                # A step that lies behind was chosen from old news: the others may have run past
                # it too. The supervisor sees that no one stops and names a later one.
                self._stop_at = step if step >= self.steps else None
        return self._stop_at is not None and self.steps >= self._stop_at

    def group_ready(self, world_size: int, backend: str) -> None:
        """The process group exists: record its real size, which may not be the one asked for."""
        self.world_size = world_size
        self.core_time.on = world_size > 1
        self.note(group_world_size=world_size, backend=backend)

    def note(self, **facts: Any) -> None:
        """Add to this rank's start record what has become known."""
        self.facts.update(facts)
        update_json(self._start_file, self.facts)

    def _emit(self, line: dict[str, Any]) -> None:
        self.nonfinite.line(line)
        self._lines.write(line)
