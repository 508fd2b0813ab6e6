"""A Hugging Face model with a `tp_plan`, split by transformers itself, on real CPU ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.full]
SCRIPT = Path(__file__).parents[1] / "scripts" / "hf_tp.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


def output(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_llama_trains_to_the_single_process_curve(tmp_path: Path) -> None:
    """Tensor parallel, and FSDP2 x tensor parallel; the norms stay whole, so tp holds over half."""
    output(str(SCRIPT), str(tmp_path))

    def trained(tp: int, fsdp: int) -> tuple[list[float], int]:
        ranks = f"--nproc-per-node={tp * fsdp}"
        said = output(*TORCHRUN, ranks, str(SCRIPT), str(tmp_path), str(tp), str(fsdp))
        losses = [float(loss) for loss in re.findall(r"loss (\S+)", said)]
        assert len(losses) == 10
        return losses, int(re.findall(r"held (\d+)", said)[0])

    alone, whole = trained(1, 1)
    assert alone[-1] < 0.95 * alone[0]
    split, held = trained(2, 1)
    assert split == pytest.approx(alone, rel=1e-4)
    assert whole / 2 < held < 0.51 * whole
    split, held = trained(2, 2)
    assert split == pytest.approx(alone, rel=1e-4)
    assert held < 0.27 * whole
