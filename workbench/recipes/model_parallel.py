"""Every way to split the GPT at once: pipeline x data x context x tensor parallelism.

Used by gpt.py --pp --dp-shard --cp --tp. The ranks form a grid, the dimension that talks most
innermost (between the GPUs of one node): [pp, dp_replicate, dp_shard, cp, tp]. In this order:

1. pp: build only the blocks of this rank's stage (pipeline.py);
2. tp: cut their matrices (tensor_parallel.py);
3. cp: work on a part of the sequence (context_parallel.py);
4. recompute and compile each block;
5. data parallelism by FSDP2. Context ranks have the same weights and different tokens, just as
   data ranks have, so weights are sharded over dp_shard x cp and gradients averaged over both.
"""

# Accelerate has no type stubs, so whatever it returns is unknown to a strict checker.
# pyright: reportMissingTypeStubs=false, reportPrivateImportUsage=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import argparse
import functools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import context_parallel
import pipeline
import tensor_parallel
import torch
import torch.distributed as dist
from accelerate import Accelerator
from corpus import Share
from gpt_model import GPT, initialise
from gpt_model import loss as cross_entropy
from parameter_names import named_parameters, trained_shapes
from portable import Portable
from recipe_options import record
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from training_state import TorchState

Batch = tuple[Tensor, Tensor]

# Logits of tensor-parallel ranks are a view, and FSDP warns of changing views: nothing here does.
warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")


class ModelParallel:
    """The engine of gpt.py when the model itself is split; same methods as its AcceleratedModel."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.accelerator = Accelerator()  # for processes and printing; it prepares nothing
        self.device = self.accelerator.device
        self._build_meshes()
        self.stages = self._build_stages()
        for stage in self.stages:
            self._split(stage)
        self.parameters = {
            name: weight
            for stage in self.stages
            for name, weight in named_parameters(stage).items()
        }
        weights = list(self.parameters.values())
        self.optimizer = torch.optim.AdamW(weights, betas=(0.9, 0.95), fused=True)
        self.pipeline = self._build_pipeline() if options.pp > 1 else None
        run_record = record(options, self._strategy())
        with torch.device("meta"):
            full = GPT(options.layers, options.hidden, options.heads)
        training = TorchState(self.parameters, self.optimizer)
        self.store = Portable(self.accelerator, training, trained_shapes(full), run_record)

    def _strategy(self) -> str:
        """The grid in a word, for example ``pp2-fsdp2-tp2``."""
        replicas = self.grid["dp_replicate"].size()
        degrees = {"pp": self.options.pp, "dp": replicas, "fsdp": self.options.dp_shard}
        degrees |= {"cp": self.options.cp, "tp": self.options.tp}
        return "-".join(f"{name}{degree}" for name, degree in degrees.items() if degree > 1)

    def _build_meshes(self) -> None:
        options, ranks = self.options, self.accelerator.num_processes
        copy = options.tp * options.cp * options.pp * options.dp_shard
        if ranks % copy:
            raise SystemExit(
                f"gpt.py: error: {ranks} processes cannot be divided: --pp {options.pp} x "
                f"--dp-shard {options.dp_shard} x --cp {options.cp} x --tp {options.tp} = {copy}. "
                f"Start a multiple of {copy}."
            )
        replicas = ranks // copy
        grid = (options.pp, replicas, options.dp_shard, options.cp, options.tp)
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        self.grid = init_device_mesh(self.device.type, grid, mesh_dim_names=names)
        # The same ranks as FSDP sees them, dp_shard and cp in one dimension.
        grid = (options.pp, replicas, options.dp_shard * options.cp, options.tp)
        names = ("pp", "dp_replicate", "shard", "tp")
        self.weights_grid = init_device_mesh(self.device.type, grid, mesh_dim_names=names)
        rank = self.grid.get_local_rank("dp_replicate") * options.dp_shard
        rank += self.grid.get_local_rank("dp_shard")
        self.share = Share(rank, replicas * options.dp_shard, options.micro_batch)

    def _build_stages(self) -> list[GPT]:
        """This rank's part of the model, whole matrices still; without --pp that is all of it."""
        options = self.options
        dealt: list[list[list[int]]] = [[list(range(options.layers))]]
        if options.pp > 1:
            layout = (options.pp, options.virtual_stages, options.schedule)
            dealt = pipeline.blocks_of(options.layers, *layout)
        stages = list[GPT]()
        for blocks in dealt[self.grid.get_local_rank("pp")]:
            stage = GPT(options.layers, options.hidden, options.heads, blocks)
            initialise(stage, options.hidden, options.seed)
            stages.append(stage.to(self.device))
        return stages

    def _split(self, stage: GPT) -> None:
        """Steps 2 to 5, in place."""
        options = self.options
        if options.tp > 1:
            tensor_parallel.split(
                stage, self.weights_grid["tp"], sequence_parallel=options.sequence_parallel
            )
        self.places: Tensor | None = None
        if options.cp > 1:
            mesh, method = self.grid["cp"], options.cp_method
            self.places = context_parallel.split(stage, mesh, method=method, length=options.seq_len)
        # Half precision: FSDP keeps fp32 weights, gathers and computes in bf16, sums in fp32.
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        shard = functools.partial(
            fully_shard,
            mesh=self._data_mesh(),
            mp_policy=half if options.precision == "bf16" else MixedPrecisionPolicy(),
            # In a pipeline every micro-batch would gather the weights again: keep them.
            reshard_after_forward=options.pp == 1,
        )
        for block in stage.blocks.values():
            if options.recompute == "full":
                block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
            if options.compile:
                block.compile()
            shard(block)
        shard(stage)

    def _data_mesh(self) -> DeviceMesh:
        """[shard], or [dp_replicate, shard]: copies of the sharded states."""
        if self.weights_grid["dp_replicate"].size() == 1:
            return self.weights_grid["shard"]
        return self.weights_grid["dp_replicate", "shard"]

    def _build_pipeline(self) -> pipeline.Pipeline:
        options, rank = self.options, self.grid.get_local_rank("pp")
        layout = (options.pp, options.virtual_stages, options.schedule)
        return pipeline.Pipeline(
            self.stages,
            pipeline.stages_of(*layout)[rank],
            pp_mesh_group=self.grid.get_group("pp"),
            num_stages=options.pp * options.virtual_stages,
            schedule=options.schedule,
            micro_batches=options.accumulate,
            loss_function=cross_entropy,
            device=self.device,
        )

    def _own(self, batches: Sequence[Batch]) -> Batch:
        """Inputs and targets of all `batches` [m x B, L], this rank's part of the sequences."""
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        if self.places is None:
            return inputs, targets
        return inputs[:, self.places], targets[:, self.places]

    def step(self, batches: Iterable[Batch], lr: float) -> list[Tensor]:
        """One optimizer step; nan for the losses that only another pipeline stage knows."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        batches = list(batches)
        if self.pipeline:
            losses = self.pipeline.train_step(*self._own(batches))
            losses = losses or [torch.full((), math.nan, device=self.device)] * len(batches)
        else:
            losses = [self._accumulate(batch, batch is batches[-1]) for batch in batches]
        self._clip(1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return losses

    def _accumulate(self, batch: Batch, last: bool) -> Tensor:  # noqa: FBT001
        """Add the gradients of one of a step's micro-batches; talk about them at the last."""
        (stage,) = self.stages
        assert isinstance(stage, FSDPModule)
        sharded = self.weights_grid["shard"].size() > 1
        often = self.options.sync_gradients or ("micro-batch" if sharded else "step")
        # Shards are summed each time, to not hold the whole gradient; their copies at the end.
        stage.set_requires_gradient_sync(last or often == "micro-batch")
        stage.set_requires_all_reduce(last)
        loss = self.loss(batch)
        # Scaled in its gradient, so that observers see the loss itself.
        loss.backward(torch.full_like(loss, 1 / self.options.accumulate))
        return loss.detach()

    def _clip(self, limit: float) -> None:
        """By the true norm: every weight is cut over these dimensions, so the squares add up."""
        weights = list(self.parameters.values())
        gradients = [weight.grad for weight in weights if isinstance(weight.grad, DTensor)]
        square = nn.utils.get_total_norm([gradient.to_local() for gradient in gradients]).square()
        for dimension in ("pp", "shard", "tp"):  # dp_replicate: the same gradient once more
            if self.weights_grid[dimension].size() > 1:
                dist.all_reduce(square, group=self.weights_grid.get_group(dimension))
        nn.utils.clip_grads_with_norm_(weights, limit, square.sqrt())

    def loss(self, batch: Batch) -> Tensor:
        """This rank's mean loss on its part of `batch`; nan where another stage knows it."""
        inputs, targets = self._own([batch])
        if not self.pipeline:
            return cross_entropy(self.stages[0](inputs), targets)
        losses = self.pipeline.evaluate(inputs, targets)
        return losses[0] if losses else torch.full((), math.nan, device=self.device)

    def mean(self, losses: Iterable[Tensor]) -> float:
        """Over the processes too: those of the stage that has the loss. This waits."""
        gathered: Any = self.accelerator.gather(torch.stack([*losses]))
        of_stage = gathered.unflatten(0, (self.options.pp, -1))  # pp is the outermost dimension
        return of_stage[-1].mean().item()
