"""Real exceptions of real libraries, as a rank tells them: each has a kind and a next move."""

from __future__ import annotations

import argparse
import csv
import io
import json
import multiprocessing
import os
import pdb  # noqa: T100
import pickle
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.diagnose.sample import run_document
from workbench.diagnose import known_errors
from workbench.diagnose.failure import explain
from workbench.store.commands import command_for
from workbench.store.layout import RunPaths
from workbench.store.rank_records import RankEnd

torch = pytest.importorskip("torch")
F = torch.nn.functional


def taken_port() -> None:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        first.listen()
        second.bind(first.getsockname())


def full_disk() -> None:
    with Path("/dev/full").open("wb", buffering=0) as file:
        file.write(b"x")


def read_only() -> None:
    raise PermissionError(13, "Permission denied", "/data/train.bin")  # root may write anywhere


def asks() -> None:
    with Path("/dev/null").open() as sys.stdin:
        input("go? ")


def debugs() -> None:
    with Path("/dev/null").open() as nothing:
        pdb.Pdb(stdin=nothing, stdout=io.StringIO()).set_trace()
        nothing.fileno()


def uneven() -> None:
    torch.utils.data.default_collate([torch.ones(3), torch.ones(4)])


def bad_state(change: Callable[[dict[str, Any]], object]) -> None:
    state = torch.nn.Linear(2, 2).state_dict()
    change(state)
    torch.nn.Linear(2, 2).load_state_dict(state)


def half_norm() -> None:
    torch.nn.Linear(2, 2)(torch.ones(1, 2, dtype=torch.bfloat16))


def twice() -> None:
    loss = torch.ones(1, requires_grad=True).exp()
    loss.backward()
    loss.backward()


def torn_checkpoint() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pt"
        torch.save(torch.ones(1000), path)
        path.write_bytes(path.read_bytes()[:500])
        torch.load(path)


def lfs_pointer() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.bin"
        path.write_text("version https://git-lfs.github.com/spec/v1")
        torch.load(path)


def unsafe_pickle() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "args.bin"
        torch.save(argparse.Namespace(lr=1), path)
        torch.load(path)


def nan_backward() -> None:
    with torch.autograd.set_detect_anomaly(True):
        (torch.zeros(1, requires_grad=True).sqrt() * 0).backward()


def without_group() -> None:
    torch.distributed.all_reduce(torch.ones(1))


def recursing() -> None:
    def again() -> None:
        again()

    again()


def bad_table() -> None:
    next(csv.reader(['"a"b'], strict=True))


REAL: dict[str, list[Callable[[], object]]] = {
    "own-module": [lambda: exec(f"from {__name__} import gone")],
    "version-conflict": [
        lambda: exec("from torch.nn import no_such_layer"),
        lambda: exec("from json import gone"),
        lambda: torch.no_such_function,
    ],
    "missing-module": [
        lambda: exec("import no_such_library.part"),
        lambda: __import__("cv3"),
    ],
    "dtype-mismatch": [
        half_norm,
        lambda: torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.float64),
        lambda: F.cross_entropy(torch.ones(2, 3), torch.ones(2, dtype=torch.int32)),
        lambda: torch.nn.Embedding(3, 3)(torch.ones(2)),
        lambda: torch.ones(2, dtype=torch.long).mean(),
    ],
    "device-mismatch": [
        lambda: torch.ones(2, 2) + torch.ones(2, 2, device="meta"),
        lambda: torch.nn.Linear(2, 2, device="meta").to("cpu"),
    ],
    "shape-mismatch": [
        lambda: torch.ones(2, 3) @ torch.ones(2, 3),
        lambda: torch.nn.Linear(3, 2)(torch.ones(2, 4)),
        lambda: torch.ones(2, 3) + torch.ones(2, 4),
        lambda: torch.ones(6).view(4, 2),
        lambda: torch.cat([torch.ones(2, 3), torch.ones(2, 4)], 0),
        lambda: torch.nn.Conv2d(3, 8, 3)(torch.ones(1, 1, 8, 8)),
        lambda: torch.nn.LayerNorm(4)(torch.ones(2, 3)),
        lambda: F.cross_entropy(torch.ones(2, 3), torch.ones(4, dtype=torch.long)),
        lambda: F.binary_cross_entropy(torch.ones(2, 1), torch.ones(2)),
        lambda: torch.nn.BatchNorm1d(3)(torch.ones(1, 3)),
    ],
    "uneven-samples": [uneven],
    "device-string": [lambda: torch.device("gpu:0"), lambda: torch.device("cuda:first")],
    "index-out-of-range": [
        lambda: torch.nn.Embedding(3, 3)(torch.tensor([7])),
        lambda: F.cross_entropy(torch.ones(1, 3), torch.tensor([5])),
        lambda: torch.ones(3)[5],
    ],
    "state-dict-mismatch": [
        lambda: bad_state(lambda state: state.pop("bias")),
        lambda: bad_state(lambda state: state.update(extra=torch.ones(1))),
        lambda: bad_state(lambda state: state.update(bias=torch.ones(5))),
    ],
    "no-gradient": [
        lambda: torch.ones(1).backward(),
        lambda: torch.optim.SGD([], lr=0.1),
    ],
    "graph-reused": [twice],
    "nan-raised": [nan_backward],
    "no-gpu": [lambda: torch.ones(1).cuda()] if not torch.cuda.is_available() else [],
    "no-process-group": [without_group],
    "port-in-use": [taken_port],
    "disk-full": [full_disk],
    "permission": [read_only],
    "missing-file": [
        lambda: Path("/no/such/data.json").read_text(),
        lambda: torch.load("/no/such/model.pt"),
        lambda: subprocess.run(["/no/such/program"], check=True),
    ],
    "file-or-folder": [
        lambda: os.listdir("/etc/passwd"),
        lambda: torch.load("/etc/passwd/model.pt"),
        lambda: Path("/etc").read_text(),
    ],
    "damaged-file": [
        torn_checkpoint,
        lfs_pointer,
        lambda: zipfile.ZipFile("/etc/passwd"),
        lambda: pickle.loads(b""),
    ],
    "no-terminal": [asks, debugs],
    "weights-only": [unsafe_pickle],
    "unpicklable": [
        lambda: pickle.dumps(lambda: 1),
        lambda: pickle.dumps(threading.Lock()),
        lambda: multiprocessing.get_context("spawn").Process(target=lambda: 1).start(),
    ],
    "unreadable-data": [
        lambda: json.loads("{'a': 1}"),
        lambda: float("1,5"),
        lambda: b"\xff\xfe".decode("utf-8"),
        bad_table,
    ],
    "missing-key": [lambda: {"input": 1}["input_ids"], lambda: dict[int, int]()[3]],
    "no-launcher": [lambda: {}["LOCAL_RANK"]],
    "unexpected-argument": [lambda: torch.nn.Linear(2, 2, biass=True)],
    "recursion": [recursing],
    "timeout": [lambda: subprocess.run(["sleep", "5"], timeout=0.01, check=True)],
}  # fmt: skip
CASES = [(kind, number) for kind, makers in REAL.items() for number in range(len(makers))]


def raised(maker: Callable[[], object]) -> Exception:
    try:
        maker()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("it raised nothing")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path)
    made.make_folders()
    made.run.write_text(json.dumps(run_document()))
    return made


@pytest.mark.parametrize(("kind", "number"), CASES)
def test_a_real_exception_has_its_kind_and_a_next_move(
    paths: RunPaths, kind: str, number: int
) -> None:
    error = raised(REAL[kind][number])
    text = f"{type(error).__name__}: {error}"
    ways = {
        "as it is": {"exception": text},
        "as the cause of another": {
            "exception": "RuntimeError: the training failed",
            "chain": [
                {"exception": "RuntimeError: the training failed", "relation": ""},
                {"exception": text, "relation": "caused by"},
            ],
        },
        "in a worker": {"exception": f"{type(error).__name__}: Caught one in worker 0.\n  {text}"},
    }
    for way, end in ways.items():
        known = {"ok": False, "time": 1.0, "where": "train.py:9 in main", "traceback": ""}
        found = explain(paths, {0: RankEnd.of(known | end)}, 1, 5)
        assert found.kind == kind, (way, text, found.kind)
        assert found.next
        assert "logs/rank" not in found.next
        assert "{" not in found.next.replace("{}", "")
        assert found.evidence.startswith("train.py:9 in main")


TOLD = {
    "download-failed": "RuntimeError: Error downloading train-images-idx3-ubyte.gz:\nTried https://x, "
    "got:\n<urlopen error [Errno -3] Temporary failure in name resolution>",
    "host-memory": "MemoryError",
    "out-of-memory": "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 8000000000000 bytes.",
    "access-denied": "OSError: You are trying to access a gated repo.\nMake sure to have access to it",
    "hub-unreachable": "LocalEntryNotFoundError: Cannot find the requested files in the disk cache and "
    "outgoing traffic has been disabled.",
    "not-on-hub": "OSError: gpt22 is not a local folder and is not a valid model identifier listed on "
    "'https://huggingface.co/models'",
    "tokenizer": "ValueError: Asking to pad but the tokenizer does not have a padding token.",
    "unknown-architecture": "ValueError: The checkpoint you are trying to load has model type `new_net` "
    "but Transformers does not recognize this architecture.",
    "loader-worker": "RuntimeError: DataLoader worker (pid 123) is killed by signal: Killed.",
    "spawn-guard": "RuntimeError: An attempt has been made to start a new process before the\n current "
    "process has finished its bootstrapping phase.",
    "cuda-fork": "RuntimeError: Cannot re-initialize CUDA in forked subprocess.",
    "checkpoint-device": "RuntimeError: Attempting to deserialize object on a CUDA device but "
    "torch.cuda.is_available() is False.",
    "checkpoint-layout": "torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
    "ranks:dict_keys([0, 1])\nAssertionError: metadata is None; global metadata read failed: [Errno 2] "
    "No such file or directory: '/runs/a/checkpoint-172/pytorch_model_fsdp_0/.metadata'",
    "wrap-class": "ValueError: Could not find the transformer layer class Blok in the model.",
    "ready-twice": "RuntimeError: Expected to mark a variable ready only once.",
    "circular-import": "ImportError: cannot import name 'f' from partially initialized module 'json'",
    "compile-failed": "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:",
    "open-files": "OSError: [Errno 24] Too many open files",
    "device-mismatch": "RuntimeError: Expected all tensors to be on the same device, but found at least "
    "two devices, cuda:0 and cpu!",
    "dtype-mismatch": "RuntimeError: Input type (float) and bias type (c10::Half) should be the same",
    "nan-raised": "ValueError: Loss is nan, stopping training",
    "peer-lost": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed",
    "version-mismatch": "RuntimeError: CUDA error: no kernel image is available for execution",
}


@pytest.mark.parametrize("kind", sorted(TOLD))
def test_what_cannot_be_raised_here_is_told_by_its_text(kind: str) -> None:
    known = known_errors.recognise(TOLD[kind])
    assert known is not None
    assert known.kind == kind


def test_the_next_move_names_what_the_error_names() -> None:
    import_error = "ImportError: cannot import name 'Trainer2' from 'transformers' (/x/site-packages/transformers/__init__.py)"
    known = known_errors.recognise(import_error)
    assert known is not None
    assert known.action(import_error).startswith(
        "Trainer2 does not exist in the installed version of transf"
    )
    missing = "ModuleNotFoundError: No module named 'cv2'"
    known = known_errors.recognise(missing)
    assert known is not None
    assert "pip install opencv-python-headless" in known.action(missing)
    known = known_errors.recognise("FileNotFoundError")
    assert known is not None
    assert known.action("FileNotFoundError").startswith("The path does not exist")
    items = "FileNotFoundError: [Errno 2] No such file or directory: 'items.csv'"
    assert known.action(items).startswith("items.csv does not exist: relative paths start")
    known = known_errors.recognise(items.replace("items", "/data/items"))
    assert known is not None
    assert known.action("No such file or directory: '/data/a.csv'").startswith(
        "/data/a.csv does not exist on this machine"
    )
    missing = "KeyError: ('layer', 'weight')"
    known = known_errors.recognise(missing)
    assert known is not None
    assert known.action(missing).startswith("Key ('layer', 'weight') does not exist")
    folder = "NotADirectoryError: [Errno 20] Not a directory: 'a.pt/model.pt'"
    known = known_errors.recognise(folder)
    assert known is not None
    assert "in a.pt/model.pt," in known.action(folder)


def in_worker(_: list[dict[str, int]]) -> None:
    raise KeyError("labels")


@pytest.mark.slow  # starts a process
def test_an_error_of_a_loaders_worker_is_the_workers(paths: RunPaths) -> None:
    """Torch raises it again with its own words, as the hook tells: outermost first."""
    with pytest.raises(KeyError) as raised:
        next(iter(torch.utils.data.DataLoader([{"label": 1}], collate_fn=in_worker, num_workers=1)))
    text = f"KeyError: {raised.value.args[0].partition(chr(10))[0]}"
    assert "Caught KeyError in DataLoader worker process 0" in text
    links = [
        {"exception": text},
        {"relation": "in another process", "exception": "KeyError: 'labels'"},
    ]
    end = {"ok": False, "time": 1.0, "exception": text, "where": "train.py:9", "chain": links}
    found = explain(paths, {0: RankEnd.of(end)}, 1, 5)
    assert found.kind == "missing-key"
    assert found.next.startswith("Key labels does not exist")
    assert "KeyError: 'labels' (in DataLoader worker process 0)" in found.cause
    assert "Caught" not in found.cause


def test_no_one_is_sent_to_a_checkpoint_that_is_not_there(paths: RunPaths) -> None:
    end = {"ok": False, "time": 1.0, "exception": "RuntimeError: GPU is lost", "where": None}
    assert "no checkpoint" in explain(paths, {0: RankEnd.of(end)}, 1, 5).next
    (paths.checkpoints / "step-00000004").mkdir()
    (paths.checkpoints / "step-00000004" / "model.json").write_text("{}")
    script = paths.directory / "train.py"
    script.write_text("import torch\n")
    paths.run.write_text(json.dumps({"script": str(script), "arguments": []}))
    known = explain(paths, {0: RankEnd.of(end)}, 1, 5).next
    assert "resume it from" not in known
    assert "not resumed from step 4" in known
    script.write_text("import argparse\nargparse.ArgumentParser().add_argument('--resume-from')\n")
    command = command_for(paths.directory, "resume")
    again = f"resume it from its checkpoint of step 4 ({command})"
    assert again in explain(paths, {0: RankEnd.of(end)}, 1, 5).next


def test_words_of_a_log_are_not_an_error(paths: RunPaths) -> None:
    """What a rank printed earlier has nothing to do with how it ended."""
    paths.rank_log(0).write_text(
        "Permission denied: /x, trying /y\nTimeoutError, again\nKeyError: 'a'\n"
    )
    end = {"ok": False, "time": 1.0, "exception": "ValueError: boom", "where": "train.py:3 in main"}
    found = explain(paths, {0: RankEnd.of(end | {"traceback": "KeyError: 'x'\nEOFError"})}, 1, 5)
    assert found.kind == "rank-failed"
    assert found.next.startswith("Look at train.py:3 in main")


CRASH = """step 3
Fatal Python error: Segmentation fault

Thread 0x00007f0d5c9fe6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f0e8a3ff740 (most recent call first):
  File "/venv/lib/python3.11/site-packages/kernels/ops.py", line 12 in launch
  File "/home/me/train.py", line 40 in main

Extension modules: numpy.core (total: 1)
"""


def test_a_crash_in_c_code_names_the_users_line(paths: RunPaths) -> None:
    paths.launcher_log.write_text(
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n"
        "  exitcode  : -11 (pid: 11342)\n"
    )
    paths.rank_log(1).write_text(CRASH)
    found = explain(paths, {0: None, 1: None}, 1, 5)
    assert found.rank == 1
    assert "launch at train.py:40" in found.next
