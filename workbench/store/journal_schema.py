"""What was done with a run, asked of its training, or played in a rehearsal; see `schema`, too."""

from __future__ import annotations

from typing import TypedDict


class RehearsedLine(TypedDict, total=False):
    """``rehearsal.jsonl``: what happened on the simulated clock."""

    time: float  # Unix seconds of the run's clock, which runs ahead of the host's
    event: str  # rented, released, working, saved, interrupted, throttled, finished
    node: int  # rented, released: the machine's place in the job
    why: str  # released: returned, taken, failed; interrupted: spot, gpu-lost, ecc, host, trace
    gpu: int  # interrupted, throttled
    step: int  # steps done
    seconds: float  # saved: what it held the training up


class ActionLine(TypedDict, total=False):
    """``actions.jsonl``: what was done with the run, and who asked.

    What is asked at a step boundary has two lines: when it is asked, and, by rank 0, what came of
    it. The last three keys are of that one alone.
    """

    time: float
    by: str  # "mcp", and the name of the client that it serves; cli, python, dashboard
    action: str  # launch, stop, resume; set, look, checkpoint, evaluate
    arguments: list[str]  # the command's, without secrets
    limits: str  # what it had to keep to, as a sentence
    step: int  # the optimizer step after which it was done
    done: bool
    why: str  # it was not done


class SteeringRequest(TypedDict, total=False):
    """``steering/NAME/request.json``. Beside it, of each rank R: ``heard-R`` ("in time", "late").

    ``decision`` is written once, by the first rank that knows all answers: "go", or why not.
    ``result-R.json``: {"rank", "done", "at", "why"} and "changes" (`capture.overrides.Override`),
    "tensors", "modules" or "path".
    """

    action: str  # set, look, checkpoint, evaluate
    at: int  # after this optimizer step
    ranks: int  # how many have to answer
    words: list[str]  # for the journal
    by: str
    values: dict[str, float]  # set: by their names in the optimizer's groups
    hold: bool  # set: the learning rate stays there, whatever the schedule says
    module: str  # look: its name; "" = name them all
    kinds: list[str]  # look: weights, gradients, activations
