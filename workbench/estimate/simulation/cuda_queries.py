"""What ``torch.cuda`` answers about the one simulated card: memory, properties, streams, events."""
# ruff: noqa: SLF001 - torch.cuda's own names
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportPrivateUsage=false

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import torch
import torch.cuda.nvtx

from workbench.estimate.simulation.replacements import Replacements

CARD = torch.device("cuda", 0)
_NAME, _CAPABILITY = "simulated CUDA device", (9, 0)  # Hopper: it has every dtype


class Memory:
    """What ``torch.cuda``'s memory queries answer, from the storages that live now."""

    def __init__(self, trace: Any, card_bytes: int) -> None:
        self._trace, self.total = trace, card_bytes
        self._events = self._live = self._peak = 0

    def allocated(self, *_device: Any) -> int:
        """Bytes of live storages on the card."""
        self._follow()
        return self._live

    def highest(self, *_device: Any) -> int:
        """Highest value of `allocated` since the last reset."""
        self._follow()
        return self._peak

    def reset(self, *_device: Any) -> None:
        """Begin a new highest value."""
        self._follow()
        self._peak = self._live

    def _follow(self) -> None:
        for event in self._trace.events[self._events :]:
            block = self._trace.blocks[event if event >= 0 else -event - 1]
            if not block.on_cpu:
                self._live += block.size if event >= 0 else -block.size
                self._peak = max(self._peak, self._live)
        self._events = len(self._trace.events)


class CardStream(torch.cpu.Stream):
    """A CUDA stream: work on it is in order, so waiting means nothing here."""

    stream_id = device_index = 0
    device_type = 1  # CUDA among torch's device types; FSDP2 asks a stream for it since torch 2.15

    def __init__(self, *_device: Any, **_options: Any) -> None:
        super().__init__()

    def synchronize(self) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Whether all work on it is done."""
        return True

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is recorded from it."""
        return False


class CardEvent:
    """A CUDA event that has always happened."""

    def __init__(self, *_options: Any, **_more: Any) -> None:
        pass

    def synchronize(self) -> None:
        """Return at once."""

    record = wait = lambda *_arguments, **_options: None

    def query(self) -> bool:
        """Whether it has happened."""
        return True

    def elapsed_time(self, _end: Any) -> float:
        """Milliseconds; no time passes on fake tensors."""
        return 0.0


def answer_queries(changes: Replacements, memory: Memory) -> None:
    """Let ``torch.cuda`` and ``torch.accelerator`` speak of one card until `changes` end."""
    for name, answer in (_of_memory(memory) | _of_device() | _of_streams()).items():
        changes.set(torch.cuda, name, answer)
    for name in _SILENT:
        changes.set(torch.cuda, name, _nothing)
    for name in ("range_push", "range_pop", "mark"):
        changes.set(torch.cuda.nvtx, name, _nothing)
    # bitsandbytes binds it on import once it sees a card.
    changes.set(torch._C, "_cuda_getCurrentRawStream", lambda *_device: 0)
    changes.set(torch.accelerator, "is_available", lambda: True)
    changes.set(torch.accelerator, "current_accelerator", lambda *_any, **_more: CARD)
    changes.set(torch.accelerator, "current_stream", CardStream)
    changes.set(torch.accelerator, "synchronize", _nothing)


_SILENT = (
    *("set_device", "synchronize", "empty_cache", "ipc_collect", "init", "_lazy_init"),
    *("manual_seed", "manual_seed_all", "set_rng_state", "set_stream"),
)


def _nothing(*_arguments: Any, **_options: Any) -> None:
    return None


def _of_memory(memory: Memory) -> dict[str, Any]:
    return {
        **dict.fromkeys(("memory_allocated", "memory_reserved"), memory.allocated),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), memory.highest),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), memory.reset),
        "mem_get_info": lambda *_any: (memory.total - memory.allocated(), memory.total),
        "memory_summary": lambda *_any, **_more: f"{memory.allocated()} bytes allocated",
        "memory_stats": lambda *_any: {
            "allocated_bytes.all.current": memory.allocated(),
            "allocated_bytes.all.peak": memory.highest(),
        },
        "get_device_properties": lambda *_any: SimpleNamespace(
            name=_NAME,
            total_memory=memory.total,
            major=_CAPABILITY[0],
            minor=_CAPABILITY[1],
            multi_processor_count=132,
        ),
    }


def _of_device() -> dict[str, Any]:
    return {
        "is_available": lambda: True,
        "is_bf16_supported": lambda *_any, **_more: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "device": lambda *_any: contextlib.nullcontext(),
        "get_device_name": lambda *_any: _NAME,
        "get_device_capability": lambda *_any: _CAPABILITY,
        "get_rng_state": lambda *_any: torch.get_rng_state(),
        "is_current_stream_capturing": lambda: False,
    }


def _of_streams() -> dict[str, Any]:
    default = CardStream()
    current = dict.fromkeys(("current_stream", "default_stream"), lambda *_device: default)
    return current | {
        "Stream": CardStream,
        "Event": CardEvent,
        "stream": torch.cpu.stream,
    }
