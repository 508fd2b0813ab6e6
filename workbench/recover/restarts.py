"""Whether a failed run is worth another attempt: back-off, user errors, crash loops."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.recover.policy import Recovery

_LONGEST_WAIT = 300.0
_HOPELESS_ATTEMPTS = 2  # in a row without getting beyond what was reached before
# What another attempt with the same script, arguments and machine meets again for certain.
_USER_ERRORS = (
    (r"\b(ModuleNotFoundError|ImportError)\b|No module named", "an import that fails"),
    (r"\b(SyntaxError|IndentationError|NameError)\b", "a mistake in the script"),
    (r"\bUsageError\b|error: (unrecognized|the following|argument)", "wrong arguments"),
    (
        (
            r"(CUDA|HIP) (driver )?(error: )?out of memory|OutOfMemoryError|can't allocate memory|"
            r"_STATUS_ALLOC_FAILED"
        ),
        "too little memory",
    ),
    (r"invalid device ordinal|Duplicate GPU detected", "a rank without a GPU of its own"),
    (r"No space left on device|Disk quota exceeded|File too large", "a full disk"),
    (r"\b(FileNotFoundError|PermissionError|IsADirectoryError)\b", "a file that is not there"),
)
# Exceptions that concern another process or machine: the error of a rank whose peer was lost, of a
# hub that does not answer for a while.
_INFRASTRUCTURE = re.compile(
    r"connection|broken pipe|timed? ?out|gloo|nccl|distbackend|distnetwork|distsocket|socket|"
    r"unreachable|input/output error|\bECC\b|\bXid\b|device-side|unspecified launch failure|"
    r"(cuda|hip) error|rendezvous|gaierror|name resolution|too many requests|bad gateway|"
    r"service unavailable|stale file handle|couldn't connect",
    re.IGNORECASE,
)
_ARGUMENTS_EXIT_CODE = 2  # argparse's


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How an attempt ended, as far as deciding about another one goes."""

    message: str
    """What happened, in one sentence."""
    last_step: int
    """The furthest optimizer step that a rank reported."""
    checkpoint_step: int | None = None
    """Step of the newest whole checkpoint now; None: there is none."""
    exception: str | None = None
    """``ValueError: message`` of the rank that failed first; None: it left no word."""
    where: str | None = None
    """``train.py:31 in main`` of that exception."""
    exit_code: int | None = None
    """Of the rank that failed first, or the launcher; below 0: a signal's number."""
    first_step: int = 0
    """Optimizer steps that were done when the attempt began."""
    hang: bool = False
    """The ranks stood still and were ended for it."""
    preempted: bool = False
    """The machine was taken away, with notice."""
    out_of_memory: bool = False
    """The kernel killed a process for want of memory."""

    @property
    def moved(self) -> bool:
        """Whether the attempt made a step."""
        return self.last_step > self.first_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether to start again."""

    restart: bool
    """Start a new attempt."""
    wait_seconds: float
    """How long to wait before it; 0 when there is none."""
    why: str
    """One sentence for the log and the view."""


class Restarts:
    """The restarts of one run: how many are left, how long the next one waits."""

    def __init__(self, policy: Recovery) -> None:
        self.done = 0
        self._policy = policy
        self._previous: Failure | None = None
        self._furthest = 0
        self._saved = 0
        self._idle = 0  # attempts running that got no further than those before
        self._trained = False  # whether one of them has made a step
        self._killed_for_memory = 0

    def decide(self, failure: Failure) -> Decision:
        """Call once per failed attempt, in order."""
        self._account(failure)
        reason = self._against(failure)
        self._previous = failure
        if reason:
            return Decision(restart=False, wait_seconds=0.0, why=reason)
        wait = min(_LONGEST_WAIT, self._policy.backoff_seconds * 2.0 ** min(self.done, 60))
        self.done += 1
        start = (
            "from the beginning"
            if failure.checkpoint_step is None
            else f"from the checkpoint of step {failure.checkpoint_step}"
        )
        return Decision(
            restart=True,
            wait_seconds=wait,
            why=f"Restart {self.done} of {self._policy.restarts} in {wait:g} s, {start}.",
        )

    def _account(self, failure: Failure) -> None:
        saved = failure.checkpoint_step or 0
        further = failure.last_step > self._furthest or saved > self._saved
        self._idle = 0 if further else self._idle + 1
        self._furthest = max(self._furthest, failure.last_step)
        self._saved = max(self._saved, saved)
        self._killed_for_memory += failure.out_of_memory
        self._trained = self._trained or failure.moved

    def _against(self, failure: Failure) -> str:
        """Why there is no other attempt; "" if there is one."""
        policy = self._policy
        if policy.restarts == 0:
            return "No restart: none is allowed (--restarts N allows them)."
        if self.done >= policy.restarts:
            return f"No restart: all {policy.restarts} are used up."
        if failure.hang and not policy.restart_on_hang:
            return "No restart: it is switched off for hangs."
        if self._killed_for_memory > 1:
            return (
                "No restart: processes were killed for memory twice; halve the micro-batch and "
                "double the accumulation."
            )
        if self._idle >= _HOPELESS_ATTEMPTS:
            return (
                f"No restart: {_HOPELESS_ATTEMPTS} attempts running ended without getting beyond "
                f"step {self._furthest} or saving a newer checkpoint."
            )
        return "" if failure.preempted else _interrupted(failure) or self._user_error(failure)

    def _user_error(self, failure: Failure) -> str:
        error = failure.exception or ""
        infrastructure = (
            failure.hang
            or (failure.exit_code is not None and failure.exit_code < 0)
            or (bool(error) and _INFRASTRUCTURE.search(error) is not None)
        )
        for pattern, subject in _USER_ERRORS:
            if re.search(pattern, error or failure.message):
                return f"No restart: {subject} would fail again the same way."
        if infrastructure:
            return ""
        if failure.exit_code == _ARGUMENTS_EXIT_CODE and not failure.moved:
            return "No restart: the script refused its arguments."
        before = self._previous
        same = before is not None and error and _kind(error) == _kind(before.exception or "")
        if (
            same
            and before
            and (before.where, before.last_step)
            == (
                failure.where,
                failure.last_step,
            )
        ):
            return (
                f"No restart: the same error at step {failure.last_step} twice "
                f"({error.splitlines()[0][:120]})."
            )
        if error and not self._trained:
            return "No restart: the script fails before its first step."
        return ""


def _interrupted(failure: Failure) -> str:
    """A wish of a person, also where a tracker passes it on (Weights & Biases does)."""
    if not (failure.exception or "").startswith("KeyboardInterrupt"):
        return ""
    return "No restart: it was interrupted, as by Ctrl-C or a tracker's button to stop a run."


def _kind(exception: str) -> str:
    """The exception's class: its text may hold numbers that differ from time to time."""
    return exception.partition(":")[0].strip()
