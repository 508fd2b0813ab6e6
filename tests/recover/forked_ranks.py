"""Ranks as forks of this process, which has torch, Accelerate and the recipe loaded: no imports.

What a launcher would set in a rank's environment comes from Accelerate's own launcher, and the CPU
ranks' changes to Accelerate are made in the fork alone. This process computes nothing itself: a
fork of one that has started threads would hang.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from accelerate.commands import launch as launcher
from accelerate.utils.launch import (
    prepare_deepspeed_cmd_env,
    prepare_multi_gpu_env,
    prepare_simple_launcher_cmd_env,
)

import workbench as wb
from workbench.describe.supported import backend
from workbench.launching.prepare import accelerate_config
from workbench.launching.prepare.layout_flags import layout_flags
from workbench.recipes import recipes

RECIPE = recipes()["gpt"]
_PR_SET_PDEATHSIG = 1
_CPU_RANKS = "workbench.launching.prepare.cpu_ranks"


class RanksFailedError(AssertionError):
    """A rank raised, died or did not end in time; the message has its traceback."""


class Layout:
    """A strategy's ranks: their environment, and the recipe's flags."""

    def __init__(self, strategy: wb.Strategy, folder: Path) -> None:
        texts = accelerate_config.files(
            strategy, "cpu", RECIPE.block, folder=folder, splits=RECIPE.splits
        )
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text)
        self.ranks = strategy.world_size
        self.flags = layout_flags(strategy)
        self.acts_as_accelerator = accelerate_config.CPU_RANKS.name in texts
        self.deepspeed = backend(strategy, RECIPE.splits) == "deepspeed"
        self.environment = self._environment(folder / accelerate_config.CONFIG_NAME)

    def _environment(self, config: Path) -> dict[str, str]:
        line = ["--config_file", str(config), str(RECIPE.path)]
        before = dict(os.environ)
        os.environ.update(accelerate_config.environment("cpu"))
        try:
            given, defaults, _ = launcher._validate_launch_command(
                launcher.launch_command_parser().parse_args(line)
            )
            if self.deepspeed:  # as launch_command does
                fields = ",".join(defaults.deepspeed_config)
                given.deepspeed_fields_from_accelerate_config = fields
                values = prepare_deepspeed_cmd_env(given)[1]
            elif self.ranks > 1:
                values = prepare_multi_gpu_env(given)
            else:
                values = prepare_simple_launcher_cmd_env(given)[1]
        finally:
            os.environ.clear()
            os.environ.update(before)
        return {**values, **accelerate_config.environment("cpu"), "OMP_NUM_THREADS": "1"}

    def run(self, work: Callable[[], Any], seconds: float = 300.0) -> list[Any]:
        """What `work` returns on each rank.

        Raises:
            RanksFailedError: at least one rank did not return; all are ended.
        """
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        forks = [self._fork(rank, port, work) for rank in range(self.ranks)]
        try:
            return _collect(forks, time.monotonic() + seconds)
        finally:
            for pid, _ in forks:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
                os.waitpid(pid, 0)

    def _fork(self, rank: int, port: int, work: Callable[[], Any]) -> tuple[int, int]:
        reading, writing = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            os.close(writing)
            return pid, reading
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no rank outlives us
            faulthandler.enable()
            os.environ.update(self.environment)
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
            sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), self.ranks)
            os.environ.update({name: str(value) for name, value in (numbers | sizes).items()})
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            if self.ranks == 1:
                for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
                    del os.environ[name]
            if self.acts_as_accelerator:
                shim = importlib.import_module(_CPU_RANKS)
                shim.act_as_accelerator()
                if self.deepspeed:
                    shim.keep_deepspeed_from_compiling()
            answer = (True, work())
        except BaseException:  # noqa: BLE001 - told to the parent
            answer = (False, traceback.format_exc())
        with os.fdopen(writing, "wb") as file:
            pickle.dump(answer, file)
        signal.pause()  # until it is ended: a rank that leaves first breaks the others' connections
        os._exit(0)


def _collect(forks: list[tuple[int, int]], deadline: float) -> list[Any]:
    """The ranks' answers in their order."""
    answers, open_pipes = (
        dict[int, bytes](),
        {reading: rank for rank, (_, reading) in enumerate(forks)},
    )
    parts = dict.fromkeys(open_pipes, b"")
    try:
        while open_pipes:
            ready, _, _ = select.select(
                list(open_pipes), [], [], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                raise RanksFailedError(f"ranks {sorted(open_pipes.values())} did not end in time")
            for reading in ready:
                data = os.read(reading, 1 << 20)
                parts[reading] += data
                if not data:
                    rank = open_pipes.pop(reading)
                    answers[rank] = parts[reading]
                    _check(rank, answers[rank])
    finally:
        for reading in parts:
            os.close(reading)
    return [pickle.loads(answers[rank])[1] for rank in range(len(forks))]


def _check(rank: int, answer: bytes) -> None:
    if not answer:
        raise RanksFailedError(f"rank {rank} died")
    returned, value = pickle.loads(answer)
    if not returned:
        raise RanksFailedError(f"rank {rank}:\n{value}")
