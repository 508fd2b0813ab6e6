"""Several ranks on one device: over gloo they train; the launcher and NCCL refuse them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.gpu.battery.values import Check, NotAvailable, Report, Setup

SCRIPT = Path(__file__).with_name("two_ranks_script.py")


def _torchrun(
    ranks: int, setup: Setup, backend: str, result: Path
) -> subprocess.CompletedProcess[str]:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(ranks), str(SCRIPT), setup.device, backend, str(result)),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=75)


def gloo(setup: Setup) -> Report:
    """DDP of two ranks on one card equals one rank with the whole batch."""
    losses = {}
    for ranks in (1, 2):
        result = setup.out / f"gloo-{ranks}.json"
        done = _torchrun(ranks, setup, "gloo", result)
        if done.returncode:
            raise RuntimeError(done.stderr[-3000:])
        losses[ranks] = json.loads(result.read_text())["losses"]
    apart = max(abs(a - b) / abs(a) for a, b in zip(losses[1], losses[2], strict=True))
    return Report(
        measured={"losses": losses},
        checks=(Check(name="largest relative difference of the loss", value=apart, high=1e-4),),
    )


def too_many(setup: Setup) -> Report:
    """The launcher refuses more ranks than GPUs before anything starts."""
    import workbench as wb
    from workbench.errors import UsageError

    if setup.launch_on_cpu:
        raise NotAvailable("there is no GPU to have more ranks than")
    count = len(wb.detect_host().gpus) + 1
    try:
        wb.request("gpt", [], strategy="ddp", processes=count)
        refusal = ""
    except UsageError as error:
        refusal = str(error)
    return Report(
        measured={"refusal": refusal},
        checks=(Check(name="names the GPUs", value="GPU" in refusal, equals=True),),
    )


def nccl(setup: Setup) -> Report:
    """NCCL refuses two ranks on one GPU."""
    from workbench.diagnose.known_errors import KNOWN

    if not setup.on_gpu:
        raise NotAvailable("NCCL needs a GPU that computes")
    done = _torchrun(2, setup, "nccl", setup.out / "nccl.json")
    text = done.stdout + done.stderr
    kinds = [one.kind for one in KNOWN if one.pattern.search(text)]
    return Report(
        measured={
            "exit_code": done.returncode,
            "tail": text[-1500:],
            "kinds": kinds,
        },
        checks=(
            Check(name="NCCL fails", value=done.returncode != 0, equals=True),
            Check(name="the error is known", value=bool(kinds), equals=True),
        ),
    )
