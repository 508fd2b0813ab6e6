"""A Hugging Face model with a `tp_plan`, split by transformers itself, on real CPU ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launch.ranks import output, torchrun

pytestmark = [pytest.mark.slow, pytest.mark.full]
SCRIPT = Path(__file__).parents[1] / "scripts" / "hf_tp.py"
MODULES = ("transformers",)


def test_llama_trains_to_the_single_process_curve(tmp_path: Path) -> None:
    """Tensor parallel, and FSDP2 x tensor parallel; the norms stay whole, so tp holds over half."""
    output(SCRIPT, tmp_path, modules=MODULES)

    def trained(tp: int, fsdp: int) -> tuple[list[float], int]:
        said = torchrun(tp * fsdp, SCRIPT, tmp_path, tp, fsdp, modules=MODULES)
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
