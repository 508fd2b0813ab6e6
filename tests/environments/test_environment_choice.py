import pytest
from packaging.requirements import Requirement
from venv_setup.choice import TORCH_VERSION, Machine, SystemTorch, decide
from venv_setup.errors import SetupError

from tests.environments.tiny_project import ROOT

CUDA = SystemTorch(version="2.11.0+cu130", file="/opt/torch/__init__.py", accelerator="CUDA 13.0")
ROCM = SystemTorch(version="2.10.0", file="/opt/torch/__init__.py", accelerator="ROCm 7.0")
CPU = SystemTorch(version="2.10.0+cpu", file="/opt/torch/__init__.py")
BROKEN = SystemTorch(version="2.11.0", file="", error="OSError: libcudart.so.13: cannot open")
DRIVER = "/proc/driver/nvidia"
ASKED = f"torch=={TORCH_VERSION}"

CASES = {
    # name: (machine, mode, wants torch, kind, requirement, a word the reason must have)
    "pod": (Machine(CUDA, DRIVER), "auto", True, "system", None, "CUDA 13.0"),
    "image built without a GPU": (Machine(CUDA), "auto", True, "system", None, "never replaced"),
    "AMD image": (Machine(ROCM), "auto", True, "system", None, "ROCm 7.0"),
    "pod, torch not asked for": (Machine(CUDA, DRIVER), "auto", False, "system", None, "CUDA"),
    "bare GPU host": (Machine(None, DRIVER), "auto", True, "own", ASKED, DRIVER),
    "laptop": (Machine(), "auto", True, "own", ASKED, "no NVIDIA driver"),
    "laptop with an index": (
        Machine(index="https://example.org/cpu"), "auto", True, "own", ASKED, "WORKBENCH_TORCH_INDEX",
    ),
    "system torch for the CPU, no GPU": (Machine(CPU), "auto", True, "own", ASKED, "CPU build"),
    "system torch for the CPU, GPU": (Machine(CPU, DRIVER), "auto", True, "own", ASKED, DRIVER),
    "system torch does not import": (Machine(BROKEN, DRIVER), "auto", True, "own", ASKED, "libcudart"),
    "forced own": (Machine(CUDA, DRIVER), "own", True, "own", ASKED, "--torch own"),
    "forced system": (Machine(CPU), "system", True, "system", None, "--torch system"),
    "not asked for": (Machine(None, DRIVER), "auto", False, "none", None, "not asked for"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_rule(case):
    machine, mode, wants_torch, kind, requirement, word = case
    choice = decide(machine, mode=mode, wants_torch=wants_torch)
    assert (choice.kind, choice.requirement) == (kind, requirement)
    assert word in choice.reason
    assert "\n" not in choice.line()
    if kind == "system":
        assert choice.version == machine.system_torch.version
        assert choice.file == machine.system_torch.file


def test_an_index_address_is_never_printed():
    secret = "https://user:secret@example.org/cpu"
    choice = decide(Machine(index=secret), mode="auto", wants_torch=True)
    assert "secret" not in choice.line()


@pytest.mark.parametrize("system", [None, BROKEN])
def test_forcing_a_system_torch_that_is_not_there(system):
    with pytest.raises(
        SetupError, match=r"(?s)it has (none|2\.11\.0, which fails).*Next: Use --torch auto"
    ):
        decide(Machine(system), mode="system", wants_torch=True)


def test_unknown_mode():
    with pytest.raises(SetupError, match="--torch gpu: not one of auto, system, own"):
        decide(Machine(), mode="gpu", wants_torch=True)


def test_the_version_installed_is_one_that_the_project_accepts():
    line = next(
        line for line in (ROOT / "pyproject.toml").read_text().splitlines() if '"torch' in line
    )
    assert TORCH_VERSION in Requirement(line.split('"')[1]).specifier
