"""Let ranks on CPU take the code paths that Accelerate keeps for accelerators; then run the script.

    accelerate launch --config_file accelerate.yaml cpu_ranks.py train.py ARGUMENTS
    accelerate launch --config_file accelerate.yaml cpu_ranks.py -m package.train ARGUMENTS

Accelerate gives FSDP, DeepSpeed and its parallelism config to accelerator process types only: as
MULTI_CPU the same config file quietly trains with plain DDP. This file makes gloo ranks on CPU an
ordinary "accelerator box" for it. It needs torch and accelerate alone, is copied beside the config
file of the run, and is not used where there is a GPU. What it changes, each under test
(tests/launch/test_cpu_ranks.py):

- the process type becomes MULTI_GPU with the gloo backend, on the device "cpu", also where the
  script asks for a CPU (transformers' `use_cpu`): Accelerate would make no process group then;
- FSDP2's CPU offload does not pin memory (pinning needs an accelerator);
- weights of 8 bits (torchao's fp8) are gathered as bytes: gloo knows no such number;
- DeepSpeed takes its CPU accelerator, and gloo alone: its shared-memory extension would be compiled
  at first use, for a minute, and only where g++ and ninja are;
- DeepSpeed's autotuner, which no rank uses, does not import mlflow: that costs each rank 2 s and
  brings threads and pyarrow, beside which ranks have crashed at their exit.
"""

from __future__ import annotations

import functools
import importlib
import os
import runpy
import sys
from typing import Any

os.environ.pop("ACCELERATE_USE_CPU", None)
os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
os.environ["ACCELERATE_BYPASS_DEVICE_MAP"] = "true"  # DDP without device ids
os.environ["DS_ACCELERATOR"] = "cpu"


def act_as_accelerator() -> None:
    """Change what Accelerate decides for this process; leave with a sentence if it cannot be."""
    import torch  # noqa: PLC0415  (the environment above comes first)
    from accelerate import state as accelerate_state  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    from accelerate.state import PartialState  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    from accelerate.utils import DistributedType  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]
    from torch.distributed import fsdp  # noqa: PLC0415

    if torch.cuda.is_available():
        sys.exit("cpu_ranks.py is for hosts without a GPU. Start the script itself.")
    if not hasattr(PartialState, "_prepare_backend"):
        sys.exit(
            "This release of accelerate chooses its process type elsewhere than 1.10 to 1.15 do. "
            "Install accelerate<1.16 to train sharded on CPU."
        )

    def prepare_backend(*_arguments: Any, **_options: Any) -> tuple[str, Any]:
        return "gloo", DistributedType.MULTI_GPU

    setattr(PartialState, "_prepare_backend", prepare_backend)  # noqa: B010  (a private name)
    begin: Any = vars(PartialState)["__init__"]

    def init(self: Any, cpu: bool = False, **options: Any) -> None:  # noqa: ARG001, FBT001, FBT002
        begin(self, cpu=False, **options)

    setattr(PartialState, "__init__", init)  # noqa: B010
    begin_all: Any = vars(accelerate_state.AcceleratorState)["__init__"]

    def init_accelerator_state(self: Any, *arguments: Any, **options: Any) -> None:
        os.environ.pop("ACCELERATE_USE_CPU", None)  # a script may set it again
        begin_all(
            self, *arguments, **{**options, "cpu": False}
        )  # given by name, as Accelerator does

    setattr(accelerate_state.AcceleratorState, "__init__", init_accelerator_state)  # noqa: B010
    construct = fsdp.CPUOffloadPolicy.__init__

    def without_pinning(self: Any, pin_memory: bool = False) -> None:  # noqa: FBT001, FBT002
        construct(self, pin_memory=pin_memory)

    setattr(fsdp.CPUOffloadPolicy, "__init__", without_pinning)  # noqa: B010


def gather_as_bytes() -> None:
    """Let gloo gather numbers of 8 bits, under both names that torch has for it."""
    import torch  # noqa: PLC0415  (the environment above comes first)
    import torch.distributed as dist  # noqa: PLC0415

    def in_bytes(gather: Any) -> Any:
        @functools.wraps(gather)
        def gathered(output_tensor: Any, input_tensor: Any, *more: Any, **options: Any) -> Any:
            both = (output_tensor, input_tensor)
            if input_tensor.is_floating_point() and input_tensor.element_size() == 1:
                both = tuple(tensor.view(dtype=torch.uint8) for tensor in both)
            return gather(*both, *more, **options)

        return gathered

    for name in ("all_gather_single", "all_gather_into_tensor"):
        if hasattr(dist, name):
            setattr(dist, name, in_bytes(getattr(dist, name)))


def keep_deepspeed_from_compiling() -> None:
    """Make DeepSpeed's communication use gloo as it is; leave with a sentence if it cannot be."""
    unused: Any = sys.modules
    hidden = unused.setdefault("mlflow", None) is None  # its import fails, which is allowed for
    # By name: `import deepspeed.comm.torch as module` would bind the real torch.
    module = importlib.import_module("deepspeed.comm.torch")
    if hidden:
        del unused["mlflow"]
    if not hasattr(module, "build_shm_op"):
        sys.exit(
            "This release of deepspeed builds its CPU extension elsewhere than 0.14 to 0.19 do. "
            "Install deepspeed<0.20 to train with it on CPU."
        )
    setattr(module, "build_shm_op", lambda: None)  # noqa: B010  (a module, not ours)


if __name__ == "__main__":
    act_as_accelerator()
    gather_as_bytes()
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        keep_deepspeed_from_compiling()
    sys.argv = sys.argv[1:]
    if sys.argv[0] == "-m":
        sys.argv = sys.argv[1:]
        sys.path[0] = os.getcwd()  # noqa: PTH109  (as python -m has it)
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))  # noqa: PTH100, PTH120
    runpy.run_path(sys.argv[0], run_name="__main__")
